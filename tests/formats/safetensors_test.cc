// The safetensors container: a file by the Python library, round trips, atomic writing, damage.
#include "src/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/formats/atomic_file.h"
#include "tests/formats/files.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTiny[] = BGTQ_TEST_DATA "/formats/tiny.safetensors";

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const std::string& name) {
  const auto data = file.tensors().at(name).data;
  std::vector<T> out(data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), data.data(), data.size());
  return out;
}

Status Try(std::span<const std::byte> bytes, const std::string& name) {
  return SafetensorsFile::Parse(bytes, name).status();
}

std::vector<std::byte> Assemble(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

void ExpectError(const std::string& header, size_t data_bytes, ErrorCode code, const std::string& part) {
  const Status status = Try(Assemble(header, data_bytes), "f.safetensors");
  EXPECT_EQ(status.code(), code) << header << " -> " << status.message();
  EXPECT_THAT(status.message(), HasSubstr(part)) << header;
  ExpectOneLine(status, "f.safetensors");
}

TEST(Safetensors, ReadsWhatThePythonLibraryWrites) {
  const auto opened = SafetensorsFile::Open(kTiny);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const SafetensorsFile& file = **opened;
  EXPECT_EQ(file.tensors().size(), 6u);
  EXPECT_EQ(file.metadata().at("accent"), "na\u00efve \"quoted\"");
  EXPECT_THAT(Values<float>(file, "floats"), ElementsAre(1.5f, -2.25f, 0.0f, 3.0f, 1e-8f, -1e30f));
  EXPECT_THAT(file.tensors().at("floats").shape, ElementsAre(2, 3));
  EXPECT_THAT(Values<uint8_t>(file, "bytes"), ElementsAre(1, 2, 255));
  EXPECT_THAT(Values<int64_t>(file, "ids"), ElementsAre(-1, int64_t{1} << 40));
  EXPECT_THAT(Values<uint16_t>(file, "halves"), ElementsAre(0x3800, 0xbc00));
  EXPECT_THAT(Values<int32_t>(file, "scalar"), ElementsAre(7));
  EXPECT_TRUE(file.tensors().at("scalar").shape.empty());
  EXPECT_TRUE(file.tensors().at("empty").data.empty());
  EXPECT_THAT(file.tensors().at("empty").shape, ElementsAre(0, 4));
}

TEST(Safetensors, GetChecksNameDtypeAndShape) {
  const auto opened = SafetensorsFile::Open(kTiny);
  ASSERT_TRUE(opened.ok());
  const std::vector<int64_t> right{2, 3}, wrong{3, 2};
  EXPECT_TRUE((*opened)->Get("floats", "F32", right).ok());
  EXPECT_THAT((*opened)->Get("floats", "F32", wrong).status().message(),
              HasSubstr("tensor 'floats' is F32 [2, 3]; F32 [3, 2] is needed"));
  EXPECT_THAT((*opened)->Get("floats", "F16", right).status().message(), HasSubstr("F16 [2, 3] is needed"));
  EXPECT_THAT((*opened)->Get("none", "F32", right).status().message(), HasSubstr("'none' is missing"));
}

class Written : public testing::Test {
 protected:
  const std::vector<uint8_t> bytes_{1, 2, 3};
  const std::vector<double> doubles_{0.1, -2.5};
  const std::vector<float> floats_{1, 2, 3, 4, 5, 6};
  std::vector<SafetensorsTensor> Tensors() const {
    return {{"bytes", "U8", {3}, std::as_bytes(std::span(bytes_))},
            {"doubles", "F64", {2}, std::as_bytes(std::span(doubles_))},
            {"floats", "F32", {2, 3}, std::as_bytes(std::span(floats_))},
            {"none", "F32", {0}, {}}};
  }
  TemporaryFolder folder_;
  const std::string path_ = folder_.File("out.safetensors");
};

TEST_F(Written, RoundTripKeepsEveryByteAndAlignsEveryTensor) {
  ASSERT_TRUE(WriteSafetensors(path_, {{"k", "v \"\\\n\u00e9"}, {"", ""}}, Tensors()).ok());
  EXPECT_EQ(folder_.Files(), 1) << "no temporary is left";
  const auto opened = SafetensorsFile::Open(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_THAT((*opened)->metadata(),
              ElementsAre(testing::Pair("", ""), testing::Pair("k", "v \"\\\n\u00e9")));
  EXPECT_EQ(Values<uint8_t>(**opened, "bytes"), bytes_);
  EXPECT_EQ(Values<double>(**opened, "doubles"), doubles_);
  EXPECT_EQ(Values<float>(**opened, "floats"), floats_);
  for (const auto& [name, entry] : (*opened)->tensors()) {
    const auto address = reinterpret_cast<uintptr_t>(entry.data.data());
    EXPECT_EQ(address % static_cast<uintptr_t>(SafetensorsDtypeBytes(entry.dtype)), 0u) << name;
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*opened)->tensors().at("doubles").data.data()) % 64, 0u);
}

