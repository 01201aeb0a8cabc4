#include "backends/cpu/page_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace brrr::cpu::detail {
namespace {

constexpr size_t kSegment = size_t{32} << 20;  // smallest mapping; only touched pages cost memory
constexpr uint32_t kUsed = 0;                  // a page's tag: 0, or the length of its free run
constexpr int kScan = 32;                      // runs looked at per bucket: bounds the search

size_t round_up(size_t value, size_t granule) {
  return (value + granule - 1) & ~(granule - 1);
}

}  // namespace

struct PageHeap::Segment {
  std::byte* begin;
  size_t pages, header;
  // Boundary tags of the first and last page of each run: neighbours merge without a search.
  uint32_t* tags() { return reinterpret_cast<uint32_t*>(this + 1); }
};

struct PageHeap::Run {
  Run *next, *prev;
  Segment* segment;
  size_t first, pages;
  bool fresh;  // Its pages have not been touched: memory that has been costs no more of it.
};

std::byte* map_huge(size_t bytes, size_t header, SystemUse& use) noexcept {
  const size_t total = bytes + header + kHugePage;
  if (total < bytes) return nullptr;
  // Reserved, not MAP_NORESERVE: what cannot be had must fail here, not kill the process later.
  void* raw = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ++use.calls;
  if (raw == MAP_FAILED) return nullptr;
  const auto base = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t begin = round_up(base + header, kHugePage);
  const uintptr_t low = begin - header, end = begin + bytes;
  if (low > base) use.calls += 1, munmap(raw, low - base);
  if (base + total > end) {
    use.calls += 1, munmap(reinterpret_cast<void*>(end), base + total - end);
  }
  auto* memory = reinterpret_cast<std::byte*>(begin);
  madvise(memory, bytes, MADV_HUGEPAGE);  // a kernel without them works too, only slower
  ++use.calls;
  use.reserved += bytes + header;
  return memory;
}

void unmap_huge(std::byte* begin, size_t bytes, size_t header, SystemUse& use) noexcept {
  munmap(begin - header, bytes + header);
  ++use.calls;
  use.reserved -= bytes + header;
}

size_t PageHeap::rounded(size_t bytes) noexcept {
  if (bytes > SIZE_MAX / 2) return 0;
  if (bytes < (size_t{512} << 10)) return round_up(bytes, kPage);
  if (bytes < (size_t{16} << 20)) return round_up(bytes, size_t{64} << 10);
  return round_up(bytes, kHugePage);
}

// Eight buckets per doubling.
int PageHeap::bucket(size_t pages) noexcept {
  const int shift = std::max(0, static_cast<int>(std::bit_width(pages)) - 4);
  return std::min(8 * shift + static_cast<int>(pages >> shift), kBuckets - 1);
}

void PageHeap::insert(Segment* segment, size_t first, size_t pages, bool fresh) noexcept {
  const int b = bucket(pages);
  auto* run =
      new (segment->begin + first * kPage) Run{heads_[b], nullptr, segment, first, pages, fresh};
  if (run->next) run->next->prev = run;
  heads_[b] = run;
  nonempty_[b / 64] |= uint64_t{1} << (b % 64);
  segment->tags()[first] = segment->tags()[first + pages - 1] = static_cast<uint32_t>(pages);
}

void PageHeap::remove(Run* run) noexcept {
  const int b = bucket(run->pages);
  if (run->next) run->next->prev = run->prev;
  (run->prev ? run->prev->next : heads_[b]) = run->next;
  if (!heads_[b]) nonempty_[b / 64] &= ~(uint64_t{1} << (b % 64));
  uint32_t* tags = run->segment->tags();
  tags[run->first] = tags[run->first + run->pages - 1] = kUsed;
}

PageHeap::Run* PageHeap::best_fit(size_t pages, bool fresh_too) noexcept {
  for (int b = bucket(pages); b < kBuckets; ++b) {
    const uint64_t rest = nonempty_[b / 64] >> (b % 64);
    if (!rest) {
      b |= 63;  // nothing more in this word
      continue;
    }
    b += std::countr_zero(rest);
    Run* best = nullptr;
    int scanned = 0;
    for (Run* run = heads_[b]; run && scanned < kScan; run = run->next, ++scanned) {
      if (run->fresh && !fresh_too) continue;
      if (run->pages >= pages && (!best || run->pages < best->pages)) best = run;
      if (best && best->pages == pages) break;
    }
    if (best) return best;
  }
  return nullptr;
}

