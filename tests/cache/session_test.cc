// A session brings back a sequence byte for byte, and a file that is not exactly what was saved is refused
// without touching the cache.
#include "src/cache/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "src/formats/safetensors.h"
#include "tests/cache/cache_model.h"

namespace blockgtq {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr CacheGeometry kGeometry{2, 2, 32};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "blockgtq_session_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    path_ = pattern;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ / name; }
  size_t files() const { return std::distance(fs::directory_iterator(path_), fs::directory_iterator()); }

 private:
  fs::path path_;
};

std::vector<std::byte> ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::vector<int32_t> Ids(const std::vector<uint32_t>& tokens) { return {tokens.begin(), tokens.end()}; }

Status Save(const CacheModel& model, SequenceId id, const std::string& path) {
  return SaveSession(*model.cache, id, Ids(model.sequences.at(id).tokens), path);
}

struct Setting {
  const char* name;
  CacheKind kind;
  int sinks, recent;
};
const Setting kSettings[] = {
    {"Default", CacheKind::kPacked, 4, 64},     {"Strict", CacheKind::kPacked, 0, 0},
    {"StrictSinks", CacheKind::kPacked, 17, 0}, {"WindowOnly", CacheKind::kPacked, 0, 100},
    {"Half", CacheKind::kHalf, 0, 0},           {"Float", CacheKind::kFloat, 0, 0},
};

class Session : public testing::TestWithParam<Setting> {
 protected:
  CacheModel Model(int64_t max_tokens = 1024) const {
    const Setting& s = GetParam();
    return CacheModel(kGeometry, {s.kind, s.sinks, s.recent, max_tokens, "model-a"}, &plan_);
  }
  Plan plan_ = TestPlan(2, 2);
  TemporaryFolder folder_;
};

TEST_P(Session, BringsBackEverySequenceAndLetsItContinue) {
  for (const int64_t length : {0, 1, 3, 63, 64, 65, 128, 200, 320}) {
    CacheModel source = Model();
    source.Add();
    const SequenceId id = source.Add();
    source.Append(id, Tokens(7, length));
    const std::string path = folder_.File("s");
    ASSERT_TRUE(Save(source, id, path).ok()) << Save(source, id, path).message();

    CacheModel target = Model();
    target.Append(target.Add(), Tokens(900, 70));
    for (int load = 0; load < 2; ++load) {  // two in a row
      auto loaded = LoadSession(*target.cache, path);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_EQ(loaded->tokens, Ids(source.sequences.at(id).tokens));
      target.Adopt(loaded->sequence, source.sequences.at(id));
      ASSERT_NO_FATAL_FAILURE(target.Check()) << length;
      target.Append(loaded->sequence, Tokens(5000 + 1000 * load, 130));
      ASSERT_NO_FATAL_FAILURE(target.Check()) << length;
    }
  }
}

