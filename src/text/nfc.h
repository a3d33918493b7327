// Unicode's Normalization Form C.
#pragma once

#include <string>
#include <string_view>

namespace blockgtq {

/// text in Normalization Form C. Invalid bytes stay, and end what can compose. O(n) but for runs of combining
/// marks, which are sorted.
std::string ToNfc(std::string_view text);

}  // namespace blockgtq
