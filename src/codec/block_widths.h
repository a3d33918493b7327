// A head's widths by RoPE block, as pictures and statistics show them.
#pragma once

#include <vector>

#include "src/codec/plan.h"

namespace blockgtq {

/// Code width of each RoPE block of a head, in frequency order: [head_dim / 2].
std::vector<int> BlockWidths(const HeadPlan& head);

}  // namespace blockgtq
