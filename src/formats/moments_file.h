// Moments on disk: what a model's heads saw while it served or generated (engine/moments_watch.h), from which
// `calibrate --adapt` makes a plan. A .safetensors file.
//
// __metadata__ (all strings)
//   format "blockgtq-moments"   version "1"   model (as in plan_file.h)
//   seen      tokens that were run while someone looked (decimal, at most 2^53)
//   tokens    that the statistics stand for, older ones discounted: at most seen
//   vectors   n, kept of each head        latent_dims   0: ordinary keys and values
// Tensors, H = layers * kv_heads, D = head_dim: query_energy, centred_key_energy F64 [H, D / 2], key_mean F64
// [H, D]; keys and (without latents) values F32 [H, n, D], before RoPE, in block order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/recipe.h"

namespace blockgtq {

inline constexpr char kMomentsFormat[] = "blockgtq-moments";
/// Counts of tokens are exact in double.
inline constexpr int64_t kMaxMomentsTokens = int64_t{1} << 53;

struct ModelMoments {
  ModelFingerprint model;
  int64_t seen = 0;
  std::vector<HeadCalibration> heads;  // [layers * kv_heads], equally many tokens and vectors each

  int64_t tokens() const { return heads.empty() ? 0 : heads.front().statistics.tokens; }
};

/// Written atomically. Errors: kInvalidArgument (no heads or vectors, sizes or counts that disagree, values
/// that are not finite), kIo.
Status SaveMoments(const ModelMoments& moments, const std::string& path);
/// Errors: kNotFound, kIo, kCorruptFile (format, sizes, an energy that is negative or not finite),
/// kUnsupported (newer format version).
Result<ModelMoments> LoadMoments(const std::string& path);
/// The same over bytes in memory, for the fuzzer.
Result<ModelMoments> ParseMoments(std::span<const std::byte> bytes, const std::string& name);

}  // namespace blockgtq
