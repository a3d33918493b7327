// See calibration.h.
#include "src/engine/calibration.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "src/core/thread_pool.h"
#include "src/engine/context.h"

namespace blockgtq {
namespace {

/// Collects statistics and vectors of every KV head.
class HeadCollector : public AttentionObserver {
 public:
  HeadCollector(const ModelConfig& config, int64_t tokens) : config_(config) {
    const size_t heads = static_cast<size_t>(config.layers) * config.kv_heads;
    accumulators_.assign(heads, StatisticsAccumulator(config.head_dim));
    vectors_.resize(heads);
    for (HeadCalibration& v : vectors_) {
      v.keys.reserve(static_cast<size_t>(tokens) * config.head_dim);
      v.latent_dims = config.latent.rank;
      if (v.latent_dims == 0) v.values.reserve(static_cast<size_t>(tokens) * config.head_dim);
    }
  }

  void Observe(int layer, int64_t rows, const float* queries, const float* keys,
               const float* values) override {
    const int dim = config_.head_dim, group = config_.heads / config_.kv_heads;
    for (int h = 0; h < config_.kv_heads; ++h) {
      const size_t head = static_cast<size_t>(layer) * config_.kv_heads + h;
      HeadCalibration& v = vectors_[head];
      for (int64_t t = 0; t < rows; ++t) {
        const float* key = keys + (t * config_.kv_heads + h) * dim;
        const float* value = values + (t * config_.kv_heads + h) * dim;
        for (int g = 0; g < group; ++g) {
          accumulators_[head].AddQuery(queries + (t * config_.heads + h * group + g) * dim);
        }
        accumulators_[head].AddKey(key);
        v.keys.insert(v.keys.end(), key, key + dim);
        if (v.latent_dims == 0) v.values.insert(v.values.end(), value, value + dim);
      }
    }
  }

  std::vector<HeadCalibration> Finish() {
    for (size_t i = 0; i < vectors_.size(); ++i) vectors_[i].statistics = accumulators_[i].Finish();
    return std::move(vectors_);
  }

 private:
  const ModelConfig& config_;
  std::vector<StatisticsAccumulator> accumulators_;
  std::vector<HeadCalibration> vectors_;
};

Status CheckHasPlan(const Recipe& recipe) {
  if (recipe.kind == CacheKind::kPacked) return Status::Ok();
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("recipe {}: {} and has no plan to calibrate", recipe.name,
                  recipe.kind == CacheKind::kSimulated ? "is simulated" : "keeps an uncompressed cache"));
}

}  // namespace

std::string_view CalibrationTextHead(std::string_view text, int64_t tokens) {
  return text.substr(0, static_cast<size_t>(std::max<int64_t>(tokens, 0)) * 16);
}

Result<std::vector<HeadCalibration>> Measure(LoadedModel& model, std::span<const Token> tokens,
                                             const std::function<void(double)>& progress) {
  CacheOptions cache;
  cache.kind = model.backend().exact_cache_kind();
  cache.max_tokens = static_cast<int64_t>(tokens.size());
  // The same plan whatever the run's own precision is: measured with float activations.
  struct FloatPrecision {
    explicit FloatPrecision(Backend& b) : backend(b), before(b.precision()) {
      backend.SetPrecision(Precision::kFloat);
    }
    ~FloatPrecision() { backend.SetPrecision(before); }
    Backend& backend;
    Precision before;
  } const guard(model.backend());
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(model, cache, nullptr));
  BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context->cache().AddSequence());
  HeadCollector collector(model.config(), static_cast<int64_t>(tokens.size()));
  const auto on_batch = [&](int64_t first, int64_t rows) {
    if (progress) progress(static_cast<double>(first + rows) / static_cast<double>(tokens.size()));
    return Status::Ok();
  };
  BGTQ_RETURN_IF_ERROR(context->Append(sequence, tokens, {.observer = &collector}, on_batch));
  return collector.Finish();
}

Result<Plan> MakePlan(const LoadedModel& model, std::span<const HeadCalibration> measured,
                      const std::string& recipe_name, const RecipeOptions& bits, int threads) {
  return MakePlanFor(model.fingerprint(), measured, recipe_name, {&bits, 1}, threads);
}

Result<Plan> MakePlanByHead(const LoadedModel& model, std::span<const HeadCalibration> measured,
                            const std::string& recipe_name, std::span<const RecipeOptions> bits,
                            int threads) {
  return MakePlanFor(model.fingerprint(), measured, recipe_name, bits, threads);
}

Result<Plan> MakePlanFor(const ModelFingerprint& model, std::span<const HeadCalibration> measured,
                         const std::string& recipe_name, std::span<const RecipeOptions> bits, int threads) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(recipe_name));
  BGTQ_RETURN_IF_ERROR(CheckHasPlan(*recipe));
  if (measured.empty() || (bits.size() != measured.size() && bits.size() != 1)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{} heads are measured, bits are given of {}", measured.size(), bits.size()));
  }
  Plan plan;
  plan.recipe = recipe_name;
  plan.seed = bits.front().seed;
  plan.model = model;
  plan.heads.resize(measured.size());
  std::vector<Status> outcomes(measured.size());
  const auto bits_of = [&](size_t head) -> const RecipeOptions& { return bits[bits.size() == 1 ? 0 : head]; };
  ThreadPool pool(threads);
  pool.Run(static_cast<int64_t>(measured.size()), [&](int64_t task, int) {
    const size_t i = static_cast<size_t>(task);
    const int layer = static_cast<int>(i) / model.kv_heads, kv_head = static_cast<int>(i) % model.kv_heads;
    Result<HeadPlan> head = PlanHead(*recipe, measured[i], bits_of(i), layer, kv_head);
    outcomes[i] = head.status().WithContext(fmt::format("layer {} KV head {}", layer, kv_head));
    if (head.ok()) plan.heads[i] = std::move(head).value();
  });
  const double share = 1.0 / static_cast<double>(measured.size());
  for (size_t i = 0; i < measured.size(); ++i) {
    BGTQ_RETURN_IF_ERROR(outcomes[i]);
    const RecipeOptions& of_head = bits_of(i);
    plan.k_bits += of_head.k_bits * share;
    plan.v_bits += of_head.v_bits * share;
  }
  if (bits.size() == 1) {
    plan.k_bits = bits.front().k_bits;
    plan.v_bits = bits.front().v_bits;
  } else {
    plan.k_bits = std::round(100 * plan.k_bits) / 100;  // as they are shown
    plan.v_bits = std::round(100 * plan.v_bits) / 100;
  }
  BGTQ_RETURN_IF_ERROR(plan.Validate());
  return plan;
}

