// The record format, pinned: bytes made by tests/data/codec/make_golden.py, an independent implementation.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "src/codec/reference_codec.h"

namespace blockgtq {
namespace {

std::vector<char> ReadFile(const std::string& name) {
  std::ifstream file(std::string(BGTQ_TEST_DATA) + "/codec/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// make_golden.py's Samples.
class Samples {
 public:
  explicit Samples(uint64_t seed) : state_(seed) {}
  std::vector<float> Take(int n) {
    std::vector<float> out(n);
    for (float& v : out) {
      int64_t total = 0;
      for (int i = 0; i < 4; ++i) {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        total += static_cast<int64_t>(state_ >> 48);
      }
      v = static_cast<float>(total - 2 * 65536) / 65536.0f;
    }
    return out;
  }

 private:
  uint64_t state_;
};

HeadPlan GoldenPlan() {
  const std::vector<char> bytes = ReadFile("golden_plan.bin");
  std::vector<float> flat(bytes.size() / sizeof(float));
  std::memcpy(flat.data(), bytes.data(), flat.size() * sizeof(float));
  HeadPlan plan;
  plan.head_dim = 64;
  plan.groups = {{4, 4, 0, 1, 16, 5.0f}, {3, 3, 1, 2, 32, 7.0f}, {2, 2, 3, 1, 16, 4.0f}};
  plan.value = {5, 5, 0, 4, 64, 9.0f};
  plan.mean_units = {0, 2};
  if (flat.size() != 3 * 4096 + 64) return plan;
  plan.key_transform.assign(flat.begin(), flat.begin() + 4096);
  plan.query_transform.assign(flat.begin() + 4096, flat.begin() + 8192);
  plan.key_mean.assign(flat.begin() + 8192, flat.begin() + 8256);
  plan.value_transform.assign(flat.begin() + 8256, flat.end());
  return plan;
}

TEST(Golden, RecordBytesAreThoseOfTheIndependentEncoder) {
  const std::vector<char> expected = ReadFile("golden_record.bin");
  const HeadPlan plan = GoldenPlan();
  ASSERT_EQ(plan.value_transform.size(), 4096u) << "golden_plan.bin is missing or cut";
  const RecordLayout layout = RecordLayout::For(plan);
  ASSERT_EQ(expected.size(), static_cast<size_t>(layout.bytes));
  const RopeTable rope({.head_dim = 64, .rotary_dims = 64, .pairing = RopePairing::kNeox});
  Samples samples(2029);
  const std::vector<float> keys = samples.Take(64 * 64), values = samples.Take(64 * 64);
  std::vector<std::byte> record(layout.bytes);
  ASSERT_TRUE(reference::EncodeKeys(plan, layout, rope, keys, 320, record).ok());
  ASSERT_TRUE(reference::EncodeValues(plan, layout, values, 320, record).ok());
  for (int i = 0; i < layout.bytes; ++i) {
    ASSERT_EQ(std::to_integer<int>(record[i]), static_cast<unsigned char>(expected[i])) << "byte " << i;
  }
}

TEST(Golden, LayoutIsPinned) {
  const RecordLayout layout = RecordLayout::For(GoldenPlan());
  EXPECT_EQ(layout.key_unit, (std::vector<int>{0, 512, 896, 1280}));
  EXPECT_EQ(layout.key_norm, (std::vector<int>{1536, 1600, 1664}));
  EXPECT_EQ(layout.value_unit, (std::vector<int>{1728, 2368, 3008, 3648}));
  EXPECT_EQ(layout.value_norm, 4288);
  EXPECT_EQ(layout.bytes, 4352);
}

}  // namespace
}  // namespace blockgtq
