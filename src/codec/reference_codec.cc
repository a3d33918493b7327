// The scalar codec: group quantisation with norm correction, access to records, exact attention.
#include "src/codec/reference_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/core/half.h"
#include "src/core/log_norm.h"

namespace blockgtq::reference {
namespace {

constexpr float kLargestHalf = 65504.0f;

double CodeValue(int width, int code) {
  return (CodebookInt(width, code) + double{CodebookHalf(width)}) / double{CodebookScale(width)};
}

// out [rows] = matrix [rows, cols] x.
template <typename T>
std::vector<double> Multiply(const std::vector<float>& matrix, const T* x, int cols) {
  std::vector<double> out(matrix.size() / cols, 0.0);
  for (size_t r = 0; r < out.size(); ++r) {
    for (int c = 0; c < cols; ++c) out[r] += double{matrix[r * cols + c]} * static_cast<double>(x[c]);
  }
  return out;
}

// out [cols] = matrix' x, x [rows].
std::vector<double> MultiplyTransposed(const std::vector<float>& matrix, const std::vector<double>& x,
                                       int cols) {
  std::vector<double> out(cols, 0.0);
  for (size_t r = 0; r < x.size(); ++r) {
    for (int c = 0; c < cols; ++c) out[c] += double{matrix[r * cols + c]} * x[r];
  }
  return out;
}

// R_t mu; empty without a mean.
std::vector<float> RotatedMean(const HeadPlan& plan, const RopeTable& rope, int64_t position) {
  std::vector<float> mean(plan.key_mean.size());
  if (!mean.empty()) rope.Rotate(plan.key_mean.data(), position, mean.data());
  return mean;
}

void StoreNorm(NormType type, float reference, float norm, int token, std::byte* norms) {
  if (type == NormType::kLog8) {
    norms[NormSlot(token)] = std::byte{EncodeLogNorm(norm, reference)};
    return;
  }
  const uint16_t half = FloatToHalf(std::min(norm, kLargestHalf));
  norms[2 * NormSlot(token)] = std::byte(half & 0xff);
  norms[2 * NormSlot(token) + 1] = std::byte(half >> 8);
}

float LoadNorm(NormType type, float reference, int token, const std::byte* norms) {
  if (type == NormType::kLog8) {
    return DecodeLogNorm(std::to_integer<uint8_t>(norms[NormSlot(token)]), reference);
  }
  const int low = std::to_integer<int>(norms[2 * NormSlot(token)]);
  const int high = std::to_integer<int>(norms[2 * NormSlot(token) + 1]);
  return HalfToFloat(static_cast<uint16_t>(low | high << 8));
}

// Where the codes and norms of one group lie: keys and values differ in place_of.
struct GroupView {
  const GroupPlan& group;
  NormType norm_type;
  Rounding rounding;
  const int* unit_offset;  // [group.units]
  int norm_offset;
  UnitPlace (*place_of)(int token, int dim_in_unit);
};

GroupView KeyGroup(const HeadPlan& plan, const RecordLayout& layout, size_t g) {
  const GroupPlan& group = plan.groups[g];
  return {group,    plan.norm_type, plan.rounding, &layout.key_unit[group.first_unit], layout.key_norm[g],
          &KeyPlace};
}

GroupView ValueGroup(const HeadPlan& plan, const RecordLayout& layout) {
  return {plan.value,        plan.norm_type, plan.rounding, layout.value_unit.data(),
          layout.value_norm, &ValuePlace};
}

struct RoundedGroup {
  std::vector<int> codes;  // [16 * units], padding 0
  double energy = 0;       // of the decoded coordinates
  double projection = 0;   // y . decoded
};

// Every coordinate of y [group.dims], times `scale`, to its nearest centroid.
RoundedGroup RoundNearest(const GroupPlan& group, const double* y, double scale) {
  RoundedGroup rounded{std::vector<int>(kUnitDims * group.units, 0)};
  for (int i = 0; i < group.dims; ++i) {
    rounded.codes[i] = NearestCode(group.width, group.code_width, static_cast<float>(y[i] * scale));
    const double value = CodeValue(group.width, rounded.codes[i]);
    rounded.energy += value * value;
    rounded.projection += y[i] * value;
  }
  return rounded;
}

// Cosine of the angle between y and the decoded vector, up to y's norm.
double Cosine(const RoundedGroup& rounded) {
  return rounded.energy > 0 ? rounded.projection / std::sqrt(rounded.energy) : 0.0;
}

RoundedGroup Round(const GroupView& view, const double* y, double unit_variance) {
  RoundedGroup best = RoundNearest(view.group, y, unit_variance);
  if (view.rounding == Rounding::kNearest) return best;
  for (float scale : kSearchScales) {
    RoundedGroup tried = RoundNearest(view.group, y, unit_variance * scale);
    if (Cosine(tried) > Cosine(best)) best = std::move(tried);
  }
  return best;
}

// y: the group's rotated sub-vector, [group.dims].
void EncodeGroup(const GroupView& view, const double* y, int token, std::byte* record) {
  const GroupPlan& group = view.group;
  double energy = 0;
  for (int i = 0; i < group.dims; ++i) energy += y[i] * y[i];
  const double norm = std::sqrt(energy);
  const RoundedGroup rounded = Round(view, y, norm > 0 ? std::sqrt(double(group.dims)) / norm : 0.0);
  for (int i = 0; i < kUnitDims * group.units; ++i) {
    SetCode(record + view.unit_offset[i / kUnitDims], group.width, view.place_of(token, i % kUnitDims),
            rounded.codes[i]);
  }
  // 8-bit containers have a zero centroid: a zero vector decodes to zero there, and has no correction.
  const double correction = rounded.energy > 0 ? std::sqrt(group.dims / rounded.energy) : 1.0;
  StoreNorm(view.norm_type, group.norm_reference, static_cast<float>(norm * correction), token,
            record + view.norm_offset);
}

// y [group.dims]
void DecodeGroup(const GroupView& view, const std::byte* record, int token, double* y) {
  const GroupPlan& group = view.group;
  const double norm = LoadNorm(view.norm_type, group.norm_reference, token, record + view.norm_offset);
  const double scale = norm / std::sqrt(double(group.dims));
  for (int i = 0; i < group.dims; ++i) {
    const int code =
        GetCode(record + view.unit_offset[i / kUnitDims], group.width, view.place_of(token, i % kUnitDims));
    y[i] = scale * CodeValue(group.width, code);
  }
}

// The decoded key in the transformed space, [P]; padding stays zero.
std::vector<double> DecodeTransformedKey(const HeadPlan& plan, const RecordLayout& layout,
                                         const std::byte* record, int token) {
  std::vector<double> y(kUnitDims * plan.key_units(), 0.0);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    DecodeGroup(KeyGroup(plan, layout, g), record, token, &y[kUnitDims * plan.groups[g].first_unit]);
  }
  return y;
}

std::vector<double> DecodeTransformedValue(const HeadPlan& plan, const RecordLayout& layout,
                                           const std::byte* record, int token) {
  std::vector<double> w(kUnitDims * plan.value.units, 0.0);
  DecodeGroup(ValueGroup(plan, layout), record, token, w.data());
  return w;
}

// Checks of both encoders; `name` is "keys" or "values".
Status CheckInput(const HeadPlan& plan, const RecordLayout& layout, std::span<const float> vectors,
                  int64_t first_position, std::span<const std::byte> record, std::string_view name) {
  const auto invalid = [](std::string what) { return Status(ErrorCode::kInvalidArgument, std::move(what)); };
  if (plan.head_dim <= 0 || vectors.size() % plan.head_dim != 0) {
    return invalid(fmt::format("encode {}: {} floats are no whole number of vectors of head dim {}", name,
                               vectors.size(), plan.head_dim));
  }
  const size_t count = vectors.size() / plan.head_dim;
  if (first_position < 0) {
    return invalid(fmt::format("encode {}: position {} is negative", name, first_position));
  }
  if (first_position % kPageTokens + count > kPageTokens) {
    return invalid(fmt::format("encode {}: {} tokens from slot {} run past the record's {} tokens", name,
                               count, first_position % kPageTokens, kPageTokens));
  }
  if (record.size() != static_cast<size_t>(layout.bytes)) {
    return invalid(fmt::format("encode {}: the record has {} bytes, the plan's has {}", name, record.size(),
                               layout.bytes));
  }
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (!std::isfinite(vectors[i])) {
      return Status(ErrorCode::kNonFinite,
                    fmt::format("encode {}: dim {} of the token at position {} is {}; nothing was encoded",
                                name, i % plan.head_dim, first_position + i / plan.head_dim, vectors[i]));
    }
  }
  return Status::Ok();
}

}  // namespace

