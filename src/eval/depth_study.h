// `depth-study`: how far caches move a model at increasing depth. Each cache is compared with an fp16 cache
// over bands of positions: the logits of its own run, and attention's outputs on the fp16 run's inputs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/eval/tasks/results_file.h"
#include "src/eval/tested_cache.h"

namespace blockgtq {

struct DepthStudyOptions {
  std::vector<int64_t> depths = {256, 1024, 4096, 16384};  // ascending; scored are [depth - span, depth)
  int64_t span = 64;
  int64_t texts = 1;      // stretches of the text, each of the largest depth's tokens
  bool attention = true;  // attention's outputs too
  Token bos = -1;         // >= 0: takes the place of each stretch's first token
  int threads = 0;        // that compare logits; 0: one a core
  /// done: share of this run's work, 0..1; note: where it is. May be empty.
  std::function<void(double done, const std::string& note)> progress;
  const std::atomic<bool>* stop = nullptr;
};

/// A cache and what it keeps exactly.
struct StudiedCache {
  const TestedCache* cache = nullptr;
  Protection protection;
  /// "aligned K3V3, 4 sinks": no two of a study are equal.
  std::string Name() const { return cache->Name() + ", " + protection.Name(); }
};

/// Figures of one cache at one depth, over all texts.
struct DepthFigures {
  int64_t depth = 0, positions = 0;
  double kld = 0, kld_se = 0, kld_median = 0;  // nats, to the fp16 cache; se over positions
  double top1 = 0, top10_overlap = 0;          // shares, as PerplexityResult's
  /// Mean over positions of |o' - o| / |o|, o the outputs of a layer's heads together before the output
  /// projection: [layers]; empty without attention.
  std::vector<double> attention;
  double attention_mean() const;
};

struct DepthStudy {
  std::vector<std::vector<DepthFigures>> caches;  // [caches][depths]; empty where nothing is finished
  size_t samples = 0, samples_total = 0;          // a sample: a cache on a text
  bool stopped = false;                           // before the last sample
};

/// Runs what `results` lacks: for each text the fp16 cache, with all caches beside it, then each cache alone.
/// Every position attends as if it had been decoded (strict). tokens: the text. Errors: kInvalidArgument
/// (depths or spans that cannot be, a text that is too short, two caches of one name), kUnsupported
/// (attention on a backend without probes), kCorruptFile (a sample of the file that is not of this study),
/// kNonFinite, those of Context.
Result<DepthStudy> RunDepthStudy(LoadedModel& model, std::span<const StudiedCache> caches,
                                 std::span<const Token> tokens, const DepthStudyOptions& options,
                                 ResultsFile& results);

/// What finished samples of one cache, one a text, say of band `band`. Errors: kCorruptFile when a sample has
/// not the figures of every position and layer.
Result<DepthFigures> DepthFiguresOf(std::span<const nlohmann::json* const> samples, size_t band,
                                    const DepthStudyOptions& options, size_t layers);

/// One table a figure, a row a cache, a column a depth.
std::string DepthTables(std::span<const StudiedCache> caches, const DepthStudyOptions& options,
                        const DepthStudy& study);
/// "rows": one a cache and depth.
nlohmann::json DepthJson(std::span<const StudiedCache> caches, const DepthStudy& study);
/// SVG files by name: each figure against depth, and attention's error by layer at the largest depth.
std::vector<std::pair<std::string, std::string>> DepthPlots(const std::string& model,
                                                            std::span<const StudiedCache> caches,
                                                            const DepthStudy& study);

}  // namespace blockgtq
