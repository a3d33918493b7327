// See gguf_writer.h. The layout is that of gguf_reader.cc.
#include "src/formats/gguf_writer.h"

#include <fmt/format.h>

#include "src/formats/atomic_file.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

constexpr int64_t kAlignment = 32;  // the format's default
constexpr size_t kMaxDims = 4;

int64_t Padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Bytes {
 public:
  template <typename T>
  void Put(T value) {
    const auto raw = std::as_bytes(std::span<const T>(&value, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  void Text(const std::string& text) {
    Put<uint64_t>(text.size());
    const auto raw = std::as_bytes(std::span<const char>(text));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  void Pad() { bytes_.resize(static_cast<size_t>(Padded(static_cast<int64_t>(bytes_.size())))); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Kinds of values: GGUF's numbering.
void PutValue(Bytes& out, const GgufWriteValue& value) {
  struct Writer {
    Bytes& out;
    void operator()(uint32_t v) const {
      out.Put<uint32_t>(4);
      out.Put(v);
    }
    void operator()(float v) const {
      out.Put<uint32_t>(6);
      out.Put(v);
    }
    void operator()(bool v) const {
      out.Put<uint32_t>(7);
      out.Put<uint8_t>(v ? 1 : 0);
    }
    void operator()(const std::string& v) const {
      out.Put<uint32_t>(8);
      out.Text(v);
    }
    void operator()(const std::vector<int32_t>& v) const {
      out.Put<uint32_t>(9);
      out.Put<uint32_t>(5);
      out.Put<uint64_t>(v.size());
      for (const int32_t item : v) out.Put(item);
    }
    void operator()(const std::vector<bool>& v) const {
      out.Put<uint32_t>(9);
      out.Put<uint32_t>(7);
      out.Put<uint64_t>(v.size());
      for (const bool item : v) out.Put<uint8_t>(item ? 1 : 0);
    }
    void operator()(const std::vector<std::string>& v) const {
      out.Put<uint32_t>(9);
      out.Put<uint32_t>(8);
      out.Put<uint64_t>(v.size());
      for (const std::string& item : v) out.Text(item);
    }
  };
  std::visit(Writer{out}, value);
}

Status Check(const GgufWriteTensor& tensor) {
  const auto bad = [&](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("tensor {}: {}", Printable(tensor.name), what));
  };
  if (tensor.shape.empty() || tensor.shape.size() > kMaxDims) return bad("GGUF has 1 to 4 dims");
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 1 || __builtin_mul_overflow(elements, size, &elements) || elements > int64_t{1} << 56) {
      return bad("its shape is impossible");
    }
  }
  const TensorTypeInfo& info = GetTensorType(tensor.type);
  if (tensor.shape.back() % info.block_elements != 0) {
    return bad(fmt::format("rows of {} are no whole blocks of {}", tensor.shape.back(), info.name));
  }
  return Status::Ok();
}

}  // namespace

int64_t GgufWriteTensor::bytes() const {
  const TensorTypeInfo& info = GetTensorType(type);
  int64_t blocks = shape.back() / info.block_elements;
  for (size_t i = 0; i + 1 < shape.size(); ++i) blocks *= shape[i];
  return blocks * info.block_bytes;
}

Status WriteGguf(const std::string& path, const GgufMetadata& metadata,
                 std::span<const GgufWriteTensor> tensors,
                 const std::function<Status(size_t index, const GgufSink& sink)>& fill) {
  for (const GgufWriteTensor& tensor : tensors) {
    BGTQ_RETURN_IF_ERROR(Check(tensor).WithContext(path));
  }
  Bytes header;
  for (const char c : {'G', 'G', 'U', 'F'}) header.Put(c);
  header.Put<uint32_t>(3);
  header.Put<uint64_t>(tensors.size());
  header.Put<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    header.Text(key);
    PutValue(header, value);
  }
  int64_t offset = 0;
  for (const GgufWriteTensor& tensor : tensors) {
    header.Text(tensor.name);
    header.Put<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      header.Put<uint64_t>(static_cast<uint64_t>(tensor.shape[i]));
    header.Put<uint32_t>(static_cast<uint32_t>(tensor.type));
    header.Put<uint64_t>(static_cast<uint64_t>(offset));
    offset += Padded(tensor.bytes());
  }
  header.Pad();

  BGTQ_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  BGTQ_RETURN_IF_ERROR(file.Write(header.bytes()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t written = 0;
    BGTQ_RETURN_IF_ERROR(fill(i, [&](std::span<const std::byte> bytes) {
      written += static_cast<int64_t>(bytes.size());
      return file.Write(bytes);
    }));
    if (written != tensors[i].bytes()) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}: tensor {}: {} bytes were given, {} are needed", path,
                                Printable(tensors[i].name), written, tensors[i].bytes()));
    }
    const std::vector<std::byte> padding(static_cast<size_t>(Padded(written) - written));
    BGTQ_RETURN_IF_ERROR(file.Write(padding));
  }
  return file.Commit();
}

}  // namespace blockgtq
