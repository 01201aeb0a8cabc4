#pragma once
// The host memory of tensors: small blocks come from per-thread free lists in about a dozen
// instructions, large ones from a cached heap of huge pages. Nothing here throws.
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "core/device.h"

namespace brrr::cpu {

/// `live` and `peak` count requested bytes. `peak` is exact while one thread allocates; with
/// several, growth of a thread below its own earlier high-water mark is not seen.
MemoryStats memory_stats() noexcept;
/// For messages: "512 bytes held by tensors, ... free; the largest: 1 x 131072 of matmul". Only
/// blocks of more than 64 KB are named.
std::string describe_memory();
/// Resets the peak to the current live bytes.
void reset_peak() noexcept;
/// Returns unused memory to the system: free segments, and the calling thread's free lists.
void trim() noexcept;
/// For tests of error paths: the n-th allocation from now (0: the next) returns nullptr, once.
/// -1 turns it off.
void fail_after(int64_t n) noexcept;

namespace detail {

constexpr size_t kSmallUnit = 64;  // alignment and smallest block
constexpr size_t kSmallLimit = size_t{1} << 16;
constexpr size_t kSmallUnits = kSmallLimit / kSmallUnit;
// 64 .. 65536, four sizes per doubling, and class 0, which has neither blocks nor room, so that its
// requests take the slow path: 0 bytes, and every request at start-up, under an injected failure,
// poisoning or AddressSanitizer.
constexpr int kSmallClasses = 37;

constexpr size_t small_units(size_t bytes) { return (bytes + kSmallUnit - 1) / kSmallUnit; }

/// Class of a request of `units` > 0 times 64 bytes.
constexpr int small_class(size_t units) {
  const int shift = static_cast<int>(std::bit_width((units - 1) | 4)) - 3;
  return 4 * shift + static_cast<int>((units - 1) >> shift) + 1;
}

constexpr size_t class_bytes(int c) {
  const int shift = c < 5 ? 0 : (c - 1) / 4 - 1;
  return static_cast<size_t>(c - 4 * shift) * (kSmallUnit << shift);
}
static_assert(class_bytes(1) == 64 && class_bytes(8) == 512 && class_bytes(9) == 640 &&
              class_bytes(kSmallClasses - 1) == kSmallLimit);

struct FreeBlock {
  FreeBlock* next;
};

inline void push(FreeBlock*& list, void* block) { list = new (block) FreeBlock{list}; }
inline FreeBlock* pop(FreeBlock*& list) {
  FreeBlock* block = list;
  list = block->next;
  return block;
}

// Subtracts from a counter that one thread writes and others read: one instruction without a lock
// prefix. Returns whether the result is negative.
inline bool owner_sub(std::atomic<int64_t>& counter, int64_t amount) {
#if defined(__x86_64__)
  bool negative;
  __asm__("subq %2, %1" : "=@ccs"(negative), "+m"(counter) : "er"(amount));
  return negative;
#else
  const int64_t left = counter.load(std::memory_order_relaxed) - amount;
  counter.store(left, std::memory_order_relaxed);
  return left < 0;
#endif
}

struct ThreadCache {
  FreeBlock* head[kSmallClasses] = {};
  int32_t room[kSmallClasses] = {};  // how many more blocks each list may hold
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> high_water{0};  // written under the lock only
  std::atomic<int64_t> headroom{0};    // high_water - live; below zero: update the peak
  ThreadCache* next = nullptr;
  bool attached = false;
};

// Initial-exec: its address is one load instead of a call, also inside a shared object.
extern constinit thread_local ThreadCache thread_cache __attribute__((tls_model("initial-exec")));

using ClassTable = std::array<uint8_t, kSmallUnits + 1>;  // units to class
extern constinit std::atomic<const ClassTable*> class_table;

inline size_t class_for(size_t bytes) {
  return (*class_table.load(std::memory_order_relaxed))[small_units(bytes)];
}

void* allocate_slow(size_t bytes) noexcept;
void deallocate_slow(void* p, size_t bytes) noexcept;
void* note_peak(void* block) noexcept;  // returns block

}  // namespace detail

/// `bytes` of uninitialised memory, 64-byte aligned; nullptr when out of memory or a failure is
/// injected. 0 bytes give a shared non-null address.
inline void* allocate(size_t bytes) noexcept {
  using namespace detail;
  if (bytes > kSmallLimit) [[unlikely]]
    return allocate_slow(bytes);
  ThreadCache& cache = thread_cache;
  const size_t c = class_for(bytes);
  if (!cache.head[c]) [[unlikely]]
    return allocate_slow(bytes);
  FreeBlock* block = pop(cache.head[c]);
  ++cache.room[c];
  owner_sub(cache.allocations, -1);
  if (owner_sub(cache.headroom, static_cast<int64_t>(bytes))) [[unlikely]]
    return note_peak(block);
  return block;
}

/// Frees what allocate(bytes) returned (not nullptr). Any thread may call it.
inline void deallocate(void* p, size_t bytes) noexcept {
  using namespace detail;
  if (bytes > kSmallLimit) [[unlikely]]
    return deallocate_slow(p, bytes);
  ThreadCache& cache = thread_cache;
  const size_t c = class_for(bytes);
  if (--cache.room[c] < 0) [[unlikely]]
    return deallocate_slow(p, bytes);
  push(cache.head[c], p);
  owner_sub(cache.headroom, -static_cast<int64_t>(bytes));
}

}  // namespace brrr::cpu
