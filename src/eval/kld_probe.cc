// See kld_probe.h.
#include "src/eval/kld_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/eval/logit_comparison.h"

namespace blockgtq {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of a probe's logits held at a time

}  // namespace

KldProbe::KldProbe(LoadedModel& model, std::span<const Token> tokens, const KldProbeOptions& options)
    : model_(model),
      options_(options),
      before_(model.backend().precision()),
      tokens_(tokens.begin(), tokens.end()),
      all_rows_(tokens.size()),
      pool_(ThreadsOrCores(options.threads)) {
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
  model.backend().SetPrecision(Precision::kFloat);
}

KldProbe::~KldProbe() { model_.backend().SetPrecision(before_); }

Result<std::unique_ptr<KldProbe>> KldProbe::Create(LoadedModel& model, std::span<const Token> tokens,
                                                   const KldProbeOptions& options) {
  const int64_t rows = static_cast<int64_t>(tokens.size());
  if (rows < 2 || options.window < 2 || options.window > model.config().context_length ||
      options.positions < 1) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("probes: {} tokens in windows of {}, {} positions compared: at least 2, 2 and 1, "
                    "and windows within the model's context of {}",
                    rows, options.window, options.positions, model.config().context_length));
  }
  std::unique_ptr<KldProbe> probe(new KldProbe(model, tokens, options));
  Backend& backend = model.backend();
  CacheOptions cache;
  cache.kind = backend.exact_cache_kind();
  cache.max_tokens = rows + (rows / options.window + 1) * kPageTokens;
  BGTQ_ASSIGN_OR_RETURN(probe->exact_, Context::Create(model, cache, nullptr));
  BGTQ_RETURN_IF_ERROR(probe->Run(*probe->exact_, {}));
  // The middle of each of as many equal parts of the text.
  const int64_t count = std::min(options.positions, rows);
  for (int64_t i = 0; i < count; ++i) probe->positions_.push_back((2 * i + 1) * rows / (2 * count));
  const size_t vocabulary = static_cast<size_t>(model.config().vocabulary);
  probe->base_.reserve(probe->positions_.size() * vocabulary);
  for (int64_t first = 0; first < count; first += kLogitRows) {
    const std::span<const int64_t> some(&probe->positions_[static_cast<size_t>(first)],
                                        static_cast<size_t>(std::min(kLogitRows, count - first)));
    BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits, probe->exact_->Logits(some));
    probe->base_.insert(probe->base_.end(), logits.begin(), logits.end());
  }
  probe->base_sums_.resize(static_cast<size_t>(count));
  probe->pool_.Run(count, [&](int64_t i, int) {
    const size_t at = static_cast<size_t>(i);
    probe->base_sums_[at] = LogSum({&probe->base_[at * vocabulary], vocabulary});
  });
  probe->stream_ = backend.MakeActivations(rows, model.config().embedding);
  probe->changed_ = backend.MakeActivations(rows, model.config().embedding);
  return probe;
}

Status KldProbe::Run(Context& context, const LayerRange& layers) {
  std::vector<SequenceTokens> items;
  Status status;
  for (size_t first = 0; first < tokens_.size() && status.ok();
       first += static_cast<size_t>(options_.window)) {
    const Result<SequenceId> sequence = context.cache().AddSequence();
    status = sequence.status();
    if (!status.ok()) break;
    const size_t count = std::min(static_cast<size_t>(options_.window), tokens_.size() - first);
    items.push_back({*sequence, std::span<const Token>(tokens_).subspan(first, count)});
  }
  if (status.ok()) status = context.Run(items, {.strict = true, .layers = layers});
  for (const SequenceTokens& item : items) context.cache().RemoveSequence(item.sequence);
  return status;
}

Status KldProbe::Enter(int layer) {
  if (layer < layer_ || layer >= model_.config().layers) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("probes: layer {} after layer {} of {}", layer, layer_, model_.config().layers)};
  }
  if (layer == layer_) return Status::Ok();
  BGTQ_RETURN_IF_ERROR(Run(*exact_, {layer_, layer, stream_.get()}));
  layer_ = layer;
  return Status::Ok();
}

Result<std::unique_ptr<Context>> KldProbe::MakeContext(std::shared_ptr<const SimulatedHeads> heads) const {
  CacheOptions cache;
  cache.kind = CacheKind::kSimulated;
  cache.sinks = options_.protection.sinks;
  cache.recent = options_.protection.recent;
  cache.max_tokens = rows() + (rows() / options_.window + 1) * kPageTokens;
  cache.simulated = std::move(heads);
  return Context::Create(model_, cache, nullptr);
}

Result<double> KldProbe::Kld(std::shared_ptr<const SimulatedHeads> heads) {
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, MakeContext(std::move(heads)));
  BGTQ_RETURN_IF_ERROR(Run(*context, {layer_, 0, layer_ > 0 ? stream_.get() : nullptr}));
  return Compare(*context);
}

Result<double> KldProbe::KldOfLayer(std::shared_ptr<const SimulatedHeads> heads) {
  const int next = layer_ + 1;
  if (next == model_.config().layers) return Kld(std::move(heads));
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, MakeContext(std::move(heads)));
  if (layer_ > 0) model_.backend().GatherRows(*stream_, all_rows_, *changed_);
  BGTQ_RETURN_IF_ERROR(Run(*context, {layer_, next, changed_.get()}));
  BGTQ_RETURN_IF_ERROR(Run(*exact_, {next, 0, changed_.get()}));
  return Compare(*exact_);
}

/// The mean divergence of the logits that `context` has run to.
Result<double> KldProbe::Compare(Context& context) {
  const size_t vocabulary = static_cast<size_t>(model_.config().vocabulary);
  double sum = 0;
  for (size_t first = 0; first < positions_.size(); first += static_cast<size_t>(kLogitRows)) {
    const std::span<const int64_t> some =
        std::span<const int64_t>(positions_)
            .subspan(first, std::min(static_cast<size_t>(kLogitRows), positions_.size() - first));
    BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits, context.Logits(some));
    std::vector<double> kld(some.size());
    pool_.Run(static_cast<int64_t>(some.size()), [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i);
      kld[at] = Divergence({&base_[(first + at) * vocabulary], vocabulary}, base_sums_[first + at],
                           logits.subspan(at * vocabulary, vocabulary));
    });
    for (const double k : kld) sum += k;
  }
  const double mean = sum / static_cast<double>(positions_.size());
  if (std::isfinite(mean)) return mean;
  return Status(ErrorCode::kNonFinite,
                "a probe's logits are NaN or infinite; the model file or its numerics are damaged");
}

}  // namespace blockgtq
