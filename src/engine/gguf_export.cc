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

/// What a tensor of the file is made of.
enum class Part {
  kWhole,
  kKeyUp,    // of attn_kv_b [heads (nope + value), rank]: W_UK of each head, transposed, [heads, rank, nope]
  kValueUp,  // the same matrix's W_UV, [heads, value, rank]
  kSetting,  // `values`
};

struct Output {
  GgufWriteTensor write;
  Part part = Part::kWhole;
  const ModelTensor* from = nullptr;
  std::span<const float> values{};
};

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
    const std::vector<Output> outputs = Outputs(settings);
    std::vector<GgufWriteTensor> tensors;
    for (const Output& output : outputs) {
      tensors.push_back(output.write);
      result.bytes += output.write.bytes();
    }
    result.tensors = static_cast<int64_t>(tensors.size());
    int64_t done = 0;
    BGTQ_RETURN_IF_ERROR(WriteGguf(path, metadata, tensors, [&](size_t i, const GgufSink& sink) {
      if (options_.progress) options_.progress(static_cast<double>(done) / static_cast<double>(result.bytes));
      done += tensors[i].bytes();
      return Fill(outputs[i], sink);
    }));
    return result;
  }

 private:
  std::vector<Output> Outputs(const GgufModelMetadata& settings) const {
    const LatentConfig& latent = model_.config().latent;
    const int64_t heads = model_.config().heads;
    std::vector<Output> outputs;
    const auto add = [&](const ModelTensor& from, const std::string& name, Part part,
                         std::vector<int64_t> shape) {
      const TensorType type = TypeOf(name, shape);
      outputs.push_back({{name, type, std::move(shape)}, part, &from});
    };
    for (const ModelTensor& tensor : model_.source().tensors()) {
      constexpr std::string_view kBoth = ".attn_kv_b.weight";
      if (!tensor.name.ends_with(kBoth)) {
        add(tensor, tensor.name, Part::kWhole, tensor.shape);
        continue;
      }
      const std::string layer = tensor.name.substr(0, tensor.name.size() - kBoth.size());
      add(tensor, layer + ".attn_k_b.weight", Part::kKeyUp, {heads, latent.rank, latent.nope_dims});
      add(tensor, layer + ".attn_v_b.weight", Part::kValueUp, {heads, latent.value_dims, latent.rank});
    }
    for (const GgufVectorTensor& setting : settings.tensors) {
      const auto size = static_cast<int64_t>(setting.values.size());
      outputs.push_back({{setting.name, TensorType::kF32, {size}}, Part::kSetting, nullptr, setting.values});
    }
    return outputs;
  }

  TensorType TypeOf(const std::string& name, const std::vector<int64_t>& shape) const {
    if (shape.size() < 2 || name.ends_with(".ffn_gate_inp.weight")) return TensorType::kF32;
    const bool whole_blocks = shape.back() % GetTensorType(options_.type).block_elements == 0;
    return whole_blocks ? options_.type : TensorType::kF16;
  }

  bool IsReordered(const ModelTensor& tensor) const {
    const RopeConfig& rope = model_.config().rope;
    if (rope.pairing == model_.config().gguf_pairing) return false;
    const std::string_view name = tensor.name;
    return name.find(".attn_q.") != name.npos || name.find(".attn_k.") != name.npos;
  }

  Status Fill(const Output& output, const GgufSink& sink) const {
    switch (output.part) {
      case Part::kWhole:
        return FillWhole(output, sink);
      case Part::kKeyUp:
        return FillKeyUp(output, sink);
      case Part::kValueUp:
        return FillValueUp(output, sink);
      case Part::kSetting:
        return sink(std::as_bytes(output.values));
    }
    return Status::Ok();
  }

  static Status ReadRow(const ModelTensor& tensor, int64_t row, float* out) {
    BGTQ_ASSIGN_OR_RETURN(const TensorView view, tensor.Rows(row, 1));
    DequantizeRow(view, 0, out);
    return Status::Ok();
  }

  /// row: of the file's tensor, for messages.
  Status WriteRow(const Output& output, int64_t row, std::span<const float> values,
                  const GgufSink& sink) const {
    const TensorView to{output.write.type, nullptr, 1, static_cast<int64_t>(values.size())};
    std::vector<std::byte> encoded(static_cast<size_t>(to.row_bytes()));
    const int64_t bad = QuantizeRow(values.data(), to.cols, to.type, encoded.data());
    if (bad < 0) return sink(encoded);
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: tensor {}: row {}, column {} is not finite in {}; choose another type",
                    model_.path(), output.from->stored_name, row, bad, GetTensorType(to.type).name));
  }

  Status FillWhole(const Output& output, const GgufSink& sink) const {
    const ModelTensor& tensor = *output.from;
    const RopeConfig& rope = model_.config().rope;
    const bool reordered = IsReordered(tensor), bias = tensor.rows == 1;
    std::vector<float> row(static_cast<size_t>(tensor.cols)), ordered;
    for (int64_t r = 0; r < tensor.rows; ++r) {
      BGTQ_RETURN_IF_ERROR(ReadRow(tensor, reordered && !bias ? StoredRow(r, rope) : r, row.data()));
      if (reordered && bias) {
        ordered = row;
        for (int64_t i = 0; i < tensor.cols; ++i) {
          row[static_cast<size_t>(i)] = ordered[static_cast<size_t>(StoredRow(i, rope))];
        }
      }
      BGTQ_RETURN_IF_ERROR(WriteRow(output, r, row, sink));
    }
    return Status::Ok();
  }

  Status FillKeyUp(const Output& output, const GgufSink& sink) const {
    const LatentConfig& latent = model_.config().latent;
    const auto rank = static_cast<size_t>(latent.rank), nope = static_cast<size_t>(latent.nope_dims);
    std::vector<float> up(nope * rank), row(nope);  // up: a head's W_UK [nope, rank]
    for (int64_t h = 0; h < model_.config().heads; ++h) {
      const int64_t first = h * (latent.nope_dims + latent.value_dims);
      for (size_t n = 0; n < nope; ++n) {
        BGTQ_RETURN_IF_ERROR(ReadRow(*output.from, first + static_cast<int64_t>(n), up.data() + n * rank));
      }
      for (size_t c = 0; c < rank; ++c) {
        for (size_t n = 0; n < nope; ++n) row[n] = up[n * rank + c];
        BGTQ_RETURN_IF_ERROR(WriteRow(output, h * latent.rank + static_cast<int64_t>(c), row, sink));
      }
    }
    return Status::Ok();
  }

  Status FillValueUp(const Output& output, const GgufSink& sink) const {
    const LatentConfig& latent = model_.config().latent;
    std::vector<float> row(static_cast<size_t>(latent.rank));
    for (int64_t r = 0; r < int64_t{model_.config().heads} * latent.value_dims; ++r) {
      const int64_t head = r / latent.value_dims;
      BGTQ_RETURN_IF_ERROR(ReadRow(*output.from, r + (head + 1) * latent.nope_dims, row.data()));
      BGTQ_RETURN_IF_ERROR(WriteRow(output, r, row, sink));
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
