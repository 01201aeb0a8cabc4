#pragma once
// The directory of built kernels: <key>.so, each machine code (a shared object, or what a device
// loads) with a checksum behind its end.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace brrr::jit {

// $BRRR_CACHE_DIR, $XDG_CACHE_HOME/brrr, $HOME/.cache/brrr or /tmp/brrr-<uid>: the first that the
// environment names at this moment. Whoever can write there could run code in this process, so one
// that others can write, or that somebody else owns, is refused: kernels then go to a private
// directory that lasts as long as the process, and stderr says so once.
std::string kernel_cache_dir();

// Whether the kernels are there, whole, and nobody else's. Marks them as just used.
bool kernel_is_cached(const std::string& dir, const std::string& key);

// The same, and the machine code itself.
std::optional<std::string> read_kernel(const std::string& dir, const std::string& key);

// Puts a shared object into the cache under its final name, in one step for every other process.
// `object` is in `dir` or below and is gone afterwards. Throws Error when the disk is full.
void publish_kernel(const std::string& dir, const std::string& key, const std::string& object);

// The same from memory.
void publish_kernel_code(const std::string& dir, const std::string& key, const std::string& code);

// Removes what was not used for longest until both limits hold, and what killed processes left.
// Touches nothing that does not have the name of a file of ours.
void trim_kernel_cache(const std::string& dir, size_t most_files = 4096,
                       uint64_t most_bytes = uint64_t{512} << 20);

// A directory in `parent` for one build, removed with all it holds.
class ScratchDir {
 public:
  explicit ScratchDir(const std::string& parent);
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace brrr::jit
