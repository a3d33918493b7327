// What the programs of tests/cuda share: counting checks and finding the device. They are plain programs,
// because machines with GPUs need not have GoogleTest. Exit status 77: there is no device.
#pragma once

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "src/cuda/decode_attention.h"

namespace blockgtq::cuda {

inline int g_checks = 0, g_failures = 0;
inline std::mutex g_checking;

/// From any thread.
inline void Check(bool ok, const std::string& what) {
  const std::lock_guard<std::mutex> lock(g_checking);
  ++g_checks;
  if (ok) return;
  constexpr int kShown = 50;
  if (++g_failures <= kShown) std::printf("FAILED: %s\n", what.c_str());
}

/// Calls run(limits, quick) and turns the checks into an exit status. Argument "quick": a few small cases,
/// for compute-sanitizer.
template <typename F>
int RunTests(int argc, char** argv, F run) {
  const Result<DeviceLimits> limits = ReadDeviceLimits(0);
  if (!limits.ok()) {
    std::printf("SKIPPED: %s\n", limits.status().message().c_str());
    return 77;
  }
  run(*limits, argc > 1 && std::strcmp(argv[1], "quick") == 0);
  std::printf("%d checks, %d failed\n", g_checks, g_failures);
  return g_failures > 0 || g_checks == 0 ? 1 : 0;
}

}  // namespace blockgtq::cuda
