// Recipes: how a plan is made from statistics. The registry is the table in recipe.cc: one file and one line
// a recipe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/core/statistics.h"

namespace blockgtq {

/// How a recipe's cache is kept.
enum class CacheKind {
  kPacked,  // records of record.h
  kHalf,    // uncompressed fp16
  kFloat,   // uncompressed fp32
};

/// Calibration of one KV head: statistics, plus the vectors that norm references are chosen from.
struct HeadCalibration {
  HeadStatistics statistics;
  std::vector<float> keys;    // [tokens, head_dim] pre-RoPE, block order
  std::vector<float> values;  // [tokens, head_dim]
};

struct RecipeOptions {
  double k_bits = 3, v_bits = 3;  // average code bits a dim
  uint64_t seed = 2;  // of the rotations; head_builder.h derives a stream from (seed, layer, head, group)
};

struct Recipe {
  std::string_view name;
  std::string_view summary;  // one line for --help
  CacheKind kind;
  /// Builds one head's plan (kPacked only; nullptr otherwise).
  /// Errors: kInvalidArgument when the bits cannot be honoured (out of range, fractional V) or the
  /// calibration has wrong sizes; kNonFinite when it has NaN or infinite entries.
  Result<HeadPlan> (*plan_head)(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                                int kv_head);
};

std::span<const Recipe> Recipes();
/// kNotFound lists the known names.
Result<const Recipe*> FindRecipe(std::string_view name);

/// Norm references of every group of `head` from the calibration vectors (after T is set). A group's norm
/// needs no rotation: |y_g|^2 = sum over its blocks of c_i^2 |k(i) - mu(i)|^2, RoPE and Haar being
/// orthogonal, so pre-RoPE keys serve. The norm correction (within a few per cent of 1) is left to the
/// headroom.
void ChooseNormReferences(const HeadCalibration& calibration, HeadPlan& head);

}  // namespace blockgtq
