// GGUF v2 and v3. Source: the GGUF specification (ggml/docs/gguf.md): "GGUF", u32 version, u64 tensor count,
// u64 metadata count, metadata (string key, u32 kind, value), directory (string name, u32 dims, u64 each, u32
// type, u64 offset), padding to general.alignment, tensor data.
//
// Nothing read from the file is trusted: a count is bounded by the bytes left before anything is allocated.
#include "src/formats/gguf_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "src/formats/byte_cursor.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

enum Kind : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kFloat64 = 12,
};

// Far above any real model, low enough that a hostile file cannot make us allocate gigabytes.
constexpr uint64_t kMaxMetadata = uint64_t{1} << 16;
constexpr uint64_t kMaxTensors = uint64_t{1} << 18;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;  // over all arrays of a file
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr uint64_t kMaxBytes = uint64_t{1} << 61;  // of one tensor, and of an offset: sums cannot overflow
constexpr size_t kMaxNameBytes = 65535;            // the specification's limit of a key

// Fewest bytes an item takes, to bound counts: key length + one character + kind + one value byte; name
// length + one character + dims + one dim + type + offset.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Names of types that GGUF defines and this build does not read, for messages.
const char* UnreadTypeName(uint32_t type) {
  switch (type) {
    case 9:
      return "Q8_1";
    case 10:
      return "Q2_K";
    case 11:
      return "Q3_K";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 20:
      return "IQ4_NL";
    case 21:
      return "IQ3_S";
    case 22:
      return "IQ2_S";
    case 23:
      return "IQ4_XS";
    case 24:
      return "I8";
    case 25:
      return "I16";
    case 26:
      return "I32";
    case 27:
      return "I64";
    case 28:
      return "F64";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 39:
      return "MXFP4";
    default:
      return "unknown";
  }
}

std::string ReadableTypeNames() {
  std::string names;
  for (const TensorTypeInfo& info : TensorTypes()) {
    if (!names.empty()) names += ", ";
    names += info.name;
  }
  return names;
}

