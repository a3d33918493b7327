// The attention of one layer over caches beside the one that drives a pass (AttentionProbe in model.h).
#pragma once

#include <memory>
#include <vector>

#include "src/models/model.h"

namespace blockgtq {

/// Repeats `call`, whose output is there, over the probe's caches, and reports. rows: how many rows the
/// outputs `kept` between calls should have room for.
Status RunProbe(Backend& backend, AttentionCall call, const AttentionProbe& probe, int64_t rows,
                std::vector<std::unique_ptr<Activations>>& kept);

}  // namespace blockgtq
