// See context.h.
#include "src/engine/context.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/engine/moments_watch.h"

namespace blockgtq {

Result<std::unique_ptr<Context>> Context::Create(LoadedModel& model, const CacheOptions& options,
                                                 const Plan* plan) {
  if (plan != nullptr && options.kind == CacheKind::kPacked) {
    BGTQ_RETURN_IF_ERROR(plan->model.ExpectEqual(model.fingerprint()).WithContext("plan"));
  }
  if (options.kind == CacheKind::kSimulated && !model.backend().has_simulated_caches()) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("{} has no simulated caches: run with --device cpu", model.backend().name()));
  }
  auto context = std::unique_ptr<Context>(new Context(model));
  CacheOptions of_model = options;
  of_model.model = model.fingerprint().Text();
  of_model.memory = options.kind == CacheKind::kSimulated ? &HostMemory() : &model.backend().cache_memory();
  BGTQ_ASSIGN_OR_RETURN(context->cache_, KvCache::Create(model.config().cache_geometry(), of_model, plan));
  BGTQ_ASSIGN_OR_RETURN(context->binding_,
                        model.backend().BindCache(*context->cache_, model.config().ropes()));
  return context;
}

namespace {

Status CheckRange(const LayerRange& range, const ModelConfig& config, int64_t rows) {
  const int end = range.end > 0 ? range.end : config.layers;
  if (range.first < 0 || range.first >= end || end > config.layers) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("layers {}..{}: the model has layers 0..{}",
                                                           range.first, end - 1, config.layers - 1));
  }
  const bool whole = range.first == 0 && end == config.layers;
  if (whole ||
      (range.stream != nullptr && range.stream->rows() >= rows && range.stream->cols() == config.embedding)) {
    return Status::Ok();
  }
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("layers {}..{}: some layers alone need a stream of {} rows of {}", range.first,
                            end - 1, rows, config.embedding));
}

}  // namespace

Status Context::Run(std::span<const SequenceTokens> items, const RunOptions& options) {
  const ModelConfig& config = model_.config();
  tokens_.clear();
  slices_.clear();
  for (const SequenceTokens& item : items) {
    for (Token token : item.tokens) {
      if (token < 0 || token >= config.vocabulary) {
        return Status(
            ErrorCode::kInvalidArgument,
            fmt::format("token {} is not in the model's vocabulary of {}", token, config.vocabulary));
      }
    }
    const int64_t count = static_cast<int64_t>(item.tokens.size());
    slices_.push_back({item.sequence, static_cast<int64_t>(tokens_.size()), count,
                       cache_->state(item.sequence).length, options.strict});
    if (slices_.back().first_position + count > config.max_positions) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("{} tokens: this model's RoPE (longrope or dynamic scaling) is another past {}, which "
                      "keys in the cache cannot follow: open it for longer sequences (--rope-context)",
                      slices_.back().first_position + count, config.max_positions));
    }
    tokens_.insert(tokens_.end(), item.tokens.begin(), item.tokens.end());
  }
  for (size_t i = 0; i < slices_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (slices_[j].sequence == slices_[i].sequence) {
        return Status(ErrorCode::kInvalidArgument,
                      fmt::format("sequence {} stands twice in one batch", slices_[i].sequence));
      }
    }
  }
  BGTQ_RETURN_IF_ERROR(CheckRange(options.layers, config, static_cast<int64_t>(tokens_.size())));
  const bool partial = options.layers.stream != nullptr;
  const ContextProbe* probe = options.probe;
  if (probe != nullptr && !model_.backend().has_attention_probes()) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: one pass attends to one cache; run with --device cpu", model_.backend().name()));
  }
  const std::span<Context* const> others = probe != nullptr ? probe->others : std::span<Context* const>();
  BGTQ_RETURN_IF_ERROR(ReserveSlices(others));
  const int64_t rows = static_cast<int64_t>(tokens_.size());
  if (hidden_ == nullptr || hidden_->rows() < rows) {
    hidden_ = model_.backend().MakeActivations(rows, config.embedding);
  }
  AttentionProbe attention;
  std::vector<CacheBinding*> bindings;
  for (Context* other : others) bindings.push_back(other->binding_.get());
  if (probe != nullptr) attention = {bindings, probe->report};
  const bool watched = watch_ != nullptr && options.observer == nullptr && probe == nullptr && !partial;
  AttentionObserver* const observer = watched && watch_->BeginPass(slices_) ? watch_ : options.observer;
  const Batch batch{tokens_,       slices_, binding_.get(), observer, probe != nullptr ? &attention : nullptr,
                    options.layers};
  const StepInput input{tokens_, slices_, binding_.get(), observer != nullptr || probe != nullptr || partial,
                        bindings};
  BGTQ_RETURN_IF_ERROR(model_.backend().Step(input, [&] { return model_.model().Forward(batch, *hidden_); }));
  for (const BatchSlice& slice : slices_) {
    cache_->Commit(slice.sequence, slice.count, CodedEndAfter(*cache_, slice));
    for (Context* other : others)
      other->cache_->Commit(slice.sequence, slice.count, CodedEndAfter(*other->cache_, slice));
  }
  if (watched) watch_->EndPass();
  return Status::Ok();
}

