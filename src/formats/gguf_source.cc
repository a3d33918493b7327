// See gguf_source.h.
#include "src/formats/gguf_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/formats/message.h"

namespace blockgtq {
namespace {

ModelValue ToModelValue(const GgufValue& value) {
  struct Convert {
    ModelValue operator()(int64_t v) const { return v; }
    ModelValue operator()(double v) const { return v; }
    ModelValue operator()(bool v) const { return v; }
    ModelValue operator()(std::string_view v) const { return std::string(v); }
    ModelValue operator()(const GgufArray& v) const { return std::visit(*this, v.values); }
    ModelValue operator()(const std::vector<int64_t>& v) const { return v; }
    ModelValue operator()(const std::vector<double>& v) const { return v; }
    ModelValue operator()(const std::vector<std::string_view>& v) const {
      return std::vector<std::string>(v.begin(), v.end());
    }
  };
  return std::visit(Convert{}, value);
}

class GgufSource : public ModelSource {
 public:
  explicit GgufSource(std::unique_ptr<GgufFile> file) : file_(std::move(file)) {}

  Status Read() {
    name_ = file_->name();
    format_ = fmt::format("GGUF v{}", file_->version());
    BGTQ_ASSIGN_OR_RETURN(const std::string_view architecture, file_->GetString("general.architecture"));
    architecture_ = architecture;
    const std::string prefix = architecture_ + ".";
    keys_ = ModelKeys(name_, [prefix](std::string_view key) {
      return fmt::format("metadata key '{}'", Printable(prefix + std::string(key)));
    });
    for (const auto& [key, value] : file_->metadata()) {
      if (key.starts_with(prefix)) keys_.Set(key.substr(prefix.size()), ToModelValue(value));
    }
    for (const GgufTensor& tensor : file_->tensors()) {
      ModelTensor& t = tensors_.emplace_back();
      t.name = tensor.name;
      t.stored_name = Printable(tensor.name);
      t.shape.assign(tensor.shape.rbegin(), tensor.shape.rend());
      t.rows = tensor.view.rows;
      t.cols = tensor.view.cols;
      t.bytes = tensor.bytes;
      t.parts = {tensor.view};
    }
    return IndexTensors();
  }

  RopePairing StoredPairing(RopePairing gguf) const override { return gguf; }
  const GgufFile* gguf() const override { return file_.get(); }

 private:
  std::unique_ptr<GgufFile> file_;
};

}  // namespace

Result<std::unique_ptr<ModelSource>> MakeGgufSource(std::unique_ptr<GgufFile> file) {
  auto source = std::make_unique<GgufSource>(std::move(file));
  BGTQ_RETURN_IF_ERROR(source->Read());
  return std::unique_ptr<ModelSource>(std::move(source));
}

Result<std::unique_ptr<ModelSource>> OpenGgufSource(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return MakeGgufSource(std::move(file));
}

}  // namespace blockgtq
