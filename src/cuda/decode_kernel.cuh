// The attention kernel: a persistent grid whose warps stream records through private rings in shared memory
// and attend to them straight from the codes. Instantiated by decode_kernels_*.cu.
//
// Work: a block owns one contiguous range of tiles (schedule.h); its warps take every kWarps-th. At the end
// of a (sequence, KV head) the block merges its warps into one partial. With kWarpWorkers every warp has a
// range, a query block and partials of its own, and nothing is block-wide: better for many short sequences.
//
// Columns of the tensor products are query heads; with kFew (at most 4) they are the even columns, so a lane
// owns one head (half the softmax and output work) and lo queries take the odd columns.
#pragma once

#include "src/cuda/attention_tile.cuh"
#include "src/cuda/decode_params.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

constexpr float kMaskedLogit = -1e30f;
constexpr float kLog2Of255 = 7.994353437f;

/// What every warp reads of a head, in shared memory: the header, then the passes of the chosen layout.
template <bool kFew>
struct SharedHead {
  HeadHeader header;
  Pass passes[(kFew ? kMaxGroups : kMaxPasses) + 1];
};

/// Byte offsets of the kernel's shared memory; host and device agree by computing it alike.
struct SharedLayout {
  int heads, prefix, queries, query_bytes, phase, merge, merge_state, merge_weight, ring, total;

  static constexpr int Align(int bytes) { return (bytes + 127) / 128 * 128; }

  static constexpr SharedLayout For(int warps, int head_dim, bool few, bool mean, bool warp_workers,
                                    int kv_heads, int batch, int query_block_bytes, int max_mean_units,
                                    int stages, int stage_bytes) {
    SharedLayout s{};
    const int slots = few ? kFewQueryHeads : kMaxQueryHeads, owners = warp_workers ? warps : 1;
    int at = Align((2 * owners + warps * stages) * 8);  // barriers: two query buffers an owner, the rings
    s.heads = at;
    at += Align(kv_heads * static_cast<int>(few ? sizeof(SharedHead<true>) : sizeof(SharedHead<false>)));
    s.prefix = at;
    at += Align((batch + 1) * 4);
    s.queries = at;
    s.query_bytes = Align(query_block_bytes + (mean ? max_mean_units * 2048 : 0));
    at += 2 * owners * s.query_bytes;
    s.phase = at;
    if (mean) at += warps * head_dim / 2 * 8;
    s.merge = at;
    s.merge_state = s.merge + (warp_workers ? 0 : warps * slots * head_dim * 4);
    s.merge_weight = s.merge_state + (warp_workers ? 0 : warps * slots * 8);
    at = s.merge_weight + (warp_workers ? 0 : warps * slots * 4);
    s.ring = Align(at);
    s.total = s.ring + warps * stages * stage_bytes;
    return s;
  }
};

/// A walk over (sequence, head) pairs in order; tile: the first still to do of `tiles`.
struct Segment {
  int sequence, head, tile, tiles;
  __device__ __forceinline__ void Next(const int* tile_prefix, int kv_heads) {
    tile = 0;
    if (++head == kv_heads) {
      head = 0;
      do {
        ++sequence;
      } while (tile_prefix[sequence + 1] == tile_prefix[sequence]);
      tiles = tile_prefix[sequence + 1] - tile_prefix[sequence];
    }
  }
};

/// Adds q' R_t mu to the logits: R_t = R_64tile R_r, so the queries are rotated back by the tile's angle
/// (exact modular arithmetic in 2^-32 turns: no drift) and multiplied with the table of R_r mu. bias [16]:
/// tensor-core accumulators of 4 16-token blocks. phase: [head_dim / 2] scratch of this warp.
template <int kHeadDim>
__device__ __forceinline__ void AddMeanBias(float* bias, const HeadHeader& header, int tile,
                                            const uint32_t (&step)[kHeadDim / 64], float2* phase,
                                            const float4* queries, const uint4* table) {
  const int lane = threadIdx.x & 31, tq = lane & 3;
#pragma unroll
  for (int i = 0; i < kHeadDim / 64; ++i) {
    const uint32_t turns = step[i] * static_cast<uint32_t>(tile);
    const float angle = static_cast<float>(static_cast<int>(turns)) * (6.283185307179586f / 4294967296.0f);
    phase[lane + 32 * i] = make_float2(__cosf(angle), __sinf(angle));
  }
  __syncwarp();
#pragma unroll 1
  for (int u = 0; u < header.mean_units; ++u) {
    const int block = header.mean_unit[u] * 8 + tq;
    const float2 z0 = phase[block], z1 = phase[block + 4];
    const float4 q = queries[u * 32];
    const __half2 b0 = __floats2half2_rn(q.x * z0.x + q.y * z0.y, q.y * z0.x - q.x * z0.y);
    const __half2 b1 = __floats2half2_rn(q.z * z1.x + q.w * z1.y, q.w * z1.x - q.z * z1.y);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      MmaF16(bias + 4 * m, table[(u * 4 + m) * 32], *reinterpret_cast<const uint32_t*>(&b0),
             *reinterpret_cast<const uint32_t*>(&b1));
    }
  }
  __syncwarp();
}

