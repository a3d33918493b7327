// PackedHead::Make: everything of a head's plan that the kernels want in another form.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "src/cpu/attention_codes_impl.h"

namespace blockgtq::cpu {
namespace {

// [rows, cols] by rows -> [cols, row_stride].
AlignedBuffer<float> Transposed(const std::vector<float>& matrix, int rows, int cols) {
  AlignedBuffer<float> out;
  float* to = out.Reserve(static_cast<size_t>(rows) * cols);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c)
      to[static_cast<size_t>(c) * rows + r] = matrix[static_cast<size_t>(r) * cols + c];
  }
  return out;
}

std::shared_ptr<const PhaseTable> MakePhases(const std::vector<double>& frequencies) {
  auto table = std::make_shared<PhaseTable>();
  table->frequencies = frequencies;
  const size_t blocks = (frequencies.size() + kMeanUnitBlocks - 1) / kMeanUnitBlocks * kMeanUnitBlocks;
  float* to = table->values.Reserve(blocks * 2 * kHalfTile);
  for (size_t j = 0; j < frequencies.size(); ++j) {
    for (int i = 0; i < kHalfTile; ++i) {
      const double angle = frequencies[j] * (TileToken(kHalfTile + i) - 31.5);
      to[(2 * j) * kHalfTile + i] = static_cast<float>(std::cos(angle));
      to[(2 * j + 1) * kHalfTile + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

// Heads of one model share one table: 8 KB at head dim 64 instead of megabytes over all heads.
std::shared_ptr<const PhaseTable> SharedPhases(const std::vector<double>& frequencies) {
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const PhaseTable>> tables;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(tables, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : tables) {
    if (auto table = weak.lock(); table && table->frequencies == frequencies) return table;
  }
  auto table = MakePhases(frequencies);
  tables.push_back(table);
  return table;
}

// A float's place in the order of all floats, and back (finite values).
int32_t OrderOf(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits < 0 ? std::numeric_limits<int32_t>::min() - bits : bits;
}
float AtOrder(int32_t order) {
  return std::bit_cast<float>(order < 0 ? std::numeric_limits<int32_t>::min() - order : order);
}

// Codes by ascending value and the exact float at which NearestCode steps from one to the next, by bisection:
// the encoder then agrees with NearestCode on every input.
GroupCodes MakeGroupCodes(const GroupPlan& group) {
  GroupCodes out;
  if (group.width == 8 && group.code_width == 8) return out;  // rounded directly
  const auto value_of = [&](float x) {
    const int code = NearestCode(group.width, group.code_width, x);
    return static_cast<float>(CodebookInt(group.width, code)) + CodebookHalf(group.width);
  };
  constexpr float kFar = 100.0f;
  float low = -kFar, value = value_of(low);
  const auto push = [&](float x) {
    out.values.push_back(value_of(x));
    out.codes.push_back(static_cast<uint8_t>(NearestCode(group.width, group.code_width, x)));
  };
  push(low);
  while (value < value_of(kFar)) {
    int32_t below = OrderOf(low), above = OrderOf(kFar);  // value_of(below) == value < value_of(above)
    while (above - static_cast<int64_t>(below) > 1) {
      const int32_t middle = static_cast<int32_t>((static_cast<int64_t>(below) + above) >> 1);
      (value_of(AtOrder(middle)) > value ? above : below) = middle;
    }
    low = AtOrder(above);
    value = value_of(low);
    out.thresholds.push_back(low);
    push(low);
  }
  return out;
}

void MakeMean(const HeadPlan& plan, const RopeTable& rope, PackedHead::Derived& derived) {
  derived.mean_units = static_cast<int>(plan.mean_units.size());
  if (derived.mean_units == 0 || plan.key_mean.empty()) {
    derived.mean_units = 0;
    return;
  }
  derived.phases = SharedPhases(rope.frequencies());
  derived.mean_stride = (kMeanUnitBlocks * derived.mean_units + 15) / 16 * 16;
  float* re = derived.mean_re.Reserve(derived.mean_stride);
  float* im = derived.mean_im.Reserve(derived.mean_stride);
  const int blocks = plan.head_dim / 2, rotary = rope.config().rotary_dims / 2;
  for (int i = 0; i < kMeanUnitBlocks * derived.mean_units; ++i) {
    const int j = kMeanUnitBlocks * plan.mean_units[i / kMeanUnitBlocks] + i % kMeanUnitBlocks;
    if (j >= blocks) continue;
    const double factor = j < rotary ? double{rope.config().attention_factor} : 1.0;
    const double angle = 31.5 * rope.frequencies()[j];
    const double x = plan.key_mean[2 * j], y = plan.key_mean[2 * j + 1];
    re[i] = static_cast<float>(factor * (x * std::cos(angle) - y * std::sin(angle)));
    im[i] = static_cast<float>(factor * (x * std::sin(angle) + y * std::cos(angle)));
  }
}

float GroupConstant(const GroupPlan& group, NormType type) {
  const double reference = type == NormType::kLog8 ? double{group.norm_reference} : 1.0;
  return static_cast<float>(reference / (std::sqrt(double(group.dims)) * double{CodebookScale(group.width)}));
}

}  // namespace

PackedHead PackedHead::Make(const HeadPlan& plan, const RopeTable& rope) {
  PackedHead head;
  head.plan = plan;
  head.layout = RecordLayout::For(plan);
  head.key_dims = kUnitDims * plan.key_units();
  head.value_dims = kUnitDims * plan.value_units();
  auto derived = std::make_shared<Derived>();
  const int dim = plan.head_dim;
  derived->key_columns = Transposed(plan.key_transform, head.key_dims, dim);
  derived->query_columns = Transposed(plan.query_transform, head.key_dims, dim);
  derived->value_columns = Transposed(plan.value_transform, head.value_dims, dim);
  const int padded = (dim + 15) / 16 * 16;
  float* rows = derived->value_rows.Reserve(static_cast<size_t>(head.value_dims) * padded);
  for (int r = 0; r < head.value_dims; ++r) {
    std::copy_n(plan.value_transform.data() + static_cast<size_t>(r) * dim, dim,
                rows + static_cast<size_t>(r) * padded);
  }
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    derived->key_constant.push_back(GroupConstant(group, plan.norm_type));
    derived->key_half.push_back(CodebookHalf(group.width));
    derived->key_codes.push_back(MakeGroupCodes(group));
    for (int u = 0; u < group.units; ++u) {
      derived->key_units.push_back({head.layout.key_unit[group.first_unit + u], group.width});
    }
    for (int low = 0; low < (group.width >= 5 ? 2 : 1); ++low) {
      derived->passes.push_back(
          {static_cast<int>(g), low == 1, group.first_unit, group.units, derived->pass_units});
      derived->pass_units += group.units;
    }
  }
  for (int offset : head.layout.value_unit) derived->value_units.push_back({offset, plan.value.width});
  derived->value_constant = GroupConstant(plan.value, plan.norm_type);
  derived->value_half = CodebookHalf(plan.value.width);
  derived->value_codes = MakeGroupCodes(plan.value);
  MakeMean(plan, rope, *derived);
  head.derived = std::move(derived);
  return head;
}

CodesScratch::CodesScratch() : impl_(std::make_unique<Impl>()) {}
CodesScratch::~CodesScratch() = default;
CodesScratch::CodesScratch(CodesScratch&&) noexcept = default;
CodesScratch& CodesScratch::operator=(CodesScratch&&) noexcept = default;

PreparedQueries::PreparedQueries() : impl_(std::make_unique<Impl>()) {}
PreparedQueries::~PreparedQueries() = default;
PreparedQueries::PreparedQueries(PreparedQueries&&) noexcept = default;
PreparedQueries& PreparedQueries::operator=(PreparedQueries&&) noexcept = default;

}  // namespace blockgtq::cpu
