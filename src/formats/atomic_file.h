// Writes a file so that its path holds the whole new content or what it held before, never a part.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "blockgtq/status.h"

namespace blockgtq {

/// Bytes go to a temporary beside `path`; Commit makes them durable and renames. Without a successful Commit
/// the destructor removes the temporary. Errors: kIo with errno's text (a full disk among them).
class AtomicFile {
 public:
  /// A link is followed. Errors: also kIo when asked names something else than a regular file (a device, a
  /// folder).
  static Result<AtomicFile> Create(const std::string& asked);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status Write(std::span<const std::byte> bytes);
  /// fsync of the file, rename, fsync of the folder. Call once, last.
  Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd);
  std::string path_, temporary_;  // temporary_ is empty once renamed or moved from
  int fd_ = -1;
};

/// Removes what AtomicFiles left in `folder` because their process was killed; files that a living one is
/// writing stay. The number removed. Errors: kIo (the folder cannot be read).
Result<int64_t> RemoveAbandonedTemporaries(const std::string& folder);

}  // namespace blockgtq
