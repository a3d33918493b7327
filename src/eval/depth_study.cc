// See depth_study.h. A finished sample holds its positions' own figures, so that means and errors are taken
// over all texts at the end.
#include "src/eval/depth_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "src/core/thread_pool.h"
#include "src/eval/logit_comparison.h"

namespace blockgtq {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of logits held at a time

Status Invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

Status CheckOptions(const LoadedModel& model, std::span<const StudiedCache> caches, int64_t tokens,
                    const DepthStudyOptions& options) {
  if (caches.empty() || options.depths.empty()) return Invalid("a depth study needs a cache and a depth");
  for (size_t i = 0; i < caches.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (caches[i].Name() == caches[j].Name())
        return Invalid(
            fmt::format("two caches are '{}': leave one out of the plans or recipes", caches[i].Name()));
    }
  }
  int64_t before = 0;
  for (const int64_t depth : options.depths) {
    if (depth - options.span < before) {
      return Invalid(
          fmt::format("depth {}: its {} positions begin before {}; name depths in ascending order, further "
                      "apart, or a smaller --span",
                      depth, options.span, before));
    }
    before = depth;
  }
  const int64_t longest = options.depths.back(), limit = model.config().context_length;
  if (longest > limit)
    return Invalid(fmt::format("depth {}: the model's context has {} tokens", longest, limit));
  if (tokens < longest * options.texts) {
    return Invalid(
        fmt::format("the text has {} tokens, {} stretches of {} need {}: use a longer text, a "
                    "smaller depth or fewer --texts",
                    tokens, options.texts, longest, longest * options.texts));
  }
  if (options.attention && !model.backend().has_attention_probes()) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: attention's errors need a pass over several caches; use --no-attention for the "
                    "logits alone, or --device cpu",
                    model.backend().name()));
  }
  return Status::Ok();
}

Status NonFinite(const char* what) {
  return {ErrorCode::kNonFinite,
          fmt::format("{} is NaN or infinite; the model file or its numerics are damaged", what)};
}

std::string SampleId(int64_t text, const StudiedCache& cache) {
  return fmt::format("text {}/{}", text, cache.Name());
}