// On failure part of the leaves may exist already; they are kept for the next attempt.
bool PageHeap::set_segment(Segment* segment, Segment* value, SystemUse& use) noexcept {
  const size_t low = reinterpret_cast<uintptr_t>(segment->begin) / kHugePage;
  const size_t count = segment->pages * kPage / kHugePage;
  if ((low + count - 1) >> (kLeafBits + kTopBits)) return false;
  for (size_t slot = low; slot < low + count; ++slot) {
    Segment**& leaf = leaves_[slot >> kLeafBits];
    if (!leaf) {
      const size_t bytes = sizeof(Segment*) << kLeafBits;
      void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ++use.calls;
      if (raw == MAP_FAILED) return false;
      leaf = static_cast<Segment**>(raw);
    }
    leaf[slot & ((size_t{1} << kLeafBits) - 1)] = value;
  }
  return true;
}

PageHeap::Segment* PageHeap::segment_of(const void* p) const noexcept {
  const size_t slot = reinterpret_cast<uintptr_t>(p) / kHugePage;
  return leaves_[slot >> kLeafBits][slot & ((size_t{1} << kLeafBits) - 1)];
}

PageHeap::Run* PageHeap::add_segment(size_t bytes, SystemUse& use) noexcept {
  bytes = std::max(round_up(bytes, kHugePage), kSegment);
  const size_t pages = bytes / kPage;
  if (pages > UINT32_MAX) return nullptr;
  const size_t header = round_up(sizeof(Segment) + pages * sizeof(uint32_t), kPage);
  std::byte* begin = map_huge(bytes, header, use);
  if (!begin) return nullptr;
  auto* segment = new (begin - header) Segment{begin, pages, header};
  if (!set_segment(segment, segment, use)) {
    unmap_huge(begin, bytes, header, use);
    return nullptr;
  }
  insert(segment, 0, pages, true);
  return reinterpret_cast<Run*>(begin);
}

void* PageHeap::allocate(size_t bytes, SystemUse& use) noexcept {
  const size_t size = rounded(bytes), pages = size / kPage;
  if (pages == 0) return nullptr;
  Run* run = best_fit(pages, false);
  if (!run) run = best_fit(pages, true);
  if (!run) {
    trim(use);  // What lies free is of no use here: the system gets it back before it gives more.
    run = add_segment(size, use);
  }
  if (!run) return nullptr;
  remove(run);
  Segment* segment = run->segment;
  const size_t first = run->first, left = run->pages - pages;
  if (left) insert(segment, first + pages, left, run->fresh);
  return segment->begin + first * kPage;
}

void PageHeap::deallocate(void* p, size_t bytes) noexcept {
  give_back(p, rounded(bytes) / kPage);
}

void* PageHeap::allocate_row(size_t bytes, SystemUse& use) noexcept {
  auto* p = static_cast<std::byte*>(allocate(bytes, use));
  const size_t rest = p ? rounded(bytes) - bytes : 0;
  if (rest) give_back(p + bytes, rest / kPage);
  return p;
}

void PageHeap::give_back(void* p, size_t pages) noexcept {
  Segment* segment = segment_of(p);
  size_t first = static_cast<size_t>(static_cast<std::byte*>(p) - segment->begin) / kPage;
  const uint32_t* tags = segment->tags();
  const auto merge = [&](size_t page) {
    remove(reinterpret_cast<Run*>(segment->begin + page * kPage));
  };
  if (const size_t end = first + pages; end < segment->pages && tags[end] != kUsed) {
    pages += tags[end];
    merge(end);
  }
  if (first > 0 && tags[first - 1] != kUsed) {
    const size_t before = tags[first - 1];
    first -= before;
    pages += before;
    merge(first);
  }
  insert(segment, first, pages, false);
}

void PageHeap::trim(SystemUse& use) noexcept {
  for (Run* head : heads_) {
    for (Run *run = head, *next; run; run = next) {
      next = run->next;
      Segment* segment = run->segment;
      if (run->pages == segment->pages) {
        remove(run);
        set_segment(segment, nullptr, use);
        unmap_huge(segment->begin, segment->pages * kPage, segment->header, use);
        continue;
      }
      const auto begin = reinterpret_cast<uintptr_t>(run);
      const uintptr_t low = round_up(begin + sizeof(Run), kHugePage);
      const uintptr_t high = (begin + run->pages * kPage) & ~(kHugePage - 1);
      if (high > low) {
        madvise(reinterpret_cast<void*>(low), high - low, MADV_DONTNEED);
        ++use.calls;
      }
    }
  }
}

}  // namespace brrr::cpu::detail
