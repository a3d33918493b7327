// A cache and the running of tokens through a model with it: the engine's core, for one sequence or many.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/engine/loaded_model.h"

namespace blockgtq {

/// New tokens of one sequence.
struct SequenceTokens {
  SequenceId sequence = 0;
  std::span<const Token> tokens;
};

class Context;
class MomentsWatch;

/// Other contexts whose caches take part in a pass (models/model.h, AttentionProbe). They belong to the same
/// model and hold the sequences of the pass at the same lengths; afterwards they hold its tokens too.
struct ContextProbe {
  std::span<Context* const> others;
  /// outputs: [0] of the context that runs, [1 + i] of others[i].
  std::function<Status(int layer, std::span<const Activations* const> outputs)> report;
};

struct RunOptions {
  bool strict = false;                    // BatchSlice::strict
  AttentionObserver* observer = nullptr;  // for calibration
  const ContextProbe* probe = nullptr;    // may be null
  LayerRange layers{};                    // Batch::layers; hidden() is of whole passes alone
};

class Context {
 public:
  static constexpr int64_t kScoringBatch = 512;  // rows whose logits are wanted, in one pass

  /// plan as KvCache::Create; it must match the model. Errors: those of KvCache::Create and
  /// Backend::BindCache; kMismatch naming the plan's differing field.
  static Result<std::unique_ptr<Context>> Create(LoadedModel& model, const CacheOptions& options,
                                                 const Plan* plan);

  LoadedModel& model() { return model_; }
  KvCache& cache() { return *cache_; }

  /// One forward pass over new tokens of several sequences; afterwards hidden() holds the final hidden
  /// states, a row a token in order. Errors: kInvalidArgument (a token or a range of layers that the model
  /// has not, a range without a stream of its rows), kOutOfMemory (a cache
  /// full; nothing changed), kUnsupported (a probe, on a backend that has none), those of Backend::Attention.
  Status Run(std::span<const SequenceTokens> items, const RunOptions& options = {});
  const Activations& hidden() const { return *hidden_; }
  /// Lets `watch` look at whole passes that nothing else observes. It outlives this, or is null.
  void Watch(MomentsWatch* watch) { watch_ = watch; }
  const MomentsWatch* watch() const { return watch_; }

  /// Runs a long run of tokens of one sequence in batches of `batch` (0: the backend's choice);
  /// on_batch(first token, rows) is called after each with hidden() holding its rows. A non-ok Status from
  /// on_batch stops and is returned.
  Status Append(SequenceId sequence, std::span<const Token> tokens, const RunOptions& options,
                const std::function<Status(int64_t first, int64_t rows)>& on_batch, int64_t batch = 0);

  /// Logits of the given rows of hidden(): [rows, vocabulary], host memory, valid until the next call.
  /// Errors: those of Backend::ReadRow.
  Result<std::span<const float>> Logits(std::span<const int64_t> rows);
  /// The token of the largest logit of the given rows of hidden(), the lowest of equals: greedy sampling
  /// without the logits' way to the host. Valid until the next call. Errors: kNonFinite; those of
  /// Backend::ReadRow.
  Result<std::span<const Token>> GreedyTokens(std::span<const int64_t> rows);

 private:
  explicit Context(LoadedModel& model) : model_(model) {}
  void ComputeLogits(std::span<const int64_t> rows);  // to logits_
  Status ReserveSlices(std::span<Context* const> others);

  LoadedModel& model_;
  MomentsWatch* watch_ = nullptr;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CacheBinding> binding_;
  std::unique_ptr<Activations> hidden_, gathered_, logits_;
  std::vector<Token> tokens_;
  std::vector<BatchSlice> slices_;
  std::vector<float> host_logits_;
  std::vector<Token> greedy_;
};

}  // namespace blockgtq
