#pragma once
// The caching pool of device memory. All work is queued on one stream, so a block that is given
// back may be handed out again at once: what uses it next is queued behind what used it last.

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
/// ones from segments of their own size rounded up to 2 MiB, at least 4 MiB; what is left of a
/// segment is kept, and joined with its neighbours when they are free.
class Pool {
 public:
  /// `apart`, for tools that watch memory: every block is the device's own allocation, of the bytes
  /// that were asked for. What was given back serves captures only, which may take no memory.
  explicit Pool(const Driver& driver, bool apart = false) : driver_(driver), apart_(apart) {}
  /// Null when the device has no more; unused segments were given back before the last attempt.
  /// `owner` says who asks, for out-of-memory messages; the text must live for ever.
  void* allocate(size_t bytes, const char* owner);
  /// `bytes` as they were asked for.
  void deallocate(void* p, size_t bytes) noexcept;
  /// From here on what this thread gives back is kept for what it asks for next in the same queue,
  /// until `taken` is called, which hands all of it over: to be given back by whoever captured the
  /// work that uses it.
  void hold() { held_.on = true; }
  std::vector<std::pair<void*, size_t>> taken();
  /// Gives unused segments back to the device.
  void trim();
  /// What takes memory beside the pool, `attempt`, is tried once more after a trim. Whether it
  /// succeeded.
  template <class Attempt> bool make_room(Attempt attempt) {
    if (attempt()) return true;
    trim();
    return attempt();
  }
  MemoryStats stats() const;
  void reset_peak();
  /// Small blocks count for whoever asked first:
  /// "512 bytes held by tensors, 0 cached, ... free; the largest: 1 x 512 of matmul".
  std::string describe() const;

 private:
  struct Block {
    size_t bytes = 0;
    char* segment = nullptr;      ///< Where its segment begins,
    size_t segment_bytes = 0;     ///< and how long that is.
    const char* owner = nullptr;  ///< Null: it is free.
  };
  using Blocks = std::map<char*, Block>;  ///< Neighbours in a segment are neighbours here.
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
  Free free_[2];  ///< By size; of small segments, of large ones.
  /// Small blocks given back, by size / kUnit, to be handed out again as they are: most steps ask
  /// for the same sizes over and over. To `blocks_` they are in use.
  std::vector<void*> recent_[kSmall / kUnit + 1];
  MemoryStats stats_;

  struct Held {
    bool on = false;
    std::vector<std::pair<void*, size_t>> blocks[2];  // Of the queue, of the one beside.
    auto& here() { return blocks[OpenDevice::beside]; }
  };
  static thread_local Held held_;
};

/// The device's own; with BRRR_POISON=1 its blocks lie apart. Never destroyed: tensors may be
/// dropped while the process ends.
Pool& pool();

}  // namespace brrr::cuda
