// See safetensors_source.h.
#include "src/formats/safetensors_source.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "src/formats/huggingface_config.h"
#include "src/formats/huggingface_names.h"
#include "src/formats/mapped_file.h"
#include "src/formats/message.h"
#include "src/formats/safetensors.h"
#include "src/formats/safetensors_index.h"

namespace blockgtq {
namespace {

constexpr char kWholeModel[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

std::optional<TensorType> TypeOf(std::string_view dtype) {
  if (dtype == "F32") return TensorType::kF32;
  if (dtype == "F16") return TensorType::kF16;
  if (dtype == "BF16") return TensorType::kBF16;
  return std::nullopt;
}

/// A link counts, whatever it points to: opening it then says what is wrong.
bool Exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

class SafetensorsSource : public ModelSource {
 public:
  Status Open(const std::string& path, std::span<const HuggingFaceFamily> families) {
    name_ = path;
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    const std::filesystem::path folder =
        is_folder ? std::filesystem::path(path) : std::filesystem::path(path).parent_path();
    folder_ = folder.empty() ? "." : folder.string();
    if (!is_folder && !Exists(path)) {
      return Status(ErrorCode::kNotFound, fmt::format("{}: no such file; check the path", path));
    }
    // The configuration first: what is not supported is refused before any weight is looked at.
    const std::string config_path = (folder / "config.json").string();
    if (!Exists(config_path)) {
      return Status(
          ErrorCode::kNotFound,
          fmt::format("{}: there is no {}; a model is a GGUF file, or a folder with config.json and "
                      "safetensors files",
                      name_, config_path));
    }
    BGTQ_ASSIGN_OR_RETURN(const MappedFile config_file, MappedFile::Open(config_path));
    BGTQ_ASSIGN_OR_RETURN(HuggingFaceConfig config,
                          ReadHuggingFaceConfig(TextOf(config_file), config_path, families));
    family_ = config.family;
    keys_ = std::move(config.keys);
    architecture_ = family_->architecture;
    BGTQ_RETURN_IF_ERROR(is_folder ? OpenFolder(folder) : OpenFile(path, {}));
    format_ = files_.size() == 1 ? "safetensors" : fmt::format("safetensors, {} files", files_.size());
    BGTQ_RETURN_IF_ERROR(TakeTensors(config.tied.value_or(false)));
    if (config.tied.has_value() && !*config.tied && Find("output.weight") == nullptr) {
      return Corrupt("'tie_word_embeddings' is false, but there is no lm_head.weight");
    }
    return Status::Ok();
  }

  RopePairing StoredPairing(RopePairing) const override { return family_->pairing; }
  std::string Spell(std::string_view name) const override { return StoredNames(*family_, name); }

 private:
  Status Corrupt(const std::string& what) const {
    return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", name_, what));
  }

  Status OpenFolder(const std::filesystem::path& folder) {
    if (Exists(folder / kWholeModel)) return OpenFile((folder / kWholeModel).string(), {});
    const std::string index_path = (folder / kIndex).string();
    if (!Exists(index_path)) {
      return Status(ErrorCode::kNotFound,
                    fmt::format("{}: holds neither {} nor {}", name_, kWholeModel, kIndex));
    }
    BGTQ_ASSIGN_OR_RETURN(const MappedFile index_file, MappedFile::Open(index_path));
    BGTQ_ASSIGN_OR_RETURN(const SafetensorsIndex index,
                          ParseSafetensorsIndex(TextOf(index_file), index_path));
    size_t held = 0;
    for (const std::string& file : index.files) {
      BGTQ_RETURN_IF_ERROR(OpenFile((folder / file).string(), file));
      for (const auto& [tensor, entry] : files_.back()->tensors()) {
        const auto placed = index.file_of.find(tensor);
        if (placed == index.file_of.end() || placed->second != file) {
          return Corrupt(fmt::format("{} holds tensor '{}', which {} does not place there", file,
                                     Printable(tensor), kIndex));
        }
      }
      held += files_.back()->tensors().size();
    }
    if (held == index.file_of.size()) return Status::Ok();
    for (const auto& [tensor, file] : index.file_of) {
      for (const auto& opened : files_) {
        if (opened->name() != (folder / file).string() || opened->tensors().contains(tensor)) continue;
        return Corrupt(fmt::format("{} does not hold tensor '{}', which {} places there", file,
                                   Printable(tensor), kIndex));
      }
    }
    return Corrupt(fmt::format("{} and the files do not hold the same tensors", kIndex));
  }

  /// shard: its name in the index; empty for a whole model.
  Status OpenFile(const std::string& path, const std::string& shard) {
    BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
    if (shard.empty() && std::filesystem::path(path).filename().string().find("-of-") != std::string::npos) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}: is one part of a model; name its folder", path));
    }
    files_.push_back(std::move(file));
    return Status::Ok();
  }

