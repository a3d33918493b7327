// Blocks are unique, refcounted, lowest id first, zero when handed out, and their memory goes back when
// freed.
#include "src/cache/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

namespace blockgtq {
namespace {

PagePool MakePool(std::vector<int64_t> page_bytes, int64_t blocks) {
  auto pool = PagePool::Create(HostMemory(), std::move(page_bytes), blocks, "pool");
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(*pool);
}

bool AllEqual(const std::byte* bytes, int64_t count, int value) {
  return bytes[0] == static_cast<std::byte>(value) &&
         std::memcmp(bytes, bytes + 1, static_cast<size_t>(count - 1)) == 0;
}

TEST(PagePool, HandsOutTheLowestFreeId) {
  PagePool pool = MakePool({64}, 5);
  for (int32_t expected = 0; expected < 4; ++expected) EXPECT_EQ(pool.Allocate(), expected);
  const int32_t returned[] = {2, 0};
  pool.Release(returned);
  EXPECT_EQ(pool.free_blocks(), 3);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_EQ(pool.Allocate(), 2);
  EXPECT_EQ(pool.Allocate(), 4);
  EXPECT_EQ(pool.free_blocks(), 0);
}

TEST(PagePool, KeepsABlockUntilItsLastReferenceGoes) {
  PagePool pool = MakePool({64}, 1);
  const int32_t block = pool.Allocate();
  pool.Retain(block);
  pool.Release({&block, 1});
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_EQ(pool.references(block), 1);
  pool.Release({&block, 1});
  EXPECT_EQ(pool.free_blocks(), 1);
}

// Page sizes below, beside and above the operating system's page, so that edges are shared in every way.
TEST(PagePool, RandomUseLeavesFreedBlocksZeroAndOthersUntouched) {
  constexpr int kBlocks = 40;
  PagePool pool = MakePool({16, 1040, 4096, 10240, 4112, 12288}, kBlocks);
  std::mt19937 random(7);
  std::set<int32_t> held;
  const auto check = [&](int32_t block, int value) {
    for (int layer = 0; layer < 6; ++layer) {
      ASSERT_TRUE(AllEqual(pool.Page(layer, block), pool.page_bytes(layer), value))
          << "layer " << layer << " block " << block;
    }
  };
  for (int step = 0; step < 600; ++step) {
    if (pool.free_blocks() > 0 && random() % 2 == 0) {
      const int32_t block = pool.Allocate();
      ASSERT_TRUE(held.insert(block).second);
      check(block, 0);
      for (int layer = 0; layer < 6; ++layer) {
        std::memset(pool.Page(layer, block), block + 1, pool.page_bytes(layer));
      }
    } else if (!held.empty()) {
      std::vector<int32_t> freed;
      for (const int32_t block : held) {
        if (random() % 4 == 0) freed.push_back(block);
      }
      std::shuffle(freed.begin(), freed.end(), random);
      pool.Release(freed);
      for (const int32_t block : freed) held.erase(block);
    }
    ASSERT_EQ(pool.free_blocks(), kBlocks - static_cast<int64_t>(held.size()));
    for (int32_t block = 0; block < kBlocks; ++block) check(block, held.contains(block) ? block + 1 : 0);
  }
}

// mincore tells which pages of the mapping are resident.
TEST(PagePool, FreeingEveryBlockReturnsAllItsMemory) {
  constexpr int64_t kBytes = 5136, kBlocks = 100;  // not a multiple of the system's page
  PagePool pool = MakePool({kBytes}, kBlocks);
  std::vector<int32_t> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back(pool.Allocate());
    std::memset(pool.Page(0, blocks.back()), 1, kBytes);
  }
  const int64_t os_page = sysconf(_SC_PAGESIZE);
  const auto resident = [&] {
    std::vector<unsigned char> map((kBytes * kBlocks + os_page - 1) / os_page);
    EXPECT_EQ(mincore(pool.Page(0, 0), kBytes * kBlocks, map.data()), 0);
    return std::count_if(map.begin(), map.end(), [](unsigned char page) { return page & 1; });
  };
  EXPECT_EQ(resident(), (kBytes * kBlocks + os_page - 1) / os_page);
  for (const int32_t block : blocks) pool.Release({&block, 1});  // one at a time: edges must go as well
  EXPECT_EQ(resident(), 0);
  EXPECT_TRUE(AllEqual(pool.Page(0, 0), kBytes * kBlocks, 0));
}

TEST(PagePool, PagesAreAlignedAndDistinct) {
  PagePool pool = MakePool({48, 8208}, 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.Page(0, 0)) % 4096, 0u);
  const std::byte* end = pool.Page(0, 0);
  for (int32_t block = 0; block < 3; ++block) {  // block after block, layer after layer, without gaps
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(pool.Page(layer, block), end);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.Page(layer, block)) % 16, 0u);
      end += pool.page_bytes(layer);
    }
  }
}

TEST(PagePool, RefusesSizesThatDoNotFit) {
  EXPECT_EQ(PagePool::Create(HostMemory(), {int64_t{1} << 62}, 4, "pool").status().code(),
            ErrorCode::kOutOfMemory);
  EXPECT_EQ(PagePool::Create(HostMemory(), {16}, int64_t{1} << 40, "pool").status().code(),
            ErrorCode::kOutOfMemory);
  const Status status = PagePool::Create(HostMemory(), {int64_t{1} << 40}, 1 << 20, "pool").status();
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(status.message().find("1152921504606846976 bytes"), std::string::npos) << status.message();
}

TEST(CheckedMultiply, ReportsOverflow) {
  EXPECT_EQ(CheckedMultiply(3, 5), 15);
  EXPECT_EQ(CheckedMultiply(0, INT64_MAX), 0);
  EXPECT_EQ(CheckedMultiply(INT64_MAX, 2), -1);
  EXPECT_EQ(CheckedMultiply(-1, 2), -1);
}

}  // namespace
}  // namespace blockgtq
