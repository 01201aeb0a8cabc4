#pragma once
// Files that may be hostile, and files that must not be lost.

#include <cstdint>
#include <string>
#include <vector>

namespace brrr {

/// A regular file opened for reading. Every failure is a brrr::Error that names the file.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  uint64_t size() const { return size_; }
  /// Fills `to` with `bytes` bytes from `offset` on; throws if the file ends before.
  void read(void* to, uint64_t offset, uint64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

struct Bytes {
  const void* data;
  size_t size;
};
/// Replaces the file by the parts, one after the other. They go to a temporary file beside it,
/// which is synced and renamed: whatever happens, `path` holds the old content or the new.
void replace_file(const std::string& path, const std::vector<Bytes>& parts);

}  // namespace brrr
