#pragma once
// What the lists of the threads are filled from, and large blocks. Only the allocator includes it.
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "backends/cpu/allocator.h"

namespace brrr::cpu::detail {

/// Blocks of whole units, a power of two of at least 64 bytes: runs of them inside segments of huge
/// pages, best fit, split and merged. All bookkeeping lies in mapped memory, so that no call needs
/// malloc. Not thread-safe: the allocator's lock guards it.
class Heap {
 public:
  static constexpr size_t kHugePage = size_t{1} << 21;
  constexpr explicit Heap(size_t unit) : unit_(unit) {}

  /// `bytes`, whole units, or nullptr when the system refuses them.
  void* allocate(size_t bytes) noexcept {
    Run* run = best_fit(bytes);
    if (!run) {
      trim();  // What lies free is of no use here: the system gets it back before it gives more.
      run = add_segment(bytes);
    }
    if (!run) return nullptr;
    remove(run);
    const size_t left = run->bytes - bytes;
    if (left) insert(reinterpret_cast<std::byte*>(run) + bytes, left, run->fresh);
    return run;
  }

  /// Takes back whole units: all that one call gave, or a part of them.
  void deallocate(void* p, size_t bytes) noexcept {
    auto* begin = static_cast<std::byte*>(p);
    const uint32_t* tags = tag(p);
    const size_t before = tags[-1] * unit_, after = tags[bytes / unit_] * unit_;
    if (after) remove(reinterpret_cast<Run*>(begin + bytes));
    if (before) remove(reinterpret_cast<Run*>(begin - before));
    insert(begin - before, before + bytes + after, false);
  }

  /// Unmaps segments that are free as a whole and empties the huge pages inside other free runs.
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

  /// Who holds a block, and how much of it was asked for, for messages: until it is given back.
  /// Only for units of 4096 bytes and more.
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
  // A free run; the node lies in its first bytes.
  struct Run {
    Run *next, **link;
    size_t bytes;
    bool fresh;  // It has not been touched: memory that has been costs no more of it.
  };
  // Stands behind its memory, so that this begins with a huge page.
  struct Segment {
    std::byte* begin;
    size_t bytes, mapped;
    // One for each unit and one on either side. 0, or for the first and the last unit of a free run
    // its length: neighbours merge without a search.
    uint32_t* tags() { return reinterpret_cast<uint32_t*>(this + 1) + 1; }
  };
  static constexpr int kBuckets = 64;
  // Segments begin at multiples of 32 MB and are found by slots of that size, up to 8 TB apart:
  // what would lie further away is refused.
  static constexpr size_t kSlot = size_t{32} << 20, kSlots = size_t{1} << 18;

  // Behind a segment's tags, one for each unit.
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
    bytes = round_up(std::max(bytes, unit_ << 13), kHugePage);  // only touched pages cost memory
    const size_t notes = unit_ < 4096 ? 0 : bytes / unit_ * sizeof(Note);
    const size_t mapped = bytes + round_up(sizeof(Segment) + tag_bytes(bytes) + notes, 4096);
    std::byte* begin = map(mapped);
    if (!begin) return nullptr;
    for (size_t at = 0; at < bytes; at += kSlot) {
      if (slot(begin + at)) return unmap(begin, mapped), nullptr;
    }
    madvise(begin, bytes, MADV_HUGEPAGE);  // a kernel without them works too, only slower
    auto* segment = new (begin + bytes) Segment{begin, bytes, mapped};
    for (size_t at = 0; at < bytes; at += kSlot) slot(begin + at) = segment;
    insert(begin, bytes, true);
    return reinterpret_cast<Run*>(begin);
  }

  std::byte* map(size_t bytes) {
    // Reserved, not MAP_NORESERVE: what cannot be had must fail here, not kill the process later.
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
