#pragma once
// Files that may be hostile, and files that must not be lost.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/moved.h"
#include "core/text.h"

namespace brrr {

/// A regular file opened for reading. Every failure is a brrr::Error that names the file.
class InputFile : NotCopied {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  uint64_t size() const { return size_; }
  /// Fills `to` with `bytes` bytes from `offset` on; throws if the file ends before.
  void read(void* to, uint64_t offset, uint64_t bytes) const;
  std::string read(uint64_t offset, uint64_t bytes) const;

  const std::string& path() const { return path_; }

 protected:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// A regular file's bytes as read-only memory, fetched from the disk as they are touched. Who
/// replaces the file, as replace_file() does, leaves the mapping as it was. Who cuts it short in
/// place takes pages away, and touching one of those kills the process: check() before every use
/// turns that into an error, unless it happens between the two.
class MappedFile : public InputFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  const void* data() const { return data_; }
  /// Throws if the file has become smaller than it was when it was opened.
  void check() const;

 private:
  void* data_ = nullptr;
};

struct Bytes {
  const void* data;
  size_t size;
};
/// Replaces the file by the parts, one after the other. They go to a temporary file beside it,
/// which is synced and renamed: whatever happens, `path` holds the old content or the new. A file
/// that may not be written is not replaced either. What killed processes left of such files for
/// this `path` is removed.
void replace_file(const std::string& path, const std::vector<Bytes>& parts);
/// What a chain of links leads to, which need not be there; a link, if it is longer than those that
/// the system follows.
std::filesystem::path behind_links(std::filesystem::path path);
/// Throws what keeps replace_file() from beginning: to be asked before hours are spent on the
/// parts.
void check_replaceable(const std::string& path);

}  // namespace brrr