template <int kWarps, int kHeadDim, bool kFew, int kValueWidth, bool kMean, bool kWarpWorkers>
__global__ void __launch_bounds__(kWarps * 32, 1) DecodeKernel(const __grid_constant__ DecodeParams p) {
  LetNextKernelStart();
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kUnits = kHeadDim / kUnitWidth;
  constexpr int kSlots = kFew ? kFewQueryHeads : kMaxQueryHeads;  // heads of a merge slot
  constexpr int kHeads = kFew ? 1 : 2;                            // heads a lane
  constexpr int kStep = kWarpWorkers ? 1 : kWarps;                // tiles between two of a warp
  const int thread = threadIdx.x, lane = thread & 31, warp = __shfl_sync(~0u, thread >> 5, 0);
  const int g = lane >> 2, tq = lane & 3;
  const int first_tile = kWarpWorkers ? 0 : warp;
  const bool leads = (kWarpWorkers ? lane : thread) == 0;  // issues the owner's query copies
  const int worker = kWarpWorkers ? blockIdx.x * kWarps + warp : blockIdx.x;
  const int owner = kWarpWorkers ? warp : 0;
  const int stages = p.stages;

  const SharedLayout layout =
      SharedLayout::For(kWarps, kHeadDim, kFew, kMean, kWarpWorkers, p.kv_heads, p.batch,
                        p.query_layout.bytes, p.max_mean_units, stages, p.stage_bytes);
  const uint32_t query_barrier = SharedAddress(shared) + 16 * owner;
  const uint32_t ring_barrier = SharedAddress(shared) + 8 * (2 * (kWarpWorkers ? kWarps : 1) + warp * stages);
  SharedHead<kFew>* heads = reinterpret_cast<SharedHead<kFew>*>(shared + layout.heads);
  int* tile_prefix = reinterpret_cast<int*>(shared + layout.prefix);
  uint8_t* query_buffers = shared + layout.queries + owner * 2 * layout.query_bytes;
  float2* phase = reinterpret_cast<float2*>(shared + layout.phase) + warp * (kHeadDim / 2);
  const uint8_t* ring = shared + layout.ring + static_cast<size_t>(warp) * stages * p.stage_bytes;

  if (leads) {
    BarrierInit(query_barrier, 1);
    BarrierInit(query_barrier + 8, 1);
  }
  if (lane == 0) {
    for (int i = 0; i < stages; ++i) BarrierInit(ring_barrier + 8 * i, 1);
  }
  BarrierInitFence();
  const int4 range0 = __ldg(reinterpret_cast<const int4*>(p.ranges + worker));
  const int4 range1 = __ldg(reinterpret_cast<const int4*>(p.ranges + worker) + 1);
  constexpr int kHeaderQuads = sizeof(HeadHeader) / 16, kHeadQuads = sizeof(SharedHead<kFew>) / 16;
  for (int i = thread; i < p.kv_heads * kHeadQuads; i += kWarps * 32) {
    const int h = i / kHeadQuads, quad = i % kHeadQuads;
    const uint4* header = reinterpret_cast<const uint4*>(&p.heads[h].header);
    const uint4* passes = reinterpret_cast<const uint4*>(kFew ? p.heads[h].few : p.heads[h].many);
    reinterpret_cast<uint4*>(heads)[i] =
        __ldg(quad < kHeaderQuads ? header + quad : passes + (quad - kHeaderQuads));
  }
  for (int i = thread; i <= p.batch; i += kWarps * 32) tile_prefix[i] = __ldg(p.tile_prefix + i);
  // The combine kernel's matrices, which it would otherwise wait for: each block asks for a share of their
  // lines.
  if (p.combine_matrix) {
    const int lines = p.kv_heads * kHeadDim * kHeadDim * 2 / 128;
    for (int i = blockIdx.x * kWarps * 32 + thread; i < lines; i += gridDim.x * kWarps * 32) {
      PrefetchToL2(p.combine_matrix + static_cast<size_t>(i) * 64);
    }
  }
  const int begin = range0.x, end = range0.y;
  const Segment start = {range0.z, range0.w, range1.x, range1.y};
  if (!kWarpWorkers && begin >= end) return;
  __syncthreads();
  if (kWarpWorkers && begin >= end) return;

  // ---- records: this warp's tiles are begin + first_tile + kStep k; lane k & 31 copies tile k, whose
  // address it found a batch of 32 earlier.
  const uint32_t ring_address = SharedAddress(ring);
  Segment fetch_segment = start;  // starts (at its tile) at position fetch_at
  int fetch_at = begin;
  auto fetch = [&](int k0, const uint8_t*& address, int& bytes) {
    int x = begin + first_tile + kStep * (k0 + lane);
    bytes = 0;
    address = nullptr;
    if (x < end) {
      Segment s = fetch_segment;
      int at = fetch_at;
      while (x - at >= s.tiles - s.tile) {
        at += s.tiles - s.tile;
        s.Next(tile_prefix, p.kv_heads);
      }
      const int page = __ldg(p.block_table + s.sequence * p.max_pages + s.tile + (x - at));
      address = p.pool + page * p.page_bytes + heads[s.head].header.record_offset;
      bytes = heads[s.head].header.record_bytes;
    }
    const int next = begin + kStep * (k0 + 32);
    while (next < end && next - fetch_at >= fetch_segment.tiles - fetch_segment.tile) {
      fetch_at += fetch_segment.tiles - fetch_segment.tile;
      fetch_segment.Next(tile_prefix, p.kv_heads);
    }
  };
  const uint8_t *address, *next_address = nullptr;
  int bytes, next_bytes = 0;
  fetch(0, address, bytes);
  auto copy = [&](int stage) {
    BarrierExpect(ring_barrier + 8 * stage, bytes);
    BulkCopy(ring_address + stage * p.stage_bytes, address, bytes, ring_barrier + 8 * stage);
  };
  // One stage now, the rest when the first tile is there: a deeper first burst would queue every warp's first
  // tile behind the others' second.
  if (lane == 0 && bytes) copy(0);
  if (begin + kStep * 32 < end) fetch(32, next_address, next_bytes);
  int next_copy = stages;

  // ---- query blocks, two segments ahead
  Segment query_segment = start;
  int query_at = begin, queries_loaded = 0;
  auto load_queries = [&]() {
    if (query_at < end) {
      const uint32_t barrier = query_barrier + 8 * (queries_loaded & 1);
      const uint32_t to = SharedAddress(query_buffers + (queries_loaded & 1) * layout.query_bytes);
      const int h = query_segment.head;
      const int table_bytes = kMean ? heads[h].header.mean_units * 2048 : 0;
      BarrierExpect(barrier, p.query_layout.bytes + table_bytes);
      BulkCopy(to,
               p.query_blocks +
                   static_cast<size_t>(query_segment.sequence * p.kv_heads + h) * p.query_layout.bytes,
               p.query_layout.bytes, barrier);
      if (table_bytes) {
        BulkCopy(to + p.query_layout.bytes,
                 reinterpret_cast<const uint8_t*>(p.mean_fragments) +
                     static_cast<size_t>(h) * p.max_mean_units * 2048,
                 table_bytes, barrier);
      }
      query_at += query_segment.tiles - query_segment.tile;
      if (query_at < end) query_segment.Next(tile_prefix, p.kv_heads);
    }
    ++queries_loaded;
  };
  WaitForPreviousKernel();  // records do not depend on the kernel before; queries and partials do
  if (leads) {
    load_queries();
    load_queries();
  }
  uint32_t phase_step[kHeadDim / 64] = {};
  if (kMean) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 64; ++i) phase_step[i] = __ldg(p.tile_phase + lane + 32 * i);
  }

  int k = 0, stage = 0, ring_phase = 0, x = begin, segment = 0;
  Segment current = start;