TEST_P(Session, BringsBackATruncatedSequence) {
  CacheModel source = Model();
  const SequenceId id = source.Add();
  source.Append(id, Tokens(0, 400));
  source.Truncate(id, 150);
  source.Append(id, Tokens(3000, 20));  // codes end inside page 2, exact tokens follow
  ASSERT_TRUE(Save(source, id, folder_.File("s")).ok());
  CacheModel target = Model();
  auto loaded = LoadSession(*target.cache, folder_.File("s"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  target.Adopt(loaded->sequence, source.sequences.at(id));
  target.Append(loaded->sequence, Tokens(6000, 200));
  ASSERT_NO_FATAL_FAILURE(target.Check());
}

// Stale bytes of other histories (ring slots, dropped tokens, uncommitted writes) must not reach the file.
TEST_P(Session, SameContentGivesTheSameBytesWhateverTheHistory) {
  CacheModel plain = Model(), winding = Model();
  plain.Append(plain.Add(), Tokens(0, 150));
  winding.Add();
  const SequenceId id = winding.Add();
  winding.Append(id, Tokens(0, 150));
  winding.Append(id, Tokens(800, 13));
  winding.Truncate(id, 150);
  ASSERT_TRUE(winding.cache->Reserve(id, 20).ok());
  for (int slot = 22; slot < 42; ++slot) {  // a step that wrote and never committed
    std::byte* head = winding.cache->PageHead(id, 1, 0, 2);
    if (GetParam().kind == CacheKind::kPacked) {
      const auto mask = TokenMasks(plan_.heads[2])[slot];
      for (size_t i = 0; i < mask.size(); ++i) reinterpret_cast<uint64_t*>(head)[i] |= mask[i];
    } else {
      head[slot * (GetParam().kind == CacheKind::kHalf ? 2 : 4)] = std::byte{0x77};
    }
  }
  ASSERT_EQ(plain.cache->state(0).coded_end, winding.cache->state(id).coded_end);
  ASSERT_TRUE(Save(plain, 0, folder_.File("a")).ok());
  ASSERT_TRUE(Save(winding, id, folder_.File("b")).ok());
  EXPECT_EQ(ReadBytes(folder_.File("a")), ReadBytes(folder_.File("b")));
}

TEST_P(Session, SameContentGivesTheSameBytesWhenCodesEndInsideAPage) {
  CacheModel one = Model(), other = Model();
  one.Append(one.Add(), Tokens(0, 300));
  other.Append(other.Add(), Tokens(0, 400));  // leaves other stale tokens in the ring
  for (CacheModel* model : {&one, &other}) {
    model->Truncate(0, 150);
    model->Append(0, Tokens(700, 20));
  }
  ASSERT_EQ(one.cache->state(0).coded_end, other.cache->state(0).coded_end);
  ASSERT_TRUE(Save(one, 0, folder_.File("a")).ok());
  ASSERT_TRUE(Save(other, 0, folder_.File("b")).ok());
  EXPECT_EQ(ReadBytes(folder_.File("a")), ReadBytes(folder_.File("b")));
}

TEST_P(Session, EveryTruncatedFileIsRefused) {
  CacheModel model = Model();
  model.Append(model.Add(), Tokens(0, 70));
  ASSERT_TRUE(Save(model, 0, folder_.File("s")).ok());
  const std::vector<std::byte> bytes = ReadBytes(folder_.File("s"));
  ASSERT_TRUE(LoadSessionFromBytes(*model.cache, bytes, "whole").ok());
  const int64_t free_before = model.cache->free_tokens();
  for (size_t length = 0; length < bytes.size(); length += length < 4096 ? 1 : 61) {
    const auto loaded = LoadSessionFromBytes(*model.cache, std::span(bytes).first(length), "cut");
    ASSERT_EQ(loaded.status().code(), ErrorCode::kCorruptFile) << length << loaded.status().message();
    ASSERT_THAT(loaded.status().message(), HasSubstr("cut"));
  }
  EXPECT_EQ(model.cache->free_tokens(), free_before);
}

TEST_P(Session, EveryDamagedByteIsNoticed) {
  CacheModel model = Model();
  model.Append(model.Add(), Tokens(0, 70));
  ASSERT_TRUE(Save(model, 0, folder_.File("s")).ok());
  std::vector<std::byte> bytes = ReadBytes(folder_.File("s"));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const size_t data = 8 + header;
  ASSERT_LT(data, bytes.size());
  const int64_t free_before = model.cache->free_tokens();
  const auto damage = [&](size_t at, int mask) {
    bytes[at] ^= static_cast<std::byte>(mask);
    const auto loaded = LoadSessionFromBytes(*model.cache, bytes, "damaged");
    bytes[at] ^= static_cast<std::byte>(mask);
    return loaded.status();
  };
  size_t padding = data;  // the header ends in spaces, which say nothing
  while (bytes[padding - 1] == std::byte{' '}) --padding;
  ASSERT_GT(padding, 300u);
  for (size_t at = 0; at < padding; ++at) {
    for (const int mask : {0x01, 0x02, 0x20, 0x80, 0xff}) {
      const Status status = damage(at, mask);
      ASSERT_FALSE(status.ok()) << "byte " << at << " mask " << mask;
      ASSERT_EQ(status.message().find('\n'), std::string::npos);
    }
  }
  for (size_t at = data; at < bytes.size(); at += 37) {
    const Status status = damage(at, 1 << (at % 8));
    ASSERT_EQ(status.code(), ErrorCode::kCorruptFile) << at;
    ASSERT_THAT(status.message(), HasSubstr("checksum")) << at;
  }
  EXPECT_EQ(model.cache->free_tokens(), free_before);
}

TEST_P(Session, ACacheTooFullForASessionStaysAsItWas) {
  CacheModel source = Model(), target = Model(256);
  source.Append(source.Add(), Tokens(0, 200));
  ASSERT_TRUE(Save(source, 0, folder_.File("s")).ok());
  target.Append(target.Add(), Tokens(0, 65));
  const Status status = LoadSession(*target.cache, folder_.File("s")).status();
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("200 tokens wanted"), HasSubstr("128 of 256")));
  EXPECT_EQ(target.Add(), 1);  // the id was given back
  ASSERT_NO_FATAL_FAILURE(target.Check());
}

