// Builds EncodeTable from plans.
#include "src/cuda/encode_table.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/codec/record.h"
#include "src/core/half.h"
#include "src/cuda/elementwise_rope.h"

namespace blockgtq::cuda {
namespace {

Status Unsupported(size_t head, int kv_heads, const std::string& what) {
  return Status(ErrorCode::kUnsupported, "CUDA encoder: layer " + std::to_string(head / kv_heads) +
                                             ", KV head " + std::to_string(head % kv_heads) + " " + what);
}

// Lloyd-Max codes of 6 and 7 bits in containers of 8.
bool IsContained(const GroupPlan& group) { return group.code_width != group.width; }

Status CheckHead(const HeadPlan& plan, size_t h, int kv_heads) {
  const auto unsupported = [&](const std::string& what) { return Unsupported(h, kv_heads, what); };
  if (plan.head_dim != 64 && plan.head_dim != 128 && plan.head_dim != 256) {
    return unsupported("has head dim " + std::to_string(plan.head_dim) + "; the encoder has 64, 128 and 256");
  }
  if (plan.norm_type != NormType::kLog8) {
    return unsupported("has fp16 norms; the encoder has 8-bit log norms: use another recipe");
  }
  if (plan.groups.empty() || plan.groups.size() > kEncodeGroups) {
    return unsupported("has " + std::to_string(plan.groups.size()) + " key groups; the encoder has 1.." +
                       std::to_string(kEncodeGroups));
  }
  if (plan.key_units() > 2 * plan.head_dim / kUnitDims) {
    return unsupported("has " + std::to_string(plan.key_units()) +
                       " key units, more than twice the head dim");
  }
  if (IsContained(plan.value) || std::any_of(plan.groups.begin(), plan.groups.end(), IsContained)) {
    return unsupported("has codes of 6 or 7 bits; the encoder has 1, 2, 3, 4, 5 and 8: use another recipe");
  }
  return Status::Ok();
}

// Rows of a transform as B fragments. dim_of(column, tile) is the dim of the unit at a column of its 8-wide
// tile.
template <typename DimOf>
void AppendUnit(const std::vector<float>& transform, int head_dim, int unit, float scale, DimOf dim_of,
                uint16_t* out) {
  for (int step = 0; step < head_dim / 16; ++step) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int tile = 0; tile < 2; ++tile) {
        for (int e = 0; e < 4; ++e) {
          const int row = kUnitDims * unit + dim_of(lane >> 2, tile);
          const int col = 16 * step + 2 * (lane & 3) + 8 * (e >> 1) + (e & 1);
          *out++ = FloatToHalf(transform[static_cast<size_t>(row) * head_dim + col] * scale);
        }
      }
    }
  }
}

// A lane holds dims 4 t .. 4 t + 3 of a key (t = lane mod 4): the codes of one quad of the record.
int KeyColumn(int column, int tile) { return 4 * (column >> 1) + 2 * tile + (column & 1); }
int ValueColumn(int column, int tile) { return column + 8 * tile; }

// Appends one group's fragments, scaled for fp16, and describes it.
template <typename DimOf>
EncodeGroup AppendGroup(const GroupPlan& plan, const std::vector<float>& transform, int head_dim, int codes,
                        int norms, DimOf dim_of, uint16_t* fragments) {
  const size_t row = static_cast<size_t>(kUnitDims) * head_dim;
  const float scale =
      HalfScale(std::span<const float>(transform).subspan(plan.first_unit * row, plan.units * row));
  for (int u = plan.first_unit; u < plan.first_unit + plan.units; ++u) {
    AppendUnit(transform, head_dim, u, scale, dim_of, fragments + u * row);
  }
  return {
      plan.width, plan.first_unit, plan.units, plan.dims, codes, norms, 1.0f / scale / plan.norm_reference,
      0};
}

}  // namespace

float HalfScale(std::span<const float> values) {
  float largest = 0;
  for (float v : values) largest = std::max(largest, std::fabs(v));
  return largest > 0 ? std::ldexp(1.0f, 7 - std::ilogb(largest)) : 1.0f;
}

