// See gguf_export.h. Source of keys, types and row order: conversion of llama.cpp (convert_hf_to_gguf.py,
// gguf-py/gguf/constants.py).
#include "src/engine/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "src/core/quantize.h"
#include "src/formats/gguf_writer.h"

namespace blockgtq {
namespace {

/// Architectures whose GGUF files were compared with llama.cpp's reading of them.
constexpr std::array<std::string_view, 2> kArchitectures = {"llama", "qwen2"};

constexpr std::string_view kRealKeys[] = {"rope.freq_base", "attention.layer_norm_rms_epsilon"};
constexpr std::string_view kIntegerKeys[] = {
    "block_count",          "embedding_length",       "feed_forward_length",
    "context_length",       "attention.head_count",   "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "rope.dimension_count",
    "vocab_size",
};
/// What the architecture says already, or what other keys and tensors say in GGUF.
constexpr std::string_view kSaidOtherwise[] = {"feed_forward.activation", "rope.scaling.type"};

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status AddScaling(const ModelKeys& keys, const std::string& arch, GgufMetadata& metadata) {
  BGTQ_ASSIGN_OR_RETURN(const std::string type, keys.TextOr("rope.scaling.type", "none"));
  if (type == "none" || type == "llama3") return Status::Ok();  // llama3: the tensor of divisors
  if (type != "linear") {
    return keys.Error(ErrorCode::kUnsupported, "rope.scaling.type",
                      fmt::format("is '{}', which this build does not write to GGUF", type));
  }
  BGTQ_ASSIGN_OR_RETURN(const double factor, keys.Real("rope.scaling.factor"));
  metadata.emplace_back(arch + ".rope.scaling.type", type);
  metadata.emplace_back(arch + ".rope.scaling.factor", static_cast<float>(factor));
  return Status::Ok();
}

Result<GgufMetadata> Metadata(const ModelSource& source, TensorType type) {
  const std::string& arch = source.architecture();
  const ModelKeys& keys = source.keys();
  std::filesystem::path folder = std::filesystem::path(source.folder()).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // it ended in '/'
  GgufMetadata metadata = {{"general.architecture", arch},
                           {"general.name", folder.filename().string()},
                           {"general.quantization_version", uint32_t{2}}};
  // llama.cpp's numbers of what most tensors are.
  const std::array<std::pair<TensorType, uint32_t>, 4> file_types = {
      {{TensorType::kF32, 0}, {TensorType::kF16, 1}, {TensorType::kQ8_0, 7}, {TensorType::kBF16, 32}}};
  for (const auto& [of, number] : file_types) {
    if (of == type) metadata.emplace_back("general.file_type", number);
  }
  for (const std::string& key : keys.Names()) {
    if (Contains(kRealKeys, key)) {
      BGTQ_ASSIGN_OR_RETURN(const double value, keys.Real(key));
      metadata.emplace_back(arch + "." + key, static_cast<float>(value));
    } else if (Contains(kIntegerKeys, key)) {
      BGTQ_ASSIGN_OR_RETURN(const int64_t value, keys.Dimension(key, std::numeric_limits<int32_t>::max()));
      metadata.emplace_back(arch + "." + key, static_cast<uint32_t>(value));
    } else if (!Contains(kSaidOtherwise, key) && !key.starts_with("rope.scaling.")) {
      return keys.Error(ErrorCode::kUnsupported, key, "has no form in GGUF that this build knows");
    }
  }
  BGTQ_RETURN_IF_ERROR(AddScaling(keys, arch, metadata));
  metadata.emplace_back("tokenizer.ggml.model", std::string("none"));
  return metadata;
}

/// Where row `row` of GGUF's order is among the rows of Q or K as transformers keeps them.
int64_t StoredRow(int64_t row, int head_dim) {
  const int64_t channel = row % head_dim;
  return row - channel + channel / 2 + channel % 2 * (head_dim / 2);
}

class Exporter {
 public:
  Exporter(const LoadedModel& model, TensorType type, const std::function<void(double)>& progress)
      : model_(model), type_(type), progress_(progress) {}