TEST_F(Written, NoTensorsAndNoMetadataIsAFile) {
  ASSERT_TRUE(WriteSafetensors(path_, {}, {}).ok());
  const auto opened = SafetensorsFile::Open(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_TRUE((*opened)->tensors().empty());
}

TEST_F(Written, WrongTensorsAreRefusedBeforeAnythingIsWritten) {
  const auto expect = [&](SafetensorsTensor tensor, const std::string& part) {
    const std::vector<SafetensorsTensor> tensors{std::move(tensor)};
    const Status status = WriteSafetensors(path_, {}, tensors);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(part));
  };
  const auto six = std::as_bytes(std::span(floats_));
  expect({"a", "F32", {5}, six}, "needs 20 bytes, 24 are given");
  expect({"a", "F33", {6}, six}, "dtype 'F33'");
  expect({"a", "F32", {-6}, six}, "shape");
  expect({"a", "F32", {int64_t{1} << 62, 8}, six}, "shape");
  expect({"", "F32", {6}, six}, "name");
  expect({"__metadata__", "F32", {6}, six}, "name");
  expect({"bad\xff", "F32", {6}, six}, "UTF-8");
  const std::vector<SafetensorsTensor> twice{{"a", "F32", {6}, six}, {"a", "F32", {6}, six}};
  EXPECT_THAT(WriteSafetensors(path_, {}, twice).message(), HasSubstr("given twice"));
  EXPECT_EQ(folder_.Files(), 0);
}

TEST_F(Written, AFailedWriteKeepsTheOldFileAndLeavesNoTemporary) {
  ASSERT_TRUE(WriteSafetensors(path_, {{"old", "1"}}, Tensors()).ok());
  const std::vector<float> large(100'000);
  const std::vector<SafetensorsTensor> tensors{{"large", "F32", {100'000}, std::as_bytes(std::span(large))}};
  // A full disk in miniature: files may not grow past 64 KiB.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{65536, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = WriteSafetensors(path_, {}, tensors);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);

  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr(path_ + ": cannot write: " + std::strerror(EFBIG)));
  EXPECT_EQ(folder_.Files(), 1);
  const auto opened = SafetensorsFile::Open(path_);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ((*opened)->metadata().at("old"), "1");
}

TEST_F(Written, TensorsThatAreMadeWhileWritingGiveTheSameFile) {
  const std::vector<SafetensorsTensor> tensors = Tensors();
  ASSERT_TRUE(WriteSafetensors(path_, {{"k", "v"}}, tensors).ok());
  std::vector<SafetensorsShape> shapes;
  for (const SafetensorsTensor& tensor : tensors) shapes.push_back({tensor.name, tensor.dtype, tensor.shape});
  size_t missing = 0;
  const auto make = [&](size_t i, const ByteSink& sink) -> Status {
    const size_t half = tensors[i].data.size() / 2;
    BGTQ_RETURN_IF_ERROR(sink(tensors[i].data.first(half)));
    return sink(tensors[i].data.subspan(half, tensors[i].data.size() - half - missing));
  };
  ASSERT_TRUE(WriteSafetensors(folder_.File("made"), {{"k", "v"}}, shapes, make).ok());
  EXPECT_EQ(ReadBytes(folder_.File("made")), ReadBytes(path_));
  missing = 1;
  const Status status = WriteSafetensors(folder_.File("short"), {}, shapes, make);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("bytes, "));
  EXPECT_EQ(folder_.Files(), 2);
}

TEST_F(Written, UnfinishedFilesOfTheDeadAreRemovedAndThoseOfTheLivingStay) {
  const auto file = AtomicFile::Create(folder_.File("living"));
  ASSERT_TRUE(file.ok());
  for (const char* name : {"a.session.12-3.tmp", "b.1-0.tmp"}) WriteBytes(folder_.File(name), {});
  for (const char* name : {"mine.tmp", "x.1-y.tmp", ".1-2.tmp", "a.12-3.tmp.old"})
    WriteBytes(folder_.File(name), {});
  const auto removed = RemoveAbandonedTemporaries(folder_.File(""));
  ASSERT_TRUE(removed.ok()) << removed.status().message();
  EXPECT_EQ(*removed, 2);
  EXPECT_EQ(folder_.Files(), 1 + 4);
  EXPECT_EQ(RemoveAbandonedTemporaries(folder_.File("none")).status().code(), ErrorCode::kIo);
}

TEST_F(Written, AMissingFolderOrAFolderAsTargetIsAnIoError) {
  EXPECT_EQ(WriteSafetensors(folder_.File("no/such/f"), {}, Tensors()).code(), ErrorCode::kIo);
  std::filesystem::create_directory(path_);
  WriteBytes(path_ + "/inside", {});
  EXPECT_EQ(WriteSafetensors(path_, {}, Tensors()).code(), ErrorCode::kIo);
  EXPECT_EQ(folder_.Files(), 1) << "no temporary is left";
}

TEST(SafetensorsHeader, ErrorsNameTheTensorAndTheField) {
  const auto corrupt = ErrorCode::kCorruptFile;
  const std::string ok = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  ASSERT_TRUE(Try(Assemble(ok, 4), "f").ok());
  ASSERT_TRUE(Try(Assemble(ok + "   ", 4), "f").ok());
  ExpectError("", 0, corrupt, "does not start with '{'");
  ExpectError("[]", 0, corrupt, "does not start with '{'");
  ExpectError("{", 0, corrupt, "not valid JSON");
  ExpectError("{}x", 0, corrupt, "not valid JSON");
  ExpectError("{\"a\xff\":1}", 0, corrupt, "not valid JSON");
  ExpectError(R"({"a":1})", 0, corrupt, "tensor 'a' holds a number");
  ExpectError(R"({"a":[]})", 0, corrupt, "tensor 'a' holds an array");
  ExpectError(R"({"a":{}})", 0, corrupt, "tensor 'a' has no dtype");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4]}})", 4, corrupt, "has no data_offsets");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4, corrupt,
              "unknown field 'x'");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", 4, corrupt,
              "shape occurs twice");
  ExpectError(R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, corrupt, "'dtype' holds a number");
  ExpectError(R"({"a":{"dtype":["U8"],"shape":[4],"data_offsets":[0,4]}})", 4, corrupt,
              "'dtype' holds an array");
  ExpectError(R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, corrupt, "negative");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4.5],"data_offsets":[0,4]}})", 4, corrupt,
              "'shape' holds a number");
  ExpectError(R"({"a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})", 4, corrupt,
              "'shape' holds an array");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", 4, corrupt, "has 1 numbers");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", 4, corrupt, "more than 2");
  ExpectError(R"({"__metadata__":{"k":1}})", 0, corrupt, "__metadata__: field 'k' holds a number");
  ExpectError(R"({"__metadata__":{"k":"a","k":"b"}})", 0, corrupt, "'k' occurs twice");
  ExpectError(
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
      0, corrupt, "tensor 'a' occurs twice");
  ExpectError(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2, ErrorCode::kUnsupported,
              "dtype 'F4'");
}

