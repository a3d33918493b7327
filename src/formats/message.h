// Text for one-line error messages about files whose content is not trusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace blockgtq {

/// 1024 -> "1,024".
std::string Grouped(uint64_t number);

/// A name read from a file, fit for a message: control characters and bytes above 126 as \xNN, cut after 80
/// bytes with "...".
std::string Printable(std::string_view name);

}  // namespace blockgtq
