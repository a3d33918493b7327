// The metadata entry 'budget' of a plan's file.
#include "src/formats/plan_budget.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/formats/json_fields.h"
#include "src/formats/message.h"
#include "src/formats/plan_file.h"
#include "src/formats/plan_file_names.h"
#include "src/formats/safetensors.h"

namespace blockgtq {
namespace {

constexpr size_t kMaxJsonBytes = 4096;
constexpr int kMaxJsonDepth = 2;
constexpr const char* kWhere = "metadata 'budget'";

struct RealField {
  const char* name;
  double PlanBudget::*value;
};
constexpr RealField kReals[] = {{"bytes", &PlanBudget::bytes},
                                {"target_kld", &PlanBudget::target_kld},
                                {"probe_bits", &PlanBudget::probe_bits},
                                {"probe_seconds", &PlanBudget::probe_seconds},
                                {"exponent", &PlanBudget::exponent},
                                {"trust", &PlanBudget::trust},
                                {"predicted_kld", &PlanBudget::predicted_kld},
                                {"measured_kld", &PlanBudget::measured_kld}};

Result<std::optional<PlanBudget>> FromFile(const SafetensorsFile& file) {
  const auto found = file.metadata().find(plan_file::kBudget);
  if (found == file.metadata().end()) return std::optional<PlanBudget>();
  const auto read = [&]() -> Result<PlanBudget> {
    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json json,
                          ParseBoundedJson(found->second, kMaxJsonBytes, kMaxJsonDepth));
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(json, kWhere));
    PlanBudget budget;
    for (const RealField& field : kReals) {
      BGTQ_ASSIGN_OR_RETURN(budget.*field.value, fields.Real(field.name));
    }
    constexpr int kMaxInt = std::numeric_limits<int>::max();
    constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
    BGTQ_ASSIGN_OR_RETURN(const int64_t sinks, fields.Int("sinks", 0, kMaxInt));
    BGTQ_ASSIGN_OR_RETURN(const int64_t recent, fields.Int("recent", 0, kMaxInt));
    BGTQ_ASSIGN_OR_RETURN(budget.probe_tokens, fields.Int("probe_tokens", 0, kMaxInt64));
    BGTQ_ASSIGN_OR_RETURN(budget.probes, fields.Int("probes", 0, kMaxInt64));
    budget.check_tokens = budget.probe_tokens;  // as in older files, which do not say
    if (json.contains("check_tokens")) {
      BGTQ_ASSIGN_OR_RETURN(budget.check_tokens, fields.Int("check_tokens", 0, kMaxInt64));
    }
    budget.sinks = static_cast<int>(sinks);
    budget.recent = static_cast<int>(recent);
    return budget;
  };
  Result<PlanBudget> budget = read();
  if (!budget.ok()) return budget.status().WithContext(file.name());
  return std::optional<PlanBudget>(*budget);
}

}  // namespace

Result<std::string> PlanBudgetText(const PlanBudget& budget) {
  nlohmann::ordered_json json = {{"sinks", budget.sinks},
                                 {"recent", budget.recent},
                                 {"probe_tokens", budget.probe_tokens},
                                 {"probes", budget.probes},
                                 {"check_tokens", budget.check_tokens}};
  for (const RealField& field : kReals) {
    if (!std::isfinite(budget.*field.value)) {
      return Status(ErrorCode::kInvalidArgument,
                    std::string("a plan's budget: ") + field.name + " is no number");
    }
    json[field.name] = budget.*field.value;
  }
  return json.dump();
}

Result<std::optional<PlanBudget>> LoadPlanBudget(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  return FromFile(*file);
}

Result<bool> LoadPlanBitsByHead(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  const auto& metadata = file->metadata();
  const auto said = metadata.find(plan_file::kBitsByHead);
  if (said == metadata.end()) return metadata.contains(plan_file::kBudget);
  if (said->second == "true") return true;
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: metadata '{}' is '{}', not 'true'", path,
                                                     plan_file::kBitsByHead, Printable(said->second)));
}

Result<std::optional<PlanBudget>> ParsePlanBudget(std::span<const std::byte> bytes, const std::string& name) {
  BGTQ_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Parse(bytes, name));
  return FromFile(*file);
}

}  // namespace blockgtq
