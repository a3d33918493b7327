// Number and name formatting of messages.
#include "src/formats/message.h"

#include <fmt/format.h>

namespace blockgtq {

std::string Grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string Printable(std::string_view name) {
  constexpr size_t kLimit = 80;
  std::string out;
  for (const char c : name.substr(0, kLimit)) {
    if (c >= 32 && c < 127) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return name.size() > kLimit ? out + "..." : out;
}

}  // namespace blockgtq
