// Builds UnpackTable from plans.
#include <algorithm>
#include <cmath>

#include "src/codec/record.h"
#include "src/core/half.h"
#include "src/cuda/unpack.h"

namespace blockgtq::cuda {
namespace {

// The dim of a unit at row k of a 16-row step: keys as a quad of the record has them, values in order.
int KeyRow(int k) { return 4 * ((k & 7) >> 1) + 2 * (k >> 3) + (k & 1); }
int ValueRow(int k) { return k; }

// The output dim at a column of an 8-wide tile: a lane (columns 2 t, 2 t + 1 of four tiles) has 8 dims in a
// row.
int OutputDim(int tile, int column) {
  return 32 * (tile >> 2) + 8 * (column >> 1) + 2 * (tile & 3) + (column & 1);
}

// Fragments of matrix [16 * units, head_dim] by rows. Returns the scale that undoes their power of two.
template <typename RowOf>
float AppendFragments(const std::vector<float>& matrix, int head_dim, RowOf row_of, uint16_t* out) {
  const float scale = HalfScale(matrix);
  const int units = static_cast<int>(matrix.size()) / (kUnitDims * head_dim);
  for (int u = 0; u < units; ++u) {
    for (int pair = 0; pair < head_dim / 16; ++pair) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 8; ++i) {
          const int k = 2 * (lane & 3) + 8 * ((i >> 1) & 1) + (i & 1);
          const int row = kUnitDims * u + row_of(k), col = OutputDim(2 * pair + (i >> 2), lane >> 2);
          *out++ = FloatToHalf(matrix[static_cast<size_t>(row) * head_dim + col] * scale);
        }
      }
    }
  }
  return 1.0f / scale;
}

// Multiplies a group's rows by what the integer of a code means at the norm's reference.
void ScaleRows(const GroupPlan& group, int head_dim, std::vector<float>& matrix) {
  const float scale =
      group.norm_reference / std::sqrt(static_cast<float>(group.dims)) / CodebookScale(group.width);
  const size_t row = static_cast<size_t>(kUnitDims) * head_dim;
  for (size_t i = group.first_unit * row; i < (group.first_unit + group.units) * row; ++i) matrix[i] *= scale;
}

}  // namespace

UnpackTable BuildUnpackTable(std::span<const HeadPlan> heads, const EncodeTable& encode) {
  const int dim = encode.head_dim;
  const size_t key_stride = static_cast<size_t>(encode.key_units) * kUnitDims * dim;
  const size_t value_stride = static_cast<size_t>(dim) * dim;
  UnpackTable table;
  table.key_fragments.assign(heads.size() * key_stride, 0);
  table.value_fragments.resize(heads.size() * value_stride);
  for (size_t h = 0; h < heads.size(); ++h) {
    std::vector<float> keys = heads[h].query_transform, values = heads[h].value_transform;
    for (const GroupPlan& group : heads[h].groups) ScaleRows(group, dim, keys);
    ScaleRows(heads[h].value, dim, values);
    table.scale.push_back(AppendFragments(keys, dim, KeyRow, &table.key_fragments[h * key_stride]));
    table.scale.push_back(AppendFragments(values, dim, ValueRow, &table.value_fragments[h * value_stride]));
  }
  return table;
}

}  // namespace blockgtq::cuda
