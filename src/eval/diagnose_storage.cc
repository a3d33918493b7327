// See diagnose_storage.h.
#include "src/eval/diagnose_storage.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "src/codec/logit_error.h"
#include "src/engine/calibration.h"
#include "src/eval/plan_picture.h"

namespace blockgtq {
namespace {

constexpr double kSmallestBits = 1, kLargestBits = 8;

/// The packed recipe behind a name: itself, or what a simulated twin stands for; null for other simulations.
Result<const Recipe*> PlannedRecipe(const Recipe& recipe) {
  if (recipe.plan_head != nullptr) return &recipe;
  if (recipe.twin_of.empty()) return static_cast<const Recipe*>(nullptr);
  return FindRecipe(recipe.twin_of);
}

/// Values stay exact here, so their width is any that the recipe has: the default of packed recipes,
/// otherwise the format's own or that of the keys. A latent is coded at no fewer bits than values: the least.
RecipeOptions OptionsFor(const ModelConfig& config, const Recipe& recipe, bool planned, double k_bits,
                         uint64_t seed) {
  RecipeOptions options;
  options.k_bits = k_bits;
  options.seed = seed;
  if (!planned) options.v_bits = recipe.v_bits > 0 ? recipe.v_bits : k_bits;
  if (planned && config.latent.rank > 0) options.v_bits = 1;
  return options;
}

/// A head of a few tokens without meaning.
HeadCalibration MadeUpHead(const ModelConfig& config) {
  const int dim = config.head_dim;
  HeadCalibration head;
  head.latent_dims = config.latent.rank;
  StatisticsAccumulator accumulator(dim);
  for (int t = 0; t < kPageTokens; ++t) {
    std::vector<float> x(static_cast<size_t>(dim));
    for (int d = 0; d < dim; ++d) x[static_cast<size_t>(d)] = static_cast<float>((t * 7 + d * 3) % 11 - 5);
    accumulator.AddQuery(x.data());
    accumulator.AddKey(x.data());
    head.keys.insert(head.keys.end(), x.begin(), x.end());
  }
  if (head.latent_dims == 0) head.values = head.keys;
  head.statistics = accumulator.Finish();
  return head;
}

double MeanKeyBytes(const SimulatedHeads& heads) {
  double sum = 0;
  for (const auto& head : heads.heads) sum += head->key_bytes_per_token();
  return sum / static_cast<double>(heads.heads.size());
}

/// Budgets `first`, `first` + step, ... that a recipe takes, lowest first.
struct BudgetGrid {
  double first = kSmallestBits, step = 1;
  int count = 0;
  double at(int i) const { return first + step * i; }
};

/// A sixteenth of a bit where the recipe takes fractions, else whole bits.
BudgetGrid GridOf(const StorageSource& source, const std::string& recipe) {
  constexpr double kFine = 1.0 / 16;
  const bool fine = MakeKeyStorage(source, recipe, 2 + kFine).ok();
  const double step = fine ? kFine : 1;
  return {kSmallestBits, step, static_cast<int>((kLargestBits - kSmallestBits) / step) + 1};
}

}  // namespace

std::string KeyStorage::Name() const { return fmt::format("{} K{:g}", recipe, k_bits); }

std::array<double, 8> KeyStorage::Fingerprint(int layer) const {
  if (block_widths.empty()) return {};
  return Shares(layer, 0, block_widths[0].size() - static_cast<size_t>(latent_dims) / 2);
}

std::array<double, 8> KeyStorage::LatentFingerprint(int layer) const {
  if (block_widths.empty() || latent_dims == 0) return {};
  return Shares(layer, block_widths[0].size() - static_cast<size_t>(latent_dims) / 2, block_widths[0].size());
}

std::array<double, 8> KeyStorage::Shares(int layer, size_t first_block, size_t end_block) const {
  std::array<double, 8> share{};
  size_t blocks = 0;
  for (int h = 0; h < heads.kv_heads; ++h) {
    const std::vector<int>& widths = block_widths[static_cast<size_t>(layer) * heads.kv_heads + h];
    for (size_t block = first_block; block < end_block; ++block) {
      const int width = widths[block];
      if (width >= 1 && width <= 8) share[static_cast<size_t>(width - 1)] += 1;
      ++blocks;
    }
  }
  for (double& s : share) s /= static_cast<double>(blocks);
  return share;
}

double FixedKeyBits(const std::string& recipe) {
  const Result<const Recipe*> found = FindRecipe(recipe);
  return found.ok() ? (*found)->k_bits : 0;
}

Status CheckDiagnosable(const std::string& recipe) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* found, FindRecipe(recipe));
  if (found->kind == CacheKind::kPacked || found->kind == CacheKind::kSimulated) return Status::Ok();
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("recipe {}: keeps keys uncompressed, there is nothing to diagnose", recipe));
}