Status EncodeKeys(const HeadPlan& plan, const RecordLayout& layout, const RopeTable& rope,
                  std::span<const float> keys, int64_t first_position, std::span<std::byte> record) {
  BGTQ_RETURN_IF_ERROR(CheckInput(plan, layout, keys, first_position, record, "keys"));
  if (rope.config().head_dim != plan.head_dim) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("encode keys: the RoPE table has head dim {}, the "
                                                           "plan {}",
                                                           rope.config().head_dim, plan.head_dim));
  }
  const int dim = plan.head_dim;
  const int64_t count = static_cast<int64_t>(keys.size()) / dim;
  std::vector<double> centred(dim);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t position = first_position + t;
    const std::vector<float> mean = RotatedMean(plan, rope, position);
    for (int d = 0; d < dim; ++d) {
      centred[d] = double{keys[t * dim + d]} - (mean.empty() ? 0.0 : double{mean[d]});
    }
    const std::vector<double> y = Multiply(plan.key_transform, centred.data(), dim);
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      EncodeGroup(KeyGroup(plan, layout, g), &y[kUnitDims * plan.groups[g].first_unit],
                  static_cast<int>(position % kPageTokens), record.data());
    }
  }
  return Status::Ok();
}

Status EncodeValues(const HeadPlan& plan, const RecordLayout& layout, std::span<const float> values,
                    int64_t first_position, std::span<std::byte> record) {
  if (plan.latent_dims > 0)
    return Status(ErrorCode::kInvalidArgument, "encode values: a head of latents stores keys alone");
  BGTQ_RETURN_IF_ERROR(CheckInput(plan, layout, values, first_position, record, "values"));
  const int64_t count = static_cast<int64_t>(values.size()) / plan.head_dim;
  for (int64_t t = 0; t < count; ++t) {
    const std::vector<double> w =
        Multiply(plan.value_transform, values.data() + t * plan.head_dim, plan.head_dim);
    EncodeGroup(ValueGroup(plan, layout), w.data(), static_cast<int>((first_position + t) % kPageTokens),
                record.data());
  }
  return Status::Ok();
}

