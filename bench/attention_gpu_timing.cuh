// Timing on a GPU, and a pure read to compare with. Shared by the parts of blockgtq-bench-attention.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "src/cuda/decode_attention.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

/// Bytes that what is timed runs through: several times the L2 cache, so that every layer comes from memory.
inline constexpr size_t kWorkingSet = size_t{400} << 20;

struct Shape {
  int batch, kv_heads, query_heads;  // query heads a KV head
  int64_t context;
  int mean_units = 0;  // of the packed keys
  int head_dim = 128;
};

/// A configuration of the packed kernel that is asked for, in place of the one that is chosen.
struct AskedConfig {
  DecodeVariant variant;
  int cluster_blocks = 1, workers = 0, stages = 2;
};

inline __device__ uint32_t Mix(uint32_t x) {
  x = (x ^ x >> 16) * 2246822519u;
  x = (x ^ x >> 13) * 3266489917u;
  return x ^ x >> 16;
}

static __global__ void __launch_bounds__(512) ReadAll(const uint4* data, size_t count, uint32_t* sink) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  uint32_t x = 0;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = data[i], b = data[i + stride], c = data[i + 2 * stride], d = data[i + 3 * stride];
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += stride) x ^= data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
  if (x == 0x12345) *sink = x;  // keeps the loads
}

/// Median of 15 replays of a CUDA graph of `work`, after 3.
inline float MedianMicroseconds(const std::function<void(cudaStream_t)>& work) {
  constexpr int kReplays = 15, kWarmups = 3;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t before, after;
  Require(cudaStreamCreate(&stream), "stream");
  work(stream);
  Require(cudaStreamSynchronize(stream), "first run");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  work(stream);
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  Require(cudaEventCreate(&before), "event");
  Require(cudaEventCreate(&after), "event");
  std::vector<float> times;
  for (int i = 0; i < kWarmups + kReplays; ++i) {
    Require(cudaEventRecord(before, stream), "event");
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaEventRecord(after, stream), "event");
    Require(cudaEventSynchronize(after), "replay");
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, before, after), "event");
    if (i >= kWarmups) times.push_back(ms * 1e3f);
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaEventDestroy(before);
  (void)cudaEventDestroy(after);
  (void)cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace blockgtq::cuda
