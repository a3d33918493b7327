// Decode attention of one KV head in double precision, over decoded codes: once exactly, once with queries
// and probabilities rounded as the kernel rounds them. The rounded queries are read back from the kernel's
// query block (their distance from the exact ones is checked apart), so the comparison has no luck of ties in
// it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "src/codec/plan.h"
#include "src/codec/record.h"
#include "src/core/half.h"
#include "src/core/rope.h"
#include "src/cuda/decode_params.h"
#include "tests/cuda/mean_reference.h"

namespace blockgtq::cuda {

/// One KV head's query as the kernel prepared it, in rotated space and integer steps.
struct PreparedQuery {
  std::vector<int> high, low;      // [16 key units]
  std::vector<double> group_step;  // integer step times the group's scale, [groups]
};

inline PreparedQuery ReadQueryBlock(const HeadPlan& plan, const QueryBlockLayout& layout, bool few,
                                    int column, const uint8_t* block) {
  PreparedQuery q;
  const int fragment_column = few ? 2 * column : column;
  const auto byte_at = [&](int base, int dim, int col) {
    const int d = dim % kUnitWidth;
    return static_cast<int>(
        static_cast<int8_t>(block[base + (dim / kUnitWidth * 32 + col * 4 + d / 4) * 4 + d % 4]));
  };
  int pass = 0;
  for (const GroupPlan& group : plan.groups) {
    const bool has_low = group.width >= LowQueryWidth(few);
    for (int i = 0; i < kUnitDims * group.units; ++i) {
      const int dim = kUnitDims * group.first_unit + i;
      q.high.push_back(byte_at(0, dim, fragment_column));
      q.low.push_back(!has_low ? 0
                      : few    ? byte_at(0, dim, fragment_column + 1)
                               : byte_at(layout.lo, dim, column));
    }
    float scale;
    std::memcpy(&scale, block + layout.scale + 32 * pass + 4 * fragment_column, 4);
    q.group_step.push_back(few ? std::exp2(double{scale} + 1028 + (has_low ? 8 : 0)) : double{scale});
    pass += !few && has_low ? 2 : 1;
  }
  return q;
}

struct HeadReference {
  const HeadPlan& plan;
  const RecordLayout layout;
  const RopeTable& rope;
  const int64_t first_position;  // of the records; a multiple of 64

  HeadReference(const HeadPlan& p, const RopeTable& r, int64_t first = 0)
      : plan(p), layout(RecordLayout::For(p)), rope(r), first_position(first) {}

  /// (T^-T) q with the transform in fp16, as the kernel reads it; without the logit scale.
  std::vector<double> RotatedQuery(const std::vector<double>& query) const {
    std::vector<double> out(static_cast<size_t>(kUnitDims) * plan.key_units(), 0.0);
    for (size_t r = 0; r < out.size(); ++r) {
      for (int d = 0; d < plan.head_dim; ++d) {
        out[r] += ThroughHalf(plan.query_transform[r * plan.head_dim + d]) * query[d];
      }
    }
    return out;
  }

  /// Largest distance of the prepared query from the exact one over what rounding may cost: half a step, or
  /// one 256th of it with a low half (whose range ends at 127 of 256ths).
  double QueryDistance(const std::vector<double>& query, double logit_scale, bool few,
                       const PreparedQuery& q) const {
    const std::vector<double> exact = RotatedQuery(query);
    double worst = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      const bool has_low = group.width >= LowQueryWidth(few);
      const double group_scale =
          group.norm_reference / std::sqrt(double(group.dims)) / CodebookScale(group.width);
      const double step = q.group_step[g] / group_scale;
      for (int i = 0; i < kUnitDims * group.units; ++i) {
        const int dim = kUnitDims * group.first_unit + i;
        const double rounded = (q.high[dim] + q.low[dim] / 256.0) * step;
        worst = std::max(worst, std::fabs(rounded - exact[dim] * logit_scale) / step * (has_low ? 256 : 2));
      }
    }
    return worst;
  }