#pragma unroll 1
  while (x < end) {
    const int tile0 = current.tile, segment_end = min(end, x + current.tiles - tile0);
    const int coded_end = __ldg(p.coded_end + current.sequence);
    const HeadHeader& header = heads[current.head].header;
    const int4* passes = reinterpret_cast<const int4*>(heads[current.head].passes);
    const uint8_t* query = query_buffers + (segment & 1) * layout.query_bytes;
    BarrierWait(query_barrier + 8 * (segment & 1), (segment >> 1) & 1);

    float output[2 * kUnits * kHeads];  // dims 8 i + g of kHeads heads, i = 0 .. 2 kUnits - 1
#pragma unroll
    for (int i = 0; i < 2 * kUnits * kHeads; ++i) output[i] = 0;
    float largest[kHeads], sum[kHeads];
#pragma unroll
    for (int e = 0; e < kHeads; ++e) {
      largest[e] = kMaskedLogit;
      sum[e] = 0;
    }
    const int value_codes = header.value_codes, value_norms = header.value_norms;

#pragma unroll 1
    for (;;) {
      const int at = begin + first_tile + kStep * k;
      if (at >= segment_end) break;
      const int tile = tile0 + at - x;
      BarrierWait(ring_barrier + 8 * stage, ring_phase);
      if (k == 0 && lane > 0 && lane < stages && bytes) copy(lane);
      const uint8_t* record = ring + stage * p.stage_bytes;

      // Logits start at log2(V norm): P then carries the V norm, and the tile's maximum includes it.
      const uint2 value_norm = *reinterpret_cast<const uint2*>(record + value_norms + g * 8);
      float logit[8 * kHeads];  // tokens 16 (i / 2) + 8 (i & 1) + g, i = 0..7, kHeads each
      if constexpr (kMean) {
        float bias[16];
#pragma unroll
        for (int i = 0; i < 8; ++i) bias[2 * i] = bias[2 * i + 1] = LogNorm(value_norm, i);
        AddMeanBias<kHeadDim>(bias, header, tile, phase_step, phase,
                              reinterpret_cast<const float4*>(query + p.query_layout.mean) + lane,
                              reinterpret_cast<const uint4*>(query + p.query_layout.bytes) + lane);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int e = 0; e < kHeads; ++e) logit[i * kHeads + e] = bias[2 * i + e];
        }
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float v = LogNorm(value_norm, i);
#pragma unroll
          for (int e = 0; e < kHeads; ++e) logit[i * kHeads + e] = v;
        }
      }

      // + norm[token] * scale[head] * dot, pass by pass
      const uint32_t* fragments = reinterpret_cast<const uint32_t*>(query) + lane;
      const uint8_t* scales = query + p.query_layout.scale + tq * 8;
      const uint8_t* starts = query + p.query_layout.start + tq * 8;
