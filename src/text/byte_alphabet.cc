// Source: bytes_to_unicode() of GPT-2's encoder: printable Latin-1 stands for itself, the other 68 bytes are
// numbered upward from U+0100.
#include "src/text/byte_alphabet.h"

#include <array>

#include "src/text/utf8.h"

namespace blockgtq {
namespace {

struct Alphabet {
  std::array<char32_t, 256> code_point;  // of a byte
  std::array<int16_t, 512> byte;         // of a code point; -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  alphabet.byte.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const char32_t code_point = printable ? static_cast<char32_t>(b) : next++;
    alphabet.code_point[b] = code_point;
    alphabet.byte[code_point] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ByteToAlphabet(uint8_t byte) {
  std::string out;
  AppendUtf8(kAlphabet.code_point[byte], &out);
  return out;
}

std::optional<std::string> AlphabetToBytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    if (unit.kind != Utf8Kind::kValid || unit.code_point >= kAlphabet.byte.size()) return std::nullopt;
    const int16_t byte = kAlphabet.byte[unit.code_point];
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    text.remove_prefix(unit.bytes);
  }
  return out;
}

}  // namespace blockgtq
