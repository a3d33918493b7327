// The keys at position 0, which most heads attend to from everywhere: nearly the same vector in every text,
// so the error that its code makes is the same too, and a rotation can be chosen under which it does little.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/codec/recipe.h"
#include "src/engine/loaded_model.h"

namespace blockgtq {

/// Of one KV head.
struct FirstKeys {
  std::vector<float> keys;           // [windows, head_dim], post-RoPE at position 0, block order
  std::vector<double> query_moment;  // [head_dim, head_dim]: mean of q q' over tokens and the group's query
                                     // heads, q post-RoPE
};

/// Runs windows of the text as sequences of their own; `threads` sum their moments. Returns every head,
/// [layers * kv_heads]. Errors: kInvalidArgument (no whole window); those of Context::Create and Run.
Result<std::vector<FirstKeys>> MeasureFirstKeys(LoadedModel& model, std::span<const Token> tokens,
                                                int64_t window, int threads);

/// Of `candidates` seeds from bits.seed on, the one whose plan makes the least mean square of the logits'
/// error at position 0. Errors: those of Recipe::plan_head.
Result<uint64_t> ChooseRotation(const Recipe& recipe, const HeadCalibration& calibration,
                                const RecipeOptions& bits, const FirstKeys& first,
                                const std::shared_ptr<const RopeTable>& rope, int layer, int kv_head,
                                int candidates);

}  // namespace blockgtq
