// Assembly of a HeadPlan from block lists, shared by all recipes.
#include "src/codec/head_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/haar.h"
#include "src/core/log_norm.h"
#include "src/core/random.h"

namespace blockgtq {
namespace {

int UnitsFor(int dims) { return (dims + kUnitDims - 1) / kUnitDims; }

GroupPlan MakeGroup(int code_width, int first_unit, int dims) {
  GroupPlan group;
  group.width = StoredWidth(code_width);
  group.code_width = code_width;
  group.first_unit = first_unit;
  group.units = UnitsFor(dims);
  group.dims = dims;
  return group;
}

template <typename T>
bool AllNonNegative(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [](T v) { return std::isfinite(v) && v >= 0; });
}

template <typename T>
bool AllFinite(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [](T v) { return std::isfinite(v); });
}

}  // namespace

uint64_t RotationSeed(uint64_t seed, int layer, int kv_head, int stream) {
  uint64_t h = MixBits(seed);
  for (int x : {layer, kv_head, stream}) {
    h = MixBits(h + 0x9e3779b97f4a7c15ull * (static_cast<uint64_t>(x) + 1));
  }
  return h;
}

Status CheckCalibration(const HeadCalibration& calibration) {
  const HeadStatistics& s = calibration.statistics;
  const size_t dim = s.key_mean.size(), blocks = dim / 2;
  if (dim == 0 || dim % 2 != 0 || s.query_energy.size() != blocks || s.key_energy.size() != blocks ||
      s.centred_key_energy.size() != blocks) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("calibration statistics disagree about the head dim: mean {}, energies {}, {}, {}", dim,
                    s.query_energy.size(), s.key_energy.size(), s.centred_key_energy.size()));
  }
  if (!AllNonNegative(s.query_energy) || !AllNonNegative(s.key_energy) ||
      !AllNonNegative(s.centred_key_energy) || !AllFinite(s.key_mean)) {
    return Status(ErrorCode::kNonFinite,
                  "calibration statistics have a NaN, infinite or negative entry; check the model's weights");
  }
  if (calibration.keys.empty() || calibration.keys.size() % dim != 0 ||
      calibration.values.empty() != (calibration.latent_dims > 0) || calibration.values.size() % dim != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("calibration needs key and value vectors of head dim {}, got {} and {} floats",
                              dim, calibration.keys.size(), calibration.values.size()));
  }
  if (!AllFinite(calibration.keys) || !AllFinite(calibration.values)) {
    return Status(ErrorCode::kNonFinite,
                  "calibration vectors have a NaN or infinite entry; check the model's weights");
  }
  return Status::Ok();
}

Result<int> WholeWidth(std::string_view recipe, std::string_view side, double bits,
                       std::span<const int> widths) {
  for (int width : widths) {
    if (bits == width) return width;
  }
  return Status(ErrorCode::kInvalidArgument, fmt::format("recipe {}: {} bits {} must be one of {}", recipe,
                                                         side, bits, fmt::join(widths, ", ")));
}

HeadPlan BuildHead(const HeadSpec& spec, uint64_t seed, int layer, int kv_head) {
  const int dim = spec.head_dim;
  HeadPlan head;
  head.head_dim = dim;
  head.norm_type = spec.norm_type;
  head.rounding = spec.rounding;
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    const BlockGroup& blocks = spec.groups[g];
    const int dims = 2 * static_cast<int>(blocks.blocks.size());
    const GroupPlan group = MakeGroup(blocks.code_width, head.key_units(), dims);
    head.groups.push_back(group);
    const size_t rows = static_cast<size_t>(kUnitDims) * head.key_units();
    head.key_transform.resize(rows * dim, 0.0f);
    head.query_transform.resize(rows * dim, 0.0f);
    const std::vector<float> rotation =
        HaarRotation(dims, RotationSeed(seed, layer, kv_head, 1 + static_cast<int>(g)));
    for (int r = 0; r < dims; ++r) {
      const size_t row = (static_cast<size_t>(kUnitDims) * group.first_unit + r) * dim;
      for (int c = 0; c < dims; ++c) {
        const int block = blocks.blocks[c / 2];
        const double scale = spec.scale.empty() ? 1.0 : spec.scale[block];
        const double entry = rotation[static_cast<size_t>(r) * dims + c];
        head.key_transform[row + 2 * block + c % 2] = static_cast<float>(entry * scale);
        head.query_transform[row + 2 * block + c % 2] = static_cast<float>(entry / scale);
      }
    }
  }
  head.value = MakeGroup(spec.value_code_width, 0, dim);
  head.value_transform = HaarRotation(dim, RotationSeed(seed, layer, kv_head, 0));
  head.value_transform.resize(static_cast<size_t>(kUnitDims) * head.value.units * dim, 0.0f);
  return head;
}

void ChooseNormReferences(const HeadCalibration& calibration, HeadPlan& head) {
  const size_t dim = head.head_dim;
  const size_t tokens = calibration.keys.size() / dim;
  double typical = 0;  // mean square of a coded channel
  for (size_t i = 0; i < calibration.keys.size(); ++i) {
    const double x = calibration.keys[i] - (head.key_mean.empty() ? 0.0 : head.key_mean[i % dim]);
    typical += x * x / static_cast<double>(calibration.keys.size());
  }
  for (GroupPlan& group : head.groups) {
    std::vector<double> weight(dim, 0.0);  // c_i^2 on the group's dims, 0 elsewhere
    for (int r = 0; r < group.dims; ++r) {
      const size_t row = (static_cast<size_t>(kUnitDims) * group.first_unit + r) * dim;
      for (size_t d = 0; d < dim; ++d) {
        const double t = head.key_transform[row + d];
        weight[d] += t * t;
      }
    }
    std::vector<float> norms(tokens);
    for (size_t t = 0; t < tokens; ++t) {
      double energy = 0;
      for (size_t d = 0; d < dim; ++d) {
        const double mean = head.key_mean.empty() ? 0.0 : head.key_mean[d];
        const double x = calibration.keys[t * dim + d] - mean;
        energy += weight[d] * x * x;
      }
      norms[t] = static_cast<float>(std::sqrt(energy));
    }
    // A group that calibration never excited: another text may do so about as much as the rest.
    if (std::all_of(norms.begin(), norms.end(), [](float norm) { return norm == 0; }))
      norms = {static_cast<float>(std::sqrt(typical * std::accumulate(weight.begin(), weight.end(), 0.0)))};
    group.norm_reference = ChooseNormReference(norms);
  }
  std::vector<float> norms(calibration.values.size() / dim);
  for (size_t t = 0; t < norms.size(); ++t) {
    double energy = 0;
    for (size_t d = 0; d < dim; ++d) {
      const double x = calibration.values[t * dim + d];
      energy += x * x;
    }
    norms[t] = static_cast<float>(std::sqrt(energy));
  }
  head.value.norm_reference = ChooseNormReference(norms);
}

}  // namespace blockgtq
