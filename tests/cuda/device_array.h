// Device memory for tests and benchmarks: an array that frees itself, and a check that stops the program.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "blockgtq/status.h"
#include "src/cuda/head_table.h"
#include "src/cuda/phase_table.h"

namespace blockgtq::cuda {

inline void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FATAL %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
inline void Require(const Status& status, const char* what) {
  if (status.ok()) return;
  std::printf("FATAL %s: %s\n", what, status.message().c_str());
  std::exit(1);
}
template <typename T>
T Require(Result<T> result, const char* what) {
  Require(result.status(), what);
  return std::move(*result);
}

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t size) : size_(size) {
    if (size > 0) Require(cudaMalloc(&data_, size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { Upload(host); }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  void Upload(const std::vector<T>& host) {
    if (!host.empty()) {
      Require(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    }
  }
  void Fill(int byte) {
    if (size_ > 0) Require(cudaMemset(data_, byte, size_ * sizeof(T)), "fill");
  }
  std::vector<T> Download() const { return Download(0, size_); }
  std::vector<T> Download(size_t first, size_t count) const {
    std::vector<T> host(count);
    if (count > 0) {
      Require(cudaMemcpy(host.data(), data_ + first, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
    }
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

/// A layer's constants on the device.
struct DeviceTable {
  explicit DeviceTable(const HeadTable& t)
      : heads(t.heads),
        query_transform(t.query_transform),
        value_fragments(t.value_fragments),
        mean_constants(t.mean_constants) {}
  void Bind(DecodeParams& params) const {
    params.heads = heads.data();
    params.query_transform = query_transform.data();
    params.value_fragments = value_fragments.data();
    params.mean_constants = mean_constants.data();
  }
  DeviceArray<DeviceHead> heads;
  DeviceArray<uint16_t> query_transform, value_fragments;
  DeviceArray<uint8_t> mean_constants;
};

/// The phases of key means for positions [first_position, first_position + tokens), the first a multiple
/// of 64.
struct DevicePhases {
  DevicePhases(const RopeConfig& rope, int64_t first_position, int64_t tokens)
      : phases((tokens + kTileTokens - 1) / kTileTokens * PhaseBytes(rope.head_dim) / sizeof(uint16_t)) {
    const DeviceArray<uint64_t> steps(HalfTokenSteps(rope));
    phases.Fill(0xff);
    Require(LaunchPhaseTable(steps.data(), rope.head_dim, first_position / kTileTokens,
                             (tokens + kTileTokens - 1) / kTileTokens, phases.data(), nullptr),
            "phases");
    Require(cudaDeviceSynchronize(), "phases");
  }
  DeviceArray<uint16_t> phases;
};

}  // namespace blockgtq::cuda
