// UTF-8 as bytes: where well-formed characters and maximal invalid parts begin and end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace blockgtq {

enum class Utf8Kind {
  kValid,       // a well-formed character
  kInvalid,     // bytes that no continuation could make well-formed
  kIncomplete,  // a proper prefix of a character, cut by the end of the text
};

/// The first character of a text, or the first maximal part of one (Unicode 3.9, table 3-7: overlong forms,
/// surrogates and values above U+10FFFF are invalid).
struct Utf8Unit {
  Utf8Kind kind;
  int bytes;            // 1 to 4
  char32_t code_point;  // kValid only
};

/// text must not be empty.
Utf8Unit FirstUtf8Unit(std::string_view text);

/// Bytes of the longest well-formed prefix of `text`.
size_t ValidUtf8Prefix(std::string_view text);

void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace blockgtq
