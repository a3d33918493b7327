// The generators behind every seed: SplitMix64 (Steele, Lea and Flood 2014) to spread one, xoshiro256**
// (Blackman and Vigna 2018) to draw from. The same numbers on every platform.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace blockgtq {

/// The 64-bit finaliser: a bijection whose every output bit depends on every input bit.
constexpr uint64_t MixBits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}
  constexpr uint64_t Next() { return MixBits(state_ += 0x9e3779b97f4a7c15ull); }

 private:
  uint64_t state_;
};

/// xoshiro256** 1.0, its state filled by four SplitMix64 outputs.
class Xoshiro256 {
 public:
  explicit Xoshiro256(uint64_t seed) {
    SplitMix64 mix(seed);
    for (uint64_t& s : state_) s = mix.Next();
  }
  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  /// In (0, 1], 53 bits: a logarithm of it never sees zero.
  double Uniform() { return (static_cast<double>(Next() >> 11) + 1.0) * 0x1p-53; }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace blockgtq
