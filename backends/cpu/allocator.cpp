#include "backends/cpu/allocator.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "backends/cpu/heap.h"
#include "core/backend.h"
#include "core/context.h"
#include "core/intrusive.h"
#include "core/op.h"

namespace brrr::cpu {
namespace detail {

constinit thread_local ThreadCache thread_cache __attribute__((tls_model("initial-exec")));

namespace {

constinit const ClassTable all_slow{};
constinit const ClassTable ordinary = [] {
  ClassTable table{};
  for (size_t i = 1; i < table.size(); ++i) table[i] = static_cast<uint8_t>(small_class(i));
  return table;
}();

constexpr bool kPlainMalloc = !kFreeLists;

alignas(kSmallUnit) std::byte zero_block[kSmallUnit];

constexpr size_t kListBytes = size_t{256} << 10;  // bounds one thread's list of one class

// All shared state, under one mutex. Never destroyed: tensors may outlive any static object.
struct Global {
  std::mutex mutex;
  Heap small{kSmallUnit}, large{4096};  // apart: long-lived small blocks do not fragment `large`
  ThreadCache* threads = nullptr;
  int64_t live = 0, allocations = 0;  // not counting what the thread caches count
  int64_t peak = 0, fail_in = -1;
  bool poison = false;
};
constinit Global global;
using Lock = std::lock_guard<std::mutex>;

int64_t live_of(const ThreadCache& cache) {
  return cache.high_water.load(std::memory_order_relaxed) -
         cache.headroom.load(std::memory_order_relaxed);
}

int64_t total_live() {
  int64_t total = global.live;
  for (ThreadCache* cache = global.threads; cache; cache = cache->next) total += live_of(*cache);
  return total;
}

// Sets the caller's headroom, within which it need not look at the other threads' counts.
void update_peak(ThreadCache& cache) {
  const int64_t live = total_live(), mine = live_of(cache);
  global.peak = std::max(global.peak, live);
  cache.high_water.store(mine + global.peak - live, std::memory_order_relaxed);
  cache.headroom.store(global.peak - live, std::memory_order_relaxed);
}

void update_fast_path() {
  const bool look = kPlainMalloc || global.poison || global.fail_in >= 0;
  class_table.store(look ? &all_slow : &ordinary, std::memory_order_relaxed);
}

void flush(ThreadCache& cache) {
  for (int c = 1; c < kSmallClasses; ++c) {
    for (; cache.head[c]; ++cache.room[c]) {
      global.small.deallocate(pop(cache.head[c]), class_bytes(c));
    }
  }
}

void detach(ThreadCache& cache) {
  const Lock lock(global.mutex);
  flush(cache);
  std::fill(std::begin(cache.room), std::end(cache.room), 0);  // forces the slow path
  ThreadCache** link = &global.threads;
  while (*link != &cache) link = &(*link)->next;
  *link = cache.next;
  global.live += live_of(cache);
  global.allocations += cache.allocations.load(std::memory_order_relaxed);
  cache.headroom.store(cache.high_water.load(std::memory_order_relaxed));
}

// In a forked child the parent's other threads do not exist, and their caches' addresses may be
// reused by new threads: unlinks those caches. Their live bytes still count; their lists leak.
void forget_other_threads() {
  ThreadCache* all = std::exchange(global.threads, nullptr);
  while (ThreadCache* const cache = std::exchange(all, all ? all->next : nullptr)) {
    if (cache == &thread_cache) {
      global.threads = cache;
    } else {
      global.live += live_of(*cache);
      global.allocations += cache->allocations.load(std::memory_order_relaxed);
    }
  }
  if (global.threads) global.threads->next = nullptr;
}

void start() {
  const char* poison = std::getenv("BRRR_POISON");
  global.poison = poison && *poison && *poison != '0';
  update_fast_path();
  // A child forked while another thread held the lock could never allocate.
  pthread_atfork([] { global.mutex.lock(); }, [] { global.mutex.unlock(); },
                 [] {
                   forget_other_threads();
                   global.mutex.unlock();
                 });
}

void attach(ThreadCache& cache) {
  struct Detacher {
    ~Detacher() { detach(thread_cache); }
  };
  static thread_local Detacher detacher;
  static std::once_flag started;
  std::call_once(started, start);
  const Lock lock(global.mutex);
  for (int c = 1; c < kSmallClasses; ++c) {
    cache.room[c] = static_cast<int32_t>(kListBytes / class_bytes(c));
  }
  cache.next = global.threads;
  global.threads = &cache;
  cache.attached = true;  // stays true after detach()
}

// Attaches the calling thread and holds the global lock.
struct Slow {
  ThreadCache& cache = thread_cache;
  std::unique_lock<std::mutex> lock;
  Slow() {
    if (!cache.attached) attach(cache);
    lock = std::unique_lock(global.mutex);
  }
};

Heap& heap_of(size_t block) { return block > kSmallLimit ? global.large : global.small; }

// Large requests are rounded up to 4 KB, 64 KB or 2 MB: at most 12.5 % above the request.
size_t block_size(size_t bytes) {
  if (kPlainMalloc) return small_units(bytes) * kSmallUnit;
  if (bytes <= kSmallLimit) return class_bytes(small_class(small_units(bytes)));
  const int shift = bytes < (size_t{512} << 10) ? 12 : bytes < (size_t{16} << 20) ? 16 : 21;
  return (((bytes - 1) >> shift) + 1) << shift;
}

void* take(size_t size) {
  return kPlainMalloc ? std::aligned_alloc(kSmallUnit, size) : heap_of(size).allocate(size);
}

void note_owners(std::byte* p, const size_t* bytes, size_t n) {
  const char* const owner = context.running ? context.running->name : "a tensor";
  for (size_t k = 0; !kPlainMalloc && k < n; ++k) {
    if (bytes[k] > kSmallLimit) global.large.note(p) = {owner, bytes[k]};
    p += block_size(bytes[k]);
  }
}

void trim_locked(ThreadCache& cache) {
  flush(cache);
  global.small.trim();
  global.large.trim();
}

// One piece of memory for n tensors, one behind the other.
void* obtain(const size_t* each, size_t n) {
  size_t bytes = 0, size = 0;
  for (size_t k = 0; k < n; ++k) {
    if (each[k] >> 42) return nullptr;  // 4 TB; sums do not overflow
    bytes += each[k];
    size += block_size(each[k]);
  }
  void* p = nullptr;
  {
    Slow slow;
    if (global.fail_in >= 0 && global.fail_in-- == 0) return update_fast_path(), nullptr;
    p = take(size);
    if (!p) {  // retry after returning unused blocks of other sizes to the system
      trim_locked(slow.cache);
      p = take(size);
    }
    if (!p) return nullptr;
    note_owners(static_cast<std::byte*>(p), each, n);
    global.live += static_cast<int64_t>(bytes);
    ++global.allocations;
    update_peak(slow.cache);
  }
  // Without the lock. All bits set is NaN in every float type and -1 in every signed integer type.
  if (global.poison) std::memset(p, 0xFF, size);
  return p;
}

}  // namespace

constinit std::atomic<const ClassTable*> class_table{&all_slow};

void* note_peak(void* block) noexcept {
  const Lock lock(global.mutex);
  update_peak(thread_cache);
  return block;
}

void* allocate_slow(size_t bytes) noexcept { return bytes == 0 ? zero_block : obtain(&bytes, 1); }

void deallocate_slow(void* p, size_t bytes) noexcept {
  if (bytes == 0 || !p) return;
  if (global.poison && !kPlainMalloc) std::memset(p, 0xFF, bytes);
  Slow slow;
  if (bytes <= kSmallLimit) {  // the inline path decremented it below zero
    int32_t& room = slow.cache.room[class_for(bytes)];
    room = std::max(room, 0);
  }
  const size_t size = block_size(bytes);
  if (!kPlainMalloc && bytes > kSmallLimit) global.large.note(p) = {};
  kPlainMalloc ? std::free(p) : heap_of(size).deallocate(p, size);
  global.live -= static_cast<int64_t>(bytes);
  update_peak(slow.cache);
}

}  // namespace detail

using namespace detail;

MemoryStats memory_stats() noexcept {
  const Slow slow;
  update_peak(slow.cache);
  const auto live = static_cast<size_t>(std::max<int64_t>(total_live(), 0));
  const size_t reserved = kPlainMalloc ? live : global.small.reserved + global.large.reserved;
  int64_t allocations = global.allocations;
  for (ThreadCache* cache = global.threads; cache; cache = cache->next) {
    allocations += cache->allocations.load(std::memory_order_relaxed);
  }
  return {live, static_cast<size_t>(global.peak), reserved, static_cast<size_t>(allocations)};
}

void reset_peak() noexcept {
  const Slow slow;
  global.peak = 0;
  update_peak(slow.cache);
}

std::string describe_memory() {
  const MemoryStats s = memory_stats();
  Holders holders;
  {
    const Slow slow;
    global.large.each_note([&](const Heap::Note& n) { ++holders[{n.owner, n.bytes}]; });
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  return fmt::format("{} bytes held by tensors, {} cached, {} of the machine's {} free{}", s.live,
                     s.reserved - s.live, static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page,
                     static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page, name_largest(holders));
}

void trim() noexcept {
  const Slow slow;
  trim_locked(slow.cache);
}

void fail_after(int64_t n) noexcept {
  const Slow slow;
  global.fail_in = std::max<int64_t>(n, -1);
  update_fast_path();
}

}  // namespace brrr::cpu

namespace brrr::host {

using namespace cpu;

size_t block_bytes(size_t bytes) noexcept {
  return kPlainMalloc || bytes <= kSmallLimit ? 0 : block_size(bytes);
}

void* allocate_row(const size_t* bytes, size_t n) noexcept { return obtain(bytes, n); }

}  // namespace brrr::host
