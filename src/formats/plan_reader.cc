// LoadPlan and ParsePlan: metadata and tensors to a plan. The file is not trusted: form and sizes are checked
// here, meaning by Plan::Validate.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "src/formats/fingerprint_json.h"
#include "src/formats/json_fields.h"
#include "src/formats/message.h"
#include "src/formats/plan_file.h"
#include "src/formats/plan_file_names.h"
#include "src/formats/safetensors.h"

namespace blockgtq {
namespace {

constexpr size_t kMaxJsonBytes = size_t{16} << 20;
constexpr int kMaxJsonDepth = 8;
constexpr int kMaxDim = kMaxFingerprintDim;  // also bounds units and groups

Status Corrupt(const std::string& what) { return Status(ErrorCode::kCorruptFile, what); }

class Loader {
 public:
  explicit Loader(const SafetensorsFile& file) : file_(file) {}

  Result<Plan> Run() {
    BGTQ_RETURN_IF_ERROR(CheckFormat());
    BGTQ_ASSIGN_OR_RETURN(plan_.recipe, Text("recipe"));
    BGTQ_ASSIGN_OR_RETURN(plan_.k_bits, Number<double>("k_bits"));
    BGTQ_ASSIGN_OR_RETURN(plan_.v_bits, Number<double>("v_bits"));
    BGTQ_ASSIGN_OR_RETURN(plan_.seed, Number<uint64_t>("seed"));
    BGTQ_RETURN_IF_ERROR(ReadModel());
    BGTQ_RETURN_IF_ERROR(ReadCalibration());
    BGTQ_RETURN_IF_ERROR(ReadHeads());
    BGTQ_RETURN_IF_ERROR(CheckNoOtherTensors());
    BGTQ_RETURN_IF_ERROR(plan_.Validate());
    BGTQ_RETURN_IF_ERROR(CheckStoredBytes());
    return std::move(plan_);
  }

 private:
  Result<std::string> Text(const char* key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return Corrupt(fmt::format("metadata '{}' is missing", key));
    return found->second;
  }

  template <typename T>
  Result<T> Number(const char* key) const {
    BGTQ_ASSIGN_OR_RETURN(const std::string text, Text(key));
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      return Corrupt(fmt::format("metadata '{}' is '{}', not a number", key, Printable(text)));
    }
    return value;
  }

  Result<nlohmann::json> Json(const char* key) const {
    BGTQ_ASSIGN_OR_RETURN(const std::string text, Text(key));
    Result<nlohmann::json> json = ParseBoundedJson(text, kMaxJsonBytes, kMaxJsonDepth);
    if (!json.ok()) return json.status().WithContext(fmt::format("metadata '{}'", key));
    return json;
  }

  Status CheckFormat() const {
    const Result<std::string> format = Text("format");
    if (!format.ok() || *format != plan_file::kFormat) {
      return Corrupt(fmt::format("not a plan: metadata 'format' is {}; make one with 'blockgtq calibrate'",
                                 format.ok() ? fmt::format("'{}'", Printable(*format)) : "missing"));
    }
    BGTQ_ASSIGN_OR_RETURN(const int version, Number<int>("version"));
    if (version < 1) return Corrupt(fmt::format("metadata 'version' is {}, not positive", version));
    if (version > Plan::kFormatVersion) {
      return Status(ErrorCode::kUnsupported,
                    fmt::format("plan format version {}; this build reads up to {}; update blockgtq or"
                                " calibrate again",
                                version, Plan::kFormatVersion));
    }
    return Status::Ok();
  }