Status CheckKeyBits(const ModelConfig& config, const std::string& recipe, double k_bits) {
  BGTQ_RETURN_IF_ERROR(CheckDiagnosable(recipe));
  BGTQ_ASSIGN_OR_RETURN(const Recipe* found, FindRecipe(recipe));
  BGTQ_ASSIGN_OR_RETURN(const Recipe* planned, PlannedRecipe(*found));
  const std::vector<HeadCalibration> head = {MadeUpHead(config)};
  const RecipeOptions options = OptionsFor(config, *found, planned != nullptr, k_bits, 0);
  if (planned != nullptr) return PlanHead(*planned, head[0], options, 0, 0).status();
  const SimulationInput input{1, 1, std::make_shared<RopeTable>(config.rope), head};
  return Simulate(*found, input, options).status();
}

Result<KeyStorage> MakeKeyStorage(const StorageSource& source, const std::string& recipe, double k_bits) {
  BGTQ_RETURN_IF_ERROR(CheckDiagnosable(recipe));
  BGTQ_ASSIGN_OR_RETURN(const Recipe* found, FindRecipe(recipe));
  BGTQ_ASSIGN_OR_RETURN(const Recipe* planned, PlannedRecipe(*found));
  const ModelConfig& config = source.model->config();
  KeyStorage storage;
  storage.recipe = recipe;
  storage.k_bits = k_bits;
  storage.simulated = found->kind == CacheKind::kSimulated;
  storage.latent_dims = config.latent.rank;
  const RecipeOptions options = OptionsFor(config, *found, planned != nullptr, k_bits, source.seed);
  if (planned != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(const Plan plan,
                          MakePlan(*source.model, source.measured, std::string(planned->name), options));
    storage.heads = {recipe, config.layers, config.kv_heads, config.head_dim, {}};
    for (size_t h = 0; h < plan.heads.size(); ++h) {
      const HeadPlan& head = plan.heads[h];
      storage.heads.heads.push_back(SimulatePlannedHead(head, source.rope));
      storage.block_widths.push_back(BlockWidths(head));
      storage.predicted_square.push_back(PredictedLogitError(head, source.measured[h].statistics));
    }
  } else {
    const SimulationInput input{config.layers, config.kv_heads, source.rope, source.measured};
    BGTQ_ASSIGN_OR_RETURN(storage.heads, Simulate(*found, input, options));
  }
  storage.k_bytes = MeanKeyBytes(storage.heads);
  return storage;
}

Result<KeyStorage> MakeKeyStorageOfBytes(const StorageSource& source, const std::string& recipe,
                                         double k_bytes) {
  const auto too_small = [&](const KeyStorage& largest) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("recipe {}: stores {:.2f} bytes a key at {:g} bits, its most, which is below "
                              "the {:.2f} to be matched; leave it out of --recipes or --equal-bytes",
                              recipe, largest.k_bytes, largest.k_bits, k_bytes));
  };
  const double fixed = FixedKeyBits(recipe);
  if (fixed > 0) {
    BGTQ_ASSIGN_OR_RETURN(KeyStorage storage, MakeKeyStorage(source, recipe, fixed));
    if (storage.k_bytes < k_bytes) return too_small(storage);
    return storage;
  }
  const BudgetGrid grid = GridOf(source, recipe);
  // By halving, since stored bytes grow with the budget (but for padding): the budget `low` stores less
  // (-1: below all), `high` and its storage `best` reach the target.
  int low = -1, high = grid.count - 1;
  BGTQ_ASSIGN_OR_RETURN(KeyStorage best, MakeKeyStorage(source, recipe, grid.at(high)));
  if (best.k_bytes < k_bytes) return too_small(best);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    BGTQ_ASSIGN_OR_RETURN(KeyStorage tried, MakeKeyStorage(source, recipe, grid.at(middle)));
    if (tried.k_bytes < k_bytes) {
      low = middle;
    } else {
      high = middle;
      best = std::move(tried);
    }
  }
  return best;
}

}  // namespace blockgtq