/// Positions of a pass [first, first + rows) that a band scores, as rows of the pass; the band's index.
struct BandRows {
  size_t band = 0;
  std::vector<int64_t> rows;
};
std::vector<BandRows> ScoredRows(const DepthStudyOptions& options, int64_t first, int64_t rows) {
  std::vector<BandRows> scored;
  for (size_t band = 0; band < options.depths.size(); ++band) {
    BandRows of{band, {}};
    const int64_t begin = std::max(first, options.depths[band] - options.span);
    for (int64_t p = begin; p < std::min(first + rows, options.depths[band]); ++p)
      of.rows.push_back(p - first);
    if (!of.rows.empty()) scored.push_back(std::move(of));
  }
  return scored;
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

/// |o' - o| / |o|; where o is zero, 0 if o' is too, else 1.
double RelativeError(std::span<const float> exact, std::span<const float> coded) {
  std::vector<float> difference(exact.size());
  for (size_t i = 0; i < exact.size(); ++i) difference[i] = coded[i] - exact[i];
  const double error = Norm(difference), size = Norm(exact);
  return size > 0 ? error / size : (error > 0 ? 1 : 0);
}

/// What the fp16 run of one text leaves: logits of the scored positions, and for each cache [bands][layers]
/// the sum over a band's positions of attention's relative error.
struct BaseRun {
  std::vector<float> logits;                                // [bands * span, vocabulary]
  std::vector<std::vector<std::vector<double>>> attention;  // [caches][bands][layers]
};

class DepthRunner {
 public:
  DepthRunner(LoadedModel& model, std::span<const StudiedCache> caches, const DepthStudyOptions& options)
      : model_(model), caches_(caches), options_(options), pool_(ThreadsOrCores(options.threads)) {}

  /// Samples of `text` for the caches `wanted`, in order. Returns true when stopped.
  Result<bool> RunText(int64_t text, std::span<const Token> tokens, std::span<const size_t> wanted,
                       ResultsFile& results) {
    std::vector<Token> own(tokens.begin(), tokens.end());
    if (options_.bos >= 0) own[0] = options_.bos;
    BaseRun base;
    const Status status = RunBase(own, wanted, fmt::format("text {}, fp16", text), base);
    if (status.code() == ErrorCode::kCancelled) return true;
    BGTQ_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const StudiedCache& cache = caches_[wanted[i]];
      nlohmann::json bands;
      const Status ran = RunCache(own, cache, base, fmt::format("text {}, {}", text, cache.Name()), bands);
      if (ran.code() == ErrorCode::kCancelled) return true;
      BGTQ_RETURN_IF_ERROR(ran.WithContext(SampleId(text, cache)));
      if (options_.attention) {
        for (size_t b = 0; b < bands.size(); ++b) {
          for (double& sum : base.attention[i][b]) {
            sum /= static_cast<double>(options_.span);
            if (!std::isfinite(sum)) return NonFinite("an output of attention").WithContext(cache.Name());
          }
          bands[b]["attention"] = base.attention[i][b];
        }
      }
      BGTQ_RETURN_IF_ERROR(results.Append({{"id", SampleId(text, cache)}, {"bands", bands}}));
    }
    return false;
  }

  /// Passes over a text that this run makes: for the time left.
  void set_passes(size_t passes) { passes_ = passes; }

 private:
  /// Runs all tokens strictly; on_batch(first, rows) after each pass.
  Status RunAll(Context& context, std::span<const Token> tokens, const ContextProbe* probe,
                const std::string& note, const std::function<Status(int64_t, int64_t)>& on_batch) {
    BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context.cache().AddSequence());
    for (int64_t first = 0; first < static_cast<int64_t>(tokens.size()); first += Context::kScoringBatch) {
      if (options_.stop != nullptr && options_.stop->load()) return {ErrorCode::kCancelled, "stopped"};
      const int64_t rows = std::min(Context::kScoringBatch, static_cast<int64_t>(tokens.size()) - first);
      pass_first_ = first;
      const SequenceTokens item{sequence,
                                tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows))};
      BGTQ_RETURN_IF_ERROR(context.Run({&item, 1}, {.strict = true, .probe = probe}));
      BGTQ_RETURN_IF_ERROR(on_batch(first, rows));
      if (options_.progress) {
        const double pass = static_cast<double>(first + rows) / static_cast<double>(tokens.size());
        options_.progress((static_cast<double>(passes_done_) + pass) / static_cast<double>(passes_), note);
      }
    }
    ++passes_done_;
    return Status::Ok();
  }

  Status RunBase(std::span<const Token> tokens, std::span<const size_t> wanted, const std::string& note,
                 BaseRun& base) {
    const int64_t length = static_cast<int64_t>(tokens.size());
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> half, MakeHalfContext(model_, length));
    std::vector<std::unique_ptr<Context>> owned;
    std::vector<Context*> others;
    const size_t bands = options_.depths.size(), layers = static_cast<size_t>(model_.config().layers);
    if (options_.attention) {
      base.attention.assign(wanted.size(), std::vector(bands, std::vector<double>(layers, 0)));
      for (const size_t i : wanted) {
        BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<Context> other,
                              MakeTestedContext(model_, *caches_[i].cache, caches_[i].protection, length));
        BGTQ_RETURN_IF_ERROR(other->cache().AddSequence().status());
        others.push_back(other.get());
        owned.push_back(std::move(other));
      }
    }
    const int64_t batch = std::min(Context::kScoringBatch, length);
    const auto report = [&](int layer, std::span<const Activations* const> outputs) {
      const int64_t rows = std::min(batch, length - pass_first_);
      return AddErrors(layer, outputs, ScoredRows(options_, pass_first_, rows), base);
    };
    const ContextProbe probe{others, report};
    return RunAll(*half, tokens, options_.attention ? &probe : nullptr, note,
                  [&](int64_t first, int64_t rows) { return KeepLogits(*half, first, rows, base); });
  }

  /// outputs: [0] exact, [1 + i] of wanted cache i.
  Status AddErrors(int layer, std::span<const Activations* const> outputs,
                   const std::vector<BandRows>& scored, BaseRun& base) {
    std::vector<float> exact(static_cast<size_t>(outputs[0]->cols())), coded(exact.size());
    for (const BandRows& of : scored) {
      for (const int64_t row : of.rows) {
        BGTQ_RETURN_IF_ERROR(model_.backend().ReadRow(*outputs[0], row, exact.data()));
        for (size_t i = 1; i < outputs.size(); ++i) {
          BGTQ_RETURN_IF_ERROR(model_.backend().ReadRow(*outputs[i], row, coded.data()));
          base.attention[i - 1][of.band][static_cast<size_t>(layer)] += RelativeError(exact, coded);
        }
      }
    }
    return Status::Ok();
  }

  Status KeepLogits(Context& context, int64_t first, int64_t rows, BaseRun& base) {
    for (const BandRows& of : ScoredRows(options_, first, rows)) {
      for (size_t at = 0; at < of.rows.size(); at += kLogitRows) {
        const size_t count = std::min(of.rows.size() - at, static_cast<size_t>(kLogitRows));
        BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits,
                              context.Logits(std::span(of.rows).subspan(at, count)));
        base.logits.insert(base.logits.end(), logits.begin(), logits.end());
      }
    }
    return Status::Ok();
  }

  /// bands: an object a band, with the figures of its positions.
  Status RunCache(std::span<const Token> tokens, const StudiedCache& cache, const BaseRun& base,
                  const std::string& note, nlohmann::json& bands) {
    bands = nlohmann::json::array();
    std::vector<LogitComparison> comparisons;  // of all scored positions, in order
    const size_t vocabulary = static_cast<size_t>(model_.config().vocabulary);
    BGTQ_ASSIGN_OR_RETURN(
        const std::unique_ptr<Context> context,
        MakeTestedContext(model_, *cache.cache, cache.protection, static_cast<int64_t>(tokens.size())));
    const auto compare = [&](int64_t first, int64_t rows) -> Status {
      for (const BandRows& of : ScoredRows(options_, first, rows)) {
        for (size_t at = 0; at < of.rows.size(); at += kLogitRows) {
          const size_t count = std::min(of.rows.size() - at, static_cast<size_t>(kLogitRows));
          BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits,
                                context->Logits(std::span(of.rows).subspan(at, count)));
          const size_t done = comparisons.size();
          comparisons.resize(done + count);
          pool_.Run(static_cast<int64_t>(count), [&](int64_t i, int) {
            const size_t row = static_cast<size_t>(i);
            comparisons[done + row] =
                CompareLogits(std::span(base.logits).subspan((done + row) * vocabulary, vocabulary),
                              logits.subspan(row * vocabulary, vocabulary));
          });
        }
      }
      return Status::Ok();
    };
    BGTQ_RETURN_IF_ERROR(RunAll(*context, tokens, nullptr, note, compare));
    const size_t span = static_cast<size_t>(options_.span);
    for (size_t b = 0; b < options_.depths.size(); ++b) {
      std::vector<double> kld, overlap;
      std::vector<int> top1;
      for (size_t i = b * span; i < (b + 1) * span; ++i) {
        if (!std::isfinite(comparisons[i].kld)) {
          return NonFinite("a logit");
        }
        kld.push_back(comparisons[i].kld);
        overlap.push_back(comparisons[i].top10_overlap);
        top1.push_back(comparisons[i].same_top1 ? 1 : 0);
      }
      bands.push_back({{"depth", options_.depths[b]}, {"kld", kld}, {"top1", top1}, {"overlap", overlap}});
    }
    return Status::Ok();
  }

  LoadedModel& model_;
  std::span<const StudiedCache> caches_;
  const DepthStudyOptions& options_;
  ThreadPool pool_;
  size_t passes_ = 1, passes_done_ = 0;
  int64_t pass_first_ = 0;  // position of the first row of the pass under way
};

}  // namespace