#pragma unroll 1
      for (int i_pass = 0;; ++i_pass) {
        const int4 pass = passes[i_pass];  // Pass: codes, norms, query, width | units << 8
        const int width = pass.w & 255, units = (pass.w >> 8) & 255;
        if (width == 0) break;
        const int2 s = *reinterpret_cast<const int2*>(starts + i_pass * 32);
        int dots[16];
        KeyGroupDots(width, dots, reinterpret_cast<const uint32_t*>(record + pass.x) + lane,
                     fragments + pass.z, units, Int4{s.x, s.y, s.x, s.y});
        const float2 scale = *reinterpret_cast<const float2*>(scales + i_pass * 32);
        const uint2 norm = *reinterpret_cast<const uint2*>(record + pass.y + g * 8);
        if constexpr (kFew) {
          float dot[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) dot[i] = AccumulatorToFloat(dots[2 * i]);
          if (width >= LowQueryWidth(true)) {
#pragma unroll
            for (int i = 0; i < 8; ++i) dot[i] = fmaf(dot[i], 256.0f, AccumulatorToFloat(dots[2 * i + 1]));
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) {  // the scale is in the exponent (query_prep.cu)
            logit[i] = fmaf(dot[i], Exp2(fmaf(ByteAt15(norm, i), 1.0f / 32, scale.x)), logit[i]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float n = Exp2(LogNorm(norm, i));
            logit[2 * i] = fmaf(AccumulatorToFloat(dots[2 * i]), n * scale.x, logit[2 * i]);
            logit[2 * i + 1] = fmaf(AccumulatorToFloat(dots[2 * i + 1]), n * scale.y, logit[2 * i + 1]);
          }
        }
      }

      // Tokens outside [sinks, coded_end); a tile may be masked whole only beside one that is not.
      const int valid_begin = p.sinks - tile * kTileTokens, valid_end = coded_end - tile * kTileTokens;
      if (valid_end < kTileTokens || valid_begin > 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (8 * i + g >= valid_end || 8 * i + g < valid_begin) {
#pragma unroll
            for (int e = 0; e < kHeads; ++e) logit[i * kHeads + e] = kMaskedLogit;
          }
        }
      }

      float top[kHeads], factor[kHeads];
      bool rises = false;
