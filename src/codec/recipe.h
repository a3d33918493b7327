// Recipes: how a plan, or a simulated cache, is made from statistics. The registry is the table in recipe.cc:
// one file and one line a recipe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/codec/simulated.h"
#include "src/core/statistics.h"

namespace blockgtq {

/// How a recipe's cache is kept.
enum class CacheKind {
  kPacked,     // records of record.h
  kHalf,       // uncompressed fp16
  kFloat,      // uncompressed fp32
  kSimulated,  // what codes would read as, simulated.h: no packed kernel
};

/// Calibration of one KV head: statistics, plus the vectors that norm references are chosen from.
struct HeadCalibration {
  HeadStatistics statistics;
  std::vector<float> keys;    // [tokens, head_dim] pre-RoPE, block order
  std::vector<float> values;  // [tokens, head_dim]; empty for latents
  int latent_dims = 0;        // > 0: the last latent_dims of a key are its value (MLA)
};

struct RecipeOptions {
  double k_bits = 3, v_bits = 3;  // average code bits a dim
  uint64_t seed = 2;  // of the rotations; head_builder.h derives a stream from (seed, layer, head, group)
  /// Of a recipe that narrows codes as memory fills: coded tokens that fill it. 0: it is full from the start.
  int64_t memory_tokens = 0;
};

/// What a simulated recipe is made from.
struct SimulationInput {
  int layers = 0, kv_heads = 0;
  std::shared_ptr<const RopeTable> rope;         // names head_dim, and the model's channel order
  std::span<const HeadCalibration> calibration;  // [layers * kv_heads]; or empty, where !Recipe::calibrated
};

struct Recipe {
  std::string_view name;
  std::string_view summary;  // one line for --help
  CacheKind kind = CacheKind::kPacked;
  /// Builds one head's plan (kPacked only; nullptr otherwise); PlanHead below calls it.
  /// Errors: kInvalidArgument when the bits cannot be honoured (out of range, fractional V) or the
  /// calibration has wrong sizes; kNonFinite when it has NaN or infinite entries.
  Result<HeadPlan> (*plan_head)(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                                int kv_head) = nullptr;
  /// Builds every head (kSimulated without twin_of only; nullptr otherwise), [layers * kv_heads].
  /// Errors: as plan_head; kUnsupported for a head dim that the format does not have.
  Result<std::vector<std::unique_ptr<const SimulatedHead>>> (*simulate)(
      const SimulationInput& input, const RecipeOptions& options) = nullptr;
  std::string_view twin_of = {};  // "sim:NAME": the packed recipe that it simulates
  bool calibrated = false;        // simulate needs measured heads
  double k_bits = 0, v_bits = 0;  // of a format that has one width each; 0: as the options say
  int sinks = -1, recent = -1;    // exact tokens that are part of the method; -1: as for every other recipe
  bool narrows = false;           // codes as memory fills: RecipeOptions::memory_tokens
};

/// One head's plan by a packed recipe. A head of latents is planned in two parts, each with its own groups:
/// the rope key at k_bits, and the latent at the larger of k_bits and v_bits, since it is key and value.
/// Errors: those of Recipe::plan_head.
Result<HeadPlan> PlanHead(const Recipe& recipe, const HeadCalibration& calibration,
                          const RecipeOptions& options, int layer, int kv_head);

std::span<const Recipe> Recipes();
/// kNotFound lists the known names.
Result<const Recipe*> FindRecipe(std::string_view name);

/// Ok where the recipe honours memory_tokens. Errors: kInvalidArgument (out of range; not 0 for a recipe that
/// does not narrow).
Status CheckMemoryTokens(const Recipe& recipe, int64_t memory_tokens);

/// Every head of a recipe as a simulation: a simulated recipe's own, or the twin of a packed one.
/// Errors: kInvalidArgument for uncompressed recipes and for bits that cannot be honoured, naming those there
/// are; those of Recipe::plan_head and Recipe::simulate.
Result<SimulatedHeads> Simulate(const Recipe& recipe, const SimulationInput& input,
                                const RecipeOptions& options);

/// Norm references of every group of `head` from the calibration vectors (after T is set). A group's norm
/// needs no rotation: |y_g|^2 = sum over its blocks of c_i^2 |k(i) - mu(i)|^2, RoPE and Haar being
/// orthogonal, so pre-RoPE keys serve. The norm correction (within a few per cent of 1) is left to the
/// headroom.
void ChooseNormReferences(const HeadCalibration& calibration, HeadPlan& head);

}  // namespace blockgtq
