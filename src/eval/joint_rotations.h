// The rotation of each head under a budget: where no sinks are protected, the one that suits the key at
// position 0 (first_keys.h), found once for each number of key bits that a plan tries.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "src/core/thread_pool.h"
#include "src/eval/first_keys.h"

namespace blockgtq {

class JointRotations {
 public:
  /// first_keys: every head, or empty: seeds then stay as they are. calibrations: every head; ropes: by
  /// layer; all of them outlive this.
  JointRotations(const Recipe& recipe, std::span<const HeadCalibration> calibrations,
                 std::span<const std::shared_ptr<const RopeTable>> ropes, int kv_heads,
                 std::vector<FirstKeys> first_keys, int threads)
      : recipe_(recipe),
        calibrations_(calibrations),
        ropes_(ropes),
        kv_heads_(kv_heads),
        first_keys_(std::move(first_keys)),
        pool_(threads) {}

  /// Sets the seed of every head's bits. stop: may be null. Errors: kCancelled; those of ChooseRotation.
  Status Choose(std::span<RecipeOptions> bits, const std::atomic<bool>* stop);

 private:
  using Key = std::tuple<size_t, double>;  // a head, and its key bits

  const Recipe& recipe_;
  std::span<const HeadCalibration> calibrations_;
  std::span<const std::shared_ptr<const RopeTable>> ropes_;
  int kv_heads_;
  std::vector<FirstKeys> first_keys_;
  std::map<Key, uint64_t> chosen_;
  ThreadPool pool_;
};

}  // namespace blockgtq