#pragma unroll
      for (int e = 0; e < kHeads; ++e) {
        top[e] = logit[e];
#pragma unroll
        for (int i = 1; i < 8; ++i) top[e] = fmaxf(top[e], logit[i * kHeads + e]);
      }
#pragma unroll
      for (int o = 4; o < 32; o <<= 1) {
#pragma unroll
        for (int e = 0; e < kHeads; ++e) top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], o));
      }
#pragma unroll
      for (int e = 0; e < kHeads; ++e) rises |= top[e] > largest[e];
      if (__any_sync(~0u, rises)) {
#pragma unroll
        for (int e = 0; e < kHeads; ++e) {
          const float now = fmaxf(largest[e], top[e]), shrink = Exp2(largest[e] - now);
          sum[e] *= shrink;
          largest[e] = now;
#pragma unroll
          for (int i = 0; i < 2 * kUnits; ++i) output[i * kHeads + e] *= shrink;
        }
      }

      // P = 255 * 2^(logit - top), rounded to u8 for the products; its sum without the V norm is not rounded.
      float tile_sum[kHeads];
      uint32_t probabilities[4];
#pragma unroll
      for (int e = 0; e < kHeads; ++e) {
        factor[e] = Exp2(top[e] - largest[e]);
        top[e] -= kLog2Of255;
        tile_sum[e] = 0;
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float v0 = Exp2(-LogNorm(value_norm, 2 * m)), v1 = Exp2(-LogNorm(value_norm, 2 * m + 1));
        uint32_t bytes_of_head[kHeads];
#pragma unroll
        for (int e = 0; e < kHeads; ++e) {
          const float p0 = Exp2(logit[2 * m * kHeads + e] - top[e]);
          const float p1 = Exp2(logit[(2 * m + 1) * kHeads + e] - top[e]);
          tile_sum[e] = fmaf(p0, v0, tile_sum[e]);
          tile_sum[e] = fmaf(p1, v1, tile_sum[e]);
          // 2^23 + p rounds p to an integer in the lowest byte; the bytes above it are zero.
          bytes_of_head[e] =
              SelectBytes(__float_as_uint(p0 + 8388608.0f), __float_as_uint(p1 + 8388608.0f), 0x1140);
        }
        probabilities[m] = TransposeB16(
            kFew ? bytes_of_head[0] : SelectBytes(bytes_of_head[0], bytes_of_head[kHeads - 1], 0x5410));
      }
