// Plan::Validate: what must hold before a plan from disk may drive the codec and the kernels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "src/codec/plan.h"

namespace blockgtq {
namespace {

constexpr int kMaxHeadDim = 1024;
constexpr int kMaxCount = 1 << 20;  // layers, heads: far above any model, far below overflow

Status Bad(const std::string& what) {
  return Status(ErrorCode::kCorruptFile, what + "; calibrate the plan again");
}

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

int UnitsFor(int dims) { return (dims + kUnitDims - 1) / kUnitDims; }

// Width, code width, dims and reference of one group; `where` names it.
Status CheckGroup(const GroupPlan& group, NormType norm_type, const std::string& where) {
  if (group.width < 1 || group.width > 8 || group.width == 6 || group.width == 7) {
    return Bad(fmt::format("{}: stored width {} is not one of 1, 2, 3, 4, 5, 8", where, group.width));
  }
  const bool contained = group.width == 8 && (group.code_width == 6 || group.code_width == 7);
  if (group.code_width != group.width && !contained) {
    return Bad(
        fmt::format("{}: code width {} does not fit stored width {}", where, group.code_width, group.width));
  }
  if (group.dims < 1 || group.dims > kMaxHeadDim || group.units != UnitsFor(group.dims)) {
    return Bad(fmt::format("{}: {} units do not hold {} dims", where, group.units, group.dims));
  }
  if (norm_type == NormType::kLog8 && !(group.norm_reference >= 1e-30f && group.norm_reference <= 1e30f)) {
    return Bad(fmt::format("{}: norm reference {} is not a positive number", where, group.norm_reference));
  }
  return Status::Ok();
}

// Size, finiteness, and zero rows at padding: `groups` say which rows of [P, D] are padding.
Status CheckMatrix(const std::vector<float>& matrix, std::span<const GroupPlan> groups, int rows,
                   int head_dim, std::string_view name) {
  if (matrix.size() != static_cast<size_t>(rows) * head_dim) {
    return Bad(fmt::format("{} has {} elements, expected {} x {}", name, matrix.size(), rows, head_dim));
  }
  if (!AllFinite(matrix)) return Bad(fmt::format("{} has a NaN or infinite element", name));
  for (const GroupPlan& group : groups) {
    const size_t first = static_cast<size_t>(group.first_unit) * kUnitDims;
    const auto begin = matrix.begin() + (first + group.dims) * head_dim;
    const auto end = matrix.begin() + (first + static_cast<size_t>(group.units) * kUnitDims) * head_dim;
    if (std::any_of(begin, end, [](float v) { return v != 0.0f; })) {
      return Bad(fmt::format("{} is not zero in its padding rows", name));
    }
  }
  return Status::Ok();
}

// Whether a' b = I for two [rows, D] matrices, by applying b and then a' to two fixed sign vectors. Each
// coordinate is measured in units of its column's length in a, so that an equalised T is judged evenly.
bool AreInverse(std::span<const float> a, std::span<const float> b, int rows, int head_dim) {
  std::vector<double> scale(head_dim, 0.0);
  for (int r = 0; r < rows; ++r) {
    for (int d = 0; d < head_dim; ++d) {
      const double v = a[static_cast<size_t>(r) * head_dim + d];
      scale[d] += v * v;
    }
  }
  for (double& s : scale) s = std::sqrt(s);
  uint32_t state = 1;
  for (int probe = 0; probe < 2; ++probe) {
    std::vector<double> sign(head_dim), back(head_dim, 0.0);
    for (double& s : sign) {
      state = state * 1664525u + 1013904223u;
      s = state >> 31 ? 1.0 : -1.0;
    }
    for (int r = 0; r < rows; ++r) {
      const size_t row = static_cast<size_t>(r) * head_dim;
      double forward = 0;
      for (int d = 0; d < head_dim; ++d) forward += b[row + d] * scale[d] * sign[d];
      for (int d = 0; d < head_dim; ++d) back[d] += a[row + d] * forward;
    }
    for (int d = 0; d < head_dim; ++d) {
      if (!(std::fabs(back[d] - sign[d] * scale[d]) <= 1e-3 * scale[d]) || scale[d] == 0.0) return false;
    }
  }
  return true;
}

Status CheckKeyGroups(const HeadPlan& head) {
  if (head.groups.empty()) return Bad("no key group");
  int unit = 0, dims = 0;
  for (size_t g = 0; g < head.groups.size(); ++g) {
    const GroupPlan& group = head.groups[g];
    const std::string where = fmt::format("key group {}", g);
    BGTQ_RETURN_IF_ERROR(CheckGroup(group, head.norm_type, where));
    if (group.first_unit != unit) {
      return Bad(fmt::format("{}: starts at unit {}, expected {}", where, group.first_unit, unit));
    }
    if (g > 0 && group.width > head.groups[g - 1].width) {
      return Bad(fmt::format("{}: groups must come by descending width", where));
    }
    unit += group.units;
    dims += group.dims;
    if (dims > head.head_dim) break;
  }
  if (dims != head.head_dim) {
    return Bad(fmt::format("the key groups hold {} dims, the head has {}", dims, head.head_dim));
  }
  return Status::Ok();
}

Status CheckMean(const HeadPlan& head) {
  const int blocks = head.head_dim / 2;
  if (head.mean_units.empty() != head.key_mean.empty()) {
    return Bad("mean units and key mean must both be present or both be absent");
  }
  if (head.mean_units.empty()) return Status::Ok();
  if (head.key_mean.size() != static_cast<size_t>(head.head_dim)) {
    return Bad(fmt::format("the key mean has {} elements, expected {}", head.key_mean.size(), head.head_dim));
  }
  std::vector<bool> covered(head.head_dim, false);
  int previous = -1;
  for (int unit : head.mean_units) {
    if (unit <= previous || unit >= (blocks + kMeanUnitBlocks - 1) / kMeanUnitBlocks) {
      return Bad(fmt::format("mean unit {} is out of range or out of order", unit));
    }
    previous = unit;
    const int first = 2 * kMeanUnitBlocks * unit;
    for (int d = first; d < std::min(first + 2 * kMeanUnitBlocks, head.head_dim); ++d) covered[d] = true;
  }
  for (int d = 0; d < head.head_dim; ++d) {
    if (!std::isfinite(head.key_mean[d]) || (!covered[d] && head.key_mean[d] != 0.0f)) {
      return Bad(fmt::format("key mean element {} is not finite, or not zero outside the mean units", d));
    }
  }
  return Status::Ok();
}

Status CheckValue(const HeadPlan& head) {
  const int dim = head.head_dim, rows = kUnitDims * head.value_units();
  BGTQ_RETURN_IF_ERROR(CheckGroup(head.value, head.norm_type, "value group"));
  if (head.value.first_unit != 0 || head.value.dims != dim) {
    return Bad(fmt::format("the value group must hold all {} dims from unit 0", dim));
  }
  BGTQ_RETURN_IF_ERROR(CheckMatrix(head.value_transform, {&head.value, 1}, rows, dim, "value transform"));
  if (!AreInverse(head.value_transform, head.value_transform, rows, dim)) {
    return Bad("the value transform is not orthogonal");
  }
  return Status::Ok();
}

// The rope key's dims and the latent's fill whole units, and no value is stored.
Status CheckLatent(const HeadPlan& head) {
  if (head.latent_dims < 0 || head.latent_dims > head.head_dim || head.latent_dims % kUnitDims != 0 ||
      head.head_dim % kUnitDims != 0) {
    return Bad(fmt::format("a latent of {} dims does not fit a head of {}, in whole units", head.latent_dims,
                           head.head_dim));
  }
  if (head.value != GroupPlan{} || !head.value_transform.empty()) {
    return Bad("a head of latents has a value group or transform");
  }
  return Status::Ok();
}

Status CheckHead(const HeadPlan& head, int head_dim) {
  if (head.head_dim != head_dim) {
    return Bad(fmt::format("head dim {} differs from the model's {}", head.head_dim, head_dim));
  }
  if (head.norm_type != NormType::kLog8 && head.norm_type != NormType::kHalf) {
    return Bad(fmt::format("unknown norm type {}", static_cast<int>(head.norm_type)));
  }
  if (head.rounding != Rounding::kNearest && head.rounding != Rounding::kSearched) {
    return Bad(fmt::format("unknown rounding {}", static_cast<int>(head.rounding)));
  }
  BGTQ_RETURN_IF_ERROR(CheckKeyGroups(head));
  BGTQ_RETURN_IF_ERROR(head.latent_dims != 0 ? CheckLatent(head) : CheckValue(head));
  const int rows = kUnitDims * head.key_units();
  BGTQ_RETURN_IF_ERROR(CheckMatrix(head.key_transform, head.groups, rows, head_dim, "key transform"));
  BGTQ_RETURN_IF_ERROR(CheckMatrix(head.query_transform, head.groups, rows, head_dim, "query transform"));
  if (!AreInverse(head.key_transform, head.query_transform, rows, head_dim)) {
    return Bad("the query transform is not the inverse transpose of the key transform");
  }
  BGTQ_RETURN_IF_ERROR(CheckMean(head));
  if (!head.score.empty() &&
      (head.score.size() != static_cast<size_t>(head_dim) / 2 || !AllFinite(head.score))) {
    return Bad(fmt::format("the score must be {} finite numbers", head_dim / 2));
  }
  return Status::Ok();
}

Status CheckModel(const ModelFingerprint& model) {
  for (const auto& [name, count] : {std::pair{"layer", model.layers}, std::pair{"query head", model.heads},
                                    std::pair{"KV head", model.kv_heads}}) {
    if (count < 1 || count > kMaxCount) return Bad(fmt::format("{} count {} is out of range", name, count));
  }
  if (model.heads % model.kv_heads != 0) {
    return Bad(fmt::format("{} query heads do not divide over {} KV heads", model.heads, model.kv_heads));
  }
  if (model.head_dim < 2 || model.head_dim > kMaxHeadDim || model.head_dim % 2 != 0) {
    return Bad(fmt::format("head dim {} is not an even number up to {}", model.head_dim, kMaxHeadDim));
  }
  if (model.rotary_dims < 0 || model.rotary_dims > model.head_dim || model.rotary_dims % 2 != 0) {
    return Bad(fmt::format("{} rotary dims do not fit head dim {}", model.rotary_dims, model.head_dim));
  }
  if (!std::isfinite(model.rope_freq_base) || model.rope_freq_base <= 0) {
    return Bad(fmt::format("RoPE base {} is not a positive number", model.rope_freq_base));
  }
  if (model.rope_pairing != "norm" && model.rope_pairing != "neox") {
    return Bad(fmt::format("RoPE pairing '{}' is neither norm nor neox", model.rope_pairing));
  }
  return Status::Ok();
}

}  // namespace

Status Plan::Validate() const {
  if (recipe.empty()) return Bad("plan: no recipe name");
  for (double bits : {k_bits, v_bits}) {
    if (!(bits > 0 && bits <= 8)) return Bad(fmt::format("plan: {} bits a dim is not within 0..8", bits));
  }
  BGTQ_RETURN_IF_ERROR(CheckModel(model).WithContext("plan"));
  const int64_t expected = int64_t{model.layers} * model.kv_heads;
  if (static_cast<int64_t>(heads.size()) != expected) {
    return Bad(fmt::format("plan: {} head plans, expected {} layers x {} KV heads", heads.size(),
                           model.layers, model.kv_heads));
  }
  for (const HeadPlan& head : heads) {
    if (head.latent_dims != heads.front().latent_dims) return Bad("plan: heads differ in their latent dims");
  }
  for (size_t h = 0; h < heads.size(); ++h) {
    const Status status = CheckHead(heads[h], model.head_dim);
    if (!status.ok()) {
      return status.WithContext(
          fmt::format("plan: layer {}, KV head {}", h / model.kv_heads, h % model.kv_heads));
    }
  }
  return Status::Ok();
}

}  // namespace blockgtq