  /// out [head_dim], normalised; returns log2 of the sum of exp2(logit), -infinity without tokens.
  /// query: as given to the kernel, not scaled; logit_scale includes log2(e). prepared: null for the exact
  /// one. records[j]: of tokens 64 j ... Tokens [begin, end). rounding_tokens: DecodeConfig's.
  double Attend(const std::vector<double>& query, double logit_scale, const PreparedQuery* prepared,
                std::span<const std::byte* const> records, int64_t begin, int64_t end,
                std::vector<double>& out, int rounding_tokens = kPageTokens) const {
    out.assign(plan.head_dim, 0.0);
    if (begin >= end) return -INFINITY;
    const std::vector<double> exact_query = RotatedQuery(query);
    RoundedMean rounded_mean(plan, rope, query, logit_scale, first_position);
    std::vector<double> sum(plan.head_dim, 0.0);
    double largest = -INFINITY, total = 0;
    for (int64_t token = begin / rounding_tokens * rounding_tokens; token < end; token += rounding_tokens) {
      const int64_t tile = token / kPageTokens;
      const std::byte* record = records[tile];
      const int base = static_cast<int>(token % kPageTokens);
      const int first = base + static_cast<int>(std::max<int64_t>(begin - token, 0));
      const int last = base + static_cast<int>(std::min<int64_t>(end - token, rounding_tokens));
      double logit[kPageTokens], log_norm[kPageTokens], top = -INFINITY;
      for (int t = first; t < last; ++t) {
        logit[t] = (prepared ? RoundedLogit(*prepared, record, t)
                             : ExactLogit(exact_query, record, t) * logit_scale) +
                   (prepared ? rounded_mean.At(tile * kPageTokens + t)
                             : ExactMean(query, logit_scale, tile * kPageTokens + t));
        log_norm[t] = (std::to_integer<int>(record[layout.value_norm + NormSlot(t)]) - 128) / 32.0;
        top = std::max(top, logit[t] + log_norm[t]);
      }
      const double now = std::max(largest, top), shrink = std::exp2(largest - now),
                   grow = std::exp2(top - now);
      total *= shrink;
      double weight[kPageTokens], weights = 0;
      for (int t = first; t < last; ++t) {
        weight[t] = std::exp2(logit[t] + log_norm[t] - top);
        total += std::exp2(logit[t] - now);
        if (prepared) weight[t] = std::nearbyint(255 * weight[t]) / 255;
        weights += weight[t];
      }
      const bool halves = CodebookHalf(plan.value.width) != 0;
      const double half_sum = !halves    ? 0
                              : prepared ? std::floor(std::nearbyint(255 * weights) / 2) / 255
                                         : weights / 2;
      for (int d = 0; d < plan.head_dim; ++d) {
        double dot = half_sum;
        for (int t = first; t < last; ++t) {
          const int code = GetCode(record + layout.value_unit[d / kUnitDims], plan.value.width,
                                   ValuePlace(t, d % kUnitDims));
          dot += weight[t] * CodebookInt(plan.value.width, code);
        }
        sum[d] = sum[d] * shrink + dot * grow;
      }
      largest = now;
    }
    const double scale = plan.value.norm_reference / std::sqrt(double(plan.head_dim)) /
                         CodebookScale(plan.value.width) / total;
    for (int k = 0; k < plan.head_dim; ++k) {
      for (int d = 0; d < plan.head_dim; ++d) {
        const double m = plan.value_transform[k * plan.head_dim + d];
        out[d] += (prepared ? ThroughHalf(m) : m) * sum[k] * scale;
      }
    }
    return largest + std::log2(total);
  }

 private:
  double Norm(size_t g, const std::byte* record, int t) const {
    return std::exp2((std::to_integer<int>(record[layout.key_norm[g] + NormSlot(t)]) - 128) / 32.0);
  }
  int KeyCode(const GroupPlan& group, const std::byte* record, int t, int i) const {
    return GetCode(record + layout.key_unit[group.first_unit + i / kUnitDims], group.width,
                   KeyPlace(t, i % kUnitDims));
  }
  double ExactLogit(const std::vector<double>& q, const std::byte* record, int t) const {
    double logit = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      double dot = 0;
      for (int i = 0; i < group.dims; ++i) {
        dot += q[kUnitDims * group.first_unit + i] *
               (CodebookInt(group.width, KeyCode(group, record, t, i)) + double{CodebookHalf(group.width)});
      }
      logit += dot * Norm(g, record, t) * group.norm_reference / std::sqrt(double(group.dims)) /
               CodebookScale(group.width);
    }
    return logit;
  }
  double RoundedLogit(const PreparedQuery& q, const std::byte* record, int t) const {
    double logit = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      int high = 0, low = 0, high_sum = 0, low_sum = 0;
      for (int i = 0; i < kUnitDims * group.units; ++i) {
        const int dim = kUnitDims * group.first_unit + i;
        const int value = CodebookInt(group.width, KeyCode(group, record, t, i));
        high += q.high[dim] * value;
        low += q.low[dim] * value;
        high_sum += q.high[dim];
        low_sum += q.low[dim];
      }
      if (CodebookHalf(group.width) != 0) {
        high += high_sum >> 1;
        low += low_sum >> 1;
      }
      logit += (high + low / 256.0) * q.group_step[g] * Norm(g, record, t);
    }
    return logit;
  }
  double ExactMean(const std::vector<double>& query, double logit_scale, int64_t token) const {
    double logit = 0;
    for (int unit : plan.mean_units) {
      for (int block = kMeanUnitBlocks * unit; block < kMeanUnitBlocks * (unit + 1); ++block) {
        const double angle = static_cast<double>(first_position + token) * rope.frequencies()[block];
        const double m0 = plan.key_mean[2 * block], m1 = plan.key_mean[2 * block + 1];
        const double factor = 2 * block < rope.config().rotary_dims ? rope.config().attention_factor : 1.0;
        logit += factor * (query[2 * block] * (m0 * std::cos(angle) - m1 * std::sin(angle)) +
                           query[2 * block + 1] * (m0 * std::sin(angle) + m1 * std::cos(angle)));
      }
    }
    return logit * logit_scale;
  }
};

/// Merges normalised outputs by their log-sum-exps (base 2): a becomes the merged one.
inline double MergeAttention(std::vector<double>& a, double log_a, const std::vector<double>& b,
                             double log_b) {
  if (log_b == -INFINITY) return log_a;
  const double top = std::max(log_a, log_b), wa = std::exp2(log_a - top), wb = std::exp2(log_b - top);
  for (size_t i = 0; i < a.size(); ++i) a[i] = (a[i] * wa + b[i] * wb) / (wa + wb);
  return top + std::log2(wa + wb);
}

}  // namespace blockgtq::cuda
