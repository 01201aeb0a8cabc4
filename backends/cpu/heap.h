#pragma once
// The shared heap behind the threads' free lists, and for large blocks. Internal to the allocator.
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "backends/cpu/allocator.h"

namespace brrr::cpu::detail {

/// Allocates whole units (a power of two, at least 64 bytes): best-fit runs of units within
/// segments of huge pages, split and coalesced. All bookkeeping is in mapped memory, so no call
/// needs malloc. Not thread-safe: the allocator's lock guards it.
class Heap {
 public:
  static constexpr size_t kHugePage = size_t{1} << 21;
  constexpr explicit Heap(size_t unit) : unit_(unit) {}

  /// `bytes`, a multiple of the unit; nullptr when the system has no more.
  void* allocate(size_t bytes) noexcept {
    Run* run = best_fit(bytes);
    if (!run) {
      trim();  // No free run is large enough: return free memory before asking for more.
      run = add_segment(bytes);
    }
    if (!run) return nullptr;
    remove(run);
    const size_t left = run->bytes - bytes;
    if (left) insert(reinterpret_cast<std::byte*>(run) + bytes, left, run->fresh);
    return run;
  }

  /// Frees whole units: all that one allocate() returned, or a part of them.
  void deallocate(void* p, size_t bytes) noexcept {
    auto* begin = static_cast<std::byte*>(p);
    const uint32_t* tags = tag(p);
    const size_t before = tags[-1] * unit_, after = tags[bytes / unit_] * unit_;
    if (after) remove(reinterpret_cast<Run*>(begin + bytes));
    if (before) remove(reinterpret_cast<Run*>(begin - before));
    insert(begin - before, before + bytes + after, false);
  }

  /// Unmaps segments that are entirely free; discards whole huge pages inside other free runs.
  void trim() noexcept {
    for (Run* head : heads_) {
      for (Run *run = head, *next; run; run = next) {
        next = run->next;
        Segment* segment = slot(run);
        if (run->bytes == segment->bytes) {
          remove(run);
          for (size_t at = 0; at < segment->bytes; at += kSlot) slot(segment->begin + at) = nullptr;
          unmap(segment->begin, segment->mapped);
          continue;
        }
        const uintptr_t low = round_up(address(run + 1), kHugePage);
        const uintptr_t high = (address(run) + run->bytes) & ~(kHugePage - 1);
        if (high > low) madvise(reinterpret_cast<void*>(low), high - low, MADV_DONTNEED);
      }
    }
  }

  /// A block's owner and requested bytes, for messages; cleared by the caller when it is freed.
  /// Only for units of at least 4096 bytes.
  struct Note {
    const char* owner;
    size_t bytes;
  };
  Note& note(void* p) { return notes(slot(p))[(address(p) - address(slot(p)->begin)) / unit_]; }
  template <class F> void each_note(const F& f) {
    const Segment* last = nullptr;
    for (Segment* segment : slots_) {
      if (!segment || std::exchange(last, segment) == segment) continue;
      for (size_t u = 0; u < segment->bytes / unit_; ++u) {
        if (const Note& n = notes(segment)[u]; n.owner) f(n);
      }
    }
  }

  size_t reserved = 0;

 private:
  // A free run; the node is stored in its first bytes.
  struct Run {
    Run *next, **link;
    size_t bytes;
    bool fresh;  // Never touched. Touched runs are preferred: they take no new physical memory.
  };
  // The header follows the segment's memory, so that the memory starts on a huge page.
  struct Segment {
    std::byte* begin;
    size_t bytes, mapped;
    // Boundary tags, one per unit and one on either side: the length of a free run at its first and
    // last unit, else 0, so that neighbours coalesce without a search.
    uint32_t* tags() { return reinterpret_cast<uint32_t*>(this + 1) + 1; }
  };
  static constexpr int kBuckets = 64;
  // Segments start at multiples of 32 MB and are found by a table with one slot per 32 MB, modulo
  // 8 TB: a segment whose slot is taken is refused.
  static constexpr size_t kSlot = size_t{32} << 20, kSlots = size_t{1} << 18;

