// Caches in which one side of one head is stored as codes and all else is exact: what probes run with.
#pragma once

#include <memory>

#include "src/codec/simulated.h"
#include "src/models/model.h"

namespace blockgtq {

enum class StoredSide { kKeys, kValues };

/// plan: of KV head `kv_head` of `layer`, whose `side` its codes decide; rope: that layer's.
std::shared_ptr<const SimulatedHeads> OneSideStored(const ModelConfig& config, const HeadPlan& plan,
                                                    const std::shared_ptr<const RopeTable>& rope, int layer,
                                                    int kv_head, StoredSide side);

}  // namespace blockgtq
