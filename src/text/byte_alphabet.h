// GPT-2's alphabet: the printable character that stands for each byte in the text of a byte-level token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace blockgtq {

/// The character (UTF-8) that stands for `byte`.
std::string ByteToAlphabet(uint8_t byte);

/// The bytes that `text` stands for; nothing when a character of it is outside the alphabet.
std::optional<std::string> AlphabetToBytes(std::string_view text);

}  // namespace blockgtq
