// Number and name formatting of messages.
#include "src/formats/message.h"

#include <fmt/format.h>

namespace blockgtq {

std::string Grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
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