uint64_t KindBytes(uint32_t kind) {
  switch (kind) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kFloat32:
      return 4;
    case kString:  // its length
    case kU64:
    case kI64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name), cursor_(bytes) {}

  Result<GgufContents> Run() {
    BGTQ_RETURN_IF_ERROR(ReadHeader());
    BGTQ_RETURN_IF_ERROR(ReadMetadata());
    BGTQ_RETURN_IF_ERROR(ReadDirectory());
    BGTQ_RETURN_IF_ERROR(PlaceTensors());
    return std::move(contents_);
  }

 private:
  Status Error(ErrorCode code, const std::string& what) const { return Status(code, name_ + ": " + what); }
  Status Corrupt(const std::string& what) const { return Error(ErrorCode::kCorruptFile, what); }
  Status Truncated(const std::string& where) const {
    return Corrupt(fmt::format("{}: the file ends here, at byte {}; it is truncated, download it again",
                               where, Grouped(cursor_.position())));
  }

  Status ReadHeader() {
    char magic[4];
    for (char& c : magic) {
      if (!cursor_.Read(&c))
        return Corrupt("too short for a GGUF file; it is truncated or of another format");
    }
    if (std::string_view(magic, 4) != "GGUF") {
      return Corrupt(fmt::format("not a GGUF file: it starts with '{}' instead of 'GGUF'",
                                 Printable(std::string_view(magic, 4))));
    }
    uint32_t version;
    if (!cursor_.Read(&version)) return Truncated("version");
    if ((version & 0xffff) == 0 && version != 0) {
      return Error(ErrorCode::kUnsupported,
                   "a big-endian GGUF file; convert it to little-endian (gguf-py's gguf-convert-endian)");
    }
    if (version != 2 && version != 3) {
      return Error(ErrorCode::kUnsupported,
                   fmt::format("GGUF version {}; this build reads versions 2 and 3", version));
    }
    contents_.version = static_cast<int>(version);
    if (!cursor_.Read(&tensor_count_)) return Truncated("tensor count");
    if (!cursor_.Read(&metadata_count_)) return Truncated("metadata count");
    BGTQ_RETURN_IF_ERROR(CheckCount("tensors", tensor_count_, kMinTensorBytes, kMaxTensors));
    return CheckCount("metadata keys", metadata_count_, kMinMetadataBytes, kMaxMetadata);
  }

  Status CheckCount(const char* what, uint64_t count, uint64_t min_bytes, uint64_t limit) const {
    if (count > cursor_.remaining() / min_bytes) {
      return Corrupt(fmt::format("header: {} {} do not fit in the {} bytes that follow", Grouped(count), what,
                                 Grouped(cursor_.remaining())));
    }
    if (count > limit) {
      return Error(ErrorCode::kUnsupported, fmt::format("header: {} {}; this build reads up to {}",
                                                        Grouped(count), what, Grouped(limit)));
    }
    return Status::Ok();
  }

  Status ReadMetadata() {
    for (uint64_t i = 0; i < metadata_count_; ++i) {
      std::string_view key;
      if (!cursor_.ReadString(&key)) return Truncated(fmt::format("metadata key {}", i + 1));
      if (key.empty() || key.size() > kMaxNameBytes) {
        return Corrupt(fmt::format("metadata key {}: its name has {} bytes; 1 to {} are allowed", i + 1,
                                   Grouped(key.size()), Grouped(kMaxNameBytes)));
      }
      const std::string where = fmt::format("metadata key '{}'", Printable(key));
      uint32_t kind;
      if (!cursor_.Read(&kind)) return Truncated(where);
      GgufValue value;
      BGTQ_RETURN_IF_ERROR(kind == kArray ? ReadArray(where, &value) : ReadScalar(where, kind, &value));
      if (!contents_.metadata.emplace(std::string(key), std::move(value)).second) {
        return Corrupt(where + ": occurs twice");
      }
    }
    return Status::Ok();
  }

  template <typename T>
  Status ReadInteger(const std::string& where, int64_t* out) {
    T value;
    if (!cursor_.Read(&value)) return Truncated(where);
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Corrupt(fmt::format("{}: {} is above the largest value this build reads, 2^63 - 1", where,
                                   Grouped(value)));
      }
    }
    *out = static_cast<int64_t>(value);
    return Status::Ok();
  }

  Status ReadInteger(const std::string& where, uint32_t kind, int64_t* out) {
    switch (kind) {
      case kU8:
        return ReadInteger<uint8_t>(where, out);
      case kI8:
        return ReadInteger<int8_t>(where, out);
      case kU16:
        return ReadInteger<uint16_t>(where, out);
      case kI16:
        return ReadInteger<int16_t>(where, out);
      case kU32:
        return ReadInteger<uint32_t>(where, out);
      case kI32:
        return ReadInteger<int32_t>(where, out);
      case kU64:
        return ReadInteger<uint64_t>(where, out);
      case kI64:
        return ReadInteger<int64_t>(where, out);
      case kBool: {
        BGTQ_RETURN_IF_ERROR(ReadInteger<uint8_t>(where, out));
        if (*out > 1) return Corrupt(fmt::format("{}: a bool of value {}; 0 or 1 are allowed", where, *out));
        return Status::Ok();
      }
      default:
        return Corrupt(fmt::format("{}: value kind {} does not exist", where, kind));
    }
  }

  Status ReadFloat(const std::string& where, uint32_t kind, double* out) {
    float narrow;
    const bool read = kind == kFloat32 ? cursor_.Read(&narrow) : cursor_.Read(out);
    if (!read) return Truncated(where);
    if (kind == kFloat32) *out = narrow;
    return Status::Ok();
  }

  Status ReadScalar(const std::string& where, uint32_t kind, GgufValue* value) {
    if (kind == kString) {
      std::string_view text;
      if (!cursor_.ReadString(&text)) return Truncated(where);
      value->emplace<std::string_view>(text);
    } else if (kind == kFloat32 || kind == kFloat64) {
      BGTQ_RETURN_IF_ERROR(ReadFloat(where, kind, &value->emplace<double>()));
    } else {
      int64_t number = 0;
      BGTQ_RETURN_IF_ERROR(ReadInteger(where, kind, &number));
      if (kind == kBool) {
        value->emplace<bool>(number != 0);
      } else {
        value->emplace<int64_t>(number);
      }
    }
    return Status::Ok();
  }

  Status ReadArray(const std::string& where, GgufValue* value) {
    uint32_t kind;
    uint64_t count;
    if (!cursor_.Read(&kind) || !cursor_.Read(&count)) return Truncated(where);
    if (kind == kArray) return Error(ErrorCode::kUnsupported, where + ": an array of arrays");
    const uint64_t item_bytes = KindBytes(kind);
    if (item_bytes == 0) return Corrupt(fmt::format("{}: element kind {} does not exist", where, kind));
    if (count > cursor_.remaining() / item_bytes) {
      return Corrupt(
          fmt::format("{}: {} elements do not fit in the {} bytes that follow; the file is truncated,"
                      " download it again",
                      where, Grouped(count), Grouped(cursor_.remaining())));
    }
    array_elements_ += count;
    if (array_elements_ > kMaxArrayElements) {
      return Error(ErrorCode::kUnsupported,
                   fmt::format("{}: the file's arrays have more than {} elements in all", where,
                               Grouped(kMaxArrayElements)));
    }
    auto& values = value->emplace<GgufArray>().values;
    if (kind == kString) {
      auto& strings = values.emplace<std::vector<std::string_view>>(count);
      for (std::string_view& text : strings) {
        if (!cursor_.ReadString(&text)) return Truncated(where);
      }
    } else if (kind == kFloat32 || kind == kFloat64) {
      auto& floats = values.emplace<std::vector<double>>(count);
      for (double& number : floats) BGTQ_RETURN_IF_ERROR(ReadFloat(where, kind, &number));
    } else {
      auto& integers = values.emplace<std::vector<int64_t>>(count);
      for (int64_t& number : integers) BGTQ_RETURN_IF_ERROR(ReadInteger(where, kind, &number));
    }
    return Status::Ok();
  }

  Status ReadDirectory() {
    contents_.tensors.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      GgufTensor tensor;
      BGTQ_RETURN_IF_ERROR(ReadDirectoryEntry(i, &tensor));
      contents_.tensors.push_back(std::move(tensor));
    }
    return Status::Ok();
  }

  // One entry; file_offset is left relative to the data section, which is not known yet.
  Status ReadDirectoryEntry(uint64_t index, GgufTensor* tensor) {
    std::string_view tensor_name;
    if (!cursor_.ReadString(&tensor_name)) return Truncated(fmt::format("tensor {}", index + 1));
    if (tensor_name.empty() || tensor_name.size() > kMaxNameBytes) {
      return Corrupt(fmt::format("tensor {}: its name has {} bytes; 1 to {} are allowed", index + 1,
                                 Grouped(tensor_name.size()), Grouped(kMaxNameBytes)));
    }
    tensor->name = tensor_name;
    const std::string where = TensorWhere(*tensor);
    uint32_t dims;
    if (!cursor_.Read(&dims)) return Truncated(where);
    if (dims < 1 || dims > 4)
      return Corrupt(fmt::format("{}: {} dimensions; 1 to 4 are allowed", where, dims));
    int64_t elements = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      uint64_t size;
      if (!cursor_.Read(&size)) return Truncated(where);
      if (size == 0 || size > kMaxBytes ||
          __builtin_mul_overflow(elements, static_cast<int64_t>(size), &elements)) {
        return Corrupt(fmt::format("{}: dimension {} of size {} is impossible", where, d + 1, Grouped(size)));
      }
      tensor->shape.push_back(static_cast<int64_t>(size));
    }
    tensor->view.cols = tensor->shape[0];
    tensor->view.rows = elements / tensor->view.cols;
    uint32_t type;
    uint64_t offset;
    if (!cursor_.Read(&type) || !cursor_.Read(&offset)) return Truncated(where);
    const TensorTypeInfo* info = FindTensorType(type);
    if (info == nullptr) {
      return Error(ErrorCode::kUnsupported,
                   fmt::format("{}: type {} ({}); this build reads {}; use a file with one of these", where,
                               type, UnreadTypeName(type), ReadableTypeNames()));
    }
    tensor->view.type = info->type;
    if (tensor->view.cols % info->block_elements != 0) {
      return Corrupt(fmt::format("{}: rows of {} elements are not whole blocks of {} ({})", where,
                                 Grouped(tensor->view.cols), info->block_elements, info->name));
    }
    if (__builtin_mul_overflow(tensor->view.rows, tensor->view.row_bytes(), &tensor->bytes) ||
        static_cast<uint64_t>(tensor->bytes) > kMaxBytes || offset > kMaxBytes) {
      return Corrupt(where + ": its size or offset is impossible");
    }
    tensor->file_offset = static_cast<int64_t>(offset);
    return Status::Ok();
  }

  std::string TensorWhere(const GgufTensor& tensor) const { return "tensor " + Printable(tensor.name); }

  Result<uint64_t> Alignment() const {
    const auto found = contents_.metadata.find("general.alignment");
    if (found == contents_.metadata.end()) return uint64_t{32};
    const int64_t* value = std::get_if<int64_t>(&found->second);
    if (value == nullptr || *value < 8 || *value > static_cast<int64_t>(kMaxAlignment) ||
        (*value & (*value - 1)) != 0) {
      return Corrupt(fmt::format("metadata key 'general.alignment': not a power of two from 8 to {}",
                                 Grouped(kMaxAlignment)));
    }
    return static_cast<uint64_t>(*value);
  }

  // Turns relative offsets into places in the file: aligned, inside it, without overlap.
  Status PlaceTensors() {
    BGTQ_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
    const uint64_t data_start = (cursor_.position() + alignment - 1) / alignment * alignment;
    const uint64_t file_bytes = bytes_.size();
    for (GgufTensor& tensor : contents_.tensors) {
      const uint64_t offset = static_cast<uint64_t>(tensor.file_offset);
      const uint64_t tensor_bytes = static_cast<uint64_t>(tensor.bytes);
      if (offset % alignment != 0) {
        return Corrupt(fmt::format("{}: offset {} is not a multiple of the alignment {}", TensorWhere(tensor),
                                   Grouped(offset), alignment));
      }
      const uint64_t end = data_start + offset + tensor_bytes;
      if (end > file_bytes) {
        return Corrupt(
            fmt::format("{}: {} bytes past the end of the file; the file is truncated, download it"
                        " again",
                        TensorWhere(tensor), Grouped(end - file_bytes)));
      }
      tensor.file_offset = static_cast<int64_t>(data_start + offset);
      tensor.view.data = bytes_.data() + tensor.file_offset;
    }
    std::vector<const GgufTensor*> by_offset;
    for (const GgufTensor& tensor : contents_.tensors) by_offset.push_back(&tensor);
    std::sort(by_offset.begin(), by_offset.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->file_offset < b->file_offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      if (by_offset[i - 1]->file_offset + by_offset[i - 1]->bytes > by_offset[i]->file_offset) {
        return Corrupt(fmt::format("{}: overlaps tensor {}", TensorWhere(*by_offset[i]),
                                   Printable(by_offset[i - 1]->name)));
      }
    }
    return Status::Ok();
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  ByteCursor cursor_;
  GgufContents contents_;
  uint64_t tensor_count_ = 0, metadata_count_ = 0, array_elements_ = 0;
};

}  // namespace

Result<GgufContents> ReadGguf(std::span<const std::byte> bytes, const std::string& name) {
  return Reader(bytes, name).Run();
}

}  // namespace blockgtq
