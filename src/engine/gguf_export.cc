// See gguf_export.h. Source of types and row order: conversion of llama.cpp (convert_hf_to_gguf.py).
#include "src/engine/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "src/core/quantize.h"
#include "src/engine/gguf_metadata.h"
#include "src/formats/gguf_writer.h"
#include "src/text/tokenizer_folder.h"
#include "src/text/tokenizer_to_gguf.h"

namespace blockgtq {
namespace {

/// What every file says.
GgufMetadata General(const ModelSource& source, TensorType type) {
  std::filesystem::path folder = std::filesystem::path(source.folder()).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // it ended in '/'
  GgufMetadata metadata = {{"general.architecture", source.architecture()},
                           {"general.name", folder.filename().string()},
                           {"general.quantization_version", uint32_t{2}}};
  // llama.cpp's numbers of what most tensors are.
  const std::array<std::pair<TensorType, uint32_t>, 4> file_types = {
      {{TensorType::kF32, 0}, {TensorType::kF16, 1}, {TensorType::kQ8_0, 7}, {TensorType::kBF16, 32}}};
  for (const auto& [of, number] : file_types) {
    if (of == type) metadata.emplace_back("general.file_type", number);
  }
  return metadata;
}

/// The name that conversions give the pre-tokenizer of an architecture, where several mean the same.
std::string_view UsualPreTokenizer(std::string_view architecture) {
  if (architecture == "chatglm") return "chatglm-bpe";
  if (architecture == "olmo2") return "dbrx";
  return architecture;  // glm4, qwen2; no name for others
}

Result<GgufTokenizer> TokenizerOf(const LoadedModel& model, bool wanted) {
  if (!wanted) return GgufTokenizer{{{"tokenizer.ggml.model", std::string("none")}}, {}};
  const auto read = [&]() -> Result<GgufTokenizer> {
    BGTQ_ASSIGN_OR_RETURN(const FolderTokenizerParts folder, LoadTokenizerParts(model.source().folder()));
    auto result = TokenizerToGguf(folder.parts, folder.chat_template, model.config().vocabulary,
                                  UsualPreTokenizer(model.source().architecture()));
    return result.ok() ? std::move(result) : result.status().WithContext(model.source().folder());
  };
  auto result = read();
  if (result.ok()) return result;
  return Status(result.status().code(),
                result.status().message() + "; --no-tokenizer converts the model without it, to run on ids");
}

/// Where row `row` of GGUF's order is among the rows of Q or K as transformers keeps them.
int64_t StoredRow(int64_t row, const RopeConfig& rope) {
  const int64_t channel = row % rope.head_dim;
  if (channel >= rope.rotary_dims) return row;
  return row - channel + channel / 2 + channel % 2 * (rope.rotary_dims / 2);
}

class Exporter {
 public:
  Exporter(const LoadedModel& model, const GgufExportOptions& options) : model_(model), options_(options) {}

  Result<GgufExport> Run(const std::string& path) {
    const ModelSource& source = model_.source();
    BGTQ_ASSIGN_OR_RETURN(GgufModelMetadata settings, ModelToGguf(source, model_.config()));
    BGTQ_ASSIGN_OR_RETURN(GgufTokenizer tokenizer, TokenizerOf(model_, options_.tokenizer));
    GgufMetadata metadata = General(source, options_.type);
    metadata.insert(metadata.end(), settings.metadata.begin(), settings.metadata.end());
    metadata.insert(metadata.end(), tokenizer.metadata.begin(), tokenizer.metadata.end());
    GgufExport result;
    result.differences = std::move(tokenizer.differences);
    result.differences.insert(result.differences.end(), settings.differences.begin(),
                              settings.differences.end());
    std::vector<GgufWriteTensor> tensors;
    for (const ModelTensor& tensor : source.tensors()) {
      tensors.push_back({tensor.name, TypeOf(tensor), tensor.shape});
    }
    for (const GgufVectorTensor& tensor : settings.tensors) {
      tensors.push_back({tensor.name, TensorType::kF32, {static_cast<int64_t>(tensor.values.size())}});
    }
    for (const GgufWriteTensor& tensor : tensors) result.bytes += tensor.bytes();
    result.tensors = static_cast<int64_t>(tensors.size());
    int64_t done = 0;
    const size_t stored = source.tensors().size();
    BGTQ_RETURN_IF_ERROR(WriteGguf(path, metadata, tensors, [&](size_t i, const GgufSink& sink) {
      if (options_.progress) options_.progress(static_cast<double>(done) / static_cast<double>(result.bytes));
      done += tensors[i].bytes();
      if (i < stored) return Fill(source.tensors()[i], tensors[i].type, sink);
      return sink(std::as_bytes(std::span<const float>(settings.tensors[i - stored].values)));
    }));
    return result;
  }

 private:
  TensorType TypeOf(const ModelTensor& tensor) const {
    if (tensor.shape.size() < 2 || tensor.name.ends_with(".ffn_gate_inp.weight")) return TensorType::kF32;
    const bool whole_blocks = tensor.cols % GetTensorType(options_.type).block_elements == 0;
    return whole_blocks ? options_.type : TensorType::kF16;
  }

  bool IsReordered(const ModelTensor& tensor) const {
    const RopeConfig& rope = model_.config().rope;
    if (rope.pairing == model_.config().gguf_pairing) return false;
    const std::string_view name = tensor.name;
    return name.find(".attn_q.") != name.npos || name.find(".attn_k.") != name.npos;
  }

  Status Fill(const ModelTensor& tensor, TensorType type, const GgufSink& sink) const {
    const RopeConfig& rope = model_.config().rope;
    const bool reordered = IsReordered(tensor);
    std::vector<float> row(static_cast<size_t>(tensor.cols)), ordered;
    const TensorView to{type, nullptr, 1, tensor.cols};
    std::vector<std::byte> encoded(static_cast<size_t>(to.row_bytes()));
    for (int64_t r = 0; r < tensor.rows; ++r) {
      const bool bias = tensor.rows == 1;
      BGTQ_ASSIGN_OR_RETURN(const TensorView view,
                            tensor.Rows(reordered && !bias ? StoredRow(r, rope) : r, 1));
      DequantizeRow(view, 0, row.data());
      if (reordered && bias) {
        ordered = row;
        for (int64_t i = 0; i < tensor.cols; ++i) {
          row[static_cast<size_t>(i)] = ordered[static_cast<size_t>(StoredRow(i, rope))];
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
  const GgufExportOptions& options_;
};

}  // namespace

Result<GgufExport> ExportGguf(const LoadedModel& model, const GgufExportOptions& options,
                              const std::string& path) {
  if (model.source().gguf() != nullptr) {
    return Status(ErrorCode::kInvalidArgument, model.path() + ": is GGUF; safetensors models are converted");
  }
  if (!HasQuantizer(options.type)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}: this build does not convert to it", GetTensorType(options.type).name));
  }
  return Exporter(model, options).Run(path);
}

}  // namespace blockgtq
