// How far a change of some layers' cache moves a model's predictions on one text, for many changes quickly:
// the exact pass is run once, and each probe runs only the layers from its own on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/codec/simulated.h"
#include "src/core/thread_pool.h"
#include "src/engine/context.h"
#include "src/eval/tested_cache.h"

namespace blockgtq {

struct KldProbeOptions {
  int64_t window = 512;     // tokens of a sequence; all windows are run in one pass
  int64_t positions = 256;  // of the text, evenly spread, whose logits are compared
  Protection protection{4, 64};
  int threads = 0;  // that compare logits; 0: one a core
};

/// Keeps the backend at Precision::kFloat while it lives.
class KldProbe {
 public:
  /// tokens: cut into windows; a last one may be shorter. Errors: kInvalidArgument (fewer than two tokens,
  /// settings out of range, a window past the model's context), kUnsupported (a backend without simulated
  /// caches); those of Context::Run.
  static Result<std::unique_ptr<KldProbe>> Create(LoadedModel& model, std::span<const Token> tokens,
                                                  const KldProbeOptions& options);
  ~KldProbe();

  /// The first layer that later probes run; layers before it are exact. Ascending. Errors: kInvalidArgument;
  /// those of Context::Run.
  Status Enter(int layer);
  /// Mean KL divergence from the exact logits to those with these heads, nats. Errors: kNonFinite; those of
  /// Context::Create and Run.
  Result<double> Kld(std::shared_ptr<const SimulatedHeads> heads);
  /// The same with these heads in the layer entered alone, those behind it exact: quicker, most of all where
  /// exact caches are on a GPU, which simulated ones are not.
  Result<double> KldOfLayer(std::shared_ptr<const SimulatedHeads> heads);
  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  KldProbe(LoadedModel& model, std::span<const Token> tokens, const KldProbeOptions& options);
  Status Run(Context& context, const LayerRange& layers);
  Result<std::unique_ptr<Context>> MakeContext(std::shared_ptr<const SimulatedHeads> heads) const;
  Result<double> Compare(Context& context);

  LoadedModel& model_;
  KldProbeOptions options_;
  Precision before_;
  std::vector<Token> tokens_;
  std::vector<int64_t> positions_;
  std::unique_ptr<Context> exact_;
  std::unique_ptr<Activations> stream_;   // exact, into layer_
  std::unique_ptr<Activations> changed_;  // out of layer_, where it alone is not exact
  std::vector<int64_t> all_rows_;         // 0, 1, ...
  std::vector<float> base_;               // logits [positions, vocabulary]
  std::vector<double> base_sums_;         // of each position (LogSum)
  ThreadPool pool_;
  int layer_ = 0;
};

}  // namespace blockgtq
