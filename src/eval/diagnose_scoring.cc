// The scoring half of diagnose.h: chunks of a text through the model, every storage's keys beside the exact
// ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "src/core/thread_pool.h"
#include "src/engine/context.h"
#include "src/eval/diagnose.h"
#include "src/eval/diagnose_metrics.h"

namespace blockgtq {
namespace {

/// Scores each chunk's queries and keys as they come out of a layer, so that no more than one layer is held.
class ScoringObserver : public AttentionObserver {
 public:
  ScoringObserver(const ModelConfig& config, std::span<const KeyStorage> storages, int sinks, int threads)
      : config_(config),
        storages_(storages),
        sinks_(sinks),
        rope_(config.rope),
        rotations_(rope_),
        pool_(threads) {
    rope_.Reserve(DiagnoseOptions::kChunkTokens);
    sums_.assign(storages.size(), std::vector<KeyErrorSums>(static_cast<size_t>(config.layers)));
  }

  void Observe(int layer, int64_t rows, const float* queries, const float* keys, const float*) override {
    if (!status_.ok()) return;
    if (rows != DiagnoseOptions::kChunkTokens) {
      status_ = {ErrorCode::kUnsupported, fmt::format("diagnose: the backend ran {} of a chunk's {} tokens "
                                                      "at once; use --device cpu",
                                                      rows, DiagnoseOptions::kChunkTokens)};
      return;
    }
    Rotate(queries, config_.heads, queries_);
    Rotate(keys, config_.kv_heads, keys_);
    if (!std::all_of(keys_.begin(), keys_.end(), [](float x) { return std::isfinite(x); }) ||
        !std::all_of(queries_.begin(), queries_.end(), [](float x) { return std::isfinite(x); })) {
      status_ = {
          ErrorCode::kNonFinite,
          fmt::format("layer {}: a query or key is NaN or infinite; check the model's weights", layer)};
      return;
    }
    Decode(layer);
    Compare(layer);
  }

  const Status& status() const { return status_; }

  std::vector<std::vector<KeyErrors>> Means() const {
    std::vector<std::vector<KeyErrors>> means(sums_.size());
    for (size_t s = 0; s < sums_.size(); ++s) {
      for (const KeyErrorSums& sum : sums_[s]) {
        const double queries = static_cast<double>(sum.queries), logits = static_cast<double>(sum.logits);
        means[s].push_back({sum.logit_error / logits, sum.kl / queries, sum.overlap / queries,
                            sum.latent_error * kLogitOffsets / logits, std::sqrt(sum.logit_square / logits)});
      }
    }
    return means;
  }

 private:
  static constexpr int64_t kTokens = DiagnoseOptions::kChunkTokens;

  size_t HeadFloats() const { return static_cast<size_t>(kTokens) * config_.head_dim; }

  /// rows [tokens, heads, head_dim] pre-RoPE to out [heads, tokens, head_dim] post-RoPE.
  void Rotate(const float* rows, int heads, std::vector<float>& out) {
    out.resize(HeadFloats() * heads);
    pool_.Run(heads, [&](int64_t h, int) {
      for (int64_t t = 0; t < kTokens; ++t)
        rope_.Rotate(rows + (t * heads + h) * config_.head_dim, t,
                     &out[(h * kTokens + t) * config_.head_dim]);
    });
  }

  /// decoded_ [storages, kv_heads, tokens, head_dim], a page at a time.
  void Decode(int layer) {
    static_assert(kTokens % kPageTokens == 0);
    constexpr int64_t kPages = kTokens / kPageTokens;
    const size_t all_heads = HeadFloats() * config_.kv_heads;
    const size_t page_floats = static_cast<size_t>(kPageTokens) * config_.head_dim;
    decoded_.resize(storages_.size() * all_heads);
    for (size_t s = 0; s < storages_.size(); ++s)
      std::copy(keys_.begin(), keys_.end(), &decoded_[s * all_heads]);
    pool_.Run(static_cast<int64_t>(storages_.size()) * config_.kv_heads * kPages, [&](int64_t task, int) {
      const int64_t page = task % kPages, head = task / kPages % config_.kv_heads,
                    storage = task / kPages / config_.kv_heads;
      const SimulatedHead& codec =
          storages_[static_cast<size_t>(storage)].heads.head(layer, static_cast<int>(head));
      const int64_t first = page * kPageTokens, history = std::min<int64_t>(codec.history_tokens(), first);
      const std::span<const float> exact = std::span<const float>(keys_).subspan(head * HeadFloats());
      codec.RoundTripKeys(exact.subspan((first - history) * config_.head_dim, history * config_.head_dim),
                          std::span<float>(decoded_).subspan(
                              storage * all_heads + head * HeadFloats() + page * page_floats, page_floats),
                          first);
    });
    for (size_t head = 0; head < storages_.size() * config_.kv_heads; ++head) {
      const size_t exact = head % config_.kv_heads * HeadFloats();
      std::copy_n(&keys_[exact], static_cast<size_t>(sinks_) * config_.head_dim,
                  &decoded_[head * HeadFloats()]);
    }
  }

