// The work split: contiguous, nearly equal ranges of tiles in (sequence, head, tile) order.
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/schedule.h"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxWholeSpans = 512;  // (sequence, head) pairs up to which whole workers are tried
constexpr int kSlackTiles = 8;       // a block of a worker: imbalance that whole workers may cost

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

// The first tile of worker `number` of `workers` that share a pair, of which the last `late` start about a
// round of tiles late: they get a round less than the others, or as little less as leaves those their number
// of rounds.
__device__ int FirstTile(int tiles, int number, int workers, int late, int round_tiles) {
  const int early = workers - late, most = (tiles + workers - 1) / workers;
  const int rounds = (most + round_tiles - 1) / round_tiles;
  const auto part = [](int all, int i, int n) {
    return static_cast<int>(static_cast<int64_t>(all) * i / n);
  };
  if (late == 0 || early == 0 || rounds == 1) return part(tiles, number, workers);
  const int late_tiles =
      max(min((rounds - 1) * round_tiles, tiles / workers) * late, tiles - early * rounds * round_tiles);
  if (number <= early) return part(tiles - late_tiles, number, early);
  return tiles - late_tiles + part(late_tiles, number - early, late);
}

__global__ void __launch_bounds__(kThreads)
    ScheduleKernel(const int32_t* coded_end, const int32_t* length, int sinks, int window, int batch,
                   int heads, int workers, int tiles_a_worker, WorkerTraits traits, WorkRange* ranges,
                   int32_t* tile_prefix, WorkerSpan* spans, uint32_t* step) {
  BGTQ_DYNAMIC_SHARED(int, 4, shared);
  int* prefix = shared;             // [batch + 1]
  int* bound = shared + batch + 1;  // [workers + 1] first tile of each worker
  int* place = bound + workers + 1;  // [workers] in which it starts
  __shared__ int first_worker[kMaxWholeSpans + 1], late_workers[kMaxWholeSpans];
  __shared__ int first_late;  // place
  __shared__ bool whole, by_number;  // by_number: workers start by their numbers in their pairs
  const int thread = threadIdx.x, pairs = batch * heads;
  if (thread == 0) ++*step;

  if (thread < 32) {  // prefix sums of tiles, by one warp
    int base = 0;
    if (thread == 0) prefix[0] = 0;
    for (int b0 = 0; b0 < batch; b0 += 32) {
      const int b = b0 + thread;
      int sum = 0;
      if (b < batch) {
        const CodeRange codes = CodeRange::For(sinks, window, coded_end[b], window > 0 ? length[b] : 0);
        sum = codes.any() ? (codes.end + kTileTokens - 1) / kTileTokens - codes.first_tile : 1;
      }
      for (int o = 1; o < 32; o <<= 1) {
        const int below = __shfl_up_sync(~0u, sum, o);
        if (thread >= o) sum += below;
      }
      if (b < batch) prefix[b + 1] = base + sum;
      base += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
  const int total = prefix[batch] * heads;
  const int used = min(workers, max(pairs, total / tiles_a_worker));  // at most `total`: a pair has a tile
  const float share = static_cast<float>(total) / used;

  const bool try_whole = traits.whole && pairs <= used && pairs <= kMaxWholeSpans;
  if (try_whole) {
    for (int s = thread; s < pairs; s += kThreads) {
      const int b = s / heads;
      first_worker[s + 1] = max(1, static_cast<int>((prefix[b + 1] - prefix[b]) / share + 1e-3f));
    }
    __syncthreads();
    if (thread == 0) {
      float most = 0;
      int merging = 0;
      first_worker[0] = 0;
      for (int s = 0; s < pairs; ++s) {
        const int b = s / heads, count = first_worker[s + 1];
        most = fmaxf(most, static_cast<float>(prefix[b + 1] - prefix[b]) / count);
        first_worker[s + 1] = first_worker[s] + count;
        late_workers[s] = 0;
        merging += count > 1;
      }
      // With more than run at once, pairs have to end one after another: workers that merge wait for others.
      by_number = first_worker[pairs] <= traits.resident;
      first_late = by_number ? min(first_worker[pairs], max(0, traits.resident - merging)) : workers;
      whole = first_worker[pairs] <= workers && most - share <= kSlackTiles * tiles_a_worker;
    }
  } else if (thread == 0) {
    whole = false;
  }
  __syncthreads();

  for (int w = thread; w < workers; w += kThreads) {
    int at = w;
    if (whole && by_number && w < first_worker[pairs]) {
      const int own = LastNotAbove(first_worker, pairs, w), number = w - first_worker[own];
      at = 0;
      for (int s = 0; s < pairs; ++s) {
        const int count = first_worker[s + 1] - first_worker[s];
        at += min(count, number) + (s < own && count > number);
      }
      if (at >= first_late) atomicAdd(&late_workers[own], 1);
    }
    place[w] = at;
  }
  __syncthreads();
  for (int w = thread; w <= workers; w += kThreads) {
    WorkRange r{};
    r.begin = total;
    r.worker = w;
    if (whole) {
      if (w < first_worker[pairs]) {
        const int s = LastNotAbove(first_worker, pairs, w);
        r.sequence = s / heads;
        r.head = s % heads;
        r.tiles = prefix[r.sequence + 1] - prefix[r.sequence];
        r.tile = FirstTile(r.tiles, w - first_worker[s], first_worker[s + 1] - first_worker[s],
                           late_workers[s], traits.round_tiles);
        r.begin = prefix[r.sequence] * heads + r.head * r.tiles + r.tile;
      }
    } else if (w < used) {
      r.begin = static_cast<int>(static_cast<int64_t>(total) * w / used);
      r.sequence = LastNotAbove(prefix, batch, r.begin / heads);
      r.tiles = prefix[r.sequence + 1] - prefix[r.sequence];
      const int inside = r.begin - prefix[r.sequence] * heads;
      r.head = inside / r.tiles;
      r.tile = inside % r.tiles;
    }
    if (window > 0 && r.tiles > 0) {
      const int first = CodeRange::For(sinks, window, coded_end[r.sequence], length[r.sequence]).first_tile;
      r.tile += first;
      r.tiles += first;
    }
    bound[w] = r.begin;
    if (w < workers) ranges[place[w]] = r;
  }
  __syncthreads();
  for (int w = thread; w < workers; w += kThreads) ranges[place[w]].end = bound[w + 1];
  for (int b = thread; b <= batch; b += kThreads) tile_prefix[b] = prefix[b];
  for (int s = thread; s < pairs; s += kThreads) {
    const int b = s / heads, tiles = prefix[b + 1] - prefix[b];
    const int begin = prefix[b] * heads + s % heads * tiles;
    const int first = LastNotAbove(bound, workers, begin);
    const int last = LastNotAbove(bound, workers, begin + tiles - 1);
    spans[s] = {first, last - first + 1};
  }
}

}  // namespace

Status LaunchSchedule(const DecodeParams& params, const WorkerTraits& traits, CUstream_st* stream) {
  const size_t shared_bytes = sizeof(int) * (static_cast<size_t>(params.batch) + 2 * params.workers + 2);
  if (shared_bytes > 40 * 1024) {
    return Status(ErrorCode::kUnsupported, "CUDA decode attention: a batch of " +
                                               std::to_string(params.batch) +
                                               " sequences is more than the scheduler holds; split it");
  }
  return Launch("schedule", ScheduleKernel, 1, kThreads, shared_bytes, false, stream, params.coded_end,
                params.length, params.sinks, params.window, params.batch, params.work_heads, params.workers,
                params.cluster_blocks, traits, const_cast<WorkRange*>(params.ranges),
                const_cast<int32_t*>(params.tile_prefix), const_cast<WorkerSpan*>(params.spans), params.step);
}

}  // namespace blockgtq::cuda
