// GGUF reading: a file by gguf-py, files wrong in one field each, and systematic damage.
#include "src/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "tests/formats/files.h"
#include "tests/formats/gguf_bytes.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTiny[] = BGTQ_TEST_DATA "/formats/tiny.gguf";

Status Try(std::span<const std::byte> bytes, const std::string& name) {
  return GgufFile::Parse(bytes, name).status();
}
Status TryBuilt(const GgufBytes& builder) { return Try(builder.bytes(), "f.gguf"); }

void ExpectError(const GgufBytes& builder, ErrorCode code, const std::string& part) {
  const Status status = TryBuilt(builder);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(part));
  ExpectOneLine(status, "f.gguf");
}

// A valid file of one F32 tensor [3, 8] and one key.
GgufBytes Valid() {
  return GgufBytes().Header(1, 1).Key("k", 4).Put<uint32_t>(5).Tensor("t", {8, 3}, 0, 0).Data(96);
}

TEST(Gguf, ReadsEveryValueKindThatGgufPyWrites) {
  const auto opened = GgufFile::Open(kTiny);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const GgufFile& file = **opened;
  EXPECT_EQ(file.version(), 3);
  EXPECT_EQ(*file.GetString("general.architecture"), "llama");
  EXPECT_EQ(*file.GetInt("t.u8"), 200);
  EXPECT_EQ(*file.GetInt("t.i8"), -100);
  EXPECT_EQ(*file.GetInt("t.u16"), 60000);
  EXPECT_EQ(*file.GetInt("t.i16"), -30000);
  EXPECT_EQ(*file.GetInt("t.u32"), 4000000000);
  EXPECT_EQ(*file.GetInt("t.i32"), -2000000000);
  EXPECT_EQ(*file.GetInt("t.u64"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*file.GetInt("t.i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*file.GetFloat("t.f32"), static_cast<double>(0.1f));
  EXPECT_EQ(*file.GetFloat("t.f64"), 0.1);
  EXPECT_EQ(*file.GetFloat("t.u8"), 200.0);
  EXPECT_EQ(*file.GetBoolOr("t.true", false), true);
  EXPECT_EQ(*file.GetBoolOr("t.false", true), false);
  EXPECT_EQ(*file.GetString("t.text"), "na\u00efve \u2713");
  EXPECT_THAT(*file.GetStrings("t.strings"), ElementsAre("a", "", "\u2581the"));
  EXPECT_THAT(*file.GetInts("t.ints"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*file.GetFloats("t.floats"), ElementsAre(0.5, -1.25));
  EXPECT_THAT(*file.GetInts("t.bools"), ElementsAre(1, 0, 1));
}

TEST(Gguf, ReadsTensorsThatGgufPyWrites) {
  const auto opened = GgufFile::Open(kTiny);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const GgufFile& file = **opened;
  ASSERT_EQ(file.tensors().size(), 3u);
  const GgufTensor* f32 = file.FindTensor("a.f32");
  ASSERT_NE(f32, nullptr);
  EXPECT_THAT(f32->shape, ElementsAre(4, 3, 2));
  EXPECT_EQ(f32->view.rows, 6);
  EXPECT_EQ(f32->view.cols, 4);
  EXPECT_EQ(f32->bytes, 96);
  std::vector<float> row(32);
  for (int r = 0; r < 6; ++r) {
    DequantizeRow(f32->view, r, row.data());
    for (int c = 0; c < 4; ++c) EXPECT_EQ(row[c], static_cast<float>(r * 4 + c) / 8);
  }
  const GgufTensor* f16 = file.FindTensor("b.f16");
  ASSERT_NE(f16, nullptr);
  DequantizeRow(f16->view, 1, row.data());
  EXPECT_EQ(row[0], 65504.0f);
  EXPECT_EQ(row[1], std::ldexp(1.0f, -24));
  const GgufTensor* q8 = file.FindTensor("c.q8_0");
  ASSERT_NE(q8, nullptr);
  EXPECT_EQ(q8->view.type, TensorType::kQ8_0);
  EXPECT_EQ(q8->bytes, 68);
  DequantizeRow(q8->view, 1, row.data());
  for (int c = 0; c < 32; ++c) EXPECT_NEAR(row[c], (32 + c - 31) / 4.0f, 8.0f / 127 / 2 + 0.01f);
  EXPECT_EQ(file.FindTensor("absent"), nullptr);
}

TEST(Gguf, TypedAccessNamesTheKeyAndWhatItHolds) {
  const auto opened = GgufFile::Open(kTiny);
  ASSERT_TRUE(opened.ok());
  const GgufFile& file = **opened;
  EXPECT_EQ(file.GetInt("t.text").status().code(), ErrorCode::kCorruptFile);
  EXPECT_THAT(file.GetInt("t.text").status().message(),
              HasSubstr("'t.text' is a string; an integer is needed"));
  EXPECT_THAT(file.GetInt("none").status().message(), HasSubstr("'none' is missing"));
  EXPECT_THAT(file.GetFloats("t.ints").status().message(), HasSubstr("is an array of integers"));
  EXPECT_THAT(file.GetStrings("t.u8").status().message(), HasSubstr("is an integer"));
  EXPECT_EQ(*file.GetIntOr("none", 7), 7);
  EXPECT_EQ(*file.GetFloatOr("none", 0.5), 0.5);
  EXPECT_EQ(*file.GetStringOr("none", "x"), "x");
  EXPECT_EQ(*file.GetBoolOr("none", true), true);
  EXPECT_FALSE(file.GetBoolOr("t.u8", true).ok()) << "present but of another kind is an error, not absent";
  EXPECT_FALSE(file.GetIntOr("t.f32", 1).ok());
}

TEST(Gguf, OpenNamesWhatIsWrongWithThePath) {
  EXPECT_EQ(GgufFile::Open("/no/such/model.gguf").status().code(), ErrorCode::kNotFound);
  TemporaryFolder folder;
  EXPECT_EQ(GgufFile::Open(folder.File("")).status().code(), ErrorCode::kInvalidArgument);
  WriteBytes(folder.File("empty.gguf"), {});
  EXPECT_EQ(GgufFile::Open(folder.File("empty.gguf")).status().code(), ErrorCode::kCorruptFile);
}

TEST(Gguf, HeaderErrors) {
  ASSERT_TRUE(TryBuilt(Valid()).ok()) << TryBuilt(Valid()).message();
  EXPECT_TRUE(TryBuilt(GgufBytes().Header(0, 0)).ok());
  EXPECT_TRUE(TryBuilt(GgufBytes().Header(0, 0, 2)).ok());
  ExpectError(GgufBytes().Raw("GGML").Put<uint32_t>(3), ErrorCode::kCorruptFile, "not a GGUF file");
  ExpectError(GgufBytes().Raw("\n\x01\x7f\xff"), ErrorCode::kCorruptFile, "\\x0a\\x01\\x7f\\xff");
  ExpectError(GgufBytes().Header(0, 0, 1), ErrorCode::kUnsupported, "version 1");
  ExpectError(GgufBytes().Header(0, 0, 4), ErrorCode::kUnsupported, "version 4");
  ExpectError(GgufBytes().Header(0, 0, 0x03000000), ErrorCode::kUnsupported, "big-endian");
  ExpectError(GgufBytes().Header(~uint64_t{0}, 0), ErrorCode::kCorruptFile, "tensors do not fit");
  ExpectError(GgufBytes().Header(0, uint64_t{1} << 60), ErrorCode::kCorruptFile, "keys do not fit");
}

TEST(Gguf, MetadataErrors) {
  const auto one = [] { return GgufBytes().Header(0, 1); };
  ExpectError(one().Put(~uint64_t{0}).Raw("padding padding"), ErrorCode::kCorruptFile, "truncated");
  ExpectError(one().Key("", 0).Put<uint64_t>(0), ErrorCode::kCorruptFile, "0 bytes; 1 to 65,535");
  ExpectError(one().Key("k", 13).Put<uint64_t>(0), ErrorCode::kCorruptFile, "kind 13");
  ExpectError(one().Key("k", 7).Put<uint8_t>(2), ErrorCode::kCorruptFile, "bool");
  ExpectError(one().Key("k", 10).Put(~uint64_t{0}), ErrorCode::kCorruptFile, "2^63 - 1");
  ExpectError(one().Key("k", 8).Put<uint64_t>(100).Raw("short"), ErrorCode::kCorruptFile, "truncated");
  ExpectError(one().Key("k", 9).Put<uint32_t>(9).Put<uint64_t>(1), ErrorCode::kUnsupported,
              "array of arrays");
  ExpectError(one().Key("k", 9).Put<uint32_t>(77).Put<uint64_t>(1), ErrorCode::kCorruptFile, "kind 77");
  for (const uint32_t kind : {0u, 3u, 6u, 8u, 10u, 12u}) {
    ExpectError(one().Key("k", 9).Put(kind).Put(~uint64_t{0}), ErrorCode::kCorruptFile, "do not fit");
  }
  ExpectError(GgufBytes().Header(0, 2).Key("k\n", 0).Put<uint8_t>(1).Key("k\n", 0).Put<uint8_t>(2),
              ErrorCode::kCorruptFile, "'k\\x0a': occurs twice");
}

TEST(Gguf, HugeArraysAreRefusedBeforeTheyAreAllocated) {
  GgufBytes file;
  file.Header(0, 1).Key("k", 9).Put<uint32_t>(0).Put<uint64_t>((1 << 24) + 1);
  file.Data((1 << 24) + 64);
  ExpectError(file, ErrorCode::kUnsupported, "16,777,216 elements");
}

TEST(Gguf, TensorDirectoryErrors) {
  const auto one = [](std::vector<uint64_t> shape, uint32_t type, uint64_t offset, size_t data) {
    return GgufBytes().Header(1, 0).Tensor("t", shape, type, offset).Data(data);
  };
  ASSERT_TRUE(TryBuilt(one({8, 3}, 0, 0, 96)).ok());
  ExpectError(one({}, 0, 0, 96), ErrorCode::kCorruptFile, "0 dimensions");
  ExpectError(one({1, 1, 1, 1, 1}, 0, 0, 96), ErrorCode::kCorruptFile, "5 dimensions");
  ExpectError(one({8, 0}, 0, 0, 96), ErrorCode::kCorruptFile, "dimension 2 of size 0");
  ExpectError(one({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0, 96), ErrorCode::kCorruptFile, "impossible");
  ExpectError(one({uint64_t{1} << 60}, 0, 0, 96), ErrorCode::kCorruptFile, "impossible");
  ExpectError(one({~uint64_t{0}}, 0, 0, 96), ErrorCode::kCorruptFile, "impossible");
  ExpectError(one({8, 3}, 11, 0, 96), ErrorCode::kUnsupported,
              "type 11 (Q3_K); this build reads F32, F16, Q4_0");
  ExpectError(one({8, 3}, 4000, 0, 96), ErrorCode::kUnsupported, "type 4000 (unknown)");
  ExpectError(one({33, 3}, 8, 0, 1000), ErrorCode::kCorruptFile, "not whole blocks of 32 (Q8_0)");
  ExpectError(one({8, 3}, 0, 16, 200), ErrorCode::kCorruptFile, "not a multiple of the alignment 32");
  ExpectError(one({8, 3}, 0, 32, 96), ErrorCode::kCorruptFile,
              "tensor t: 32 bytes past the end of the file; the file is truncated, download it again");
  ExpectError(one({8, 300}, 0, 0, 96), ErrorCode::kCorruptFile, "9,504 bytes past the end");
  ExpectError(one({8, 3}, 0, uint64_t{1} << 60, 96), ErrorCode::kCorruptFile, "past the end");
  ExpectError(one({8, 3}, 0, ~uint64_t{0} - 31, 96), ErrorCode::kCorruptFile, "impossible");
  const auto two = [](const char* second, uint64_t offset) {
    return GgufBytes().Header(2, 0).Tensor("a", {8, 3}, 0, 0).Tensor(second, {8, 3}, 0, offset).Data(192);
  };
  ASSERT_TRUE(TryBuilt(two("b", 96)).ok());
  ExpectError(two("a", 96), ErrorCode::kCorruptFile, "tensor a: occurs twice");
  ExpectError(two("b", 64), ErrorCode::kCorruptFile, "tensor b: overlaps tensor a");
}

TEST(Gguf, AlignmentIsHonouredAndChecked) {
  const auto with = [](uint32_t alignment, uint64_t offset) {
    return GgufBytes()
        .Header(1, 1)
        .Key("general.alignment", 4)
        .Put(alignment)
        .Tensor("t", {4}, 0, offset)
        .Data(offset + 16, alignment == 128 ? 128 : 32);
  };
  const GgufBytes aligned = with(128, 128);
  const auto file = GgufFile::Parse(aligned.bytes(), "f.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tensors()[0].file_offset, 256);
  EXPECT_TRUE(TryBuilt(with(8, 8)).ok());
  ExpectError(with(128, 64), ErrorCode::kCorruptFile, "alignment 128");
  for (const uint32_t bad : {0u, 4u, 24u, 33u, 1u << 21, 1u << 31}) {
    ExpectError(with(bad, 0), ErrorCode::kCorruptFile, "not a power of two");
  }
}

TEST(Gguf, ManyKeysAndTensorsWithOneRepeatedAtTheEndAreRefusedFast) {
  const auto start = std::chrono::steady_clock::now();
  constexpr int kCount = 60'000;
  GgufBytes keys;
  keys.Header(0, kCount);
  for (int i = 0; i < kCount; ++i) keys.Key("k" + std::to_string(i % (kCount - 1)), 0).Put<uint8_t>(1);
  ExpectError(keys, ErrorCode::kCorruptFile, "'k0': occurs twice");
  GgufBytes tensors;
  tensors.Header(kCount, 0);
  for (int i = 0; i < kCount; ++i) {
    tensors.Tensor("t" + std::to_string(i % (kCount - 1)), {8}, 0, static_cast<uint64_t>(i) * 32);
  }
  ExpectError(tensors.Data(kCount * 32), ErrorCode::kCorruptFile, "tensor t0: occurs twice");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Gguf, EveryTruncationIsAnError) {
  std::vector<std::byte> bytes = ReadBytes(kTiny);
  const auto file = GgufFile::Parse(bytes, "tiny");
  ASSERT_TRUE(file.ok());
  int64_t end = 0;  // the padding that gguf-py puts after the last tensor is not needed
  for (const GgufTensor& tensor : (*file)->tensors()) end = std::max(end, tensor.file_offset + tensor.bytes);
  bytes.resize(static_cast<size_t>(end));
  ExpectTruncationsFailCleanly(bytes, Try);
}

TEST(Gguf, DamageGivesSuccessOrOneError) {
  const auto valid = ReadBytes(kTiny);
  EXPECT_GT(ExpectDamageIsHandled(valid, 1200, Try), 1000);
}

}  // namespace
}  // namespace blockgtq
