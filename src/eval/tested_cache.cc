// See tested_cache.h.
#include "src/eval/tested_cache.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "src/engine/plan_source.h"
#include "src/formats/plan_file.h"

namespace blockgtq {
namespace {

constexpr int kDefaultSinks = 4, kDefaultRecent = 64, kMostSinks = 64, kMostRecent = 1 << 20;

/// A whole number that is all of `text`, within 0..most; -1 otherwise.
int WholeNumber(std::string_view text, int most) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most ? value : -1;
}

}  // namespace

std::string Protection::Name() const {
  if (sinks == 0 && recent == 0) return "no buffer";
  if (recent == 0) return fmt::format("{} sinks", sinks);
  if (sinks == 0) return fmt::format("{} recent", recent);
  return fmt::format("{} sinks + {} recent", sinks, recent);
}

Result<Protection> ParseProtection(const std::string& text) {
  if (text == "none") return Protection{};
  if (text == "sinks") return Protection{kDefaultSinks, 0};
  if (text == "window") return Protection{kDefaultSinks, kDefaultRecent};
  const size_t plus = text.find('+');
  if (plus != std::string::npos) {
    const Protection own{WholeNumber(std::string_view(text).substr(0, plus), kMostSinks),
                         WholeNumber(std::string_view(text).substr(plus + 1), kMostRecent)};
    if (own.sinks >= 0 && own.recent >= 0) return own;
  }
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("protection '{}': must be none, sinks, window, or SINKS+RECENT such as 4+64 (at "
                            "most {} and {})",
                            text, kMostSinks, kMostRecent));
}

std::string TestedCache::Name() const {
  const Result<const Recipe*> found = FindRecipe(recipe);
  if (found.ok() && (*found)->k_bits > 0) return recipe;
  return fmt::format("{} {}{}{}{}", recipe, BitsName(k_bits, v_bits), file.empty() ? "" : " of ", file,
                     memory_tokens > 0 ? fmt::format(" in {} tokens", memory_tokens) : "");
}

double TestedCache::bytes_per_token_per_head() const {
  if (plan.has_value()) return plan->bytes_per_token_per_head();
  return simulated != nullptr ? simulated->bytes_per_token_per_head() : 0;
}

Result<std::vector<RecipeOptions>> BudgetsOf(const std::string& recipe, std::span<const double> k_bits,
                                             std::span<const double> v_bits, uint64_t seed) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* found, FindRecipe(recipe));
  if (found->kind != CacheKind::kPacked && found->kind != CacheKind::kSimulated) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("recipe {}: keeps an uncompressed cache, there is nothing to study", recipe));
  }
  if (found->k_bits > 0) return std::vector<RecipeOptions>{{found->k_bits, found->v_bits, seed}};
  if (k_bits.empty() || k_bits.size() != v_bits.size()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("-K has {} widths and -V {}: they are taken in pairs, name as many of each",
                              k_bits.size(), v_bits.size()));
  }
  std::vector<RecipeOptions> budgets;
  for (size_t i = 0; i < k_bits.size(); ++i) {
    for (const RecipeOptions& other : budgets) {
      if (other.k_bits == k_bits[i] && other.v_bits == v_bits[i]) {
        return Status(
            ErrorCode::kInvalidArgument,
            fmt::format("-K, -V: {} stands there twice; name each once", BitsName(k_bits[i], v_bits[i])));
      }
    }
    budgets.push_back({k_bits[i], v_bits[i], seed});
  }
  return budgets;
}

Result<TestedCache> MakeTestedCache(const LoadedModel& model, std::span<const HeadCalibration> measured,
                                    const std::string& recipe, const RecipeOptions& bits) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* found, FindRecipe(recipe));
  TestedCache cache{.recipe = recipe, .k_bits = bits.k_bits, .v_bits = bits.v_bits, .seed = bits.seed};
  if (found->kind == CacheKind::kSimulated) {
    BGTQ_ASSIGN_OR_RETURN(SimulatedHeads heads, MakeSimulated(model, measured, recipe, bits));
    cache.memory_tokens = bits.memory_tokens;
    cache.simulated = std::make_shared<const SimulatedHeads>(std::move(heads));
  } else {
    BGTQ_ASSIGN_OR_RETURN(cache.plan, MakePlan(model, measured, recipe, bits));
  }
  return cache;
}

Result<TestedCache> TestedCacheFromPlan(const LoadedModel& model, const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(Plan plan, LoadPlan(path));
  BGTQ_RETURN_IF_ERROR(
      plan.model.ExpectEqual(model.fingerprint())
          .WithContext(fmt::format("{}: this plan was made for another model (calibrate again)", path)));
  TestedCache cache{.recipe = plan.recipe, .k_bits = plan.k_bits, .v_bits = plan.v_bits, .seed = plan.seed};
  cache.file = std::filesystem::path(path).filename().string();
  cache.plan = std::move(plan);
  return cache;
}

Result<std::unique_ptr<Context>> MakeTestedContext(LoadedModel& model, const TestedCache& cache,
                                                   const Protection& protection, int64_t tokens) {
  CacheOptions options;
  options.kind = cache.simulated != nullptr ? CacheKind::kSimulated : CacheKind::kPacked;
  options.sinks = protection.sinks;
  options.recent = protection.recent;
  options.max_tokens = tokens;
  options.simulated = cache.simulated;
  return Context::Create(model, options, cache.plan.has_value() ? &*cache.plan : nullptr);
}

Result<std::unique_ptr<Context>> MakeHalfContext(LoadedModel& model, int64_t tokens) {
  CacheOptions options;
  options.kind = CacheKind::kHalf;
  options.max_tokens = tokens;
  return Context::Create(model, options, nullptr);
}

}  // namespace blockgtq
