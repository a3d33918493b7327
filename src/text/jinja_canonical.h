// A Jinja template in a form in which templates that differ only in spelling are equal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace blockgtq {

inline constexpr char kCanonicalEnd = '\x1f';  // ends every token

/// Tokens of the template: text that is output, and what stands in tags. White space is removed as Jinja does
/// with trim_blocks and lstrip_blocks (as chat templates are run); strings are unescaped and adjacent ones
/// joined; x.name is x['name']; comments are gone. Nothing when the text is not well-formed.
std::optional<std::string> CanonicalJinja(std::string_view jinja);

}  // namespace blockgtq