  Result<GgufExport> Run(const std::string& path) {
    const ModelSource& source = model_.source();
    BGTQ_ASSIGN_OR_RETURN(const GgufMetadata metadata, Metadata(source, type_));
    GgufExport result;
    std::vector<GgufWriteTensor> tensors;
    for (const ModelTensor& tensor : source.tensors()) {
      tensors.push_back({tensor.name, TypeOf(tensor), tensor.shape});
    }
    const std::vector<float>& divisors = model_.config().rope.freq_divisors;
    if (!divisors.empty()) {
      tensors.push_back({"rope_freqs.weight", TensorType::kF32, {static_cast<int64_t>(divisors.size())}});
    }
    for (const GgufWriteTensor& tensor : tensors) result.bytes += tensor.bytes();
    result.tensors = static_cast<int64_t>(tensors.size());
    int64_t done = 0;
    BGTQ_RETURN_IF_ERROR(WriteGguf(path, metadata, tensors, [&](size_t i, const GgufSink& sink) {
      if (progress_) progress_(static_cast<double>(done) / static_cast<double>(result.bytes));
      done += tensors[i].bytes();
      if (i == source.tensors().size()) return sink(std::as_bytes(std::span<const float>(divisors)));
      return Fill(source.tensors()[i], tensors[i].type, sink);
    }));
    return result;
  }

 private:
  TensorType TypeOf(const ModelTensor& tensor) const {
    if (tensor.shape.size() < 2) return TensorType::kF32;
    const bool whole_blocks = tensor.cols % GetTensorType(type_).block_elements == 0;
    return whole_blocks ? type_ : TensorType::kF16;
  }

  bool IsReordered(const ModelTensor& tensor) const {
    const RopeConfig& rope = model_.config().rope;
    if (rope.pairing == model_.config().gguf_pairing) return false;
    const std::string_view name = tensor.name;
    return name.find(".attn_q.") != name.npos || name.find(".attn_k.") != name.npos;
  }

  Status Fill(const ModelTensor& tensor, TensorType type, const GgufSink& sink) const {
    const int head_dim = model_.config().head_dim;
    const bool reordered = IsReordered(tensor);
    std::vector<float> row(static_cast<size_t>(tensor.cols)), ordered;
    const TensorView to{type, nullptr, 1, tensor.cols};
    std::vector<std::byte> encoded(static_cast<size_t>(to.row_bytes()));
    for (int64_t r = 0; r < tensor.rows; ++r) {
      const bool bias = tensor.rows == 1;
      BGTQ_ASSIGN_OR_RETURN(const TensorView view,
                            tensor.Rows(reordered && !bias ? StoredRow(r, head_dim) : r, 1));
      DequantizeRow(view, 0, row.data());
      if (reordered && bias) {
        ordered = row;
        for (int64_t i = 0; i < tensor.cols; ++i) {
          row[static_cast<size_t>(i)] = ordered[static_cast<size_t>(StoredRow(i, head_dim))];
        }
      }
      const int64_t bad = QuantizeRow(row.data(), tensor.cols, type, encoded.data());
      if (bad >= 0) {
        return Status(ErrorCode::kUnsupported,
                      fmt::format("{}: tensor {}: row {}, column {} is not finite in {}; choose another type",
                                  model_.path(), tensor.stored_name, r, bad, GetTensorType(type).name));
      }
      BGTQ_RETURN_IF_ERROR(sink(encoded));
    }
    return Status::Ok();
  }

  const LoadedModel& model_;
  TensorType type_;
  const std::function<void(double)>& progress_;
};

}  // namespace

Result<GgufExport> ExportGguf(const LoadedModel& model, TensorType type, const std::string& path,
                              const std::function<void(double)>& progress) {
  const ModelSource& source = model.source();
  if (source.gguf() != nullptr) {
    return Status(ErrorCode::kInvalidArgument, model.path() + ": is GGUF; safetensors models are converted");
  }
  if (!HasQuantizer(type)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}: this build does not convert to it", GetTensorType(type).name));
  }
  if (!Contains(kArchitectures, source.architecture())) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: architecture '{}' is not one that this build writes to GGUF (llama, qwen2)",
                    model.path(), source.architecture()));
  }
  return Exporter(model, type, progress).Run(path);
}

}  // namespace blockgtq
