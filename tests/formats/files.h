// Whole-file reading, temporary folders, and the corruptions that every parser must survive.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

inline std::vector<std::byte> ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline void WriteBytes(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// A folder of the test's own, removed with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("bgtq_") + info->test_suite_name() + "_" + info->name() + "_" +
             std::to_string(std::random_device()()));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ / name; }
  int Files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

/// A failure is one line that starts with the file's name.
inline void ExpectOneLine(const Status& status, const std::string& name) {
  if (status.ok()) return;
  EXPECT_TRUE(status.message().starts_with(name + ": ")) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  EXPECT_LT(status.message().size(), 1000u);
}

using ParseFunction = std::function<Status(std::span<const std::byte>, const std::string& name)>;

/// Every prefix of `valid`; each is copied to the heap at its exact size, so a sanitizer sees a read past it.
inline void ExpectTruncationsFailCleanly(const std::vector<std::byte>& valid, const ParseFunction& parse) {
  ASSERT_TRUE(parse(valid, "whole").ok()) << parse(valid, "whole").message();
  for (size_t size = 0; size < valid.size(); ++size) {
    const std::vector<std::byte> cut(valid.begin(), valid.begin() + static_cast<ptrdiff_t>(size));
    const Status status = parse(cut, "cut");
    EXPECT_FALSE(status.ok()) << "cut to " << size << " of " << valid.size();
    ExpectOneLine(status, "cut");
  }
}

/// Every byte among the first `limit` replaced by several values, and random multi-byte damage: success or
/// one clear error. Returns how many were refused.
inline int ExpectDamageIsHandled(const std::vector<std::byte>& valid, size_t limit,
                                 const ParseFunction& parse) {
  int refused = 0;
  const auto try_one = [&](const std::vector<std::byte>& bytes) {
    const Status status = parse(bytes, "damaged");
    ExpectOneLine(status, "damaged");
    refused += !status.ok();
  };
  std::vector<std::byte> bytes = valid;
  for (size_t at = 0; at < std::min(limit, valid.size()); ++at) {
    for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
      bytes[at] = valid[at] ^ static_cast<std::byte>(flip);
      try_one(bytes);
    }
    bytes[at] = valid[at];
  }
  std::mt19937 rng(7);
  for (int round = 0; round < 2000; ++round) {
    bytes = valid;
    for (int i = 0; i < 1 + round % 8; ++i) bytes[rng() % std::min(limit, valid.size())] = std::byte(rng());
    try_one(bytes);
  }
  return refused;
}

}  // namespace blockgtq