  void Compare(int layer) {
    const int group = config_.heads / config_.kv_heads;
    const size_t all_heads = HeadFloats() * config_.kv_heads;
    std::vector<KeyErrorSums> parts(storages_.size() * config_.heads);
    pool_.Run(config_.heads, [&](int64_t h, int) {
      const size_t kv_head = static_cast<size_t>(h / group);
      const QueryHead head(std::span<const float>(queries_).subspan(h * HeadFloats(), HeadFloats()),
                           std::span<const float>(keys_).subspan(kv_head * HeadFloats(), HeadFloats()),
                           config_.head_dim, config_.attention_scale, config_.latent.rank);
      for (size_t s = 0; s < storages_.size(); ++s) {
        parts[s * config_.heads + h] = head.Errors(
            std::span<const float>(decoded_).subspan(s * all_heads + kv_head * HeadFloats(), HeadFloats()),
            rotations_);
      }
    });
    for (size_t i = 0; i < parts.size(); ++i)  // in order: the same sums for any number of threads
      sums_[i / config_.heads][static_cast<size_t>(layer)] += parts[i];
  }

  const ModelConfig& config_;
  std::span<const KeyStorage> storages_;
  int sinks_;
  RopeTable rope_;
  OffsetRotations rotations_;
  ThreadPool pool_;
  Status status_;
  std::vector<std::vector<KeyErrorSums>> sums_;  // [storages][layers]
  std::vector<float> queries_, keys_, decoded_;  // of one layer of one chunk
};

}  // namespace

Result<std::vector<std::vector<KeyErrors>>> ScoreStorages(LoadedModel& model, std::span<const Token> tokens,
                                                          std::span<const KeyStorage> storages,
                                                          const DiagnoseOptions& options) {
  constexpr int64_t kChunk = DiagnoseOptions::kChunkTokens;
  const int64_t chunks = static_cast<int64_t>(tokens.size()) / kChunk;
  if (chunks < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("diagnose: the scored text has {} tokens, a chunk has {}: use a longer text",
                              tokens.size(), kChunk));
  }
  CacheOptions cache;
  cache.kind = model.backend().exact_cache_kind();
  cache.max_tokens = kChunk;
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(model, cache, nullptr));
  const int threads = ThreadsOrCores(options.threads);
  ScoringObserver observer(model.config(), storages, options.sinks, threads);
  const Tokenizer& tokenizer = model.tokenizer();
  for (int64_t c = 0; c < chunks; ++c) {
    if (options.stop != nullptr && options.stop->load())
      return Status(ErrorCode::kCancelled, "stopped; nothing was written");
    std::vector<Token> chunk(tokens.begin() + c * kChunk, tokens.begin() + (c + 1) * kChunk);
    if (tokenizer.add_bos() && tokenizer.bos() >= 0) chunk[0] = tokenizer.bos();
    BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context->cache().AddSequence());
    BGTQ_RETURN_IF_ERROR(context->Append(
        sequence, chunk, {.observer = &observer}, [](int64_t, int64_t) { return Status::Ok(); }, kChunk));
    context->cache().RemoveSequence(sequence);
    BGTQ_RETURN_IF_ERROR(observer.status());
    if (options.progress)
      options.progress("scoring", static_cast<double>(c + 1) / static_cast<double>(chunks));
  }
  return observer.Means();
}

}  // namespace blockgtq
