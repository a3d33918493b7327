// A plan as a picture: the width of every RoPE block of every KV head, fast frequencies to the left.
#pragma once

#include <string>

#include "src/codec/block_widths.h"

namespace blockgtq {

/// An SVG document: a row a KV head, a cell a block, coloured by width; with a legend and the shares of each
/// width.
std::string PlanPicture(const Plan& plan);

}  // namespace blockgtq
