// config.json and model.safetensors.index.json: any bytes give a result or one Status. The first byte says
// which; tensor names of the rest are translated too.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/formats/huggingface_config.h"
#include "src/formats/huggingface_names.h"
#include "src/formats/safetensors_index.h"

namespace {

constexpr blockgtq::HuggingFaceFamily kFamilies[] = {
    {.model_type = "llama", .architecture = "llama"},
    {.model_type = "qwen2", .architecture = "qwen2", .window_needs_flag = true},
};

void ExpectOneLine(const blockgtq::Status& status) {
  if (status.message().find('\n') != std::string::npos) std::abort();
}

void Config(std::string_view text) {
  const auto config = blockgtq::ReadHuggingFaceConfig(text, "fuzz", kFamilies);
  if (!config.ok()) return ExpectOneLine(config.status());
  const blockgtq::ModelKeys& keys = config->keys;
  ExpectOneLine(keys.CheckAllRead({}));
  for (const std::string& key : keys.Names()) {
    ExpectOneLine(keys.Int(key).status());
    ExpectOneLine(keys.Reals(key).status());
    ExpectOneLine(keys.Text(key).status());
  }
  if (!keys.CheckAllRead({}).ok()) std::abort();
}

void Index(std::string_view text) {
  const auto index = blockgtq::ParseSafetensorsIndex(text, "fuzz");
  if (!index.ok()) return ExpectOneLine(index.status());
  for (const auto& [tensor, file] : index->file_of) {
    if (file.find('/') != std::string::npos) std::abort();
    const blockgtq::GgufTensorName name = blockgtq::ToGgufName(kFamilies[0], tensor);
    if (name.expert < 0 && name.name.empty() && !tensor.empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? Config(text) : Index(text);
  return 0;
}
