// POSIX implementation of AtomicFile.
#include "src/formats/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace blockgtq {
namespace {

Status IoError(const std::string& path, const char* what, int error) {
  const char* advice = error == ENOSPC || error == EDQUOT || error == EFBIG
                           ? "; make room or choose another folder"
                           : "; check the path and its permissions";
  return Status(ErrorCode::kIo, fmt::format("{}: cannot {}: {}{}", path, what, std::strerror(error), advice));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

Result<AtomicFile> AtomicFile::Create(const std::string& asked) {
  static std::atomic<unsigned> counter{0};
  std::string path = asked;
  struct stat target {};
  if (stat(asked.c_str(), &target) == 0) {
    if (!S_ISREG(target.st_mode)) {  // renaming over a device would destroy it
      return Status(ErrorCode::kIo, asked + ": is no regular file and cannot be replaced; name another path");
    }
    char* resolved = realpath(asked.c_str(), nullptr);  // a link keeps pointing at what is written
    if (resolved == nullptr) return IoError(asked, "resolve", errno);
    path = resolved;
    std::free(resolved);
  }
  for (int attempt = 0; attempt < 100; ++attempt) {
    // Not mkstemp: the file must get the permissions that the user's umask gives.
    std::string temporary = fmt::format("{}.{}-{}.tmp", path, getpid(), counter++);
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      flock(fd,
            LOCK_EX | LOCK_NB);  // says that its writer lives; where locks do not work, nothing is removed
      return AtomicFile(path, std::move(temporary), fd);
    }
    if (errno != EEXIST) return IoError(path, "create", errno);
  }
  return IoError(path, "create", EEXIST);
}

Result<int64_t> RemoveAbandonedTemporaries(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator files(folder, error);
  int64_t removed = 0;
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    const std::string name = files->path().filename().string();
    // NAME.PROCESS-NUMBER.tmp, as Create makes them.
    static constexpr std::string_view kEnd = ".tmp";
    if (!name.ends_with(kEnd)) continue;
    const size_t end = name.size() - kEnd.size(), dash = name.rfind('-', end), dot = name.rfind('.', dash);
    if (dash == std::string::npos || dot == std::string::npos || dot == 0) continue;
    const auto digits = [&](size_t first, size_t last) {
      return first < last && std::all_of(name.begin() + static_cast<int64_t>(first),
                                         name.begin() + static_cast<int64_t>(last),
                                         [](char c) { return c >= '0' && c <= '9'; });
    };
    if (!digits(dot + 1, dash) || !digits(dash + 1, end)) continue;
    const std::string path = files->path().string();
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path.c_str()) == 0) ++removed;
    close(fd);
  }
  if (!error) return removed;
  return Status(ErrorCode::kIo,
                fmt::format("{}: cannot list the folder: {}; check the path and its permissions", folder,
                            error.message()));
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t chunk = std::min<size_t>(bytes.size(), size_t{1} << 30);
    const ssize_t written = write(fd_, bytes.data(), chunk);
    if (written < 0) {
      if (errno == EINTR) continue;
      return IoError(path_, "write", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status::Ok();
}

Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return IoError(path_, "write", errno);
  if (close(std::exchange(fd_, -1)) != 0) return IoError(path_, "write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return IoError(path_, "put in place", errno);
  temporary_.clear();
  const int folder = open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Status::Ok();  // a folder that may be written but not read; the file is complete
  const int failed = fsync(folder) != 0 ? errno : 0;
  close(folder);
  // Some file systems have no fsync for folders and say EINVAL.
  return failed == 0 || failed == EINVAL ? Status::Ok() : IoError(path_, "make its folder durable", failed);
}

}  // namespace blockgtq
