// A cache that a study judges: a recipe at a budget, made from a measurement or read from a plan file, and
// the tokens that stay exact around it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/calibration.h"
#include "src/engine/context.h"

namespace blockgtq {

/// The tokens that a cache keeps exactly.
struct Protection {
  int sinks = 0, recent = 0;
  /// "no buffer", "4 sinks", "4 sinks + 64 recent", "64 recent".
  std::string Name() const;
};

/// "none", "sinks" (4 and 0), "window" (4 and 64), or SINKS+RECENT, as "1+128". Errors: kInvalidArgument.
Result<Protection> ParseProtection(const std::string& text);

struct TestedCache {
  std::string recipe{};
  double k_bits = 0, v_bits = 0;
  uint64_t seed = 0;                                  // of the rotations
  std::optional<Plan> plan{};                         // packed recipes
  std::shared_ptr<const SimulatedHeads> simulated{};  // simulated ones
  std::string file{};                                 // of a plan that was read: its name without the folder
  int64_t memory_tokens = 0;                          // RecipeOptions::memory_tokens

  /// "aligned K3V3", "aligned K3V3 of my.safetensors", "pmkvq K3V3 in 4096 tokens"; a format of one width has
  /// its name alone.
  std::string Name() const;
  /// Stored, K + V, norms and padding included.
  double bytes_per_token_per_head() const;
};

/// The budgets at which a recipe takes part in a study of these widths, k_bits and v_bits in pairs: a format
/// of one width has that one alone. Errors: kInvalidArgument (lists of different lengths, an uncompressed
/// recipe); kNotFound.
Result<std::vector<RecipeOptions>> BudgetsOf(const std::string& recipe, std::span<const double> k_bits,
                                             std::span<const double> v_bits, uint64_t seed);

/// measured: every head, [layers * kv_heads]. Errors: those of MakePlan and MakeSimulated.
Result<TestedCache> MakeTestedCache(const LoadedModel& model, std::span<const HeadCalibration> measured,
                                    const std::string& recipe, const RecipeOptions& bits);
/// Errors: those of LoadPlan; kMismatch when the plan is another model's.
Result<TestedCache> TestedCacheFromPlan(const LoadedModel& model, const std::string& path);

/// A context with that cache and room for `tokens` tokens; the cache must outlive it. Errors: those of
/// Context::Create.
Result<std::unique_ptr<Context>> MakeTestedContext(LoadedModel& model, const TestedCache& cache,
                                                   const Protection& protection, int64_t tokens);
/// The same with an uncompressed fp16 cache: the yardstick.
Result<std::unique_ptr<Context>> MakeHalfContext(LoadedModel& model, int64_t tokens);

}  // namespace blockgtq
