// A results file continues after a kill at any byte, and refuses what is not its own run.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "src/eval/tasks/results_file.h"

namespace blockgtq {
namespace {

class ResultsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "results_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }
  std::string Content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  /// Opens or continues the file and adds what is missing of samples 0..count-1.
  void RunUpTo(int count) const {
    Result<ResultsFile> file = ResultsFile::Open(path_, settings_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (int i = static_cast<int>(file->samples().size()); i < count; ++i) {
      const Status status = file->Append(Sample(i));
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  static nlohmann::json Sample(int i) { return {{"id", std::to_string(i)}, {"a", "\n\"\xc3\xa9"}}; }
  void ExpectRefused(const nlohmann::json& settings, ErrorCode code,
                     const std::vector<std::string>& needs) const {
    const std::string before = Content();
    const Status status = ResultsFile::Open(path_, settings).status();
    EXPECT_EQ(status.code(), code) << status.message();
    for (const std::string& need : needs) {
      EXPECT_NE(status.message().find(need), std::string::npos) << status.message();
    }
    EXPECT_EQ(Content(), before) << "a refused file must stay as it was";
  }

  std::string path_;
  nlohmann::json settings_ = {{"model", "m"}, {"k_bits", 3.0}, {"lengths", {1, 2}}, {"temperature", 0.6f}};
};

TEST_F(ResultsFileTest, AKillAtAnyByteLosesOnlyTheLineThatWasBeingWritten) {
  settings_ = {{"a", 1}};
  RunUpTo(3);
  const std::string whole = Content();
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    const std::string left = whole.substr(0, cut);
    Write(left);
    const auto lines = std::count(left.begin(), left.end(), '\n');
    {
      Result<ResultsFile> file = ResultsFile::Open(path_, settings_);
      ASSERT_TRUE(file.ok()) << "cut at " << cut << ": " << file.status().message();
      ASSERT_EQ(static_cast<int64_t>(file->samples().size()), std::max<int64_t>(lines - 1, 0)) << cut;
      for (size_t i = 0; i < file->samples().size(); ++i) {
        EXPECT_EQ(file->samples()[i], Sample(static_cast<int>(i)));
      }
      if (lines > 0) {
        EXPECT_EQ(Content(), left.substr(0, left.rfind('\n') + 1));
      }
      EXPECT_EQ(file->dropped_bytes(), static_cast<int64_t>(cut - (left.rfind('\n') + 1)));
    }
    RunUpTo(3);
    ASSERT_EQ(Content(), whole) << "cut at " << cut;
  }
}

TEST_F(ResultsFileTest, ASampleIsInTheFileOnceAppendReturns) {
  Result<ResultsFile> file = ResultsFile::Open(path_, settings_);
  ASSERT_TRUE(file.ok());
  const size_t header = Content().size();
  ASSERT_TRUE(file->Append(Sample(0)).ok());
  EXPECT_EQ(nlohmann::json::parse(Content().substr(header)), Sample(0));
  EXPECT_EQ(Content().back(), '\n');
}

TEST_F(ResultsFileTest, OtherSettingsAreRefusedByName) {
  RunUpTo(1);
  nlohmann::json other = settings_;
  other["k_bits"] = 2.0;
  ExpectRefused(other, ErrorCode::kMismatch, {path_, "k_bits", "3.0", "2.0"});
  other = settings_;
  other.erase("model");
  ExpectRefused(other, ErrorCode::kMismatch, {"model", "nothing"});
  other = settings_;
  other["added"] = true;
  ExpectRefused(other, ErrorCode::kMismatch, {"added"});
  other = settings_;
  other["lengths"] = {2, 1};
  ExpectRefused(other, ErrorCode::kMismatch, {"lengths"});
}

TEST_F(ResultsFileTest, AFileThatIsNotOursIsNotTouched) {
  for (const char* content : {"notes", "notes\n", "{}\n", "{\"blockgtq_results\":2,\"settings\":{}}\n",
                              "{\"blockgtq_results\":1}\n", "\n"}) {
    Write(content);
    ExpectRefused(settings_, ErrorCode::kCorruptFile, {path_});
  }
}

TEST_F(ResultsFileTest, AWholeLineThatIsNoSampleIsNamed) {
  RunUpTo(2);
  const std::string whole = Content();
  for (const char* line : {"garbage\n", "[1]\n", "{\"score\":1}\n", "{\"id\":5}\n", "\n"}) {
    Write(whole + line);
    ExpectRefused(settings_, ErrorCode::kCorruptFile, {"line 4"});
  }
}

TEST_F(ResultsFileTest, TwoRunsCannotShareAFile) {
  Result<ResultsFile> first = ResultsFile::Open(path_, settings_);
  ASSERT_TRUE(first.ok());
  ExpectRefused(settings_, ErrorCode::kMismatch, {path_, "another run"});
}

TEST_F(ResultsFileTest, AFullDiskIsAnErrorAndLeavesWholeLines) {
  RunUpTo(1);
  const std::string before = Content();
  Result<ResultsFile> file = ResultsFile::Open(path_, settings_);
  ASSERT_TRUE(file.ok());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{before.size() + 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = file->Append(Sample(1));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_EQ(Content(), before);
  EXPECT_EQ(file->samples().size(), 1u);
  EXPECT_TRUE(file->Append(Sample(1)).ok());
}

TEST_F(ResultsFileTest, AFolderOrADeviceIsNoResultsFile) {
  EXPECT_EQ(ResultsFile::Open(testing::TempDir(), settings_).status().code(), ErrorCode::kIo);
  EXPECT_EQ(ResultsFile::Open("/dev/null", settings_).status().code(), ErrorCode::kIo);
}

TEST(ResultsInMemory, KeepsSamples) {
  ResultsFile file = ResultsFile::InMemory();
  ASSERT_TRUE(file.Append({{"id", "a"}}).ok());
  EXPECT_EQ(file.samples().size(), 1u);
}

}  // namespace
}  // namespace blockgtq
