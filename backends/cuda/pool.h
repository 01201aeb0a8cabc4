#pragma once
// The caching allocator of device memory. All work is queued on one stream, so a freed block can be
// reused at once: its next use is queued behind its last.

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backends/cuda/device.h"
#include "core/device.h"

namespace brrr::cuda {

/// Requests are rounded up to 512 bytes. Those up to 1 MiB are cut from segments of 2 MiB, larger
/// ones from segments of their own size rounded up to 2 MiB, at least 4 MiB. The rest of a segment
/// is kept as a free block; adjacent free blocks are merged.
class Pool {
 public:
  /// With `apart`, for memory checkers, every block is a device allocation of exactly the requested
  /// size; freed blocks are reused only by captures, which may not allocate.
  explicit Pool(const Driver& driver, bool apart = false) : driver_(driver), apart_(apart) {}
  /// Null when out of memory even after unused segments were returned to the device. `owner` names
  /// the requester in out-of-memory messages; the text must never be freed.
  void* allocate(size_t bytes, const char* owner);
  /// `bytes` as passed to allocate().
  void deallocate(void* p, size_t bytes) noexcept;
  /// From here on blocks that this thread frees are held back, for its own allocations on the same
  /// stream only, until taken() returns all of them. The caller frees them together with the
  /// captured work that uses them.
  void hold() { held_.on = true; }
  std::vector<std::pair<void*, size_t>> taken();
  /// Returns unused segments to the device.
  void trim();
  /// Calls `attempt`, which allocates device memory outside the pool, and if it fails once more
  /// after a trim. Returns whether it succeeded.
  template <class Attempt> bool retry_after_trim(Attempt attempt) {
    if (attempt()) return true;
    trim();
    return attempt();
  }
  MemoryStats stats() const;
  void reset_peak();
  /// "512 bytes held by tensors, 0 cached, ... free; the largest: 1 x 512 of matmul". Reused small
  /// blocks keep their first owner.
  std::string describe() const;

 private:
  struct Block {
    size_t bytes = 0;
    char* segment = nullptr;      ///< Start of its segment.
    size_t segment_bytes = 0;     ///< Size of its segment.
    const char* owner = nullptr;  ///< Null if the block is free.
  };
  using Blocks = std::map<char*, Block>;  ///< By address: adjacent blocks are adjacent here.
  using Free = std::set<std::pair<size_t, char*>>;

  size_t rounded(size_t bytes) const;
  void* take(size_t bytes, const char* owner);
  void give(char* p);
  Blocks::iterator find(size_t bytes);
  Blocks::iterator new_segment(size_t bytes);
  void trim_locked();
  Free::iterator release(Free& list, Free::iterator it);
  Free& free_of(const Block& b) { return free_[b.segment_bytes > kSegment]; }

  static constexpr size_t kUnit = 512, kSmall = size_t{1} << 20, kSegment = size_t{2} << 20;
  const Driver& driver_;
  const bool apart_;
  mutable std::mutex mutex_;
  Blocks blocks_;
  Free free_[2];  ///< Free blocks by size, of small segments and of large ones.
  /// Freed small blocks by size / kUnit, reused without merging: most steps request the same sizes
  /// over and over. `blocks_` lists them as in use.
  std::vector<void*> recent_[kSmall / kUnit + 1];
  MemoryStats stats_;

  struct Held {
    bool on = false;
    std::vector<std::pair<void*, size_t>> blocks[2];  // Of the main stream and of the second one.
    auto& here() { return blocks[OpenDevice::beside]; }
  };
  static thread_local Held held_;
};

/// The device's pool, with BRRR_POISON=1 an `apart` one. Never destroyed: tensors may be freed
/// during process exit.
Pool& pool();

}  // namespace brrr::cuda
