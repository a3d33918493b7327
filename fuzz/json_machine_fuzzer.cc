// The bytes that answers are held to: what the machine takes as an object, another parser of JSON takes too.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "src/engine/json_machine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  blockgtq::JsonMachine machine;
  for (size_t i = 0; i < size; ++i) {
    if (!machine.Push(data[i])) return 0;
    if (!machine.done()) continue;
    const auto parsed = nlohmann::json::parse(data, data + i + 1, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) std::abort();
  }
  return 0;
}
