#pragma once
// Large blocks: runs of 4 KB pages inside 2 MB-aligned segments of huge pages, best fit, split and
// merged, kept for reuse. All bookkeeping lives in the mapped memory itself, so that no call needs
// malloc. Not thread-safe: the allocator's lock guards it.
#include <cstddef>
#include <cstdint>

namespace brrr::cpu::detail {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{1} << 21;

/// What was asked of the system so far.
struct SystemUse {
  size_t reserved = 0;
  uint64_t calls = 0;
};

/// Maps `bytes` (a multiple of 2 MB) at a multiple of 2 MB, with `header` more bytes (a multiple
/// of 4 KB) just below, and asks for huge pages. nullptr when the system refuses.
std::byte* map_huge(size_t bytes, size_t header, SystemUse& use) noexcept;
void unmap_huge(std::byte* begin, size_t bytes, size_t header, SystemUse& use) noexcept;

class PageHeap {
 public:
  /// Size of the block that a request of `bytes` takes: 4 KB, 64 KB or 2 MB granules, at most
  /// 12.5 % above the request.
  static size_t rounded(size_t bytes) noexcept;

  void* allocate(size_t bytes, SystemUse& use) noexcept;
  void deallocate(void* p, size_t bytes) noexcept;
  /// Several blocks side by side, of `bytes` as rounded together; each is given back by itself.
  void* allocate_row(size_t bytes, SystemUse& use) noexcept;
  /// Unmaps segments that are free as a whole and empties the huge pages inside other free runs.
  void trim(SystemUse& use) noexcept;

 private:
  struct Segment;
  struct Run;  // a free run; the node lies in its first bytes
  static constexpr int kBuckets = 320, kWords = kBuckets / 64;
  // Two levels map any 48-bit address to its segment, by 2 MB slots.
  static constexpr size_t kLeafBits = 14, kTopBits = 48 - 21 - kLeafBits;

  static int bucket(size_t pages) noexcept;
  void insert(Segment* segment, size_t first, size_t pages, bool fresh) noexcept;
  void remove(Run* run) noexcept;
  void give_back(void* p, size_t pages) noexcept;
  Run* best_fit(size_t pages, bool fresh_too) noexcept;
  Run* add_segment(size_t bytes, SystemUse& use) noexcept;
  bool set_segment(Segment* segment, Segment* value, SystemUse& use) noexcept;
  Segment* segment_of(const void* p) const noexcept;

  Run* heads_[kBuckets] = {};
  uint64_t nonempty_[kWords] = {};
  Segment** leaves_[size_t{1} << kTopBits] = {};
};

}  // namespace brrr::cpu::detail
