// Running second moments of what a model is asked: queries and keys as they enter attention while it serves
// or generates, looked at now and then, and how far the plan in use has drifted from what they ask for
// (docs/method.md, "Drift").
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/backend/backend.h"
#include "src/core/random.h"
#include "src/core/statistics.h"
#include "src/engine/drift.h"
#include "src/engine/loaded_model.h"
#include "src/formats/moments_file.h"

namespace blockgtq {

/// Gathers moments: every kPassesALook-th pass is looked at. One thread runs passes; state() is for any.
class MomentsWatch : public AttentionObserver {
 public:
  static constexpr int64_t kPassesALook = 16;
  static constexpr int64_t kKeptVectors = 128;  // of each head, evenly among the tokens seen
  /// A sequence's first token, whose key is like no others, counts once in so many tokens: as in calibration,
  /// however short the sequences are.
  static constexpr int64_t kTokensAFirst = 2048;
  static constexpr int64_t kWindowTokens = 16'384;  // when twice as many count, all count half from then on

  struct State {
    int64_t seen = 0;            // tokens looked at, those of the file included
    std::optional<Drift> drift;  // of the plan, when it was last measured
  };

  /// file: taken up where it is there, and written by Save and as drift is measured. plan: null for an
  /// uncompressed cache; outlives this; by_head: as AdaptPlan. Errors: those of LoadMoments; kMismatch for
  /// moments of another model.
  static Result<std::unique_ptr<MomentsWatch>> Open(const LoadedModel& model, const Plan* plan, bool by_head,
                                                    std::string file);
  ~MomentsWatch() override;

  /// Before a pass: whether it is to be looked at.
  bool BeginPass(std::span<const BatchSlice> slices);
  void Observe(int layer, int64_t rows, const float* queries, const float* keys,
               const float* values) override;
  /// After every pass. Now and then drift is measured and the file written, on a thread of its own; an error
  /// there is returned by Save.
  void EndPass();

  State state() const;
  /// Measures drift and writes the file; nothing where no token was seen. Errors: those of MeasureDrift and
  /// SaveMoments.
  Status Save();

 private:
  MomentsWatch(const ModelConfig& config, const ModelFingerprint& model, const Plan* plan, bool by_head,
               std::string file);
  void TakeUp(const ModelMoments& moments);
  ModelMoments Snapshot() const;
  Status Publish(const ModelMoments& moments);  // drift into state_, moments into the file
  void Keep(size_t head, int64_t place, const float* key, const float* value);

  /// What becomes of a row of the pass that is looked at.
  struct Row {
    bool counts = true;  // in the statistics
    int64_t place = -1;  // among the kept vectors; -1: not kept
  };

  const ModelConfig& config_;
  const ModelFingerprint model_;
  const Plan* const plan_;
  const bool by_head_;
  const std::string file_;
  std::vector<StatisticsAccumulator> statistics_;  // [layers * kv_heads]
  std::vector<std::vector<float>> keys_,
      values_;        // of each head [1 + kKeptVectors, head_dim]; at 0 a first token's
  int64_t kept_ = 0;  // vectors after that one
  bool has_first_ = false;
  Xoshiro256 random_{1};
  int64_t passes_ = 0, seen_ = 0, next_measured_ = 0, next_first_ = 0;
  double counted_ = 0;     // tokens that the statistics stand for
  std::vector<Row> rows_;  // of the pass; empty: it is not looked at
  int layer_ = -1;         // that was last observed
  size_t next_row_ = 0;    // of it

  mutable std::mutex mutex_;
  State state_;              // guarded by mutex_, as is background_
  bool background_ = false;  // a thread measures
  Status failed_;
  std::thread thread_;
};

}  // namespace blockgtq
