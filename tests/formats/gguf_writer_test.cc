// Files that WriteGguf makes, read back by GgufFile.
#include "src/formats/gguf_writer.h"

#include <gtest/gtest.h>

#include "src/formats/gguf.h"
#include "tests/formats/files.h"

namespace blockgtq {
namespace {

TEST(GgufWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const std::string path = folder.File("made.gguf");
  const GgufMetadata metadata = {{"general.architecture", std::string("tiny")},
                                 {"tiny.count", uint32_t{7}},
                                 {"tiny.share", 0.25f},
                                 {"tiny.flag", true},
                                 {"tiny.list", std::vector<int32_t>{3, -1}},
                                 {"tiny.flags", std::vector<bool>{true, false}},
                                 {"tiny.words", std::vector<std::string>{"", "two words"}}};
  const std::vector<GgufWriteTensor> tensors = {{"a", TensorType::kF32, {3}},
                                                {"b", TensorType::kF32, {2, 1, 2}}};
  const std::vector<float> a = {1, 2, 3}, b = {4, 5, 6, 7};
  const Status status = WriteGguf(path, metadata, tensors, [&](size_t i, const GgufSink& sink) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span<const float>(i == 0 ? a : b));
    BGTQ_RETURN_IF_ERROR(sink(bytes.first(5)));  // pieces of any size
    return sink(bytes.subspan(5));
  });
  ASSERT_TRUE(status.ok()) << status.message();
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->version(), 3);
  EXPECT_EQ(*(*file)->GetString("general.architecture"), "tiny");
  EXPECT_EQ(*(*file)->GetInt("tiny.count"), 7);
  EXPECT_EQ(*(*file)->GetFloat("tiny.share"), 0.25);
  EXPECT_TRUE(*(*file)->GetBoolOr("tiny.flag", false));
  EXPECT_EQ((*file)->GetInts("tiny.list")->back(), -1);
  EXPECT_EQ((*file)->GetInts("tiny.flags")->front(), 1);
  EXPECT_EQ((*file)->GetInts("tiny.flags")->back(), 0);
  ASSERT_EQ((*file)->GetStrings("tiny.words")->size(), 2u);
  EXPECT_EQ((*file)->GetStrings("tiny.words")->front(), "");
  EXPECT_EQ((*file)->GetStrings("tiny.words")->back(), "two words");
  const GgufTensor* read = (*file)->FindTensor("b");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->shape, (std::vector<int64_t>{2, 1, 2}));
  std::vector<float> row(2);
  DequantizeRow(read->view, 1, row.data());
  EXPECT_EQ(row, (std::vector<float>{6, 7}));
  DequantizeRow((*file)->FindTensor("a")->view, 0, (row.resize(3), row.data()));
  EXPECT_EQ(row, a);
}

TEST(GgufWriter, RefusesWhatWouldBeNoFileAndLeavesNone) {
  const TemporaryFolder folder;
  const auto write = [&](const GgufWriteTensor& tensor, size_t bytes) {
    const std::vector<std::byte> data(bytes);
    return WriteGguf(folder.File("x.gguf"), {}, {&tensor, 1},
                     [&](size_t, const GgufSink& sink) { return sink(data); })
        .code();
  };
  EXPECT_EQ(write({"t", TensorType::kF32, {}}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(write({"t", TensorType::kF32, {1, 1, 1, 1, 1}}, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(write({"t", TensorType::kF32, {0}}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(write({"t", TensorType::kF32, {INT64_MAX, INT64_MAX}}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(write({"t", TensorType::kQ8_0, {33}}, 34), ErrorCode::kInvalidArgument);
  EXPECT_EQ(write({"t", TensorType::kF32, {2}}, 4), ErrorCode::kInvalidArgument);  // a fill of half the bytes
  EXPECT_EQ(folder.Files(), 0);
  EXPECT_EQ(write({"t", TensorType::kQ8_0, {32}}, 34), ErrorCode::kOk);
}

}  // namespace
}  // namespace blockgtq
