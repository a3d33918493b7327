// Times cuDNN's fp16 GQA decode attention, over rows with fixed lengths and over shuffled pages with lengths
// in device memory, and checks both outputs against double precision.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <future>
#include <numeric>
#include <random>

#include "bench/attention_gpu_timing.cuh"
#include "src/core/half.h"
#include "src/cuda/flash_attention.h"

namespace blockgtq::cuda {

// Nearly normal numbers of variance 1: sums of four uniform ones.
static __global__ void FillNormals(uint16_t* halves, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t a = Mix(static_cast<uint32_t>(i)), b = Mix(a + static_cast<uint32_t>(i >> 31));
    const float sum = (a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16);
    halves[i] = __half_as_ushort(__float2half((sum / 65536.0f - 2.0f) * 1.7320508f));
  }
}

struct HalfTimes {
  float rows_us = 0, paged_us = 0;  // a layer
  double rel_l2 = 0;                // the larger of both outputs' errors
};

class HalfBench {
 public:
  HalfBench(FlashAttention& flash, const Shape& s, const std::vector<float>& queries)
      : flash_(flash), s_(s), queries_(queries) {
    tiles_ = (s.context + kCachePageTokens - 1) / kCachePageTokens;
    tokens_ = tiles_ * kCachePageTokens;
    layer_ = size_t{2} * s.batch * s.kv_heads * tokens_ * s_.head_dim;
    layers_ = static_cast<int>(std::max<size_t>(1, (kWorkingSet + 2 * layer_ - 1) / (2 * layer_)));
    pool_ = DeviceArray<uint16_t>(layer_ * layers_);
    FillNormals<<<2048, 256>>>(pool_.data(), pool_.size());
    Require(cudaDeviceSynchronize(), "keys and values");
    std::vector<uint16_t> halves;
    for (const float q : queries) halves.push_back(FloatToHalf(q));
    device_queries_ = DeviceArray<uint16_t>(halves);
    out_ = DeviceArray<uint16_t>(halves.size());
    lengths_ = DeviceArray<int32_t>(std::vector<int32_t>(s.batch, static_cast<int32_t>(s.context)));
    std::mt19937 random(4);
    for (int l = 0; l < layers_; ++l) {
      std::vector<int32_t> table(s.batch * tiles_);
      std::iota(table.begin(), table.end(), 0);
      std::shuffle(table.begin(), table.end(), random);
      if (l == 0) table0_ = table;
      tables_.emplace_back(table);
    }
  }

  HalfTimes Run() {
    HalfTimes times;
    times.rows_us = Time(false, times.rel_l2);
    times.paged_us = Time(true, times.rel_l2);
    return times;
  }

 private:
  // Rows: K [batch][kv_heads][tokens][dim], then V. Pages: [page][kv_heads][K [64][dim], V [64][dim]].
  DecodeCall Call(bool paged, int layer) const {
    const int64_t kv_tile = int64_t{kCachePageTokens} * s_.head_dim;
    DecodeCall call;
    call.heads = {s_.kv_heads * s_.query_heads, s_.kv_heads, s_.head_dim, 1 / std::sqrt(float(s_.head_dim))};
    call.batch = s_.batch;
    call.queries = device_queries_.data();
    call.out = out_.data();
    HalfKeyValues& cache = call.cache;
    cache.keys = pool_.data() + layer * layer_;
    cache.token_stride = s_.head_dim;
    cache.max_tokens = s_.context;
    if (paged) {
      cache.values = cache.keys + kv_tile;
      cache.head_stride = 2 * kv_tile;
      cache.outer_stride = 2 * kv_tile * s_.kv_heads;
      cache.pages = s_.batch * tiles_;
      cache.block_table = tables_[layer].data();
      cache.table_stride = tiles_;
      call.lengths = lengths_.data();
    } else {
      cache.values = cache.keys + layer_ / 2;
      cache.head_stride = tokens_ * s_.head_dim;
      cache.outer_stride = s_.kv_heads * cache.head_stride;
    }
    return call;
  }

  float Time(bool paged, double& error) {
    const float us = MedianMicroseconds([&](cudaStream_t stream) {
                       for (int l = 0; l < layers_; ++l) {
                         Require(flash_.Decode(Call(paged, l), stream), "cuDNN attention");
                       }
                     }) /
                     layers_;
    out_.Fill(0xff);
    const DecodeCall call = Call(paged, 0);
    Require(flash_.Decode(call, nullptr), "cuDNN attention");
    Require(cudaDeviceSynchronize(), "checked run");
    const std::vector<uint16_t> out = out_.Download();
    for (const int pair : {0, s_.batch * s_.kv_heads - 1}) {
      error = std::max(error, RelativeError(call, pair, out));
    }
    return us;
  }

  // Of the query heads of one (sequence, KV head).
  double RelativeError(const DecodeCall& call, int pair, const std::vector<uint16_t>& out) const {
    const int b = pair / s_.kv_heads, h = pair % s_.kv_heads;
    const HalfKeyValues& cache = call.cache;
    std::vector<float> keys, values;
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      const size_t at = (cache.pages > 0 ? table0_[b * tiles_ + tile] * cache.outer_stride
                                         : b * cache.outer_stride + tile * kCachePageTokens * s_.head_dim) +
                        h * cache.head_stride;
      for (const auto& [from, to] : {std::pair{cache.keys, &keys}, std::pair{cache.values, &values}}) {
        for (const uint16_t half : pool_.Download(from - pool_.data() + at, kCachePageTokens * s_.head_dim)) {
          to->push_back(HalfToFloat(half));
        }
      }
    }
    std::vector<std::future<std::pair<double, double>>> work;  // squares of error and output
    for (int column = 0; column < s_.query_heads; ++column) {
      work.push_back(std::async(std::launch::async, [&, column] {
        const size_t at = (static_cast<size_t>(pair) * s_.query_heads + column) * s_.head_dim;
        std::vector<double> logit(s_.context);
        double top = -INFINITY, total = 0;
        std::vector<double> sum(s_.head_dim, 0.0);
        for (int64_t t = 0; t < s_.context; ++t) {
          for (int d = 0; d < s_.head_dim; ++d)
            logit[t] += double{queries_[at + d]} * keys[t * s_.head_dim + d];
          logit[t] *= call.heads.scale;
          top = std::max(top, logit[t]);
        }
        for (int64_t t = 0; t < s_.context; ++t) {
          const double weight = std::exp(logit[t] - top);
          total += weight;
          for (int d = 0; d < s_.head_dim; ++d) sum[d] += weight * values[t * s_.head_dim + d];
        }
        std::pair<double, double> squares;
        for (int d = 0; d < s_.head_dim; ++d) {
          const double e = HalfToFloat(out[at + d]) - sum[d] / total;
          squares.first += std::isfinite(e) ? e * e : 1e30;
          squares.second += sum[d] / total * (sum[d] / total);
        }
        return squares;
      }));
    }
    double error = 0, size = 0;
    for (auto& w : work) {
      const auto [e, o] = w.get();
      error += e;
      size += o;
    }
    return std::sqrt(error / size);
  }

  FlashAttention& flash_;
  Shape s_;
  const std::vector<float>& queries_;  // rounded to fp16
  int64_t tiles_ = 0, tokens_ = 0;     // a sequence
  size_t layer_ = 0;                   // elements of keys and values
  int layers_ = 0;
  DeviceArray<uint16_t> pool_, device_queries_, out_;
  DeviceArray<int32_t> lengths_;
  std::vector<DeviceArray<int32_t>> tables_;
  std::vector<int32_t> table0_;
};

}  // namespace blockgtq::cuda
