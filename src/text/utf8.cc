// UTF-8 classification after table 3-7 of the Unicode standard.
#include "src/text/utf8.h"

#include <cstring>

namespace blockgtq {

Utf8Unit FirstUtf8Unit(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kValid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::kInvalid, 1, 0};

  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte has a range of its own; it excludes overlong forms, surrogates and the far planes.
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  char32_t code_point = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const unsigned next = byte(i);
    if (next < low || next > high) return {Utf8Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, length, code_point};
}

size_t ValidUtf8Prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & kHighBits) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Utf8Unit unit = FirstUtf8Unit(text.substr(at));
    if (unit.kind != Utf8Kind::kValid) return at;
    at += unit.bytes;
  }
  return at;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](unsigned byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace blockgtq