/// Room for slices_ in this context's cache and in the others'; where one is full, none keeps any.
Status Context::ReserveSlices(std::span<Context* const> others) {
  std::vector<KvCache*> caches = {cache_.get()};
  for (Context* other : others) {
    for (const BatchSlice& slice : slices_) {
      const int64_t length = other->cache_->state(slice.sequence).length;
      if (length == slice.first_position) continue;
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("sequence {} has {} tokens in a probe's cache, {} in the pass's",
                                slice.sequence, length, slice.first_position));
    }
    caches.push_back(other->cache_.get());
  }
  std::vector<std::pair<KvCache*, const BatchSlice*>> reserved;
  for (KvCache* cache : caches) {
    for (const BatchSlice& slice : slices_) {
      Status status = cache->Reserve(slice.sequence, slice.count);
      if (status.ok()) {
        reserved.emplace_back(cache, &slice);
        continue;
      }
      for (const auto& [promised, of] : reserved)
        BGTQ_RETURN_IF_ERROR(promised->Truncate(of->sequence, of->first_position));
      return status;
    }
  }
  return Status::Ok();
}

Status Context::Append(SequenceId sequence, std::span<const Token> tokens, const RunOptions& options,
                       const std::function<Status(int64_t, int64_t)>& on_batch, int64_t batch) {
  if (batch == 0) batch = model_.backend().prompt_batch();
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(batch)) {
    const size_t rows = std::min(static_cast<size_t>(batch), tokens.size() - first);
    const SequenceTokens item{sequence, tokens.subspan(first, rows)};
    BGTQ_RETURN_IF_ERROR(Run({&item, 1}, options));
    if (on_batch) BGTQ_RETURN_IF_ERROR(on_batch(static_cast<int64_t>(first), static_cast<int64_t>(rows)));
  }
  return Status::Ok();
}

void Context::ComputeLogits(std::span<const int64_t> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  Backend& backend = model_.backend();
  if (logits_ == nullptr || logits_->rows() < count) {
    gathered_ = backend.MakeActivations(count, model_.config().embedding);
    logits_ = backend.MakeActivations(count, model_.config().vocabulary);
  }
  backend.GatherRows(*hidden_, rows, *gathered_);
  model_.model().Logits(*gathered_, count, *logits_);
}

Result<std::span<const float>> Context::Logits(std::span<const int64_t> rows) {
  const int64_t count = static_cast<int64_t>(rows.size()), vocabulary = model_.config().vocabulary;
  ComputeLogits(rows);
  host_logits_.resize(static_cast<size_t>(count * vocabulary));
  BGTQ_RETURN_IF_ERROR(model_.backend().ReadRows(*logits_, count, host_logits_.data()));
  return std::span<const float>(host_logits_.data(), host_logits_.size());
}

Result<std::span<const Token>> Context::GreedyTokens(std::span<const int64_t> rows) {
  ComputeLogits(rows);
  greedy_.resize(rows.size());
  BGTQ_RETURN_IF_ERROR(model_.backend().LargestOfRows(*logits_, greedy_));
  for (const Token token : greedy_) {
    if (token >= 0) continue;
    return Status(ErrorCode::kNonFinite,
                  "a logit is NaN or infinite; the model file or its numerics are damaged");
  }
  return std::span<const Token>(greedy_);
}

}  // namespace blockgtq