  // The notes, one per unit, follow the segment's tags.
  size_t tag_bytes(size_t bytes) const { return round_up((bytes / unit_ + 2) * 4, sizeof(Note)); }
  Note* notes(Segment* s) {
    return reinterpret_cast<Note*>(reinterpret_cast<std::byte*>(s + 1) + tag_bytes(s->bytes));
  }
  static uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }
  static size_t round_up(size_t value, size_t granule) {
    return (value + granule - 1) & ~(granule - 1);
  }
  int bucket(size_t bytes) const { return std::min(small_class(bytes / unit_), kBuckets - 1); }
  Segment*& slot(const void* p) { return slots_[address(p) / kSlot % kSlots]; }
  uint32_t* tag(const void* p) {
    return slot(p)->tags() + (address(p) - address(slot(p)->begin)) / unit_;
  }

  void insert(void* p, size_t bytes, bool fresh) {
    Run*& head = heads_[bucket(bytes)];
    auto* run = new (p) Run{head, &head, bytes, fresh};
    if (head) head->link = &run->next;
    head = run;
    const size_t units = bytes / unit_;
    tag(p)[0] = tag(p)[units - 1] = static_cast<uint32_t>(units);
  }

  void remove(Run* run) {
    *run->link = run->next;
    if (run->next) run->next->link = run->link;
    tag(run)[0] = tag(run)[run->bytes / unit_ - 1] = 0;
  }

  Run* best_fit(size_t bytes) {
    for (const bool fresh : {false, true}) {
      for (int b = bucket(bytes); b < kBuckets; ++b) {
        Run* best = nullptr;
        int left = 32;  // bounds the search
        for (Run* run = heads_[b]; run && left > 0; run = run->next, --left) {
          if (run->fresh != fresh || run->bytes < bytes) continue;
          if (run->bytes == bytes) return run;
          if (!best || run->bytes < best->bytes) best = run;
        }
        if (best) return best;
      }
    }
    return nullptr;
  }

  Run* add_segment(size_t bytes) {
    bytes = round_up(std::max(bytes, unit_ << 13), kHugePage);  // untouched pages are not resident
    const size_t notes = unit_ < 4096 ? 0 : bytes / unit_ * sizeof(Note);
    const size_t mapped = bytes + round_up(sizeof(Segment) + tag_bytes(bytes) + notes, 4096);
    std::byte* begin = map(mapped);
    if (!begin) return nullptr;
    for (size_t at = 0; at < bytes; at += kSlot) {
      if (slot(begin + at)) return unmap(begin, mapped), nullptr;
    }
    madvise(begin, bytes, MADV_HUGEPAGE);  // may fail: without huge pages it is only slower
    auto* segment = new (begin + bytes) Segment{begin, bytes, mapped};
    for (size_t at = 0; at < bytes; at += kSlot) slot(begin + at) = segment;
    insert(begin, bytes, true);
    return reinterpret_cast<Run*>(begin);
  }

  std::byte* map(size_t bytes) {
    // No MAP_NORESERVE: running out of memory must fail here, not kill the process later.
    void* raw =
        mmap(nullptr, bytes + kSlot, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    const size_t before = -address(raw) & (kSlot - 1);
    std::byte* begin = static_cast<std::byte*>(raw) + before;
    if (before) munmap(raw, before);
    munmap(begin + bytes, kSlot - before);
    reserved += bytes;
    return begin;
  }

  void unmap(void* begin, size_t bytes) {
    munmap(begin, bytes);
    reserved -= bytes;
  }

  size_t unit_;
  Run* heads_[kBuckets] = {};
  Segment* slots_[kSlots] = {};
};

}  // namespace brrr::cpu::detail
