// The work split: contiguous, nearly equal ranges of tiles in (sequence, head, tile) order.
#include "src/cuda/launch.cuh"
#include "src/cuda/schedule.h"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxWholeSpans = 512;  // (sequence, head) pairs up to which whole workers are tried
constexpr int kSlackTiles = 8;       // imbalance that whole workers may cost

// The largest i with sorted[i] <= value, i < n; sorted[0] <= value.
template <typename T>
__device__ int LastNotAbove(const T* sorted, int n, T value) {
  int low = 0, high = n;
  while (high - low > 1) {
    const int middle = (low + high) >> 1;
    if (sorted[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads)
    ScheduleKernel(const int32_t* coded_end, int sinks, int batch, int kv_heads, int workers,
                   bool whole_workers, WorkRange* ranges, int32_t* tile_prefix, WorkerSpan* spans) {
  extern __shared__ int shared[];
  int* prefix = shared;             // [batch + 1]
  int* bound = shared + batch + 1;  // [workers + 1] first tile of each worker
  __shared__ int first_worker[kMaxWholeSpans + 1];
  __shared__ bool whole;
  const int thread = threadIdx.x, pairs = batch * kv_heads;

  if (thread < 32) {  // prefix sums of tiles, by one warp
    int base = 0;
    if (thread == 0) prefix[0] = 0;
    for (int b0 = 0; b0 < batch; b0 += 32) {
      const int b = b0 + thread;
      int sum = b < batch && coded_end[b] > sinks ? (coded_end[b] + kTileTokens - 1) / kTileTokens : 0;
      for (int o = 1; o < 32; o <<= 1) {
        const int below = __shfl_up_sync(~0u, sum, o);
        if (thread >= o) sum += below;
      }
      if (b < batch) prefix[b + 1] = base + sum;
      base += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
  const int total = prefix[batch] * kv_heads;
  const float share = static_cast<float>(total) / workers;

  const bool try_whole = whole_workers && pairs <= workers && pairs <= kMaxWholeSpans && total > 0;
  if (try_whole) {
    for (int s = thread; s < pairs; s += kThreads) {
      const int b = s / kv_heads, tiles = prefix[b + 1] - prefix[b];
      first_worker[s + 1] = tiles > 0 ? max(1, static_cast<int>(tiles / share + 1e-3f)) : 0;
    }
    __syncthreads();
    if (thread == 0) {
      float most = 0;
      first_worker[0] = 0;
      for (int s = 0; s < pairs; ++s) {
        const int b = s / kv_heads, count = first_worker[s + 1];
        if (count > 0) most = fmaxf(most, static_cast<float>(prefix[b + 1] - prefix[b]) / count);
        first_worker[s + 1] = first_worker[s] + count;
      }
      whole = first_worker[pairs] <= workers && most - share <= kSlackTiles;
    }
  } else if (thread == 0) {
    whole = false;
  }
  __syncthreads();

  for (int w = thread; w <= workers; w += kThreads) {
    WorkRange r{};
    r.begin = total;
    if (whole) {
      if (w < first_worker[pairs]) {
        const int s = LastNotAbove(first_worker, pairs, w);
        r.sequence = s / kv_heads;
        r.head = s % kv_heads;
        r.tiles = prefix[r.sequence + 1] - prefix[r.sequence];
        r.tile = static_cast<int>(static_cast<int64_t>(r.tiles) * (w - first_worker[s]) /
                                  (first_worker[s + 1] - first_worker[s]));
        r.begin = prefix[r.sequence] * kv_heads + r.head * r.tiles + r.tile;
      }
    } else if (w < workers && total > 0) {
      r.begin = static_cast<int>(static_cast<int64_t>(total) * w / workers);
      r.sequence = LastNotAbove(prefix, batch, r.begin / kv_heads);
      r.tiles = prefix[r.sequence + 1] - prefix[r.sequence];
      const int inside = r.begin - prefix[r.sequence] * kv_heads;
      r.head = inside / r.tiles;
      r.tile = inside % r.tiles;
    }
    bound[w] = r.begin;
    if (w < workers) ranges[w] = r;
  }
  __syncthreads();
  for (int w = thread; w < workers; w += kThreads) ranges[w].end = bound[w + 1];
  for (int b = thread; b <= batch; b += kThreads) tile_prefix[b] = prefix[b];
  for (int s = thread; s < pairs; s += kThreads) {
    const int b = s / kv_heads, tiles = prefix[b + 1] - prefix[b];
    const int begin = prefix[b] * kv_heads + s % kv_heads * tiles;
    const int first = LastNotAbove(bound, workers, begin);
    const int last = LastNotAbove(bound, workers, begin + tiles - 1);
    spans[s] = {first, tiles > 0 ? last - first + 1 : 0};
  }
}

}  // namespace

Status LaunchSchedule(const int32_t* coded_end, int sinks, int batch, int kv_heads, int workers,
                      bool whole_workers, WorkRange* ranges, int32_t* tile_prefix, WorkerSpan* spans,
                      CUstream_st* stream) {
  const size_t shared_bytes = sizeof(int) * (static_cast<size_t>(batch) + workers + 2);
  if (shared_bytes > 40 * 1024) {
    return Status(ErrorCode::kUnsupported, "CUDA decode attention: a batch of " + std::to_string(batch) +
                                               " sequences is more than the scheduler holds; split it");
  }
  return Launch("schedule", ScheduleKernel, 1, kThreads, shared_bytes, false, stream, coded_end, sinks, batch,
                kv_heads, workers, whole_workers, ranges, tile_prefix, spans);
}

}  // namespace blockgtq::cuda
