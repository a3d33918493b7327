// See results_file.h.
#include "src/eval/tasks/results_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "src/formats/json_fields.h"

namespace blockgtq {
namespace {

constexpr const char* kFormatField = "blockgtq_results";
constexpr int kFormatVersion = 1;
constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr int64_t kMaxFileBytes = int64_t{4} << 30;
constexpr int kMaxDepth = 16;

/// One line of text; bytes that are not UTF-8 become U+FFFD.
std::string Line(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

nlohmann::json Header(const nlohmann::json& settings) {
  return {{kFormatField, kFormatVersion}, {"settings", settings}};
}

/// The first name, in alphabetical order, whose values differ; empty when all are equal.
std::string FirstDifference(const nlohmann::json& a, const nlohmann::json& b) {
  std::set<std::string> names;
  for (const nlohmann::json* settings : {&a, &b}) {
    for (const auto& [name, value] : settings->items()) names.insert(name);
  }
  for (const std::string& name : names) {
    if (!a.contains(name) || !b.contains(name) || a[name] != b[name]) return name;
  }
  return "";
}

std::string ValueOf(const nlohmann::json& settings, const std::string& name) {
  if (!settings.contains(name)) return "nothing";
  return settings[name].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Status::Ok();  // may be written but not read: the file itself is durable
  const int failed = fsync(fd) != 0 ? errno : 0;
  close(fd);
  // Some file systems have no fsync for folders and say EINVAL.
  if (failed == 0 || failed == EINVAL) return Status::Ok();
  return Status(ErrorCode::kIo, fmt::format("{}: cannot make it durable: {}", folder, std::strerror(failed)));
}

Result<std::string> ReadAll(int fd, int64_t size, const std::string& path) {
  std::string content(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = pread(fd, content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return Status(ErrorCode::kIo, fmt::format("{}: cannot read: {}", path,
                                                got < 0 ? std::strerror(errno) : "it became shorter"));
    }
    done += static_cast<size_t>(got);
  }
  return content;
}

}  // namespace

ResultsFile ResultsFile::InMemory() { return {}; }

ResultsFile::ResultsFile(ResultsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      dropped_bytes_(other.dropped_bytes_),
      samples_(std::move(other.samples_)) {}

ResultsFile::~ResultsFile() {
  if (fd_ >= 0) close(fd_);
}

Status ResultsFile::IoError(const char* what, int error) const {
  return Status(ErrorCode::kIo, fmt::format("{}: cannot {}: {}; the samples before are kept, run again to "
                                            "continue",
                                            path_, what, std::strerror(error)));
}

Result<ResultsFile> ResultsFile::Open(const std::string& path, const nlohmann::json& settings) {
  ResultsFile file;
  file.path_ = path;
  file.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file.fd_ < 0) {
    return Status(ErrorCode::kIo, fmt::format("{}: cannot open: {}; check the path and its permissions", path,
                                              std::strerror(errno)));
  }
  struct stat found {};
  if (fstat(file.fd_, &found) != 0) return file.IoError("read", errno);
  if (!S_ISREG(found.st_mode)) {
    return Status(ErrorCode::kIo, path + ": is no regular file and cannot be continued; name another path");
  }
  if (flock(file.fd_, LOCK_EX | LOCK_NB) != 0) {
    return Status(ErrorCode::kMismatch,
                  path + ": another run is writing it; wait for that run or name another file");
  }
  BGTQ_RETURN_IF_ERROR(file.Load(settings));
  return file;
}

Status ResultsFile::Load(const nlohmann::json& settings) {
  struct stat found {};
  if (fstat(fd_, &found) != 0) return IoError("read", errno);
  if (found.st_size > kMaxFileBytes) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: has {} bytes, a results file has at most {}", path_,
                              static_cast<int64_t>(found.st_size), kMaxFileBytes));
  }
  BGTQ_ASSIGN_OR_RETURN(const std::string content, ReadAll(fd_, found.st_size, path_));
  const std::string header = Line(Header(settings));
  const size_t whole = content.rfind('\n') + 1;  // npos + 1 is 0
  // Without a whole line there is nothing to lose, but only a header's beginning is certainly ours.
  if (whole == 0 && !header.starts_with(content)) {
    return Status(ErrorCode::kCorruptFile,
                  path_ + ": is not a results file of these settings; name another file");
  }
  size_t begin = 0;
  for (int64_t number = 1; begin < whole; ++number) {
    const size_t end = content.find('\n', begin);
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    const Result<nlohmann::json> parsed = ParseBoundedJson(line, kMaxLineBytes, kMaxDepth);
    const bool object = parsed.ok() && parsed->is_object();
    if (number == 1) {
      if (!object || parsed->value(kFormatField, nlohmann::json()) != kFormatVersion ||
          !parsed->contains("settings") || !(*parsed)["settings"].is_object()) {
        return Status(
            ErrorCode::kCorruptFile,
            fmt::format("{}: is not a results file (its first line has no {} {}); name another file", path_,
                        kFormatField, kFormatVersion));
      }
      // Through text and back, so that both sides hold what a file can hold.
      const nlohmann::json wanted = nlohmann::json::parse(header)["settings"];
      const nlohmann::json& has = (*parsed)["settings"];
      const std::string name = FirstDifference(has, wanted);
      if (!name.empty()) {
        return Status(ErrorCode::kMismatch,
                      fmt::format("{}: was begun with {} = {}, this run has {}; use the same settings or "
                                  "name another file",
                                  path_, name, ValueOf(has, name), ValueOf(wanted, name)));
      }
      continue;
    }
    if (!object || !parsed->contains("id") || !(*parsed)["id"].is_string()) {
      return Status(
          ErrorCode::kCorruptFile,
          fmt::format("{}: line {} is no sample; remove that line to have it run again", path_, number));
    }
    samples_.push_back(*parsed);
  }
  size_ = static_cast<int64_t>(whole);
  dropped_bytes_ = static_cast<int64_t>(content.size() - whole);
  if (dropped_bytes_ > 0 && ftruncate(fd_, size_) != 0) return IoError("cut off its last line", errno);
  if (whole > 0) return Status::Ok();
  BGTQ_RETURN_IF_ERROR(WriteLine(Header(settings)));
  return SyncFolderOf(path_);
}

Status ResultsFile::WriteLine(const nlohmann::json& value) {
  const std::string line = Line(value);
  size_t done = 0;
  int error = 0;
  while (done < line.size() && error == 0) {
    const ssize_t written = pwrite(fd_, line.data() + done, line.size() - done,
                                   static_cast<off_t>(size_) + static_cast<off_t>(done));
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && fsync(fd_) != 0) error = errno;
  if (error != 0) {
    (void)!ftruncate(fd_, size_);  // if this fails too, the next Open cuts the line off
    return IoError("write", error);
  }
  size_ += static_cast<int64_t>(line.size());
  return Status::Ok();
}

Status ResultsFile::Append(const nlohmann::json& sample) {
  if (fd_ >= 0) BGTQ_RETURN_IF_ERROR(WriteLine(sample));
  samples_.push_back(sample);
  return Status::Ok();
}

}  // namespace blockgtq