std::vector<float> SlotRotations(const RopeConfig& rope) {
  std::vector<float> out;
  const std::vector<double> frequencies = RopeFrequencies(rope);
  for (int slot = 0; slot < kPageTokens; ++slot) {
    for (size_t j = 0; j < frequencies.size(); ++j) {
      const bool rotary = static_cast<int>(j) < rope.rotary_dims / 2;
      const double factor = rotary ? double{rope.attention_factor} : 1.0;
      out.push_back(static_cast<float>(std::cos(slot * frequencies[j]) * factor));
      out.push_back(static_cast<float>(std::sin(slot * frequencies[j]) * factor));
    }
  }
  return out;
}

Result<EncodeTable> BuildEncodeTable(std::span<const HeadPlan> heads, int kv_heads,
                                     std::span<const EncodeLayer> layers, const LayerRopes& ropes) {
  if (heads.empty() || kv_heads <= 0 || heads.size() != layers.size() * kv_heads) {
    return Status(ErrorCode::kInvalidArgument, "CUDA encoder: " + std::to_string(heads.size()) +
                                                   " head plans are not " + std::to_string(layers.size()) +
                                                   " layers of " + std::to_string(kv_heads));
  }
  EncodeTable table;
  table.head_dim = heads[0].head_dim;
  table.layers = static_cast<int>(layers.size());
  table.kv_heads = kv_heads;
  for (size_t h = 0; h < heads.size(); ++h) {
    BGTQ_RETURN_IF_ERROR(CheckHead(heads[h], h, kv_heads));
    if (heads[h].head_dim != table.head_dim) {
      return Unsupported(h, kv_heads, "has another head dim than head 0");
    }
    table.key_units = std::max(table.key_units, heads[h].key_units());
  }
  const int dim = table.head_dim;
  for (const RopeConfig& rope : ropes.configs) {
    if (rope.head_dim == dim) continue;
    return Status(ErrorCode::kInvalidArgument, "CUDA encoder: the RoPE has head dim " +
                                                   std::to_string(rope.head_dim) + ", the plan " +
                                                   std::to_string(dim));
  }
  const size_t key_stride = static_cast<size_t>(table.key_units) * kUnitDims * dim;
  const size_t value_stride = static_cast<size_t>(dim) * dim;
  table.key_transform.assign(heads.size() * key_stride, 0);
  table.value_transform.resize(heads.size() * value_stride);
  table.key_mean.assign(heads.size() * dim, 0.0f);
  int64_t offset = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const HeadPlan& plan = heads[h];
    const RecordLayout layout = RecordLayout::For(plan);
    const size_t layer = h / kv_heads;
    if (h % kv_heads == 0) offset = layers[layer].offset;
    EncodeHead head{};
    head.group = layers[layer].group;
    head.rope = ropes.index(static_cast<int>(layer));
    head.record_offset = offset;
    offset += layout.bytes;
    head.groups = static_cast<int32_t>(plan.groups.size());
    head.searched = plan.rounding == Rounding::kSearched;
    for (int unit : plan.mean_units) head.mean_units |= 1u << unit;
    std::copy(plan.key_mean.begin(), plan.key_mean.end(), table.key_mean.begin() + h * dim);
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      head.key[g] = AppendGroup(group, plan.key_transform, dim, layout.key_unit[group.first_unit],
                                layout.key_norm[g], KeyColumn, &table.key_transform[h * key_stride]);
    }
    head.value = AppendGroup(plan.value, plan.value_transform, dim, layout.value_unit[0], layout.value_norm,
                             ValueColumn, &table.value_transform[h * value_stride]);
    table.heads.push_back(head);
  }
  for (const RopeConfig& rope : ropes.configs) {
    const std::vector<float> rotations = SlotRotations(rope);
    const std::vector<uint64_t> steps = RopeSteps(rope);
    table.slot_rotation.insert(table.slot_rotation.end(), rotations.begin(), rotations.end());
    table.steps.insert(table.steps.end(), steps.begin(), steps.end());
  }
  return table;
}

}  // namespace blockgtq::cuda
