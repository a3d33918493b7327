// SplitMix64 (Steele, Lea and Flood 2014): a generator whose outputs seed others, and a mixer of integers.
#pragma once

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

}  // namespace blockgtq
