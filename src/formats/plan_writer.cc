// SavePlan: a plan to metadata and tensors.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/formats/fingerprint_json.h"
#include "src/formats/plan_file.h"
#include "src/formats/plan_file_names.h"
#include "src/formats/safetensors.h"

namespace blockgtq {
namespace {

using Json = nlohmann::ordered_json;

// Floats go through double, whose shortest decimal form reads back exactly.
Json GroupJson(const GroupPlan& group) {
  return {{"width", group.width},
          {"code_width", group.code_width},
          {"first_unit", group.first_unit},
          {"units", group.units},
          {"dims", group.dims},
          {"norm_reference", static_cast<double>(group.norm_reference)}};
}

Json HeadJson(const HeadPlan& head) {
  Json groups = Json::array();
  for (const GroupPlan& group : head.groups) groups.push_back(GroupJson(group));
  Json json = {{"norm_type", head.norm_type == NormType::kLog8 ? plan_file::kLog8 : plan_file::kHalf},
               {"rounding", head.rounding == Rounding::kNearest ? plan_file::kNearest : plan_file::kSearched},
               {"groups", std::move(groups)},
               {"mean_units", head.mean_units}};
  if (head.latent_dims > 0) {
    json["latent_dims"] = head.latent_dims;
  } else {
    json["value"] = GroupJson(head.value);
  }
  return json;
}

Json HeadsJson(const Plan& plan) {
  Json layers = Json::array();
  for (int layer = 0; layer < plan.model.layers; ++layer) {
    Json heads = Json::array();
    for (int h = 0; h < plan.model.kv_heads; ++h) heads.push_back(HeadJson(plan.head(layer, h)));
    layers.push_back(std::move(heads));
  }
  return layers;
}

void AddTensor(const std::string& name, const std::vector<float>& values, std::vector<int64_t> shape,
               std::vector<SafetensorsTensor>* tensors) {
  tensors->push_back({name, "F32", std::move(shape), std::as_bytes(std::span(values))});
}

// Views of the plan's arrays: the plan must outlive them.
std::vector<SafetensorsTensor> Tensors(const Plan& plan) {
  std::vector<SafetensorsTensor> tensors;
  for (int layer = 0; layer < plan.model.layers; ++layer) {
    for (int h = 0; h < plan.model.kv_heads; ++h) {
      const HeadPlan& head = plan.head(layer, h);
      const std::string prefix = plan_file::HeadPrefix(layer, h);
      const int64_t dim = head.head_dim;
      const int64_t key_rows = kUnitDims * head.key_units(), value_rows = kUnitDims * head.value_units();
      AddTensor(prefix + "key_transform", head.key_transform, {key_rows, dim}, &tensors);
      AddTensor(prefix + "query_transform", head.query_transform, {key_rows, dim}, &tensors);
      if (value_rows > 0)
        AddTensor(prefix + "value_transform", head.value_transform, {value_rows, dim}, &tensors);
      if (!head.key_mean.empty()) AddTensor(prefix + "key_mean", head.key_mean, {dim}, &tensors);
      if (!head.score.empty()) AddTensor(prefix + "score", head.score, {dim / 2}, &tensors);
    }
  }
  return tensors;
}

}  // namespace

Status SavePlan(const Plan& plan, const std::string& path, const std::optional<PlanBudget>& budget,
                bool bits_by_head) {
  if (const Status valid = plan.Validate(); !valid.ok()) {
    return Status(ErrorCode::kInvalidArgument, path + ": not saved: " + valid.message());
  }
  if (!std::isfinite(plan.calibration.seconds) || plan.calibration.tokens < 0) {
    return Status(ErrorCode::kInvalidArgument, path +
                                                   ": not saved: the calibration's seconds or tokens are no"
                                                   " sensible number");
  }
  std::map<std::string, std::string, std::less<>> metadata;
  try {  // dump throws on text that is not UTF-8
    metadata = {
        {"format", plan_file::kFormat},
        {"version", std::to_string(plan.has_latents() ? Plan::kFormatVersion : Plan::kVersionWithoutLatents)},
        {"recipe", plan.recipe},
        {"k_bits", fmt::format("{}", plan.k_bits)},
        {"v_bits", fmt::format("{}", plan.v_bits)},
        {"seed", std::to_string(plan.seed)},
        {"model", FingerprintJson(plan.model).dump()},
        {"calibration", Json{{"corpus_hash", plan.calibration.corpus_hash},
                             {"tokens", plan.calibration.tokens},
                             {"seconds", plan.calibration.seconds}}
                            .dump()},
        {"heads", HeadsJson(plan).dump()},
        {"bytes_per_token_per_head", fmt::format("{}", plan.bytes_per_token_per_head())}};
  } catch (const nlohmann::json::exception&) {
    return Status(ErrorCode::kInvalidArgument, path + ": not saved: a name in the plan is not UTF-8");
  }
  if (budget.has_value()) {
    BGTQ_ASSIGN_OR_RETURN(metadata[plan_file::kBudget], PlanBudgetText(*budget));
  }
  if (bits_by_head) metadata[plan_file::kBitsByHead] = "true";
  return WriteSafetensors(path, metadata, Tensors(plan));
}

}  // namespace blockgtq
