// The results of a long run on disk: an append-only file of JSON lines that survives a kill at any byte. The
// first line holds the run's settings, each further line one finished sample.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

class ResultsFile {
 public:
  /// A run that is not kept: Append remembers samples and writes nothing.
  static ResultsFile InMemory();

  /// Creates `path`, or continues it. settings: an object whose values decide what samples mean (model,
  /// cache, command). A last line without its newline, which a kill leaves, is cut off. Errors: kMismatch
  /// naming the first setting that differs from the file's, or when another run has the file open;
  /// kCorruptFile (no results file, or a whole line that is none of ours, by number); kIo.
  static Result<ResultsFile> Open(const std::string& path, const nlohmann::json& settings);

  ResultsFile(ResultsFile&& other) noexcept;
  ResultsFile& operator=(ResultsFile&&) = delete;
  ~ResultsFile();

  /// Finished samples, objects with a text "id", in the order in which they finished.
  const std::vector<nlohmann::json>& samples() const { return samples_; }
  /// Bytes of an unfinished line that Open cut off; 0: none.
  int64_t dropped_bytes() const { return dropped_bytes_; }

  /// Adds a finished sample; once it returns Ok the sample is on the disk. Errors: kIo; the file then ends
  /// with the sample before.
  Status Append(const nlohmann::json& sample);

 private:
  ResultsFile() = default;
  Status Load(const nlohmann::json& settings);
  Status WriteLine(const nlohmann::json& value);
  Status IoError(const char* what, int error) const;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;  // of the whole lines
  int64_t dropped_bytes_ = 0;
  std::vector<nlohmann::json> samples_;
};

}  // namespace blockgtq
