#pragma once
// Reads files without trusting their content, and replaces files without losing the old content.

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

/// A regular file mapped read-only; pages are read from disk when they are touched. Replacing the
/// file, as replace_file() does, leaves the mapping unchanged. Truncating it in place removes
/// pages, and touching one of those kills the process (SIGBUS): check() before every use turns that
/// into an error, unless the file is truncated between check() and the use.
class MappedFile : public InputFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  const void* data() const { return data_; }
  /// Throws if the file is now smaller than when it was opened.
  void check() const;

 private:
  void* data_ = nullptr;
};

struct Bytes {
  const void* data;
  size_t size;
};
/// Replaces the file's content by the concatenated parts. They are written to a temporary file in
/// the same directory, which is synced and renamed: whatever happens, `path` holds the old content
/// or the new. Throws if the file exists and is not writable. Also removes temporary files that
/// killed processes left for this `path`.
void replace_file(const std::string& path, const std::vector<Bytes>& parts);
/// The target of a chain of symbolic links, which need not exist; still a link if the chain is
/// longer than the system follows.
std::filesystem::path resolve_links(std::filesystem::path path);
/// Throws what would keep replace_file() from starting: call it before spending hours on the
/// content.
void check_replaceable(const std::string& path);

}  // namespace brrr
