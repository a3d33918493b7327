// The results file of a GPU benchmark: what ran where, and a row of JSON a measurement.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

/// "NVIDIA H200, 132 SMs"
inline std::string MachineName() {
  cudaDeviceProp device;
  Require(cudaGetDeviceProperties(&device, 0), "device");
  return std::string(device.name) + ", " + std::to_string(device.multiProcessorCount) + " SMs";
}

/// head: the file's other fields, lines that end in commas. Errors: kIo naming the file.
inline Status WriteResults(const std::string& path, const std::string& head,
                           const std::vector<std::string>& rows) {
  const Status failed(ErrorCode::kIo, "cannot write " + path);
  FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return failed;
  bool written = std::fprintf(file, "{\n%s \"rows\": [\n", head.c_str()) > 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    written &= std::fprintf(file, "  %s%s\n", rows[i].c_str(), i + 1 < rows.size() ? "," : "") > 0;
  }
  written &= std::fprintf(file, " ]\n}\n") > 0;
  return (std::fclose(file) == 0 && written) ? Status::Ok() : failed;
}

}  // namespace blockgtq::cuda