  Status TakeTensors(bool tied) {
    std::map<std::string, std::map<int, ModelTensor>> experts;  // by GGUF's name
    for (const auto& file : files_) {
      for (const auto& [stored, entry] : file->tensors()) {
        // Tied: a copy of the embedding. inv_freq: what the configuration says already (older files).
        if ((tied && stored == "lm_head.weight") || stored.ends_with(".rotary_emb.inv_freq")) continue;
        GgufTensorName name = ToGgufName(*family_, stored);
        BGTQ_ASSIGN_OR_RETURN(ModelTensor tensor, View(file->name(), stored, entry));
        tensor.name = std::move(name.name);
        if (name.expert < 0) {
          if (family_->norms_add_one && tensor.name.ends_with("norm.weight")) AddOne(tensor);
          tensors_.push_back(std::move(tensor));
        } else {
          experts[tensor.name].emplace(name.expert, std::move(tensor));
        }
      }
    }
    for (auto& [name, parts] : experts) {
      BGTQ_RETURN_IF_ERROR(Stack(name, parts));
    }
    return IndexTensors();
  }

  static Result<ModelTensor> View(const std::string& file, const std::string& stored,
                                  const SafetensorsEntry& entry) {
    const std::optional<TensorType> type = TypeOf(entry.dtype);
    if (!type.has_value()) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("{}: tensor '{}' is of dtype {}, which this build does not compute with (F32, "
                      "F16 and BF16 are)",
                      file, Printable(stored), entry.dtype));
    }
    ModelTensor tensor;
    tensor.stored_name = Printable(stored);
    tensor.shape = entry.shape;
    tensor.bytes = static_cast<int64_t>(entry.data.size());
    if (tensor.bytes == 0) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("{}: tensor '{}' has no elements", file, Printable(stored)));
    }
    // No element is missing, so every size is at least 1 and the products are at most the file's.
    tensor.cols = entry.shape.empty() ? 1 : entry.shape.back();
    tensor.rows = tensor.bytes / GetTensorType(*type).block_bytes / tensor.cols;
    tensor.parts = {{*type, entry.data.data(), tensor.rows, tensor.cols}};
    return tensor;
  }

  /// The experts' tensors in order, as one.
  Status Stack(const std::string& name, std::map<int, ModelTensor>& parts) {
    ModelTensor stacked = parts.begin()->second;
    stacked.name = name;
    stacked.parts.clear();
    stacked.rows = stacked.bytes = 0;
    for (const auto& [expert, part] : parts) {
      if (expert != static_cast<int>(stacked.parts.size())) {
        return Corrupt(
            fmt::format("{}: expert {} is missing", Printable(stacked.stored_name), stacked.parts.size()));
      }
      if (part.shape != parts.begin()->second.shape || part.type() != parts.begin()->second.type()) {
        return Corrupt(fmt::format("tensors {} and {} differ in shape or dtype",
                                   Printable(stacked.stored_name), Printable(part.stored_name)));
      }
      stacked.parts.push_back(part.parts.front());
      stacked.rows += part.rows;
      stacked.bytes += part.bytes;
    }
    stacked.shape.insert(stacked.shape.begin(), static_cast<int64_t>(stacked.parts.size()));
    tensors_.push_back(std::move(stacked));
    return Status::Ok();
  }

  void AddOne(ModelTensor& tensor) {
    std::vector<float>& values = made_.emplace_back(static_cast<size_t>(tensor.rows * tensor.cols));
    for (int64_t r = 0; r < tensor.rows; ++r) {
      DequantizeRow(tensor.parts.front(), r, values.data() + r * tensor.cols);
    }
    for (float& value : values) value += 1.0f;
    tensor.parts = {
        {TensorType::kF32, reinterpret_cast<const std::byte*>(values.data()), tensor.rows, tensor.cols}};
    tensor.bytes = static_cast<int64_t>(values.size() * sizeof(float));
  }

  const HuggingFaceFamily* family_ = nullptr;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::deque<std::vector<float>> made_;  // tensors whose values are not the stored ones
};

}  // namespace

Result<std::unique_ptr<ModelSource>> OpenSafetensorsSource(const std::string& path,
                                                           std::span<const HuggingFaceFamily> families) {
  auto source = std::make_unique<SafetensorsSource>();
  BGTQ_RETURN_IF_ERROR(source->Open(path, families));
  return std::unique_ptr<ModelSource>(std::move(source));
}

}  // namespace blockgtq
