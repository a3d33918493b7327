// Memory of machines whose files are written here.
#include "src/core/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace blockgtq {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class MachineMemoryFiles : public testing::Test {
 protected:
  MachineMemoryFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "blockgtq_machine_XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~MachineMemoryFiles() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  /// 1000 MiB, 600 of them free, and 100 of swap, 50 of them free.
  void WriteMachine() const {
    Write("/proc/meminfo",
          "MemTotal:        1024000 kB\nMemFree:          100 kB\nMemAvailable:     614400 kB\n"
          "Active(anon):      4 kB\nSwapTotal:        102400 kB\nSwapFree:         51200 "
          "kB\nHugePages_Total: 0\n");
  }
  std::string root_;
};

TEST_F(MachineMemoryFiles, AMachinesIsWhatIsAvailableAndItsSwap) {
  WriteMachine();
  const auto memory = ReadMachineMemory(root_);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->total, 1100 * kMiB);
  EXPECT_EQ(memory->free, 650 * kMiB);
}

TEST_F(MachineMemoryFiles, AGroupHasNoMoreThanThoseAboveIt) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/work/job\n");
  Write("/sys/fs/cgroup/work/job/memory.max", "max\n");
  Write("/sys/fs/cgroup/work/job/memory.current", "1048576\n");
  EXPECT_EQ(ReadMachineMemory(root_)->free, 650 * kMiB);
  Write("/sys/fs/cgroup/work/memory.max", std::to_string(400 * kMiB));
  Write("/sys/fs/cgroup/work/memory.current", std::to_string(350 * kMiB));
  Write("/sys/fs/cgroup/work/memory.stat", "anon 5\nfile 7\ninactive_file " + std::to_string(20 * kMiB) +
                                               "\nactive_file " + std::to_string(10 * kMiB) + "\n");
  EXPECT_EQ(ReadMachineMemory(root_)->total, 400 * kMiB);
  EXPECT_EQ(ReadMachineMemory(root_)->free, 80 * kMiB);  // files' caches go when memory is wanted
  Write("/sys/fs/cgroup/work/job/memory.max", std::to_string(21 * kMiB));
  EXPECT_EQ(ReadMachineMemory(root_)->free, 20 * kMiB);
}

TEST_F(MachineMemoryFiles, AContainersLimitIsAtTheRootItSees) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", std::to_string(64 * kMiB));
  Write("/sys/fs/cgroup/memory.current", std::to_string(80 * kMiB));  // more than there may be, for a moment
  EXPECT_EQ(ReadMachineMemory(root_)->free, 0);
}

TEST_F(MachineMemoryFiles, NoneWhereTheSystemDoesNotSay) {
  EXPECT_FALSE(ReadMachineMemory(root_).has_value());
}

TEST(MachineMemory, OfThisMachineIsWithinBounds) {
  const auto memory = ReadMachineMemory();
  if (!memory.has_value()) GTEST_SKIP() << "no /proc/meminfo here";
  EXPECT_GT(memory->total, 0);
  EXPECT_GE(memory->free, 0);
  EXPECT_LE(memory->free, memory->total);
}

}  // namespace
}  // namespace blockgtq
