// See latent_table.h.
#include "src/cuda/latent_table.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "src/codec/record.h"
#include "src/core/half.h"
#include "src/cuda/encode_table.h"
#include "src/cuda/matmul_item.h"

namespace blockgtq::cuda {
namespace {

// q~ and a query stay below this in fp16: queries are scaled to at most 256 a channel (latent_store.h), and
// a plan's head has at most 1024 of them.
constexpr float kLargestMean = 16384.0f, kLargestMeanQuery = 64.0f;

Status Check(const HeadPlan& plan, const std::string& where) {
  const auto unsupported = [&](const std::string& what) {
    return Status(ErrorCode::kUnsupported, where + " " + what + ": use another recipe, or --device cpu");
  };
  if (plan.norm_type != NormType::kLog8)
    return unsupported("has fp16 norms; latents on the GPU have 8-bit log norms");
  for (const GroupPlan& group : plan.groups) {
    if (group.code_width != group.width)
      return unsupported("has codes of 6 or 7 bits; latents on the GPU have 1, 2, 3, 4, 5 and 8");
  }
  return Status::Ok();
}

template <typename At>
void AppendFragments(int outputs, int inputs, At at, std::vector<uint16_t>& out) {
  out.reserve(static_cast<size_t>(outputs) * inputs);
  for (int n = 0; n < outputs; n += kUnitDims) {
    for (int k = 0; k < inputs; k += kUnitDims) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 8; ++i) {
          const int input = k + 2 * (lane & 3) + 8 * ((i >> 1) & 1) + (i & 1);
          out.push_back(FloatToHalf(at(n + 8 * (i >> 2) + (lane >> 2), input)));
        }
      }
    }
  }
}

class Builder {
 public:
  explicit Builder(const HeadPlan& plan) : plan_(plan), rope_dims_(plan.head_dim - plan.latent_dims) {}

  Status Build(const std::string& where, LatentTable& t) {
    t.head_dim = plan_.head_dim;
    t.latent_dims = plan_.latent_dims;
    t.searched = plan_.rounding == Rounding::kSearched;
    PlaceUnits(t);
    BuildKeys(t);
    BGTQ_RETURN_IF_ERROR(PlaceMean(where, t));
    BuildQueries(t);
    BuildUnrotation(t);
    return Status::Ok();
  }

 private:
  const float* QueryRow(int row) const {
    return plan_.query_transform.data() + static_cast<size_t>(row) * plan_.head_dim;
  }
  // Whether the output depends on the unit: T^-1's column of one of its dims reaches the latent.
  bool IsValue(int unit) const {
    for (int row = kUnitDims * unit; row < kUnitDims * (unit + 1); ++row) {
      if (std::any_of(QueryRow(row) + rope_dims_, QueryRow(row) + plan_.head_dim,
                      [](float x) { return x != 0; }))
        return true;
    }
    return false;
  }
  // What a decoded integer times its norm over the reference lacks.
  static float Fold(const GroupPlan& group) {
    return group.norm_reference / std::sqrt(static_cast<float>(group.dims)) / CodebookScale(group.width);
  }

