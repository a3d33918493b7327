// Rows that reach the device late, as the products ahead of decode attention write them while it starts: a
// kernel that reads them too early gets NaN.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

/// What LateRowsKernel copies: 4-byte words.
struct LateCopy {
  const uint32_t* from;
  uint32_t* to;
  int64_t words;
};

/// Lets the kernel behind it start, and copies `rows` (up to 3 arrays) some 100 microseconds later.
Status LaunchLateRows(const std::vector<LateCopy>& rows, cudaStream_t stream);

class LateRows {
 public:
  /// rows: on the device, as they shall be in the end; whole words; outlives this.
  template <typename T>
  void Add(const DeviceArray<T>& rows) {
    const std::vector<T> host = rows.Download();
    const size_t words = host.size() * sizeof(T) / sizeof(uint32_t);
    std::vector<uint32_t> bits(words);
    std::memcpy(bits.data(), host.data(), words * sizeof(uint32_t));
    kept_.emplace_back(bits);
    copies_.push_back(
        {kept_.back().data(), reinterpret_cast<uint32_t*>(rows.data()), static_cast<int64_t>(words)});
  }
  /// Fills the rows with NaN.
  void Spoil() const {
    for (const LateCopy& c : copies_) {
      Require(cudaMemset(c.to, 0xff, static_cast<size_t>(c.words) * sizeof(uint32_t)), "spoiling rows");
    }
  }
  void Launch(cudaStream_t stream) const { Require(LaunchLateRows(copies_, stream), "late rows"); }

 private:
  std::vector<DeviceArray<uint32_t>> kept_;
  std::vector<LateCopy> copies_;
};

}  // namespace blockgtq::cuda
