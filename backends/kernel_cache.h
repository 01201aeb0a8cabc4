#pragma once
// The on-disk cache of built kernels: files <key>.so of machine code (a shared object, or an image
// that a device loads) with a checksum appended.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/moved.h"

namespace brrr::jit {

// The value of an environment variable; "" if there is none.
inline std::string env_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// A 128-bit hash of the fields in hexadecimal: names kernels and detects damaged ones. It need not
// be cryptographic: an attacker who can write to the cache can run code anyway.
std::string fingerprint(const std::vector<std::string_view>& fields);

// The first of $BRRR_CACHE_DIR, $XDG_CACHE_HOME/brrr, $HOME/.cache/brrr and /tmp/brrr-<uid> that
// the environment defines now. A user who can write there could run code in this process, so a
// directory that others can write to or own is refused: kernels then go to a private directory that
// is removed when the process ends, and stderr says so once. Private directories left behind by
// killed processes are removed when a new one is made.
std::string kernel_cache_dir();

// The path of the kernels of that key, whether they exist or not.
std::string kernel_path(const std::string& dir, const std::string& key);

// The machine code if it exists, is intact and only this user can write it. Updates its mtime.
std::optional<std::string> read_kernel(const std::string& dir, const std::string& key);

// Writes machine code to the cache, atomically for other processes. The first and every 64th call
// in a process trims the cache. Throws Error when the file cannot be written (a full disk, say).
void publish_kernel(const std::string& dir, const std::string& key, const std::string& code);

// The same for code that this process holds in memory: a failure only costs the next process a
// build, so it is reported once on stderr and not thrown.
void try_to_publish(const std::string& dir, const std::string& key, const std::string& code);

// When processes or threads build the same kernels at the same time, one runs the compiler; the
// others wait up to 20 seconds and then look for what it published. If it published nothing they
// build concurrently; so do all of them where the file system has no locks.
class BuildLock : NotCopied {
 public:
  BuildLock(const std::string& dir, const std::string& key);
  ~BuildLock();

 private:
  bool lock(short kind) const;
  int file_;
  int64_t at_;  // The offset in the cache's lock file that the key maps to; one byte is locked.
};

// Removes the least recently used kernels until both limits hold, and build directories of killed
// processes. Leaves files alone whose names are not the cache's.
inline constexpr uint64_t most_kernel_bytes = uint64_t{512} << 20;
void trim_kernel_cache(const std::string& dir, size_t most_files = 4096,
                       uint64_t most_bytes = most_kernel_bytes);

// A temporary directory in `parent` for one build; the destructor removes it with its contents.
class ScratchDir : NotCopied {
 public:
  explicit ScratchDir(const std::string& parent);
  ~ScratchDir();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace brrr::jit
