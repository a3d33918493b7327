// POSIX implementation of MappedFile.
#include "src/formats/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace blockgtq {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe by mistake must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      struct stat link;
      if (lstat(path.c_str(), &link) == 0) {  // not kNotFound: the name is there
        return Status(ErrorCode::kIo, path + ": is a link to a file that is not there; get that file");
      }
      return Status(ErrorCode::kNotFound, path + ": no such file; check the path");
    }
    return Status(ErrorCode::kIo, fmt::format("{}: cannot open: {}", path, std::strerror(error)));
  }
  struct stat info;
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return Status(ErrorCode::kIo, fmt::format("{}: cannot read its size: {}", path, std::strerror(error)));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {}; give the path of a file", path,
                              S_ISDIR(info.st_mode) ? "is a folder" : "is not a regular file"));
  }
  MappedFile file;
  if (info.st_size > 0) {  // mmap refuses an empty range; an empty file maps to an empty span
    void* data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return Status(ErrorCode::kIo, fmt::format("{}: cannot map: {}", path, std::strerror(error)));
    }
    file.data_ = data;
    file.size_ = static_cast<size_t>(info.st_size);
  }
  close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace blockgtq
