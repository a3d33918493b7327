// Builds HeadTable from plans.
#include "src/cuda/head_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "src/codec/record.h"
#include "src/core/half.h"

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
  if (plan.mean_units.size() > kMaxMeanUnits) {
    return Unsupported(h, "has " + std::to_string(plan.mean_units.size()) +
                              " mean units; the kernels have up to " + std::to_string(kMaxMeanUnits));
  }
  return Status::Ok();
}

float IntegerScale(const GroupPlan& group) {
  return group.norm_reference / std::sqrt(static_cast<float>(group.dims)) / CodebookScale(group.width);
}

DeviceHead MakeDeviceHead(const HeadPlan& plan, int64_t offset, int max_key_units) {
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
  for (size_t i = 0; i < kMaxMeanUnits; ++i) {
    head.header.mean_unit[i] = i < plan.mean_units.size() ? static_cast<uint8_t>(plan.mean_units[i]) : 0;
  }
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

// m16n8k16 A fragments of a matrix: fragment (row block, column block), lane, element.
// at(row, col) gives the matrix; rows past the end are at's to answer.
template <typename At>
void AppendFragments(int row_blocks, int col_blocks, At at, uint16_t* out) {
  for (int rb = 0; rb < row_blocks; ++rb) {
    for (int cb = 0; cb < col_blocks; ++cb) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int r = 0; r < 4; ++r) {
          for (int e = 0; e < 2; ++e) {
            const int row = 16 * rb + (lane >> 2) + 8 * (r & 1);
            const int col = 16 * cb + 2 * (lane & 3) + 8 * (r >> 1) + e;
            *out++ = FloatToHalf(at(row, col));
          }
        }
      }
    }
  }
}

// Fragments of R_r mu: row r = token in the tile, columns (2 i, 2 i + 1) = frequency block i of the unit.
void MeanFragments(const HeadPlan& plan, const RopeTable& rope, uint16_t* out) {
  std::vector<float> rotated(static_cast<size_t>(kPageTokens) * plan.head_dim);
  for (int r = 0; r < kPageTokens; ++r) rope.Rotate(plan.key_mean.data(), r, &rotated[r * plan.head_dim]);
  for (int unit : plan.mean_units) {
    AppendFragments(
        kPageTokens / 16, 1,
        [&](int row, int col) { return rotated[row * plan.head_dim + 2 * kMeanUnitBlocks * unit + col]; },
        out);
    out += kPageTokens / 16 * 32 * 8;
  }
}

}  // namespace

void HeadTraits::Include(const HeadTraits& other) {
  key_units = std::max(key_units, other.key_units);
  mean_units = std::max(mean_units, other.mean_units);
  value_width = value_width == other.value_width ? value_width : 0;
  record_bytes = std::max(record_bytes, other.record_bytes);
}

Result<HeadTraits> TraitsOf(std::span<const HeadPlan> heads) {
  if (heads.empty())
    return Status(ErrorCode::kInvalidArgument, "CUDA decode attention: a layer without heads");
  HeadTraits traits;
  for (size_t h = 0; h < heads.size(); ++h) {
    BGTQ_RETURN_IF_ERROR(CheckHead(heads[h], h));
    if (heads[h].head_dim != heads[0].head_dim) {
      return Unsupported(h, "has another head dim than head 0");
    }
    const HeadTraits head = {heads[h].key_units(), static_cast<int>(heads[h].mean_units.size()),
                             RecordLayout::For(heads[h]).bytes, heads[h].value.width};
    if (h == 0) {
      traits = head;
    } else {
      traits.Include(head);
    }
  }
  return traits;
}

Result<HeadTable> BuildHeadTable(std::span<const HeadPlan> heads, const HeadTraits& traits,
                                 const RopeConfig& rope_config) {
  BGTQ_ASSIGN_OR_RETURN(const HeadTraits own, TraitsOf(heads));
  if (own.key_units > traits.key_units || own.mean_units > traits.mean_units ||
      own.record_bytes > traits.record_bytes) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA decode attention: a layer is larger than the traits that the table is built for");
  }
  const int dim = heads[0].head_dim, dim_units = dim / kUnitDims;
  if (rope_config.head_dim != dim) {
    return Status(ErrorCode::kInvalidArgument, "CUDA decode attention: the RoPE has head dim " +
                                                   std::to_string(rope_config.head_dim) + ", the plan " +
                                                   std::to_string(dim));
  }
  const RopeTable rope(rope_config);
  const size_t fragment = 32 * 8, square = static_cast<size_t>(dim) * dim;
  const size_t query_stride = static_cast<size_t>(traits.key_units) * dim_units * fragment;
  const size_t mean_stride = static_cast<size_t>(traits.mean_units) * (kPageTokens / 16) * fragment;

  HeadTable table;
  table.traits = traits;
  table.query_transform.assign(heads.size() * query_stride, 0);
  table.value_fragments.resize(heads.size() * square);
  table.mean_fragments.assign(heads.size() * mean_stride, 0);
  for (size_t h = 0; h < heads.size(); ++h) {
    const HeadPlan& plan = heads[h];
    table.heads.push_back(MakeDeviceHead(plan, table.layer_bytes, traits.key_units));
    table.layer_bytes += table.heads.back().header.record_bytes;
    AppendFragments(
        plan.key_units(), dim_units, [&](int row, int col) { return plan.query_transform[row * dim + col]; },
        &table.query_transform[h * query_stride]);
    // The output is T_v' times the rotated one: rows are output dims.
    AppendFragments(
        dim_units, dim_units, [&](int row, int col) { return plan.value_transform[col * dim + row]; },
        &table.value_fragments[h * square]);
    if (!plan.mean_units.empty()) MeanFragments(plan, rope, &table.mean_fragments[h * mean_stride]);
  }
  for (double radians : RopeFrequencies(rope_config)) {
    const long double turns = std::fmod(
        static_cast<long double>(radians) * kPageTokens / (2 * std::numbers::pi_v<long double>), 1.0L);
    table.tile_phase.push_back(
        static_cast<uint32_t>(static_cast<uint64_t>(std::llround(turns * 4294967296.0L))));
  }
  return table;
}

}  // namespace blockgtq::cuda