  void PlaceUnits(LatentTable& t) {
    const RecordLayout layout = RecordLayout::For(plan_);
    t.record_bytes = layout.bytes;
    t.norm_begin = layout.key_norm[0];
    const int units = plan_.key_units();
    for (const int unit : plan_.mean_units) {
      if (2 * kMeanUnitBlocks * unit < rope_dims_) t.mean_units.push_back(unit);
    }
    for (int u = 0; u < units; ++u) t.key_columns += IsValue(u) ? 0 : kUnitDims;
    int key_column = 0, value_column = t.key_columns + kUnitDims * static_cast<int>(t.mean_units.size());
    t.key_columns = value_column;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      const GroupPlan& group = plan_.groups[g];
      t.groups.push_back({group.width, group.first_unit, group.units, group.dims,
                          layout.key_unit[static_cast<size_t>(group.first_unit)], layout.key_norm[g],
                          group.norm_reference, 1});
      for (int u = group.first_unit; u < group.first_unit + group.units; ++u) {
        int& column = IsValue(u) ? value_column : key_column;
        t.units.push_back({layout.key_unit[static_cast<size_t>(u)], layout.key_norm[g] - t.norm_begin,
                           static_cast<int16_t>(group.width), static_cast<int16_t>(column), 0});
        column += kUnitDims;
        fold_.push_back(Fold(group));
      }
    }
    t.columns = value_column;
  }

  void BuildKeys(LatentTable& t) const {
    const size_t row = static_cast<size_t>(plan_.head_dim);
    std::vector<float> scale;  // of each unit's rows
    for (LatentGroup& group : t.groups) {
      const size_t first = kUnitDims * row * static_cast<size_t>(group.first_unit);
      const size_t count = kUnitDims * row * static_cast<size_t>(group.units);
      const float group_scale = HalfScale(std::span<const float>(plan_.key_transform).subspan(first, count));
      group.factor = 1 / group_scale;
      scale.insert(scale.end(), static_cast<size_t>(group.units), group_scale);
    }
    const int rows = kUnitDims * static_cast<int>(t.units.size());
    const auto at = [&](int r, int d) {
      return plan_.key_transform[static_cast<size_t>(r) * row + static_cast<size_t>(d)] *
             scale[static_cast<size_t>(r / kUnitDims)];
    };
    AppendFragments(rows, plan_.head_dim, at, t.key_fragments);
    AppendFragments(
        rows, plan_.head_dim,
        [&](int r, int d) { return (at(r, d) - HalfToFloat(FloatToHalf(at(r, d)))) * kLowHalfScale; },
        t.key_low_fragments);
  }

  // The scale of a query's coordinates is such that none exceeds the query's length.
  float CodeScale() const {
    float largest = 0;
    for (size_t row = 0; row < kUnitDims * fold_.size(); ++row) {
      double square = 0;
      for (int d = 0; d < plan_.head_dim; ++d)
        square += double{QueryRow(static_cast<int>(row))[d]} * QueryRow(static_cast<int>(row))[d];
      largest = std::max(largest, static_cast<float>(std::sqrt(square)) * fold_[row / kUnitDims]);
    }
    return largest > 0 ? largest : 1.0f;
  }

  Status PlaceMean(const std::string& where, LatentTable& t) const {
    t.code_scale = CodeScale();
    t.key_mean = plan_.key_mean;
    t.key_mean.resize(static_cast<size_t>(plan_.head_dim), 0.0f);
    t.has_mean = !plan_.key_mean.empty();
    t.has_latent_mean =
        std::any_of(t.key_mean.begin() + rope_dims_, t.key_mean.end(), [](float x) { return x != 0; });
    float largest = 0;
    for (int j = 0; j < rope_dims_ / 2; ++j)
      largest = std::max(largest, std::hypot(t.key_mean[2 * j], t.key_mean[2 * j + 1]));
    t.mean_key = std::min(1 / t.code_scale, kLargestMean / std::max(largest, 1e-20f));
    t.mean_query = 1 / (t.code_scale * t.mean_key);
    if (t.mean_query <= kLargestMeanQuery) return Status::Ok();
    return Status(ErrorCode::kUnsupported,
                  where +
                      " has a mean of the rope key that is too large beside its codes for fp16: use another "
                      "recipe, or --device cpu");
  }

  void BuildQueries(LatentTable& t) const {
    std::vector<float> scale;  // of each unit's rows
    for (size_t u = 0; u < t.units.size(); ++u) {
      const size_t row = static_cast<size_t>(kUnitDims) * plan_.head_dim;
      scale.push_back(HalfScale(std::span<const float>(plan_.query_transform).subspan(u * row, row)));
      t.units[u].query_factor = fold_[u] / scale[u] / t.code_scale;
    }
    AppendFragments(
        kUnitDims * static_cast<int>(t.units.size()), plan_.head_dim,
        [&](int row, int d) { return QueryRow(row)[d] * scale[static_cast<size_t>(row / kUnitDims)]; },
        t.query_fragments);
  }

  void BuildUnrotation(LatentTable& t) const {
    const int values = t.columns - t.key_columns;
    std::vector<float> matrix(static_cast<size_t>(values) * plan_.latent_dims, 0.0f);  // [values, latent]
    for (size_t u = 0; u < t.units.size(); ++u) {
      if (t.units[u].column < t.key_columns) continue;
      for (int i = 0; i < kUnitDims; ++i) {
        const float* from = QueryRow(kUnitDims * static_cast<int>(u) + i) + rope_dims_;
        float* to =
            matrix.data() + static_cast<size_t>(t.units[u].column - t.key_columns + i) * plan_.latent_dims;
        for (int d = 0; d < plan_.latent_dims; ++d) to[d] = from[d] * fold_[u];
      }
    }
    const float scale = HalfScale(matrix);
    t.unrotate_scale = 1 / scale;
    AppendFragments(
        plan_.latent_dims, values,
        [&](int d, int value) { return matrix[static_cast<size_t>(value) * plan_.latent_dims + d] * scale; },
        t.unrotate_fragments);
  }

  const HeadPlan& plan_;
  const int rope_dims_;
  std::vector<float> fold_;  // by unit
};

}  // namespace

Result<LatentTable> BuildLatentTable(const HeadPlan& plan, const std::string& where) {
  BGTQ_RETURN_IF_ERROR(Check(plan, where));
  LatentTable table;
  BGTQ_RETURN_IF_ERROR(Builder(plan).Build(where, table));
  return table;
}

}  // namespace blockgtq::cuda