#pragma unroll
      for (int e = 0; e < kHeads; ++e) sum[e] = fmaf(tile_sum[e], factor[e], sum[e]);

      const uint32_t* values = reinterpret_cast<const uint32_t*>(record + value_codes) + lane;
      if constexpr (kValueWidth != 0) {
        ValueProducts<kValueWidth, kUnits, kHeads>(output, values, probabilities, factor);
      } else {
        switch (header.value_width) {
          case 1:
            ValueProducts<1, kUnits, kHeads>(output, values, probabilities, factor);
            break;
          case 2:
            ValueProducts<2, kUnits, kHeads>(output, values, probabilities, factor);
            break;
          case 3:
            ValueProducts<3, kUnits, kHeads>(output, values, probabilities, factor);
            break;
          case 4:
            ValueProducts<4, kUnits, kHeads>(output, values, probabilities, factor);
            break;
          case 5:
            ValueProducts<5, kUnits, kHeads>(output, values, probabilities, factor);
            break;
          default:
            ValueProducts<8, kUnits, kHeads>(output, values, probabilities, factor);
            break;
        }
      }

      __syncwarp();
      if ((next_copy & 31) == 0) {
        address = next_address;
        bytes = next_bytes;
        next_bytes = 0;
        if (begin + kStep * (next_copy + 32) < end) fetch(next_copy + 32, next_address, next_bytes);
      }
      if (lane == (next_copy & 31) && bytes) copy(stage);
      ++next_copy;
      ++k;
      if (++stage == stages) {
        stage = 0;
        ring_phase ^= 1;
      }
    }

    // ---- one partial of this segment
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) {
#pragma unroll
      for (int e = 0; e < kHeads; ++e) sum[e] += __shfl_xor_sync(~0u, sum[e], o);
    }
    const size_t slot = static_cast<size_t>(current.sequence * p.kv_heads + current.head) + worker;
    if constexpr (kWarpWorkers) {
      __syncwarp();
      if (lane == 0) load_queries();
#pragma unroll
      for (int e = 0; e < kHeads; ++e) {
        const int column = tq * kHeads + e;
        if (column < p.query_heads) {
          float* out = p.partial + (slot * kMaxQueryHeads + column) * kHeadDim + g;
#pragma unroll
          for (int i = 0; i < 2 * kUnits; ++i) out[8 * i] = output[i * kHeads + e];
          if (g == 0) p.partial_state[slot * kMaxQueryHeads + column] = {largest[e], sum[e]};
        }
      }
    } else {
      float* merge = reinterpret_cast<float*>(shared + layout.merge);  // [kWarps][kHeadDim][kSlots]
      SoftmaxState* states =
          reinterpret_cast<SoftmaxState*>(shared + layout.merge_state);         // [kWarps][kSlots]
      float* weights = reinterpret_cast<float*>(shared + layout.merge_weight);  // [kWarps][kSlots]
      float* mine = merge + warp * kSlots * kHeadDim;
#pragma unroll
      for (int i = 0; i < 2 * kUnits; ++i) {
        const int d = 8 * i + g;
        if constexpr (kFew) {
          mine[d * kSlots + tq] = output[i];
        } else {
          *reinterpret_cast<float2*>(mine + d * kSlots + 2 * tq) =
              make_float2(output[2 * i], output[2 * i + 1]);
        }
      }
      if (g == 0) {
#pragma unroll
        for (int e = 0; e < kHeads; ++e) states[warp * kSlots + tq * kHeads + e] = {largest[e], sum[e]};
      }
      __syncthreads();
      if (thread == 0) load_queries();
      if (thread < kWarps * kSlots) {
        const int column = thread % kSlots;
        float top = kMaskedLogit;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) top = fmaxf(top, states[i * kSlots + column].largest);
        weights[thread] = Exp2(states[thread].largest - top);
        if (thread < kSlots && thread < p.query_heads) {
          float total = 0;
          for (int i = 0; i < kWarps; ++i) {
            const SoftmaxState s = states[i * kSlots + column];
            total = fmaf(s.sum, Exp2(s.largest - top), total);
          }
          p.partial_state[slot * kMaxQueryHeads + column] = {top, total};
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int i = thread; i < kHeadDim * kSlots / 4; i += kWarps * 32) {  // four heads of one dim
        const int d = i / (kSlots / 4), column = i % (kSlots / 4) * 4;
        float total[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (int w = 0; w < kWarps; ++w) {
          const float4 o = *reinterpret_cast<const float4*>(merge + (w * kHeadDim + d) * kSlots + column);
          const float4 f = *reinterpret_cast<const float4*>(weights + w * kSlots + column);
          total[0] = fmaf(o.x, f.x, total[0]);
          total[1] = fmaf(o.y, f.y, total[1]);
          total[2] = fmaf(o.z, f.z, total[2]);
          total[3] = fmaf(o.w, f.w, total[3]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (column + j < p.query_heads) {
            p.partial[(slot * kMaxQueryHeads + column + j) * kHeadDim + d] = total[j];
          }
        }
      }
      __syncthreads();
    }
    current.tile = 0;
    if (segment_end < end) current.Next(tile_prefix, p.kv_heads);
    x = segment_end;
    ++segment;
  }
}

}  // namespace blockgtq::cuda
