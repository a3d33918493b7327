// A cache whose bytes are not the host's: it never touches them itself, and sessions are the same files.
#include "src/cache/cache_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "src/cache/session.h"
#include "tests/cache/cache_model.h"

namespace blockgtq {
namespace {

/// Addresses that fault when touched; the bytes are elsewhere.
class FaultingMemory : public CacheMemory {
 public:
  Result<std::byte*> Allocate(int64_t bytes, const std::string&) override {
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(data, MAP_FAILED);
    bytes_[static_cast<std::byte*>(data)].resize(static_cast<size_t>(bytes));
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t bytes) override {
    bytes_.erase(data);
    munmap(data, static_cast<size_t>(bytes));
  }
  int64_t granularity() const override { return 1; }
  void Clear(std::byte* data, int64_t bytes) override { std::fill_n(At(data, bytes), bytes, std::byte{0}); }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::copy_n(At(from, bytes), bytes, At(to, bytes));
    return Status::Ok();
  }
  Status Read(std::byte* host, const std::byte* from, int64_t bytes) override {
    std::copy_n(At(from, bytes), bytes, host);
    return Status::Ok();
  }
  Status Write(std::byte* to, const std::byte* host, int64_t bytes) override {
    if (fail_writes) return Status(ErrorCode::kIo, "the device is gone");
    std::copy_n(host, bytes, At(to, bytes));
    return Status::Ok();
  }
  bool keys_by_token() const override { return true; }

  std::byte* At(const std::byte* data, int64_t bytes) {
    auto region = --bytes_.upper_bound(const_cast<std::byte*>(data));
    const int64_t offset = data - region->first;
    EXPECT_LE(offset + bytes, static_cast<int64_t>(region->second.size()));
    return region->second.data() + offset;
  }
  size_t allocations() const { return bytes_.size(); }
  bool fail_writes = false;

 private:
  std::map<std::byte*, std::vector<std::byte>> bytes_;
};

constexpr CacheGeometry kGeometry{2, 2, 32};
constexpr int64_t kLength = 300;

class OtherMemory : public testing::TestWithParam<CacheKind> {
 protected:
  OtherMemory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "blockgtq_memory_XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    host_.Append(host_.Add(), host_tokens_);
    EXPECT_TRUE(SaveSession(*host_.cache, 0, ids_, File("host")).ok());
  }
  ~OtherMemory() override { std::filesystem::remove_all(folder_); }

  CacheOptions Options() const {
    const bool packed = GetParam() == CacheKind::kPacked;
    return {GetParam(), packed ? 4 : 0, packed ? 64 : 0, 1024, "model-a"};
  }
  std::unique_ptr<KvCache> Other() {
    CacheOptions options = Options();
    options.memory = &memory_;
    auto cache = KvCache::Create(kGeometry, options, &plan_);
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    return std::move(*cache);
  }
  std::string File(const std::string& name) const { return folder_ / name; }
  static std::vector<uint32_t> Numbered(int64_t count) {
    std::vector<uint32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<uint32_t>(i + 5));
    return tokens;
  }
  std::string Bytes(const std::string& name) const {
    std::ifstream in(File(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  Plan plan_ = TestPlan(2, 2);
  FaultingMemory memory_;
  CacheModel host_{kGeometry, Options(), &plan_};
  std::vector<uint32_t> host_tokens_ = Numbered(kLength);
  std::vector<int32_t> ids_{host_tokens_.begin(), host_tokens_.end()};
  std::filesystem::path folder_;
};

TEST_P(OtherMemory, SessionsMoveBetweenMemories) {
  std::unique_ptr<KvCache> cache = Other();
  const auto loaded = LoadSession(*cache, File("host"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_TRUE(SaveSession(*cache, loaded->sequence, loaded->tokens, File("other")).ok());
  EXPECT_EQ(Bytes("host"), Bytes("other"));
}

TEST_P(OtherMemory, ForksAndTruncationsKeepTheirBytes) {
  std::unique_ptr<KvCache> cache = Other();
  const auto loaded = LoadSession(*cache, File("host"));
  ASSERT_TRUE(loaded.ok());
  const auto fork = cache->ForkSequence(loaded->sequence, kLength);
  ASSERT_TRUE(fork.ok()) << fork.status().message();
  ASSERT_TRUE(cache->Truncate(loaded->sequence, 100).ok());
  ASSERT_TRUE(cache->Reserve(loaded->sequence, 10).ok());  // copies shared pages that would be written
  ASSERT_TRUE(SaveSession(*cache, *fork, loaded->tokens, File("fork")).ok());
  EXPECT_EQ(Bytes("host"), Bytes("fork"));

  ASSERT_TRUE(host_.cache->Truncate(0, 100).ok());
  ids_.resize(100);
  ASSERT_TRUE(SaveSession(*host_.cache, 0, ids_, File("host100")).ok());
  ASSERT_TRUE(SaveSession(*cache, loaded->sequence, ids_, File("other100")).ok());
  EXPECT_EQ(Bytes("host100"), Bytes("other100"));
}

TEST_P(OtherMemory, PagesHoldRecordsAsTheyAreAndKeysTokenByToken) {
  std::unique_ptr<KvCache> cache = Other();
  ASSERT_TRUE(LoadSession(*cache, File("host")).ok());
  const bool packed = GetParam() == CacheKind::kPacked;
  const size_t element = GetParam() == CacheKind::kFloat ? 4 : 2;
  const size_t bytes = packed ? RecordLayout::For(plan_.head(1, 1)).bytes : 2 * 64 * 32 * element;
  const std::byte* theirs = memory_.At(cache->PageHead(0, 1, 1, 2), static_cast<int64_t>(bytes));
  const std::byte* ours = host_.cache->PageHead(0, 1, 1, 2);
  if (packed) {
    EXPECT_EQ(std::memcmp(theirs, ours, bytes), 0);
    return;
  }
  for (size_t token = 0; token < 64; ++token) {
    for (size_t dim = 0; dim < 32; ++dim) {
      ASSERT_EQ(
          std::memcmp(theirs + (token * 32 + dim) * element, ours + (dim * 64 + token) * element, element), 0)
          << token << " " << dim;
    }
  }
  EXPECT_EQ(std::memcmp(theirs + bytes / 2, ours + bytes / 2, bytes / 2), 0) << "values";
}

TEST_P(OtherMemory, AFailedWriteLeavesNoSequenceBehind) {
  std::unique_ptr<KvCache> cache = Other();
  const int64_t free = cache->free_tokens();
  const size_t allocations = memory_.allocations();
  memory_.fail_writes = true;
  const auto loaded = LoadSession(*cache, File("host"));
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().message().find("the device is gone"), std::string::npos);
  EXPECT_EQ(cache->free_tokens(), free);
  EXPECT_EQ(memory_.allocations(), allocations);
}

INSTANTIATE_TEST_SUITE_P(Kinds, OtherMemory,
                         testing::Values(CacheKind::kPacked, CacheKind::kHalf, CacheKind::kFloat),
                         [](const auto& info) {
                           return info.param == CacheKind::kPacked ? "Packed"
                                  : info.param == CacheKind::kHalf ? "Half"
                                                                   : "Float";
                         });

}  // namespace
}  // namespace blockgtq