void DecodeKey(const HeadPlan& plan, const RecordLayout& layout, const RopeTable& rope,
               std::span<const std::byte> record, int64_t position, float* key) {
  const std::vector<double> y =
      DecodeTransformedKey(plan, layout, record.data(), static_cast<int>(position % kPageTokens));
  // T^-1 = (T^-T)'
  const std::vector<double> centred = MultiplyTransposed(plan.query_transform, y, plan.head_dim);
  const std::vector<float> mean = RotatedMean(plan, rope, position);
  for (int d = 0; d < plan.head_dim; ++d) {
    key[d] = static_cast<float>(centred[d] + (mean.empty() ? 0.0 : double{mean[d]}));
  }
}

void DecodeValue(const HeadPlan& plan, const RecordLayout& layout, std::span<const std::byte> record,
                 int slot, float* value) {
  const std::vector<double> v = MultiplyTransposed(
      plan.value_transform, DecodeTransformedValue(plan, layout, record.data(), slot), plan.head_dim);
  for (int d = 0; d < plan.head_dim; ++d) value[d] = static_cast<float>(v[d]);
}

void Attention(const HeadPlan& plan, const RecordLayout& layout, const RopeTable& rope, const float* query,
               std::span<const std::byte* const> records, int64_t begin, int64_t end, float scale, float* out,
               float* lse) {
  std::fill_n(out, plan.head_dim, 0.0f);
  *lse = -std::numeric_limits<float>::infinity();
  if (begin >= end) return;

  const std::vector<double> rotated_query = Multiply(plan.query_transform, query, plan.head_dim);
  std::vector<double> logits;
  for (int64_t t = begin; t < end; ++t) {
    const std::vector<double> y =
        DecodeTransformedKey(plan, layout, records[t / kPageTokens], static_cast<int>(t % kPageTokens));
    const std::vector<float> mean = RotatedMean(plan, rope, t);
    double dot = 0;
    for (size_t i = 0; i < y.size(); ++i) dot += rotated_query[i] * y[i];
    for (size_t d = 0; d < mean.size(); ++d) dot += double{query[d]} * double{mean[d]};
    logits.push_back(dot * double{scale});
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  const int key_dims = kUnitDims * plan.key_units();
  std::vector<double> weighted(plan.latent_dims > 0 ? key_dims : kUnitDims * plan.value.units, 0.0);
  for (int64_t t = begin; t < end; ++t) {
    const double weight = std::exp(logits[t - begin] - largest);
    const std::byte* record = records[t / kPageTokens];
    const int slot = static_cast<int>(t % kPageTokens);
    const std::vector<double> w = plan.latent_dims > 0 ? DecodeTransformedKey(plan, layout, record, slot)
                                                       : DecodeTransformedValue(plan, layout, record, slot);
    for (size_t i = 0; i < w.size(); ++i) weighted[i] += weight * w[i];
    sum += weight;
  }
  for (double& w : weighted) w /= sum;
  if (plan.latent_dims > 0) {  // latents do not rotate: their mean is the same at every position
    const std::vector<double> key = MultiplyTransposed(plan.query_transform, weighted, plan.head_dim);
    for (int d = plan.head_dim - plan.latent_dims; d < plan.head_dim; ++d)
      out[d] = static_cast<float>(key[d] + (plan.key_mean.empty() ? 0.0 : double{plan.key_mean[d]}));
  } else {
    const std::vector<double> v = MultiplyTransposed(plan.value_transform, weighted, plan.head_dim);
    for (int d = 0; d < plan.head_dim; ++d) out[d] = static_cast<float>(v[d]);
  }
  *lse = static_cast<float>(largest + std::log(sum));
}

}  // namespace blockgtq::reference
