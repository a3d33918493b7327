// A plan as a picture: the width of every RoPE block of every KV head, fast frequencies to the left.
#pragma once

#include <string>
#include <vector>

#include "src/codec/plan.h"

namespace blockgtq {

/// Code width of each RoPE block of a head, in frequency order: [head_dim / 2].
std::vector<int> BlockWidths(const HeadPlan& head);

/// An SVG document: a row a KV head, a cell a block, coloured by width; with a legend and the shares of each
/// width.
std::string PlanPicture(const Plan& plan);

}  // namespace blockgtq
