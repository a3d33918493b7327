// Moments on disk: exact round trip, one clear error for each damaged field, systematic damage.
#include "src/formats/moments_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "src/formats/safetensors.h"
#include "tests/formats/files.h"

namespace blockgtq {
namespace {

using testing::HasSubstr;

constexpr int kDim = 4, kVectors = 3;

ModelMoments Sample(int latent_dims = 0) {
  ModelMoments moments;
  moments.model = {"llama", 2, 4, 2, kDim, 10000.5, kDim, "neox", "00ff00ff00ff00ff", "0123456789abcdef"};
  moments.seen = 70'000;
  for (int h = 0; h < 4; ++h) {
    HeadCalibration& head = moments.heads.emplace_back();
    const double x = 1.0 / 3 + h;
    head.statistics = {{x, 2 * x}, {}, {3 * x, 0}, {x, -x, 0.125, 7}, 20'001};
    head.statistics.key_energy = {3 * x + 2 * x * x, 0.125 * 0.125 + 49};
    head.latent_dims = latent_dims;
    for (int i = 0; i < kVectors * kDim; ++i)
      head.keys.push_back(static_cast<float>(h) + 0.1f * static_cast<float>(i));
    if (latent_dims == 0) head.values.assign(head.keys.rbegin(), head.keys.rend());
  }
  return moments;
}

TEST(MomentsFile, RoundTripIsExact) {
  const TemporaryFolder folder;
  for (const int latent_dims : {0, 2}) {
    const ModelMoments saved = Sample(latent_dims);
    ASSERT_TRUE(SaveMoments(saved, folder.File("m")).ok());
    const Result<ModelMoments> loaded = LoadMoments(folder.File("m"));
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_TRUE(loaded->model.ExpectEqual(saved.model).ok());
    EXPECT_EQ(loaded->seen, saved.seen);
    ASSERT_EQ(loaded->heads.size(), saved.heads.size());
    for (size_t h = 0; h < saved.heads.size(); ++h) {
      const HeadCalibration &a = loaded->heads[h], &b = saved.heads[h];
      EXPECT_EQ(a.statistics.query_energy, b.statistics.query_energy);
      EXPECT_EQ(a.statistics.centred_key_energy, b.statistics.centred_key_energy);
      EXPECT_EQ(a.statistics.key_mean, b.statistics.key_mean);
      EXPECT_EQ(a.statistics.tokens, b.statistics.tokens);
      for (size_t i = 0; i < 2; ++i) EXPECT_DOUBLE_EQ(a.statistics.key_energy[i], b.statistics.key_energy[i]);
      EXPECT_EQ(a.keys, b.keys);
      EXPECT_EQ(a.values, b.values);
      EXPECT_EQ(a.latent_dims, latent_dims);
    }
  }
}

TEST(MomentsFile, WhatCannotBeSavedIsNamed) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::function<void(ModelMoments&)>& change, const char* needs) {
    ModelMoments moments = Sample();
    change(moments);
    const Status status = SaveMoments(moments, folder.File("m"));
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(needs));
  };
  refused([](ModelMoments& m) { m.heads.pop_back(); }, "heads are not the model's");
  refused([](ModelMoments& m) { m.heads[0].keys.clear(); }, "no token was seen");
  refused([](ModelMoments& m) { m.seen = 20'000; }, "more tokens count than were seen");
  refused([](ModelMoments& m) { m.seen = kMaxMomentsTokens + 1; }, "than a file counts");
  refused([](ModelMoments& m) { m.heads[1].keys.resize(kDim); }, "other sizes");
  refused([](ModelMoments& m) { m.heads[2].statistics.query_energy[0] = -1; }, "negative");
  refused([](ModelMoments& m) { m.heads[3].values[0] = std::numeric_limits<float>::infinity(); }, "infinite");
}

TEST(MomentsFile, DamagedFieldsAreNamed) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SaveMoments(Sample(), folder.File("m")).ok());
  const auto file = SafetensorsFile::Open(folder.File("m"));
  ASSERT_TRUE(file.ok());
  using Metadata = std::map<std::string, std::string, std::less<>>;
  const auto refused = [&](const char* key, const char* value, ErrorCode code, const char* needs) {
    Metadata metadata = (*file)->metadata();
    metadata[key] = value;
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, entry] : (*file)->tensors())
      tensors.push_back({name, entry.dtype, entry.shape, entry.data});
    ASSERT_TRUE(WriteSafetensors(folder.File("d"), metadata, tensors).ok());
    const Result<ModelMoments> loaded = LoadMoments(folder.File("d"));
    EXPECT_EQ(loaded.status().code(), code) << key;
    EXPECT_THAT(loaded.status().message(), HasSubstr(needs)) << key;
  };
  refused("format", "blockgtq-plan", ErrorCode::kCorruptFile, "not a file of moments");
  refused("version", "2", ErrorCode::kUnsupported, "version 2");
  refused("seen", "-1", ErrorCode::kCorruptFile, "'seen'");
  refused("seen", "9223372036854775807", ErrorCode::kCorruptFile, "'seen'");
  refused("tokens", "0", ErrorCode::kCorruptFile, "'tokens'");
  refused("tokens", "70001", ErrorCode::kCorruptFile, "from 1 to 70000");  // more than were seen
  refused("vectors", "4", ErrorCode::kCorruptFile, "'keys'");
  refused("vectors", "1e3", ErrorCode::kCorruptFile, "'vectors'");
  refused("latent_dims", "5", ErrorCode::kCorruptFile, "'latent_dims'");
  refused("model", "[]", ErrorCode::kCorruptFile, "'model'");
  EXPECT_EQ(LoadMoments(folder.File("none")).status().code(), ErrorCode::kNotFound);
}

TEST(MomentsFile, DamageAnywhereIsOneErrorOrMoments) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SaveMoments(Sample(), folder.File("m")).ok());
  const std::vector<std::byte> valid = ReadBytes(folder.File("m"));
  const auto parse = [](std::span<const std::byte> bytes, const std::string& name) {
    return ParseMoments(bytes, name).status();
  };
  ExpectTruncationsFailCleanly(valid, parse);
  EXPECT_GT(ExpectDamageIsHandled(valid, valid.size(), parse), 1000);
}

}  // namespace
}  // namespace blockgtq
