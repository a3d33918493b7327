// See first_keys.h.
#include "src/eval/first_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/codec/simulated.h"
#include "src/core/thread_pool.h"
#include "src/engine/context.h"

namespace blockgtq {
namespace {

class FirstKeyCollector : public AttentionObserver {
 public:
  FirstKeyCollector(const ModelConfig& config, int64_t window, int threads)
      : config_(config), window_(window), pool_(threads) {
    const LayerRopes ropes = config.ropes();
    for (int l = 0; l < config.layers; ++l) {
      ropes_.emplace_back(ropes[l]);
      ropes_.back().Reserve(window);
    }
    heads_.resize(static_cast<size_t>(config.layers) * static_cast<size_t>(config.kv_heads));
    for (FirstKeys& head : heads_)
      head.query_moment.assign(static_cast<size_t>(config.head_dim) * config.head_dim, 0.0);
  }

  void Observe(int layer, int64_t rows, const float* queries, const float* keys, const float*) override {
    const size_t dim = static_cast<size_t>(config_.head_dim);
    const RopeTable& rope = ropes_[static_cast<size_t>(layer)];
    turned_.resize(static_cast<size_t>(rows * config_.heads) * dim);
    pool_.Run(rows, [&](int64_t t, int) {
      for (int64_t h = t * config_.heads; h < (t + 1) * config_.heads; ++h)
        rope.Rotate(&queries[static_cast<size_t>(h) * dim], t % window_,
                    &turned_[static_cast<size_t>(h) * dim]);
    });
    std::vector<float> turned(dim);
    for (int h = 0; h < config_.kv_heads; ++h) {
      for (int64_t t = 0; t < rows; t += window_) {
        rope.Rotate(keys + static_cast<size_t>(t * config_.kv_heads + h) * dim, 0, turned.data());
        std::vector<float>& first = Head(layer, h).keys;
        first.insert(first.end(), turned.begin(), turned.end());
      }
    }
    const int64_t parts = (config_.head_dim + kMomentRows - 1) / kMomentRows;
    pool_.Run(parts * config_.kv_heads, [&](int64_t task, int) {
      const size_t first = static_cast<size_t>(task % parts) * kMomentRows;
      AddMoments(layer, static_cast<int>(task / parts), rows, first, std::min(first + kMomentRows, dim));
    });
  }

  std::vector<FirstKeys> Finish() {
    const size_t dim = static_cast<size_t>(config_.head_dim);
    for (FirstKeys& head : heads_) {
      const size_t queries = head.keys.size() / dim * static_cast<size_t>(window_) *
                             static_cast<size_t>(config_.heads / config_.kv_heads);  // that were summed
      for (double& m : head.query_moment) m /= static_cast<double>(queries);
      for (size_t i = 0; i < dim; ++i)
        for (size_t j = i + 1; j < dim; ++j) head.query_moment[i * dim + j] = head.query_moment[j * dim + i];
    }
    return std::move(heads_);
  }

 private:
  static constexpr size_t kMomentRows = 8;  // of a query moment, a task

  FirstKeys& Head(int layer, int kv_head) {
    return heads_[static_cast<size_t>(layer) * static_cast<size_t>(config_.kv_heads) +
                  static_cast<size_t>(kv_head)];
  }

  /// Rows [begin, end) of a head's query moment, up to the diagonal.
  void AddMoments(int layer, int kv_head, int64_t rows, size_t begin, size_t end) {
    const size_t dim = static_cast<size_t>(config_.head_dim);
    const int group = config_.heads / config_.kv_heads;
    double* moment = Head(layer, kv_head).query_moment.data();
    for (int64_t t = 0; t < rows; ++t) {
      for (int g = 0; g < group; ++g) {
        const float* query =
            &turned_[static_cast<size_t>(t * config_.heads + int64_t{kv_head} * group + g) * dim];
        for (size_t i = begin; i < end; ++i) {
          for (size_t j = 0; j <= i; ++j) moment[i * dim + j] += double{query[i]} * query[j];
        }
      }
    }
  }

  const ModelConfig& config_;
  int64_t window_;
  ThreadPool pool_;
  std::vector<float> turned_;     // queries of the rows observed, [rows, heads, head_dim]
  std::vector<RopeTable> ropes_;  // by layer
  std::vector<FirstKeys> heads_;
};

/// e' M e.
double Form(std::span<const double> moment, std::span<const float> e) {
  double sum = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    double row = 0;
    for (size_t j = 0; j < e.size(); ++j) row += moment[i * e.size() + j] * e[j];
    sum += row * e[i];
  }
  return sum;
}

}  // namespace

Result<std::vector<FirstKeys>> MeasureFirstKeys(LoadedModel& model, std::span<const Token> tokens,
                                                int64_t window, int threads) {
  const int64_t windows = window > 0 ? static_cast<int64_t>(tokens.size()) / window : 0;
  if (windows < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("first keys: {} tokens hold no window of {}", tokens.size(), window));
  }
  CacheOptions cache;
  cache.kind = model.backend().exact_cache_kind();
  cache.max_tokens = windows * (window + kPageTokens);
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(model, cache, nullptr));
  const std::vector<Token> start = model.PromptStart(nullptr);
  std::vector<Token> text(tokens.begin(), tokens.begin() + windows * window);
  std::vector<SequenceTokens> items;
  for (int64_t w = 0; w < windows; ++w) {
    const std::span<Token> of_window(&text[static_cast<size_t>(w * window)], static_cast<size_t>(window));
    std::copy_n(start.begin(), std::min(start.size(), of_window.size()), of_window.begin());
    BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context->cache().AddSequence());
    items.push_back({sequence, of_window});
  }
  FirstKeyCollector collector(model.config(), window, threads);
  BGTQ_RETURN_IF_ERROR(context->Run(items, {.observer = &collector}));
  return collector.Finish();
}

Result<uint64_t> ChooseRotation(const Recipe& recipe, const HeadCalibration& calibration,
                                const RecipeOptions& bits, const FirstKeys& first,
                                const std::shared_ptr<const RopeTable>& rope, int layer, int kv_head,
                                int candidates) {
  const size_t dim = calibration.statistics.key_mean.size();
  double least = std::numeric_limits<double>::infinity();
  uint64_t best = bits.seed;
  std::vector<float> error(dim);
  for (int c = 0; c < candidates; ++c) {
    RecipeOptions options = bits;
    options.seed = bits.seed + static_cast<uint64_t>(c);
    BGTQ_ASSIGN_OR_RETURN(const HeadPlan plan, recipe.plan_head(calibration, options, layer, kv_head));
    const std::unique_ptr<const SimulatedHead> twin = SimulatePlannedHead(plan, rope);
    double sum = 0;
    for (size_t first_dim = 0; first_dim < first.keys.size(); first_dim += dim) {
      const std::span<const float> key = std::span<const float>(first.keys).subspan(first_dim, dim);
      std::copy(key.begin(), key.end(), error.begin());
      twin->RoundTripKeys({}, error, 0);
      for (size_t d = 0; d < dim; ++d) error[d] -= key[d];
      sum += Form(first.query_moment, error);
    }
    if (sum < least) {
      least = sum;
      best = options.seed;
    }
  }
  return best;
}

}  // namespace blockgtq