Result<DepthStudy> RunDepthStudy(LoadedModel& model, std::span<const StudiedCache> caches,
                                 std::span<const Token> tokens, const DepthStudyOptions& options,
                                 ResultsFile& results) {
  BGTQ_RETURN_IF_ERROR(CheckOptions(model, caches, static_cast<int64_t>(tokens.size()), options));
  std::map<std::string, std::pair<size_t, size_t>> places;  // id: text, cache
  for (int64_t t = 0; t < options.texts; ++t)
    for (size_t c = 0; c < caches.size(); ++c) places[SampleId(t, caches[c])] = {static_cast<size_t>(t), c};
  std::vector<std::vector<bool>> finished(static_cast<size_t>(options.texts),
                                          std::vector<bool>(caches.size(), false));
  for (const nlohmann::json& sample : results.samples()) {
    const auto place = places.find(sample["id"].get<std::string>());
    const bool known = place != places.end();
    if (!known || finished[place->second.first][place->second.second]) {
      return Status(
          ErrorCode::kCorruptFile,
          fmt::format("results file: sample '{}' {}; remove that line", sample["id"].get<std::string>(),
                      known ? "stands there twice" : "is not one of this study"));
    }
    finished[place->second.first][place->second.second] = true;
  }
  DepthRunner runner(model, caches, options);
  size_t passes = 0;
  for (const std::vector<bool>& of_text : finished) {
    const size_t missing = static_cast<size_t>(std::count(of_text.begin(), of_text.end(), false));
    if (missing > 0) passes += missing + 1;
  }
  runner.set_passes(std::max<size_t>(passes, 1));
  DepthStudy study;
  const int64_t length = options.depths.back();
  for (int64_t t = 0; t < options.texts && !study.stopped; ++t) {
    std::vector<size_t> wanted;
    for (size_t c = 0; c < caches.size(); ++c)
      if (!finished[static_cast<size_t>(t)][c]) wanted.push_back(c);
    if (wanted.empty()) continue;
    BGTQ_ASSIGN_OR_RETURN(
        study.stopped,
        runner.RunText(t, tokens.subspan(static_cast<size_t>(t * length), static_cast<size_t>(length)),
                       wanted, results));
  }
  study.samples = results.samples().size();
  study.samples_total = static_cast<size_t>(options.texts) * caches.size();
  study.caches.resize(caches.size());
  for (size_t c = 0; c < caches.size(); ++c) {
    std::vector<const nlohmann::json*> samples;
    for (const nlohmann::json& sample : results.samples())
      if (places[sample["id"].get<std::string>()].second == c) samples.push_back(&sample);
    for (size_t b = 0; b < options.depths.size() && !samples.empty(); ++b) {
      BGTQ_ASSIGN_OR_RETURN(DepthFigures figures,
                            DepthFiguresOf(samples, b, options, static_cast<size_t>(model.config().layers)));
      study.caches[c].push_back(std::move(figures));
    }
  }
  return study;
}

}  // namespace blockgtq