TEST_P(Session, AFailedSaveLeavesTheOldFile) {
  CacheModel model = Model();
  model.Append(model.Add(), Tokens(0, 100));
  const std::string path = folder_.File("s");
  ASSERT_TRUE(Save(model, 0, path).ok());
  const std::vector<std::byte> before = ReadBytes(path);
  model.Append(0, Tokens(500, 100));

  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);  // writes past the limit then fail with EFBIG
  const rlimit small{before.size() / 2, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Save(model, 0, path);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, old_handler);

  EXPECT_EQ(status.code(), ErrorCode::kIo) << status.message();
  EXPECT_EQ(ReadBytes(path), before);
  EXPECT_EQ(folder_.files(), 1u);  // no temporary is left behind
  EXPECT_EQ(Save(model, 0, path + "/inside_a_file").code(), ErrorCode::kIo);
  EXPECT_EQ(Save(model, 0, folder_.File("absent") + "/s").code(), ErrorCode::kIo);
}

INSTANTIATE_TEST_SUITE_P(Settings, Session, testing::ValuesIn(kSettings),
                         [](const auto& info) { return info.param.name; });

TEST(SessionMismatch, NamesWhatDiffersAndBothValues) {
  const TemporaryFolder folder;
  const Plan plan = TestPlan(2, 2), other_plan = TestPlan(2, 2, 99), wide = TestPlan(2, 3);
  const CacheOptions options{CacheKind::kPacked, 4, 64, 256, "model-a"};
  CacheModel source(kGeometry, options, &plan);
  source.Append(source.Add(), Tokens(0, 90));
  ASSERT_TRUE(Save(source, 0, folder.File("s")).ok());

  const auto load = [&](const CacheGeometry& geometry, const CacheOptions& with, const Plan& by) {
    auto cache = KvCache::Create(geometry, with, &by).value();
    const Status status = LoadSession(*cache, folder.File("s")).status();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_EQ(*cache->AddSequence(), 0);
    return status.message();
  };
  ASSERT_NE(plan.Hash(), other_plan.Hash());
  EXPECT_THAT(load(kGeometry, options, other_plan),
              AllOf(HasSubstr("plan"), HasSubstr(plan.Hash()), HasSubstr(other_plan.Hash())));
  EXPECT_THAT(load(kGeometry, {CacheKind::kPacked, 8, 64, 256, "model-a"}, plan),
              HasSubstr("sinks is \"4\", the cache's \"8\""));
  EXPECT_THAT(load(kGeometry, {CacheKind::kPacked, 4, 128, 256, "model-a"}, plan),
              HasSubstr("recent is \"64\", the cache's \"128\""));
  EXPECT_THAT(load(kGeometry, {CacheKind::kHalf, 4, 64, 256, "model-a"}, plan),
              HasSubstr("kind is \"packed\", the cache's \"fp16\""));
  EXPECT_THAT(load(kGeometry, {CacheKind::kPacked, 4, 64, 256, "model-b"}, plan),
              HasSubstr("model is \"model-a\", the cache's \"model-b\""));
  EXPECT_THAT(load({2, 3, 32}, options, wide), HasSubstr("kv_heads is \"2\", the cache's \"3\""));
}