  Status ReadModel() {
    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json json, Json("model"));
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(json, "metadata 'model'"));
    BGTQ_ASSIGN_OR_RETURN(plan_.model, ReadFingerprint(fields));
    return Status::Ok();
  }

  Status ReadCalibration() {
    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json json, Json("calibration"));
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(json, "metadata 'calibration'"));
    BGTQ_ASSIGN_OR_RETURN(plan_.calibration.corpus_hash, fields.Text("corpus_hash"));
    BGTQ_ASSIGN_OR_RETURN(plan_.calibration.tokens,
                          fields.Int("tokens", 0, std::numeric_limits<int64_t>::max()));
    BGTQ_ASSIGN_OR_RETURN(plan_.calibration.seconds, fields.Real("seconds"));
    return Status::Ok();
  }

  Status ReadHeads() {
    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json json, Json("heads"));
    const ModelFingerprint& model = plan_.model;
    if (!json.is_array() || json.size() != static_cast<size_t>(model.layers)) {
      return Corrupt(fmt::format("metadata 'heads' is not an array of the model's {} layers", model.layers));
    }
    for (int layer = 0; layer < model.layers; ++layer) {
      const nlohmann::json& heads = json[static_cast<size_t>(layer)];
      if (!heads.is_array() || heads.size() != static_cast<size_t>(model.kv_heads)) {
        return Corrupt(fmt::format("metadata 'heads': layer {} is not an array of the model's {} KV heads",
                                   layer, model.kv_heads));
      }
      for (int h = 0; h < model.kv_heads; ++h) {
        HeadPlan head;
        BGTQ_RETURN_IF_ERROR(ReadHead(heads[static_cast<size_t>(h)], layer, h, &head));
        plan_.heads.push_back(std::move(head));
      }
    }
    return Status::Ok();
  }

  Status ReadHead(const nlohmann::json& json, int layer, int kv_head, HeadPlan* head) {
    const std::string where = fmt::format("metadata 'heads': layer {}, KV head {}", layer, kv_head);
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(json, where));
    head->head_dim = plan_.model.head_dim;
    BGTQ_ASSIGN_OR_RETURN(const std::string norm_type, fields.Text("norm_type"));
    if (norm_type != plan_file::kLog8 && norm_type != plan_file::kHalf) {
      return Corrupt(fmt::format("{}: norm_type '{}' is neither {} nor {}", where, Printable(norm_type),
                                 plan_file::kLog8, plan_file::kHalf));
    }
    head->norm_type = norm_type == plan_file::kLog8 ? NormType::kLog8 : NormType::kHalf;
    BGTQ_ASSIGN_OR_RETURN(const std::string rounding, fields.Text("rounding"));
    if (rounding != plan_file::kNearest && rounding != plan_file::kSearched) {
      return Corrupt(fmt::format("{}: rounding '{}' is neither {} nor {}", where, Printable(rounding),
                                 plan_file::kNearest, plan_file::kSearched));
    }
    head->rounding = rounding == plan_file::kNearest ? Rounding::kNearest : Rounding::kSearched;

    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* groups, fields.Array("groups", kMaxDim));
    for (size_t g = 0; g < groups->size(); ++g) {
      BGTQ_ASSIGN_OR_RETURN(const JsonFields group,
                            JsonFields::Of((*groups)[g], fmt::format("{}: group {}", where, g)));
      BGTQ_RETURN_IF_ERROR(ReadGroup(group, &head->groups.emplace_back()));
    }
    if (json.contains("latent_dims")) {
      BGTQ_RETURN_IF_ERROR(ReadInt(fields, "latent_dims", kUnitDims, kMaxDim, &head->latent_dims));
    } else {
      BGTQ_ASSIGN_OR_RETURN(const JsonFields value, fields.Object("value"));
      BGTQ_RETURN_IF_ERROR(ReadGroup(value, &head->value));
    }
    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* units, fields.Array("mean_units", kMaxDim));
    for (const nlohmann::json& unit : *units) {
      if (!unit.is_number_unsigned() || unit.get<uint64_t>() >= kMaxDim) {
        return Corrupt(fmt::format("{}: a mean unit is not an integer from 0 to {}", where, kMaxDim - 1));
      }
      head->mean_units.push_back(static_cast<int>(unit.get<uint64_t>()));
    }
    return ReadHeadTensors(plan_file::HeadPrefix(layer, kv_head), head);
  }

  static Status ReadGroup(const JsonFields& fields, GroupPlan* group) {
    BGTQ_RETURN_IF_ERROR(ReadInt(fields, "width", 1, 8, &group->width));
    BGTQ_RETURN_IF_ERROR(ReadInt(fields, "code_width", 1, 8, &group->code_width));
    BGTQ_RETURN_IF_ERROR(ReadInt(fields, "first_unit", 0, kMaxDim, &group->first_unit));
    BGTQ_RETURN_IF_ERROR(ReadInt(fields, "units", 1, kMaxDim, &group->units));
    BGTQ_RETURN_IF_ERROR(ReadInt(fields, "dims", 1, kMaxDim, &group->dims));
    BGTQ_ASSIGN_OR_RETURN(const double reference, fields.Real("norm_reference"));
    if (!(std::abs(reference) <= std::numeric_limits<float>::max())) {
      return Corrupt("a norm_reference is beyond a float's range");
    }
    group->norm_reference = static_cast<float>(reference);
    return Status::Ok();
  }

  Status ReadHeadTensors(const std::string& prefix, HeadPlan* head) {
    const int64_t dim = head->head_dim;
    const int64_t key_rows = int64_t{kUnitDims} * head->key_units();
    const int64_t value_rows = int64_t{kUnitDims} * head->value_units();
    BGTQ_RETURN_IF_ERROR(ReadTensor(prefix + "key_transform", {key_rows, dim}, &head->key_transform));
    BGTQ_RETURN_IF_ERROR(ReadTensor(prefix + "query_transform", {key_rows, dim}, &head->query_transform));
    if (value_rows > 0)
      BGTQ_RETURN_IF_ERROR(ReadTensor(prefix + "value_transform", {value_rows, dim}, &head->value_transform));
    if (file_.tensors().contains(prefix + "key_mean")) {
      BGTQ_RETURN_IF_ERROR(ReadTensor(prefix + "key_mean", {dim}, &head->key_mean));
    }
    if (file_.tensors().contains(prefix + "score")) {
      BGTQ_RETURN_IF_ERROR(ReadTensor(prefix + "score", {dim / 2}, &head->score));
    }
    return Status::Ok();
  }

  // The tensor's bytes lie in the file, so the allocation is bounded by it.
  Status ReadTensor(const std::string& name, const std::vector<int64_t>& shape, std::vector<float>* out) {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) return Corrupt(fmt::format("tensor '{}' is missing", name));
    if (found->second.dtype != "F32" || found->second.shape != shape) {
      return Corrupt(fmt::format("tensor '{}' is {} [{}]; F32 [{}] is needed", name, found->second.dtype,
                                 fmt::join(found->second.shape, ", "), fmt::join(shape, ", ")));
    }
    out->resize(found->second.data.size() / sizeof(float));
    std::memcpy(out->data(), found->second.data.data(), found->second.data.size());
    used_.insert(name);
    return Status::Ok();
  }

  // An optional tensor under a damaged name must not pass as absent.
  Status CheckNoOtherTensors() const {
    for (const auto& [name, entry] : file_.tensors()) {
      if (!used_.contains(name)) {
        return Corrupt(fmt::format("tensor '{}' does not belong to this plan", Printable(name)));
      }
    }
    return Status::Ok();
  }

  Status CheckStoredBytes() const {
    BGTQ_ASSIGN_OR_RETURN(const double stored, Number<double>("bytes_per_token_per_head"));
    const double actual = plan_.bytes_per_token_per_head();
    if (!(std::abs(stored - actual) <= 1e-9 * actual)) {
      return Corrupt(
          fmt::format("metadata 'bytes_per_token_per_head' is {}, its groups give {}; calibrate"
                      " the plan again",
                      stored, actual));
    }
    return Status::Ok();
  }

  const SafetensorsFile& file_;
  Plan plan_;
  std::set<std::string, std::less<>> used_;
};

Result<Plan> FromFile(const SafetensorsFile& file) {
  Result<Plan> plan = Loader(file).Run();
  if (!plan.ok()) return plan.status().WithContext(file.name());
  return plan;
}

}  // namespace

Result<Plan> LoadPlan(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  return FromFile(*file);
}

Result<Plan> ParsePlan(std::span<const std::byte> bytes, const std::string& name) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Parse(bytes, name));
  return FromFile(*file);
}

}  // namespace blockgtq
