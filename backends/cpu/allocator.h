#pragma once
// The host memory of tensors: small blocks come from per-thread free lists in about a dozen
// instructions, large ones from a cached heap of huge pages. Nothing here throws.
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace brrr::cpu {

/// What the allocator holds. `live`, `peak` count the bytes asked for; `reserved` what is mapped;
/// `cached` is reserved minus live (free blocks, rounding, memory not yet handed out).
/// `peak` is exact while one thread allocates; with several it may be late by 64 KB a thread.
struct MemoryStats {
  size_t live = 0, peak = 0, reserved = 0;
  size_t allocations = 0;  // successful allocate calls so far (of at least one byte)
  size_t cached = 0;
  uint64_t system_calls = 0;  // mmap, munmap and madvise so far
};

MemoryStats memory_stats() noexcept;
/// Starts a new peak at the present live bytes. Exact for the calling thread; another thread's
/// growth up to its own earlier peak goes unnoticed.
void reset_peak() noexcept;
/// What a tensor of `bytes` takes in a row of blocks; 0 for one that cannot be in a row.
size_t block_bytes(size_t bytes) noexcept;
/// One piece of memory for n tensors, block_bytes() apart, each of which is deallocated by itself.
/// nullptr as for allocate().
void* allocate_row(const size_t* bytes, size_t n) noexcept;
/// Gives unused memory back to the system: free segments and chunks, the caller's own free lists.
void trim() noexcept;
/// Allocations that would bring the live bytes above `bytes` return nullptr; 0 lifts the limit.
void set_memory_limit(size_t bytes) noexcept;
/// For tests of error paths: the n-th following allocation (0: the next) returns nullptr, once.
/// -1 switches it off.
void fail_after(int64_t n) noexcept;

namespace detail {

constexpr size_t kSmallUnit = 64;  // alignment and smallest block
constexpr size_t kSmallLimit = size_t{1} << 16;
constexpr size_t kSmallUnits = kSmallLimit / kSmallUnit;
constexpr int kSmallClasses = 36;  // 64 .. 65536, four sizes per doubling

constexpr size_t small_units(size_t bytes) {
  return (bytes + kSmallUnit - 1) / kSmallUnit;
}

/// Class of a request of `units` > 0 times 64 bytes.
constexpr int small_class(size_t units) {
  const int shift = static_cast<int>(std::bit_width((units - 1) | 4)) - 3;
  return 4 * shift + static_cast<int>((units - 1) >> shift);
}

constexpr size_t class_bytes(int c) {
  const int shift = c < 4 ? 0 : c / 4 - 1;
  return static_cast<size_t>(c - 4 * shift + 1) * (kSmallUnit << shift);
}
static_assert(class_bytes(0) == 64 && class_bytes(7) == 512 && class_bytes(8) == 640 &&
              class_bytes(kSmallClasses - 1) == kSmallLimit);

using ClassTable = std::array<uint8_t, kSmallUnits + 1>;  // by units

struct FreeBlock {
  FreeBlock* next;
};

// Counters with one writing thread that others read: one plain instruction, no locked one.
inline void owner_add(std::atomic<int64_t>& counter, int64_t amount) {
#if defined(__x86_64__)
  __asm__("addq %1, %0" : "+m"(counter) : "er"(amount) : "cc");
#else
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
#endif
}

/// Returns whether the result is negative.
inline bool owner_sub(std::atomic<int64_t>& counter, int64_t amount) {
#if defined(__x86_64__)
  bool negative;
  __asm__("subq %2, %1" : "=@ccs"(negative), "+m"(counter) : "er"(amount));
  return negative;
#else
  owner_add(counter, -amount);
  return counter.load(std::memory_order_relaxed) < 0;
#endif
}

struct ThreadCache {
  FreeBlock* head[kSmallClasses + 1] = {};
  int32_t room[kSmallClasses + 1] = {};  // how many more blocks each list may hold
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> high_water{0};  // written under the global lock only
  std::atomic<int64_t> headroom{0};    // high_water - live; below zero: a peak to look at
  int64_t last_others = 0;             // the other threads' live bytes at the last look
  ThreadCache* next = nullptr;
  ThreadCache* prev = nullptr;
  enum class State : uint8_t { Fresh, Attached, Detached } state = State::Fresh;
};

// Initial-exec: one load instead of a call to find it, also inside a shared object.
extern constinit thread_local ThreadCache thread_cache __attribute__((tls_model("initial-exec")));

// Finds the class of a request. 0 bytes, and every request that must be looked at (under a limit,
// an injected failure, poisoning, AddressSanitizer, at start-up), lead to one more class that has
// neither blocks nor room.
extern constinit std::atomic<const ClassTable*> class_table;

inline size_t class_for(size_t bytes) {
  return (*class_table.load(std::memory_order_relaxed))[small_units(bytes)];
}

void* allocate_slow(size_t bytes) noexcept;
void deallocate_slow(void* p, size_t bytes) noexcept;
void* note_peak(void* block) noexcept;  // returns block

}  // namespace detail

/// `bytes` of uninitialised memory, 64-byte aligned; nullptr when the system has no more, the
/// limit would be passed or a failure is injected. 0 bytes give a shared non-null address.
inline void* allocate(size_t bytes) noexcept {
  using namespace detail;
  if (bytes > kSmallLimit) [[unlikely]]
    return allocate_slow(bytes);
  ThreadCache& cache = thread_cache;
  const size_t c = class_for(bytes);
  FreeBlock* block = cache.head[c];
  if (!block) [[unlikely]]
    return allocate_slow(bytes);
  cache.head[c] = block->next;
  ++cache.room[c];
  owner_add(cache.allocations, 1);
  const auto amount = static_cast<int64_t>(bytes);
  if (owner_sub(cache.headroom, amount)) [[unlikely]]
    return note_peak(block);
  return block;
}

/// Takes back what allocate(bytes) returned (not nullptr), from any thread.
inline void deallocate(void* p, size_t bytes) noexcept {
  using namespace detail;
  if (bytes > kSmallLimit) [[unlikely]]
    return deallocate_slow(p, bytes);
  ThreadCache& cache = thread_cache;
  const size_t c = class_for(bytes);
  if (--cache.room[c] < 0) [[unlikely]]
    return deallocate_slow(p, bytes);
  auto* block = static_cast<FreeBlock*>(p);
  block->next = cache.head[c];
  cache.head[c] = block;
  owner_add(cache.headroom, static_cast<int64_t>(bytes));
}

}  // namespace brrr::cpu