TEST(SessionFile, AbsentFilesForeignFilesAndWrongTokenCountsAreRefused) {
  const TemporaryFolder folder;
  const Plan plan = TestPlan(2, 2);
  CacheModel model(kGeometry, {CacheKind::kPacked, 4, 64, 256, ""}, &plan);
  model.Append(model.Add(), Tokens(0, 90));
  EXPECT_EQ(LoadSession(*model.cache, folder.File("none")).status().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(WriteSafetensors(folder.File("other"), {{"format", "pt"}}, {}).ok());
  EXPECT_EQ(LoadSession(*model.cache, folder.File("other")).status().code(), ErrorCode::kCorruptFile);
  const Status status = SaveSession(*model.cache, 0, Ids(Tokens(0, 89)), folder.File("s"));
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(folder.File("s")));
}

// Rewrites a saved session with one metadata value changed; the checksum is then wrong, so what matters is
// which check speaks first: the state must be refused before any tensor is looked at.
TEST(SessionFile, StatesThatNoSequenceCanBeInAreRefused) {
  const TemporaryFolder folder;
  const Plan plan = TestPlan(2, 2);
  CacheModel model(kGeometry, {CacheKind::kPacked, 4, 64, 1024, ""}, &plan);
  model.Append(model.Add(), Tokens(0, 300));
  ASSERT_TRUE(Save(model, 0, folder.File("s")).ok());
  const auto file = SafetensorsFile::Open(folder.File("s")).value();
  const auto with = [&](const std::string& key, const std::string& value) {
    auto metadata = file->metadata();
    metadata[key] = value;
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, entry] : file->tensors()) {
      tensors.push_back({name, entry.dtype, entry.shape, entry.data});
    }
    EXPECT_TRUE(WriteSafetensors(folder.File("t"), metadata, tensors).ok());
    return LoadSession(*model.cache, folder.File("t")).status();
  };
  for (const char* value : {"301", "64", "0"}) {
    const Status status = with("coded_end", value);
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile);
    EXPECT_THAT(status.message(), HasSubstr("coded_end")) << value;
  }
  for (const char* value : {"-1", "0300", "300 ", "9223372036854775807", "99999999999999999999", "", "3e2"}) {
    const Status status = with("length", value);
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile) << value;
    EXPECT_THAT(status.message(), HasSubstr("length")) << value;
  }
  EXPECT_EQ(with("length", "1099511627776").code(), ErrorCode::kCorruptFile);
  EXPECT_EQ(with("version", "2").code(), ErrorCode::kUnsupported);
  EXPECT_THAT(with("note", "hello").message(), HasSubstr("checksum"));
  EXPECT_TRUE(with("version", "1").ok());
}

TEST(SessionFile, TensorsThatDoNotBelongAreRefused) {
  const TemporaryFolder folder;
  const Plan plan = TestPlan(2, 2);
  CacheModel model(kGeometry, {CacheKind::kPacked, 4, 64, 256, ""}, &plan);
  model.Append(model.Add(), Tokens(0, 90));
  ASSERT_TRUE(Save(model, 0, folder.File("s")).ok());
  const auto file = SafetensorsFile::Open(folder.File("s")).value();
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, entry] : file->tensors()) {
    tensors.push_back({name, entry.dtype, entry.shape, entry.data});
  }
  tensors.push_back(tensors.front());
  tensors.back().name = "extra";
  ASSERT_TRUE(WriteSafetensors(folder.File("t"), file->metadata(), tensors).ok());
  EXPECT_EQ(LoadSession(*model.cache, folder.File("t")).status().code(), ErrorCode::kCorruptFile);
}

}  // namespace
}  // namespace blockgtq
