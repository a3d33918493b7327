// How records reach a warp: a ring of shared-memory stages filled by asynchronous copies, tiles in the order
// of the worker's range.
#pragma once

#include "src/cuda/async_copy.cuh"
#include "src/cuda/decode_params.h"

namespace blockgtq::cuda {

__device__ __forceinline__ CodeRange CodesOf(const DecodeParams& p, int sequence) {
  const int length = p.window > 0 ? __ldg(p.length + sequence) : 0;
  return CodeRange::For(p.sinks, p.window, __ldg(p.coded_end + sequence), length);
}

/// A walk over (sequence, head) pairs in order; tile: the first still to do of those before `tiles`.
struct Segment {
  int sequence, head, tile, tiles;
  __device__ __forceinline__ void Next(const DecodeParams& p, const int* tile_prefix) {
    if (++head == p.work_heads) {
      head = 0;
      ++sequence;
    }
    tile = p.window > 0 ? CodesOf(p, sequence).first_tile : 0;
    tiles = tile + tile_prefix[sequence + 1] - tile_prefix[sequence];
  }
};

/// The page of the tile at position first + step * lane, where it is one of the first segment's and below
/// `end`: asked for before the rest of the block is ready. The segment starts at position `begin`.
__device__ __forceinline__ int FirstPage(const DecodeParams& p, int begin, int first, int step, int end,
                                         const Segment& segment) {
  const int x = first + step * static_cast<int>(threadIdx.x & 31), tile = segment.tile + x - begin;
  return x < end && tile < segment.tiles ? __ldg(p.block_table + segment.sequence * p.max_pages + tile) : 0;
}

/// Issues the copies of tiles at positions first + step * k (k = 0, 1, ...) of [begin, end). One warp runs
/// it; lane k & 31 knows tile k, whose address it found a batch of 32 earlier. A tile of a sequence without
/// codes completes its barrier (of kCopyArrivals) without bytes.
template <typename SharedHead>
struct RecordStream {
  const DecodeParams& p;
  const SharedHead* heads;
  const int* tile_prefix;
  uint32_t barriers, stages_address;  // shared addresses: a barrier and stage_bytes a stage
  int first, step, end;
  Segment fetch_segment;  // starts (at its tile) at position fetch_at
  int fetch_at, next_copy = 0;
  const uint8_t *address = nullptr, *next_address = nullptr;
  int bytes = -1, next_bytes = -1;  // -1: there is no such tile

  __device__ __forceinline__ RecordStream(const DecodeParams& params, const SharedHead* shared_heads,
                                          const int* prefix, uint32_t barrier, uint32_t stages, int begin,
                                          int first_position, int position_step, int range_end,
                                          const Segment& start, int first_page)
      : p(params),
        heads(shared_heads),
        tile_prefix(prefix),
        barriers(barrier),
        stages_address(stages),
        first(first_position),
        step(position_step),
        end(range_end),
        fetch_segment(start),
        fetch_at(begin) {
    Fetch(0, first_page, begin, address, bytes);
    // One stage now, the rest when the first tile is there: a deeper first burst would queue every warp's
    // first tile behind the others' second.
    Copy(0, 0);
    if (first + step * 32 < end) Fetch(32, 0, -1, next_address, next_bytes);
    next_copy = p.stages;
  }

  __device__ __forceinline__ void FillAfterFirst() {
    if constexpr (kSm90) {  // all at once
      const int lane = threadIdx.x & 31;
      if (lane > 0 && lane < p.stages) Copy(lane, lane);
    } else {
#pragma unroll 1
      for (int stage = 1; stage < p.stages; ++stage) Copy(stage, stage);
    }
  }

  /// Refills `stage`, which the warp has read.
  __device__ __forceinline__ void Refill(int stage) {
    if ((next_copy & 31) == 0) {
      address = next_address;
      bytes = next_bytes;
      next_bytes = -1;
      if (first + step * (next_copy + 32) < end) Fetch(next_copy + 32, 0, -1, next_address, next_bytes);
    }
    Copy(next_copy & 31, stage);
    ++next_copy;
  }

 private:
  /// known_page: of a tile in the segment that starts at position known_at
  __device__ __forceinline__ void Fetch(int k0, int known_page, int known_at, const uint8_t*& record,
                                        int& size) {
    const int x = first + step * (k0 + static_cast<int>(threadIdx.x & 31));
    size = -1;
    record = nullptr;
    if (x < end) {
      Segment s = fetch_segment;
      int at = fetch_at;
#pragma unroll 1
      while (x - at >= s.tiles - s.tile) {
        at += s.tiles - s.tile;
        s.Next(p, tile_prefix);
      }
      const HeadHeader& header = heads[p.KvHead(s.head)].header;
      const int page =
          at == known_at ? known_page : __ldg(p.block_table + s.sequence * p.max_pages + s.tile + (x - at));
      const bool coded = CodesOf(p, s.sequence).any();
      record = p.pool + (coded ? page : 0) * p.page_bytes + header.record_offset;
      size = coded ? header.record_bytes : 0;
    }
    const int next = first + step * (k0 + 32);
#pragma unroll 1
    while (next < end && next - fetch_at >= fetch_segment.tiles - fetch_segment.tile) {
      fetch_at += fetch_segment.tiles - fetch_segment.tile;
      fetch_segment.Next(p, tile_prefix);
    }
  }
  // The tile of lane `owner`, where it has one.
  __device__ __forceinline__ void Copy(int owner, int stage) {
    WarpCopyOf(owner, stages_address + stage * p.stage_bytes, address, bytes, barriers + 8 * stage,
               p.codes_once);
  }
};

}  // namespace blockgtq::cuda
