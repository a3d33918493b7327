// See machine_memory.h.
#include "src/core/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <map>

namespace blockgtq {
namespace {

/// "name: number unit" or "name number", a line each; lines of other forms end the reading.
std::map<std::string, int64_t> ReadTable(const std::string& path) {
  std::map<std::string, int64_t> table;
  std::ifstream file(path);
  std::string name, rest;
  int64_t value = 0;
  while (file >> name >> value && std::getline(file, rest)) {
    if (name.back() == ':') name.pop_back();
    table[name] = value;
  }
  return table;
}

/// The file's number; none where there is no such file, or it says "max".
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

/// Where the process is in the tree of cgroups v2: "/a/b"; "/" where the system does not say.
std::string CgroupOfProcess(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

/// A group has no more than any group above it.
void ApplyLimits(const std::string& root, MachineMemory& memory) {
  std::string group = CgroupOfProcess(root);
  for (;;) {
    const std::string folder = root + "/sys/fs/cgroup" + group;
    const std::optional<int64_t> limit = ReadNumber(folder + "/memory.max"),
                                 used = ReadNumber(folder + "/memory.current");
    if (limit.has_value() && used.has_value()) {
      std::map<std::string, int64_t> stat = ReadTable(folder + "/memory.stat");
      const int64_t files = stat["inactive_file"] + stat["active_file"];
      memory.total = std::min(memory.total, *limit);
      memory.free = std::min(memory.free, std::max<int64_t>(0, *limit - *used + files));
    }
    if (group.empty() || group == "/") return;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

std::optional<MachineMemory> ReadMachineMemory(const std::string& root) {
  constexpr int64_t kKiB = 1024;
  std::map<std::string, int64_t> info = ReadTable(root + "/proc/meminfo");
  if (!info.contains("MemTotal") || !info.contains("MemAvailable")) return std::nullopt;
  MachineMemory memory;
  memory.total = (info["MemTotal"] + info["SwapTotal"]) * kKiB;
  memory.free = (info["MemAvailable"] + info["SwapFree"]) * kKiB;
  ApplyLimits(root, memory);
  return memory;
}

}  // namespace blockgtq
