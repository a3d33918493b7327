// The newest token of every sequence of a batch as a layer's products leave it, for kernels that rotate and
// store it themselves: what the kernel that does nothing else (RopeStoreKernel, which elementwise_test
// compares with the host) makes of the same rows.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "src/core/rope.h"
#include "src/cuda/decode_params.h"
#include "src/cuda/elementwise_rope.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"
#include "tests/cuda/late_rows.h"

namespace blockgtq::cuda {

/// Exact tiles of a batch on the device, a sequence in an allocation of its own, and where its newest token
/// belongs.
struct ExactMemory {
  std::vector<DeviceArray<uint16_t>> tiles;  // [batch]
  DeviceArray<const uint8_t*> rows;
  DeviceArray<RowTarget> targets;

  ExactMemory() = default;
  ExactMemory(const std::vector<std::vector<uint16_t>>& host, const std::vector<int32_t>& lengths, int sinks,
              int window_tiles) {
    std::vector<const uint8_t*> starts;
    std::vector<RowTarget> newest(host.size());
    for (size_t b = 0; b < host.size(); ++b) {
      tiles.emplace_back(host[b]);
      newest[b].exact = reinterpret_cast<uint8_t*>(tiles[b].data());
      newest[b].position = lengths[b] - 1;
      newest[b].window_tile = newest[b].position / kTileTokens % window_tiles;
      newest[b].sink_slot = newest[b].position < sinks ? newest[b].position : -1;
      starts.push_back(newest[b].exact);
    }
    rows = DeviceArray<const uint8_t*>(starts);
    targets = DeviceArray<RowTarget>(newest);
  }
  void Upload(const std::vector<std::vector<uint16_t>>& host) {
    for (size_t b = 0; b < host.size(); ++b) tiles[b].Upload(host[b]);
  }
  std::vector<std::vector<uint16_t>> Download() const {
    std::vector<std::vector<uint16_t>> host;
    for (const DeviceArray<uint16_t>& t : tiles) host.push_back(t.Download());
    return host;
  }
};

class NewTokens {
 public:
  NewTokens(const RopeConfig& rope, size_t batch, int kv_heads, int query_heads, float query_size)
      : rope_(rope),
        kv_heads_(kv_heads),
        heads_(kv_heads * query_heads),
        q_(cpu::Normals(batch * heads_ * rope.head_dim, query_size, 5)),
        k_(cpu::Normals(batch * kv_heads * rope.head_dim, 1, 6)),
        v_(cpu::Normals(batch * kv_heads * rope.head_dim, 1, 8)),
        device_q_(q_),
        device_k_(k_),
        device_v_(v_),
        steps_(RopeSteps(rope)),
        error_(std::vector<int32_t>{std::numeric_limits<int32_t>::max()}) {}

  /// Rotated, in block order, fp16.
  struct Rotated {
    std::vector<uint16_t> q, k, v;
  };
  /// Stores the tokens in `exact`. p: of the layer's exact tiles
  Rotated RotateAndStore(const DecodeParams& p, const ExactMemory& exact) {
    DeviceArray<uint16_t> q(q_.size()), k(k_.size()), v(v_.size());
    RopeStoreCall call;
    call.rows = static_cast<int64_t>(exact.tiles.size());
    call.heads = heads_;
    call.kv_heads = kv_heads_;
    call.head_dim = rope_.head_dim;
    call.rotary_dims = rope_.rotary_dims;
    call.neox = rope_.pairing == RopePairing::kNeox;
    call.attention_factor = rope_.attention_factor;
    call.steps = steps_.data();
    call.q = device_q_.data(), call.k = device_k_.data(), call.v = device_v_.data();
    call.q_out = q.data(), call.k_out = k.data(), call.v_out = v.data();
    call.targets = exact.targets.data();
    call.window_offset = p.window_offset, call.sink_offset = p.sink_offset;
    call.window_tiles = p.window_tiles, call.sink_tile_tokens = p.sink_tile_tokens;
    call.error = error_.data();
    Require(LaunchRopeStore(call, false, nullptr), "rope");
    Require(cudaDeviceSynchronize(), "rope");
    return {q.Download(), k.Download(), v.Download()};
  }

  FusedRope Fused(const ExactMemory& exact) const {
    return {.enabled = true,
            .neox = rope_.pairing == RopePairing::kNeox,
            .rotary_dims = rope_.rotary_dims,
            .attention_factor = rope_.attention_factor,
            .steps = steps_.data(),
            .q = device_q_.data(),
            .k = device_k_.data(),
            .v = device_v_.data(),
            .targets = exact.targets.data(),
            .error = error_.data()};
  }

  /// Smallest position with a bad value since the last call; the largest int32 where there is none.
  int32_t TakeError() {
    const int32_t error = error_.Download()[0];
    error_.Upload({std::numeric_limits<int32_t>::max()});
    return error;
  }
  void AddTo(LateRows& late) const { late.Add(device_q_), late.Add(device_k_), late.Add(device_v_); }
  // Before RoPE; Upload brings what was changed to the device.
  std::vector<float>& q() { return q_; }
  std::vector<float>& k() { return k_; }
  std::vector<float>& v() { return v_; }
  void Upload() {
    device_q_.Upload(q_);
    device_k_.Upload(k_);
    device_v_.Upload(v_);
  }

 private:
  RopeConfig rope_;
  int kv_heads_, heads_;
  std::vector<float> q_, k_, v_;  // [batch, heads, head_dim]
  DeviceArray<float> device_q_, device_k_, device_v_;
  DeviceArray<uint64_t> steps_;
  DeviceArray<int32_t> error_;
};

}  // namespace blockgtq::cuda