SimulatedHeads SimulatePlan(const ModelConfig& config, const Plan& plan, const std::string& recipe_name) {
  const LayerRopes ropes = config.ropes();
  std::vector<std::shared_ptr<const RopeTable>> tables;
  for (const RopeConfig& rope : ropes.configs) tables.push_back(std::make_shared<RopeTable>(rope));
  SimulatedHeads simulated{recipe_name, config.layers, config.kv_heads, config.head_dim, {}};
  for (size_t h = 0; h < plan.heads.size(); ++h) {
    const int rope = ropes.index(static_cast<int>(h) / config.kv_heads);
    simulated.heads.push_back(SimulatePlannedHead(plan.heads[h], tables[static_cast<size_t>(rope)]));
  }
  return simulated;
}

Result<SimulatedHeads> MakeSimulated(const LoadedModel& model, std::span<const HeadCalibration> measured,
                                     const std::string& recipe_name, const RecipeOptions& bits) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(recipe_name));
  const ModelConfig& config = model.config();
  if (!recipe->twin_of.empty()) {
    BGTQ_ASSIGN_OR_RETURN(const Plan plan, MakePlan(model, measured, std::string(recipe->twin_of), bits));
    return SimulatePlan(config, plan, recipe_name);
  }
  BGTQ_RETURN_IF_ERROR(RequireOneRope(config, "recipe " + recipe_name));
  return Simulate(*recipe,
                  {config.layers, config.kv_heads, std::make_shared<RopeTable>(config.rope), measured}, bits);
}

Status CheckRecipeBits(const LoadedModel& model, const Recipe& recipe, const RecipeOptions& bits) {
  const int dim = model.config().head_dim;
  HeadCalibration sample;
  StatisticsAccumulator accumulator(dim);
  for (int t = 0; t < 4; ++t) {
    std::vector<float> x(static_cast<size_t>(dim));
    for (int d = 0; d < dim; ++d) x[static_cast<size_t>(d)] = static_cast<float>((t * 7 + d * 3) % 11 - 5);
    accumulator.AddQuery(x.data());
    accumulator.AddKey(x.data());
    sample.keys.insert(sample.keys.end(), x.begin(), x.end());
    sample.values.insert(sample.values.end(), x.begin(), x.end());
  }
  sample.latent_dims = model.config().latent.rank;
  if (sample.latent_dims > 0) sample.values.clear();
  sample.statistics = accumulator.Finish();
  if (recipe.plan_head != nullptr) return PlanHead(recipe, sample, bits, 0, 0).status();
  return Simulate(recipe, {1, 1, std::make_shared<RopeTable>(model.config().rope), {&sample, 1}}, bits)
      .status();
}

Result<std::vector<Token>> CalibrationTokens(LoadedModel& model, std::string_view text,
                                             int64_t tokens_wanted) {
  if (!model.has_tokenizer()) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("{}: a plan is made from text, and this model has no tokenizer that this build "
                              "reads; name a plan with --plan, or an uncompressed cache with --recipe fp16",
                              model.path()));
  }
  std::vector<Token> tokens = model.tokenizer().Encode(CalibrationTextHead(text, tokens_wanted), false);
  const std::vector<Token> start = model.PromptStart(nullptr);
  tokens.insert(tokens.begin(), start.begin(), start.end());
  const int64_t wanted =
      std::min({tokens_wanted, model.config().context_length, model.config().max_positions});
  if (static_cast<int64_t>(tokens.size()) > wanted)
    tokens.resize(static_cast<size_t>(std::max<int64_t>(wanted, 0)));
  if (static_cast<int64_t>(tokens.size()) < kMinCalibrationTokens) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("calibration: {} tokens are too few, at least {} are needed", tokens.size(),
                              kMinCalibrationTokens));
  }
  return tokens;
}

Result<Plan> Calibrate(LoadedModel& model, std::string_view text, const CalibrationOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(options.recipe));
  BGTQ_RETURN_IF_ERROR(CheckHasPlan(*recipe));
  BGTQ_RETURN_IF_ERROR(CheckRecipeBits(model, *recipe, options.bits));
  const auto start = std::chrono::steady_clock::now();
  const std::string_view head = CalibrationTextHead(text, options.tokens);
  BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> tokens, CalibrationTokens(model, text, options.tokens));
  BGTQ_ASSIGN_OR_RETURN(const std::vector<HeadCalibration> measured,
                        Measure(model, tokens, options.progress));
  BGTQ_ASSIGN_OR_RETURN(Plan plan, MakePlan(model, measured, options.recipe, options.bits));
  plan.calibration.corpus_hash = fmt::format("{:016x}", XXH3_64bits(head.data(), head.size()));
  plan.calibration.tokens = static_cast<int64_t>(tokens.size());
  plan.calibration.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

}  // namespace blockgtq
