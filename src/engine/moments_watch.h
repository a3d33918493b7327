// Running second moments of what a model is asked: queries and keys as they enter attention while it serves
// or generates, looked at now and then, and how far the plan in use has drifted from what they ask for
// (docs/method.md, "Drift").
#pragma once

#include <cstdint>
#include <functional>
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

struct MomentsOptions {
  std::string file;            // taken up where it is there; written as drift is measured, and by Save
  const Plan* plan = nullptr;  // in use, outlives the watch; null for an uncompressed cache
  bool by_head = false;        // as AdaptPlan
  /// Draws passes and vectors; without it every run draws others.
  std::optional<uint64_t> seed;
  /// Told when writing or measuring in the background fails, until it works again; on a thread of its own.
  std::function<void(const Status&)> on_failure;
};

/// Gathers moments of passes that are drawn. One thread runs passes; state() is for any.
class MomentsWatch : public AttentionObserver {
 public:
  static constexpr int64_t kPassesALook = 16;   // one in so many passes, at random
  static constexpr int64_t kFirstTokens = 256;  // until so many count, every pass is looked at
  static constexpr int64_t kKeptVectors = 128;  // of each head, evenly among the tokens seen
  /// A sequence's first token, whose key is like no others, counts once in so many tokens: as in calibration,
  /// however short the sequences are.
  static constexpr int64_t kTokensAFirst = 2048;
  static constexpr int64_t kWindowTokens = 16'384;  // when twice as many count, all count half from then on

  struct State {
    int64_t seen = 0;            // tokens looked at, those of the file included
    std::optional<Drift> drift;  // of the plan, when it was last measured
    int64_t failures = 0;        // in the background
  };

  /// Errors: those of LoadMoments; kMismatch for moments of another model; kIo where the file cannot be
  /// written.
  static Result<std::unique_ptr<MomentsWatch>> Open(const LoadedModel& model, MomentsOptions options);
  ~MomentsWatch() override;

  /// Before a pass: whether it is to be looked at.
  bool BeginPass(std::span<const BatchSlice> slices);
  void Observe(int layer, int64_t rows, const float* queries, const float* keys,
               const float* values) override;
  /// After a pass that succeeded: what was observed counts from here on; of a pass that failed, or held a NaN
  /// or an infinity, nothing does. Now and then the file is written and drift measured, on a thread of its
  /// own.
  void EndPass();

  State state() const;
  /// Writes the file and measures drift, whatever became of it in the background; nothing where no token was
  /// seen. Errors: those of SaveMoments and MeasureDrift.
  Status Save();

 private:
  /// What becomes of a row of the pass that is looked at.
  struct Row {
    bool counts = true;  // in the statistics
    int64_t slot = -1;   // of Pass::places; -1: not kept
  };
  struct Counts {
    int64_t seen = 0, next_first = 0;
    double counted = 0;      // tokens that the statistics stand for
    int64_t kept = 0;        // vectors after the first token's
    bool has_first = false;  // there is one
  };
  /// What a pass adds, until EndPass.
  struct Pass {
    Counts counts;
    std::vector<StatisticsAccumulator> statistics;  // those before and the pass, [layers * kv_heads]
    std::vector<Row> rows;                          // empty: it is not looked at
    std::vector<int64_t> places;                    // among the kept vectors, that get others
    std::vector<std::vector<float>> keys, values;   // of each head [places, head_dim]
    int layer = -1;                                 // that was last observed
    size_t next_row = 0;                            // of it
    size_t observed = 0;                            // rows, over all layers
  };

  MomentsWatch(const ModelConfig& config, const ModelFingerprint& model, MomentsOptions options);
  Status TakeUp(const ModelMoments& moments);
  Row Place(int64_t position);
  bool PassIsWhole() const;
  void Commit();
  ModelMoments Snapshot() const;
  Status Publish(const ModelMoments& moments);  // moments into the file, drift into state_

  const ModelConfig& config_;
  const ModelFingerprint model_;
  const MomentsOptions options_;
  std::vector<StatisticsAccumulator> statistics_;  // [layers * kv_heads]
  std::vector<std::vector<float>> keys_,
      values_;  // of each head [1 + kKeptVectors, head_dim]; at 0 a first token's
  Counts counts_;
  Pass pass_;
  Xoshiro256 random_;
  int64_t next_measured_ = 0;  // tokens seen

  mutable std::mutex mutex_;
  State state_;              // guarded by mutex_, as is background_
  bool background_ = false;  // a thread measures
  bool failing_ = false;     // of that thread: it said so
  std::thread thread_;
};

}  // namespace blockgtq