TEST(SafetensorsHeader, OffsetsMustCoverTheDataExactly) {
  const auto two = [](int a0, int a1, int b0, int b1) {
    return nlohmann::json{{"a", {{"dtype", "U8"}, {"shape", {a1 - a0}}, {"data_offsets", {a0, a1}}}},
                          {"b", {{"dtype", "U8"}, {"shape", {b1 - b0}}, {"data_offsets", {b0, b1}}}}}
        .dump();
  };
  ASSERT_TRUE(Try(Assemble(two(0, 4, 4, 8), 8), "f").ok());
  ASSERT_TRUE(Try(Assemble(two(4, 8, 0, 4), 8), "f").ok());
  const auto corrupt = ErrorCode::kCorruptFile;
  ExpectError(two(0, 4, 3, 8), 8, corrupt, "an overlap");
  ExpectError(two(0, 4, 5, 8), 8, corrupt, "a hole");
  ExpectError(two(0, 4, 4, 8), 9, corrupt, "1 bytes after the last tensor belong to none");
  ExpectError(two(0, 4, 4, 8), 7, corrupt, "1 bytes past the end of the file");
  ExpectError(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}})", 4, corrupt, "needs 16 bytes");
  ExpectError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, corrupt,
              "end before they begin");
  ExpectError(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, corrupt,
              "shape is impossible");
}

TEST(SafetensorsHeader, DeepNestingIsRefusedAtOnce) {
  ExpectError("{\"a\":" + std::string(10'000'000, '['), 0, ErrorCode::kCorruptFile, "holds an array");
  ExpectError("{\"__metadata__\":{\"a\":" + std::string(1'000'000, '{'), 0, ErrorCode::kCorruptFile,
              "holds an object");
}

TEST(Safetensors, EveryTruncationIsAnError) { ExpectTruncationsFailCleanly(ReadBytes(kTiny), Try); }

TEST(Safetensors, DamageGivesSuccessOrOneError) {
  const auto valid = ReadBytes(kTiny);
  EXPECT_GT(ExpectDamageIsHandled(valid, valid.size(), Try), 1000);
}

}  // namespace
}  // namespace blockgtq
