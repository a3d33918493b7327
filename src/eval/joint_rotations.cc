// See joint_rotations.h.
#include "src/eval/joint_rotations.h"

#include "src/engine/drift.h"
#include "src/eval/joint_options.h"

namespace blockgtq {

Status JointRotations::Choose(std::span<RecipeOptions> bits, const std::atomic<bool>* stop) {
  if (first_keys_.empty()) return Status::Ok();
  std::vector<size_t> unknown;
  for (size_t head = 0; head < bits.size(); ++head) {
    if (!chosen_.contains(Key(head, bits[head].k_bits))) unknown.push_back(head);
  }
  std::vector<Status> outcomes(unknown.size());
  std::vector<uint64_t> seeds(unknown.size());
  pool_.Run(static_cast<int64_t>(unknown.size()), [&](int64_t i, int) {
    if (!CheckJointStop(stop).ok()) return;
    const size_t head = unknown[static_cast<size_t>(i)];
    const int layer = static_cast<int>(head) / kv_heads_;
    const Result<uint64_t> seed = ChooseRotation(recipe_, calibrations_[head], bits[head], first_keys_[head],
                                                 ropes_[static_cast<size_t>(layer)], layer,
                                                 static_cast<int>(head) % kv_heads_, kRotationsOfAHead);
    outcomes[static_cast<size_t>(i)] = seed.status();
    if (seed.ok()) seeds[static_cast<size_t>(i)] = *seed;
  });
  BGTQ_RETURN_IF_ERROR(CheckJointStop(stop));
  for (size_t i = 0; i < unknown.size(); ++i) {
    BGTQ_RETURN_IF_ERROR(outcomes[i]);
    chosen_[Key(unknown[i], bits[unknown[i]].k_bits)] = seeds[i];
  }
  for (size_t head = 0; head < bits.size(); ++head) bits[head].seed = chosen_[Key(head, bits[head].k_bits)];
  return Status::Ok();
}

}  // namespace blockgtq
