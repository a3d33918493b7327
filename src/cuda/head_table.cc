// Builds HeadTable from plans.
#include "src/cuda/head_table.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/codec/record.h"
#include "src/cuda/fragments.h"
#include "src/cuda/mean_table.h"

namespace blockgtq::cuda {
namespace {

Status Unsupported(size_t head, const std::string& what) {
  return Status(ErrorCode::kUnsupported,
                "CUDA decode attention: KV head " + std::to_string(head) + " " + what);
}

Status CheckHead(const HeadPlan& plan, size_t h) {
  if (plan.head_dim != 64 && plan.head_dim != 128 && plan.head_dim != 256) {
    return Unsupported(
        h, "has head dim " + std::to_string(plan.head_dim) + "; the kernels have 64, 128 and 256");
  }
  if (plan.norm_type != NormType::kLog8) {
    return Unsupported(h, "has fp16 norms; the kernels have 8-bit log norms: use another recipe");
  }
  if (plan.groups.empty() || plan.groups.size() > kMaxGroups) {
    return Unsupported(h, "has " + std::to_string(plan.groups.size()) + " key groups; the kernels have 1.." +
                              std::to_string(kMaxGroups));
  }
  if (plan.key_units() > MaxKeyUnits(plan.head_dim)) {
    return Unsupported(h, "has " + std::to_string(plan.key_units()) + " key units; the kernels have up to " +
                              std::to_string(MaxKeyUnits(plan.head_dim)));
  }
  if (plan.value.units * kUnitDims != plan.head_dim) {
    return Unsupported(h, "has " + std::to_string(plan.value.units) + " value units, not head dim / 16");
  }
  return Status::Ok();
}

float IntegerScale(const GroupPlan& group) {
  return group.norm_reference / std::sqrt(static_cast<float>(group.dims)) / CodebookScale(group.width);
}

DeviceHead MakeDeviceHead(const HeadPlan& plan, const MeanUnits& mean, int64_t offset, int max_key_units) {
  const RecordLayout layout = RecordLayout::For(plan);
  DeviceHead head{};
  head.header.record_bytes = layout.bytes;
  head.header.record_offset = static_cast<int32_t>(offset);
  head.header.value_codes = layout.value_unit[0];
  head.header.value_norms = layout.value_norm;
  head.header.value_width = plan.value.width;
  head.header.groups = static_cast<int32_t>(plan.groups.size());
  head.header.key_units = plan.key_units();
  head.header.mean_units = static_cast<int32_t>(plan.mean_units.size());
  head.header.value_scale = IntegerScale(plan.value);
  head.header.series_first = mean.series_first;
  head.header.series_units = mean.series_units;
  head.header.direct_units = static_cast<int32_t>(mean.direct.size());
  std::copy(mean.direct.begin(), mean.direct.end(), head.header.direct_unit);
  Pass* many = head.many;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    head.group[g] = {group.width, group.first_unit, group.units, IntegerScale(group)};
    const Pass pass = {layout.key_unit[group.first_unit],
                       layout.key_norm[g],
                       32 * group.first_unit,
                       static_cast<uint8_t>(group.width),
                       static_cast<uint8_t>(group.units),
                       {}};
    head.few[g] = pass;
    *many++ = pass;
    if (group.width >= LowQueryWidth(false)) {
      *many = pass;
      (many++)->query += 32 * max_key_units;
    }
  }
  return head;
}

}  // namespace

void HeadTraits::Include(const HeadTraits& other) {
  key_units = std::max(key_units, other.key_units);
  mean_units = std::max(mean_units, other.mean_units);
  direct_units = std::max(direct_units, other.direct_units);
  value_width = value_width == other.value_width ? value_width : 0;
  record_bytes = std::max(record_bytes, other.record_bytes);
}

Result<HeadTraits> TraitsOf(std::span<const HeadPlan> heads, const RopeConfig& rope) {
  if (heads.empty())
    return Status(ErrorCode::kInvalidArgument, "CUDA decode attention: a layer without heads");
  HeadTraits traits;
  for (size_t h = 0; h < heads.size(); ++h) {
    BGTQ_RETURN_IF_ERROR(CheckHead(heads[h], h));
    if (heads[h].head_dim != heads[0].head_dim) {
      return Unsupported(h, "has another head dim than head 0");
    }
    if (heads[h].head_dim != rope.head_dim) {
      return Status(ErrorCode::kInvalidArgument, "CUDA decode attention: the RoPE has head dim " +
                                                     std::to_string(rope.head_dim) + ", the plan " +
                                                     std::to_string(heads[h].head_dim));
    }
    size_t direct_units = SplitMeanUnits(heads[h], rope).direct.size();
    if (!heads[h].mean_units.empty()) direct_units = std::max<size_t>(direct_units, 1);  // mean_layout.h
    const HeadTraits head = {heads[h].key_units(), static_cast<int>(heads[h].mean_units.size()),
                             RecordLayout::For(heads[h]).bytes, heads[h].value.width,
                             static_cast<int>(direct_units)};
    if (h == 0) {
      traits = head;
    } else {
      traits.Include(head);
    }
  }
  return traits;
}

Result<HeadTable> BuildHeadTable(std::span<const HeadPlan> heads, const HeadTraits& traits,
                                 const RopeConfig& rope) {
  BGTQ_ASSIGN_OR_RETURN(const HeadTraits own, TraitsOf(heads, rope));
  if (own.key_units > traits.key_units || own.mean_units > traits.mean_units ||
      own.direct_units > traits.direct_units || own.record_bytes > traits.record_bytes) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA decode attention: a layer is larger than the traits that the table is built for");
  }
  const int dim = heads[0].head_dim, dim_units = dim / kUnitDims;
  const size_t fragment = 32 * 8, square = static_cast<size_t>(dim) * dim;
  const size_t query_stride = static_cast<size_t>(traits.key_units) * dim_units * fragment;
  const size_t mean_stride =
      traits.mean_units > 0 ? static_cast<size_t>(MeanConstants::Bytes(dim, traits.direct_units)) : 0;

  HeadTable table;
  table.traits = traits;
  table.query_transform.assign(heads.size() * query_stride, 0);
  table.value_fragments.resize(heads.size() * square);
  table.mean_constants.assign(heads.size() * mean_stride, 0);
  for (size_t h = 0; h < heads.size(); ++h) {
    const HeadPlan& plan = heads[h];
    const MeanUnits mean = SplitMeanUnits(plan, rope);
    table.heads.push_back(MakeDeviceHead(plan, mean, table.layer_bytes, traits.key_units));
    table.layer_bytes += table.heads.back().header.record_bytes;
    AppendFragments(
        plan.key_units(), dim_units, [&](int row, int col) { return plan.query_transform[row * dim + col]; },
        &table.query_transform[h * query_stride]);
    // The output is T_v' times the rotated one: rows are output dims.
    AppendFragments(
        dim_units, dim_units, [&](int row, int col) { return plan.value_transform[col * dim + row]; },
        &table.value_fragments[h * square]);
    if (!plan.mean_units.empty()) {
      FillMeanConstants(plan, rope, mean, &table.mean_constants[h * mean_stride]);
    }
  }
  return table;
}

}  // namespace blockgtq::cuda
