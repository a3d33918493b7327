// How much memory this machine, or the container that the process runs in, has and could still give.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace blockgtq {

struct MachineMemory {
  int64_t total = 0;  // bytes, swap included
  int64_t free = 0;   // of them, what could be taken without another's loss: caches of files count as free
};

/// Read anew on every call: /proc/meminfo, and the limits of cgroups v2 above the process. root: before those
/// paths, for tests. None where the system does not say.
std::optional<MachineMemory> ReadMachineMemory(const std::string& root = "");

}  // namespace blockgtq
