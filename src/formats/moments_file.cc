// See moments_file.h.
#include "src/formats/moments_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/formats/fingerprint_json.h"
#include "src/formats/message.h"
#include "src/formats/safetensors.h"

namespace blockgtq {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMaxVectors = 1 << 20;
constexpr size_t kMaxJsonBytes = size_t{1} << 16;
constexpr int kMaxJsonDepth = 4;

template <typename T>
bool AllFinite(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [](T v) { return std::isfinite(v); });
}

bool AllEnergies(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v) && v >= 0; });
}

/// The arrays of all heads, one after the other, as the file has them.
struct Arrays {
  std::vector<double> query_energy, centred_key_energy, key_mean;
  std::vector<float> keys, values;
};

class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : file_(file) {}

  Result<ModelMoments> Run() {
    const auto format = file_.metadata().find("format");
    if (format == file_.metadata().end() || format->second != kMomentsFormat)
      return Corrupt("not a file of moments: one is written by 'serve --moments' or 'generate --moments'");
    BGTQ_ASSIGN_OR_RETURN(const int64_t version, Number("version", 1, std::numeric_limits<int>::max()));
    if (version > kVersion) {
      return Status(ErrorCode::kUnsupported,
                    fmt::format("{}: moments format version {}; this build reads up to {}; update blockgtq",
                                file_.name(), version, kVersion));
    }
    BGTQ_RETURN_IF_ERROR(ReadModel());
    BGTQ_ASSIGN_OR_RETURN(moments_.seen, Number("seen", 1, kMaxMomentsTokens));
    BGTQ_ASSIGN_OR_RETURN(tokens_, Number("tokens", 1, moments_.seen));
    BGTQ_ASSIGN_OR_RETURN(vectors_, Number("vectors", 1, kMaxVectors));
    BGTQ_ASSIGN_OR_RETURN(latent_dims_, Number("latent_dims", 0, moments_.model.head_dim));
    BGTQ_RETURN_IF_ERROR(ReadHeads());
    return std::move(moments_);
  }

 private:
  Status Corrupt(const std::string& what) const {
    return {ErrorCode::kCorruptFile, file_.name() + ": " + what};
  }

  Result<int64_t> Number(const char* key, int64_t min, int64_t max) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return Corrupt(fmt::format("metadata '{}' is missing", key));
    const std::string& text = found->second;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
      return Corrupt(fmt::format("metadata '{}' is '{}', not a whole number from {} to {}", key,
                                 Printable(text), min, max));
    }
    return value;
  }

  Status ReadModel() {
    const auto found = file_.metadata().find("model");
    if (found == file_.metadata().end()) return Corrupt("metadata 'model' is missing");
    Result<nlohmann::json> json = ParseBoundedJson(found->second, kMaxJsonBytes, kMaxJsonDepth);
    const std::string where = file_.name() + ": metadata 'model'";
    if (!json.ok()) return json.status().WithContext(where);
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(*json, where));
    BGTQ_ASSIGN_OR_RETURN(moments_.model, ReadFingerprint(fields));
    if (moments_.model.head_dim % 2 == 0) return Status::Ok();
    return Corrupt(fmt::format("metadata 'model': a head of {} dims is odd", moments_.model.head_dim));
  }

  /// The tensor's bytes lie in the file, so the allocation is bounded by it.
  template <typename T>
  Status Read(const char* name, const char* dtype, const std::vector<int64_t>& shape,
              std::vector<T>* out) const {
    BGTQ_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, file_.Get(name, dtype, shape));
    out->resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out->data(), bytes.data(), bytes.size());
    if (AllFinite(*out)) return Status::Ok();
    return Corrupt(fmt::format("tensor '{}' has a NaN or infinite entry", name));
  }

  Status ReadHeads() {
    const ModelFingerprint& m = moments_.model;
    const int64_t heads = int64_t{m.layers} * m.kv_heads, dim = m.head_dim;
    Arrays all;
    BGTQ_RETURN_IF_ERROR(Read("query_energy", "F64", {heads, dim / 2}, &all.query_energy));
    BGTQ_RETURN_IF_ERROR(Read("centred_key_energy", "F64", {heads, dim / 2}, &all.centred_key_energy));
    BGTQ_RETURN_IF_ERROR(Read("key_mean", "F64", {heads, dim}, &all.key_mean));
    BGTQ_RETURN_IF_ERROR(Read("keys", "F32", {heads, vectors_, dim}, &all.keys));
    if (latent_dims_ == 0) BGTQ_RETURN_IF_ERROR(Read("values", "F32", {heads, vectors_, dim}, &all.values));
    if (!AllEnergies(all.query_energy) || !AllEnergies(all.centred_key_energy))
      return Corrupt("an energy is negative");
    for (int64_t h = 0; h < heads; ++h) moments_.heads.push_back(Head(all, h));
    return Status::Ok();
  }

  HeadCalibration Head(const Arrays& all, int64_t h) const {
    const int64_t dim = moments_.model.head_dim;
    const auto part = [h](const auto& of_all, int64_t each) {
      return std::vector(of_all.begin() + h * each, of_all.begin() + (h + 1) * each);
    };
    HeadCalibration head;
    HeadStatistics& s = head.statistics;
    s.tokens = tokens_;
    s.query_energy = part(all.query_energy, dim / 2);
    s.centred_key_energy = part(all.centred_key_energy, dim / 2);
    s.key_mean = part(all.key_mean, dim);
    s.key_energy = s.centred_key_energy;
    for (size_t d = 0; d < s.key_mean.size(); ++d) s.key_energy[d / 2] += s.key_mean[d] * s.key_mean[d];
    head.keys = part(all.keys, vectors_ * dim);
    if (latent_dims_ == 0) head.values = part(all.values, vectors_ * dim);
    head.latent_dims = static_cast<int>(latent_dims_);
    return head;
  }

  const SafetensorsFile& file_;
  ModelMoments moments_;
  int64_t tokens_ = 0, vectors_ = 0, latent_dims_ = 0;
};

