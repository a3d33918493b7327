// The constants of a model's cache on the device: what BuildHeadTable and BuildEncodeTable make of a plan.
#pragma once

#include <memory>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/cuda/decode_params.h"
#include "src/cuda/device_memory.h"
#include "src/cuda/encode.h"
#include "src/cuda/head_table.h"
#include "src/cuda/phase_table.h"
#include "src/cuda/unpack.h"

namespace blockgtq::cuda {

Result<DeviceBuffer> UploadBytes(const void* data, int64_t bytes, const std::string& what);
/// Copies a vector to the device. Errors: kOutOfMemory.
template <typename T>
Result<DeviceBuffer> ToDevice(const std::vector<T>& values, const std::string& what) {
  return UploadBytes(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), what);
}

/// One layer's constants of decode attention.
class LayerConstants {
 public:
  static Result<LayerConstants> Upload(const HeadTable& table);
  void Bind(DecodeParams& params) const;

 private:
  DeviceBuffer heads_, query_transform_, value_fragments_, mean_constants_;
};

/// The phases of key means (phase_table.h), of all layers of a RoPE: 16 bytes a token for head dim 128.
class PhaseTable {
 public:
  /// Of positions [0, tokens). Filled on `stream`. Errors: kOutOfMemory.
  static Result<PhaseTable> Create(const RopeConfig& rope, int64_t tokens, CUstream_st* stream);
  void Bind(DecodeParams& params) const { params.phases = phases_.As<uint16_t>(); }

 private:
  DeviceBuffer steps_, phases_;
};

/// The constants of encoding and unpacking, of every layer.
class CodecConstants {
 public:
  /// cache: packed; must outlive this. Errors: those of BuildEncodeTable; kOutOfMemory.
  static Result<CodecConstants> Upload(const KvCache& cache, const LayerRopes& ropes);
  /// What follows from the cache and the plan; the caller sets jobs, layers, source and error.
  EncodeParams Encode() const;
  /// The same; the caller sets tokens, block table, exact tiles and target.
  UnpackParams Unpack(int layer) const;

 private:
  const KvCache* cache_ = nullptr;
  int key_units_ = 0;
  std::vector<int> rope_of_layer_;
  DeviceBuffer heads_, key_transform_, value_transform_, key_mean_, slot_rotation_, steps_, window_offset_;
  DeviceBuffer key_fragments_, value_fragments_, scale_;
};

/// Byte offset of layer `layer`'s window (sinks) in a sequence's exact tiles (KvCache::exact_base).
int64_t WindowOffset(const KvCache& cache, int layer);
int64_t SinkOffset(const KvCache& cache, int layer);

}  // namespace blockgtq::cuda
