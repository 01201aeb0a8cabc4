#pragma once
// The directory of built kernels: <key>.so, each machine code (a shared object, or what a device
// loads) with a checksum behind its end.

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

// 128 bits of what the fields are, in hexadecimal: names kernels and detects damaged ones. Nobody
// is to be kept from making two that are equal: whoever can write to the cache may do anything.
std::string fingerprint(const std::vector<std::string_view>& fields);

// $BRRR_CACHE_DIR, $XDG_CACHE_HOME/brrr, $HOME/.cache/brrr or /tmp/brrr-<uid>: the first that the
// environment names at this moment. Whoever can write there could run code in this process, so one
// that others can write, or that somebody else owns, is refused: kernels then go to a private
// directory that lasts as long as the process, and stderr says so once. One that a killed process
// has left goes when another is made.
std::string kernel_cache_dir();

// Where the kernels of that key are, or would be.
std::string kernel_path(const std::string& dir, const std::string& key);

// Their machine code, if it is there, whole, and nobody else's. Marks it as just used.
std::optional<std::string> read_kernel(const std::string& dir, const std::string& key);

// Puts machine code into the cache, in one step for every other process; the first and every 64th
// time in a process it bounds the cache. Throws Error when the disk is full.
void publish_kernel(const std::string& dir, const std::string& key, const std::string& code);

// The same for what this process has all the same: only the next one pays for a disk that is full,
// and stderr says so once.
void try_to_publish(const std::string& dir, const std::string& key, const std::string& code);

// Of those who build the same kernels at the same time, processes or threads, one runs the compiler
// and the others wait, for 20 seconds at most, and then look for what it published. If there is
// nothing they build side by side; so does everybody where the file system has no locks.
class BuildLock : NotCopied {
 public:
  BuildLock(const std::string& dir, const std::string& key);
  ~BuildLock();

 private:
  bool lock(short kind) const;
  int file_;
  int64_t at_;  // The byte of the cache's lock file that stands for the key.
};

// Removes what was not used for longest until both limits hold, and what killed processes left.
// Touches nothing that does not have the name of a file of ours.
inline constexpr uint64_t most_kernel_bytes = uint64_t{512} << 20;
void trim_kernel_cache(const std::string& dir, size_t most_files = 4096,
                       uint64_t most_bytes = most_kernel_bytes);

// A directory in `parent` for one build, removed with all it holds.
class ScratchDir : NotCopied {
 public:
  explicit ScratchDir(const std::string& parent);
  ~ScratchDir();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace brrr::jit