/// Ok where every head has the sizes of the first, which fit the model's.
Status CheckHeads(const ModelMoments& moments) {
  const ModelFingerprint& m = moments.model;
  const size_t dim = static_cast<size_t>(m.head_dim);
  const auto invalid = [](const char* what) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("moments are not saved: {}", what));
  };
  if (moments.heads.empty() || moments.heads.size() != static_cast<size_t>(m.layers) * m.kv_heads)
    return invalid("their heads are not the model's");
  const HeadCalibration& first = moments.heads.front();
  if (first.keys.empty() || first.statistics.tokens < 1) return invalid("no token was seen yet");
  if (moments.seen > kMaxMomentsTokens || first.statistics.tokens > moments.seen)
    return invalid("more tokens count than were seen, or than a file counts");
  for (const HeadCalibration& head : moments.heads) {
    const HeadStatistics& s = head.statistics;
    if (s.query_energy.size() != dim / 2 || s.centred_key_energy.size() != dim / 2 ||
        s.key_mean.size() != dim || s.tokens != first.statistics.tokens ||
        head.keys.size() != first.keys.size() || head.keys.size() % dim != 0 ||
        head.latent_dims != first.latent_dims ||
        head.values.size() != (head.latent_dims > 0 ? 0 : head.keys.size())) {
      return invalid("heads have other sizes than the first");
    }
    if (!AllEnergies(s.query_energy) || !AllEnergies(s.centred_key_energy) || !AllFinite(s.key_mean) ||
        !AllFinite(head.keys) || !AllFinite(head.values)) {
      return invalid("a value is NaN, infinite or a negative energy");
    }
  }
  return Status::Ok();
}

}  // namespace

Status SaveMoments(const ModelMoments& moments, const std::string& path) {
  BGTQ_RETURN_IF_ERROR(CheckHeads(moments).WithContext(path));
  Arrays all;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const HeadCalibration& head : moments.heads) {
    append(all.query_energy, head.statistics.query_energy);
    append(all.centred_key_energy, head.statistics.centred_key_energy);
    append(all.key_mean, head.statistics.key_mean);
    append(all.keys, head.keys);
    append(all.values, head.values);
  }
  const int64_t heads = static_cast<int64_t>(moments.heads.size()), dim = moments.model.head_dim;
  const int64_t vectors = static_cast<int64_t>(moments.heads.front().keys.size()) / dim;
  const auto tensor = [](const char* name, const char* dtype, std::vector<int64_t> shape,
                         const auto& values) {
    return SafetensorsTensor{name, dtype, std::move(shape), std::as_bytes(std::span(values))};
  };
  std::vector<SafetensorsTensor> tensors = {
      tensor("query_energy", "F64", {heads, dim / 2}, all.query_energy),
      tensor("centred_key_energy", "F64", {heads, dim / 2}, all.centred_key_energy),
      tensor("key_mean", "F64", {heads, dim}, all.key_mean),
      tensor("keys", "F32", {heads, vectors, dim}, all.keys)};
  if (!all.values.empty()) tensors.push_back(tensor("values", "F32", {heads, vectors, dim}, all.values));
  std::map<std::string, std::string, std::less<>> metadata;
  try {  // dump throws on text that is not UTF-8
    metadata = {{"format", kMomentsFormat},
                {"version", std::to_string(kVersion)},
                {"model", FingerprintJson(moments.model).dump()},
                {"seen", std::to_string(moments.seen)},
                {"tokens", std::to_string(moments.tokens())},
                {"vectors", std::to_string(vectors)},
                {"latent_dims", std::to_string(moments.heads.front().latent_dims)}};
  } catch (const nlohmann::json::exception&) {
    return Status(ErrorCode::kInvalidArgument, path + ": not saved: a name in the model is not UTF-8");
  }
  return WriteSafetensors(path, metadata, tensors);
}

Result<ModelMoments> LoadMoments(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  return Reader(*file).Run();
}

Result<ModelMoments> ParseMoments(std::span<const std::byte> bytes, const std::string& name) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Parse(bytes, name));
  return Reader(*file).Run();
}

}  // namespace blockgtq
