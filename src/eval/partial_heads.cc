// See partial_heads.h.
#include "src/eval/partial_heads.h"

#include <utility>

namespace blockgtq {
namespace {

/// What is exact is kept in fp32, as simulated caches keep everything.
class PartlyStoredHead : public SimulatedHead {
 public:
  PartlyStoredHead(int head_dim, std::unique_ptr<const SimulatedHead> keys,
                   std::unique_ptr<const SimulatedHead> values)
      : dim_(head_dim), keys_(std::move(keys)), values_(std::move(values)) {}

  void RoundTripKeys(std::span<const float> before, std::span<float> keys, int64_t first) const override {
    if (keys_ != nullptr) keys_->RoundTripKeys(before, keys, first);
  }
  void RoundTripValues(std::span<float> values, int64_t first) const override {
    if (values_ != nullptr) values_->RoundTripValues(values, first);
  }
  double key_bytes_per_token() const override {
    return keys_ != nullptr ? keys_->key_bytes_per_token() : 4.0 * dim_;
  }
  double bytes_per_token() const override {
    return key_bytes_per_token() +
           (values_ != nullptr ? values_->bytes_per_token() - values_->key_bytes_per_token() : 4.0 * dim_);
  }

 private:
  int dim_;
  std::unique_ptr<const SimulatedHead> keys_, values_;  // null: exact
};

}  // namespace

std::shared_ptr<const SimulatedHeads> OneSideStored(const ModelConfig& config, const HeadPlan& plan,
                                                    const std::shared_ptr<const RopeTable>& rope, int layer,
                                                    int kv_head, StoredSide side) {
  auto heads = std::make_shared<SimulatedHeads>();
  *heads = {"probe", config.layers, config.kv_heads, config.head_dim, {}};
  for (int i = 0; i < config.layers * config.kv_heads; ++i) {
    std::unique_ptr<const SimulatedHead> keys, values;
    if (i == layer * config.kv_heads + kv_head)
      (side == StoredSide::kKeys ? keys : values) = SimulatePlannedHead(plan, rope);
    heads->heads.push_back(
        std::make_unique<PartlyStoredHead>(config.head_dim, std::move(keys), std::move(values)));
  }
  return heads;
}

}  // namespace blockgtq
