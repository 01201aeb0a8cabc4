#include "backends/cpu/allocator.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "backends/cpu/chunk_heap.h"
#include "backends/cpu/page_heap.h"

#if defined(__SANITIZE_ADDRESS__)
#define BRRR_PLAIN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BRRR_PLAIN_MALLOC 1
#endif
#endif

namespace brrr::cpu {
namespace detail {

constinit thread_local ThreadCache thread_cache __attribute__((tls_model("initial-exec")));

namespace {

constinit const ClassTable ordinary = [] {
  ClassTable table{kSmallClasses};  // entry 0: 0 bytes are slow too
  for (size_t i = 1; i < table.size(); ++i) table[i] = static_cast<uint8_t>(small_class(i));
  return table;
}();
constinit const ClassTable all_slow = [] {
  ClassTable table{};
  table.fill(kSmallClasses);
  return table;
}();

// AddressSanitizer finds uses after free only if free really frees.
#ifdef BRRR_PLAIN_MALLOC
constexpr bool kPlainMalloc = true;
#else
constexpr bool kPlainMalloc = false;
#endif

constexpr size_t kListBytes = size_t{256} << 10;  // bound of one thread's list of one class
constexpr int64_t kPeakSlack = 64 << 10;
alignas(kSmallUnit) std::byte zero_block[kSmallUnit];

constexpr int32_t list_capacity(int c) {
  return static_cast<int32_t>(std::min<size_t>(kListBytes / class_bytes(c), 512));
}

// Everything shared, under one mutex. Never destroyed: tensors may outlive any static object.
struct Global {
  std::mutex mutex;
  ChunkHeap small;
  PageHeap pages;
  SystemUse use;
  ThreadCache* threads = nullptr;
  int64_t retired_live = 0, retired_allocations = 0;  // of threads that have ended
  int64_t peak = 0, limit = 0, fail_in = -1;
  bool started = false, poison = false;
};
constinit Global global;
using Lock = std::lock_guard<std::mutex>;

int64_t live_of(const ThreadCache& cache) {
  return cache.high_water.load(std::memory_order_relaxed) -
         cache.headroom.load(std::memory_order_relaxed);
}

int64_t total_live() {
  int64_t total = global.retired_live;
  for (ThreadCache* cache = global.threads; cache; cache = cache->next) total += live_of(*cache);
  return total;
}

void set_high_water(ThreadCache& cache, int64_t value) {
  const int64_t live = live_of(cache);
  cache.high_water.store(value, std::memory_order_relaxed);
  cache.headroom.store(value - live, std::memory_order_relaxed);
}

void update_fast_path() {
  const bool look = kPlainMalloc || global.poison || global.limit > 0 || global.fail_in >= 0;
  class_table.store(look ? &all_slow : &ordinary, std::memory_order_relaxed);
}

// Moves up to `count` blocks of a thread's list to the shared one.
void spill(ThreadCache& cache, int c, int32_t count) {
  FreeBlock *first = cache.head[c], *last = first;
  if (!first || count < 1) return;
  int32_t moved = 1;
  for (; moved < count && last->next; ++moved) last = last->next;
  cache.head[c] = last->next;
  cache.room[c] += moved;
  global.small.push(c, first, last);
}

void flush(ThreadCache& cache) {
  for (int c = 0; c < kSmallClasses; ++c) spill(cache, c, INT32_MAX);
}

void detach(ThreadCache& cache) {
  const Lock lock(global.mutex);
  flush(cache);
  std::fill(std::begin(cache.room), std::end(cache.room), 0);  // turns the inline path away
  global.retired_live += live_of(cache);
  global.retired_allocations += cache.allocations.load(std::memory_order_relaxed);
  if (cache.next) cache.next->prev = cache.prev;
  (cache.prev ? cache.prev->next : global.threads) = cache.next;
  cache.state = ThreadCache::State::Detached;
}

struct Detacher {
  ThreadCache* cache = nullptr;
  ~Detacher() {
    if (cache) detach(*cache);
  }
};
thread_local Detacher detacher;

void start() {
  const char* poison = std::getenv("BRRR_POISON");
  global.poison = poison && *poison && *poison != '0';
  global.started = true;
  update_fast_path();
  // A child forked while another thread held the lock could never allocate.
  pthread_atfork([] { global.mutex.lock(); }, [] { global.mutex.unlock(); },
                 [] { global.mutex.unlock(); });
}

ThreadCache& attached_cache() {
  ThreadCache& cache = thread_cache;
  if (cache.state != ThreadCache::State::Fresh) return cache;
  detacher.cache = &cache;
  const Lock lock(global.mutex);
  if (!global.started) start();
  for (int c = 0; c < kSmallClasses; ++c) cache.room[c] = list_capacity(c);
  cache.last_others = total_live();
  cache.next = global.threads;
  if (cache.next) cache.next->prev = &cache;
  global.threads = &cache;
  cache.state = ThreadCache::State::Attached;
  return cache;
}

// One block for the caller and a batch for its list.
FreeBlock* refill(ThreadCache& cache, int c) {
  FreeBlock* result = global.small.take(c, global.use);
  if (!result || cache.state != ThreadCache::State::Attached) return result;
  const size_t batch = 16384 / class_bytes(c);  // bounds what is touched ahead of need
  for (size_t i = 1; i < batch && cache.room[c] > 0; ++i) {
    FreeBlock* block = global.small.take(c, global.use);
    if (!block) break;
    block->next = cache.head[c];
    cache.head[c] = block;
    --cache.room[c];
  }
  return result;
}

void trim_locked(ThreadCache& cache) {
  if (cache.state == ThreadCache::State::Attached) flush(cache);
  global.small.trim(global.use);
  global.pages.trim(global.use);
}

// Whether limit and failure injection let a request pass.
bool admitted(size_t bytes) {
  if (global.fail_in >= 0 && global.fail_in-- == 0) {
    update_fast_path();
    return false;
  }
  if (global.limit == 0) return true;
  const int64_t live = total_live();
  return live <= global.limit && bytes <= static_cast<size_t>(global.limit - live);
}

void* take(ThreadCache& cache, size_t bytes) {
  if (kPlainMalloc) {
    const size_t size = (bytes + kSmallUnit - 1) & ~(kSmallUnit - 1);
    return size < bytes ? nullptr : std::aligned_alloc(kSmallUnit, size);
  }
  if (bytes > kSmallLimit) return global.pages.allocate(bytes, global.use);
  const int c = small_class(small_units(bytes));
  if (FreeBlock* block = cache.head[c]) {
    cache.head[c] = block->next;
    ++cache.room[c];
    return block;
  }
  return refill(cache, c);
}

void give(ThreadCache& cache, void* p, size_t bytes) {
  cache.room[kSmallClasses] = 0;
  if (kPlainMalloc) return std::free(p);
  if (bytes > kSmallLimit) return global.pages.deallocate(p, bytes);
  const int c = small_class(small_units(bytes));
  auto* block = new (p) FreeBlock{};
  if (cache.state != ThreadCache::State::Attached) {
    cache.room[c] = 0;
    return global.small.push(c, block, block);
  }
  cache.room[c] = std::max(cache.room[c], 0);  // the inline path went one below
  if (cache.room[c] == 0) spill(cache, c, std::max(1, list_capacity(c) / 2));
  block->next = cache.head[c];
  cache.head[c] = block;
  --cache.room[c];
}

// The other threads' counters are only summed when this one passes its earlier high water. While
// those stand still the mark follows exactly; otherwise slack keeps the lock out of the way.
void note_peak_locked(ThreadCache& cache) {
  const int64_t total = total_live(), mine = live_of(cache), others = total - mine;
  global.peak = std::max(global.peak, total);
  const int64_t slack = others == cache.last_others ? 0 : kPeakSlack;
  cache.last_others = others;
  set_high_water(cache, mine + (global.peak - total) + slack);
}

void count(ThreadCache& cache, int64_t bytes, bool allocation) {
  if (cache.state == ThreadCache::State::Attached) {
    if (allocation) owner_add(cache.allocations, 1);
    if (owner_sub(cache.headroom, bytes)) note_peak_locked(cache);
    return;
  }
  global.retired_live += bytes;
  global.retired_allocations += allocation;
  global.peak = std::max(global.peak, total_live());
}

}  // namespace

constinit std::atomic<const ClassTable*> class_table{&all_slow};

void* note_peak(void* block) noexcept {
  const Lock lock(global.mutex);
  note_peak_locked(thread_cache);
  return block;
}

void* allocate_slow(size_t bytes) noexcept {
  if (bytes == 0) return zero_block;
  ThreadCache& cache = attached_cache();
  void* p = nullptr;
  {
    const Lock lock(global.mutex);
    if (!admitted(bytes)) return nullptr;
    p = take(cache, bytes);
    if (!p) {  // unused memory of other sizes may be what the system lacks
      trim_locked(cache);
      p = take(cache, bytes);
    }
    if (!p) return nullptr;
    count(cache, static_cast<int64_t>(bytes), true);
  }
  // Outside the lock. All bits set is a NaN in every float type and -1 in every integer type.
  if (global.poison) std::memset(p, 0xFF, bytes);
  return p;
}

void deallocate_slow(void* p, size_t bytes) noexcept {
  if (bytes == 0 || !p) return;
  ThreadCache& cache = attached_cache();
  if (global.poison && !kPlainMalloc) std::memset(p, 0xFF, bytes);
  const Lock lock(global.mutex);
  give(cache, p, bytes);
  count(cache, -static_cast<int64_t>(bytes), false);
}

}  // namespace detail

using namespace detail;

MemoryStats memory_stats() noexcept {
  const Lock lock(global.mutex);
  MemoryStats stats;
  const int64_t live = total_live();
  global.peak = std::max(global.peak, live);
  int64_t allocations = global.retired_allocations;
  for (ThreadCache* cache = global.threads; cache; cache = cache->next) {
    allocations += cache->allocations.load(std::memory_order_relaxed);
  }
  stats.live = static_cast<size_t>(std::max<int64_t>(live, 0));
  stats.peak = static_cast<size_t>(global.peak);
  stats.reserved = kPlainMalloc ? stats.live : global.use.reserved;
  stats.allocations = static_cast<size_t>(allocations);
  stats.cached = stats.reserved - std::min(stats.live, stats.reserved);
  stats.system_calls = global.use.calls;
  return stats;
}

void reset_peak() noexcept {
  ThreadCache& cache = attached_cache();
  const Lock lock(global.mutex);
  global.peak = std::max<int64_t>(total_live(), 0);
  if (cache.state == ThreadCache::State::Attached) {
    cache.last_others = global.peak - live_of(cache);
    set_high_water(cache, live_of(cache));
  }
}

size_t block_bytes(size_t bytes) noexcept {
  return kPlainMalloc || bytes <= kSmallLimit ? 0 : PageHeap::rounded(bytes);
}

void* allocate_row(const size_t* bytes, size_t n) noexcept {
  ThreadCache& cache = attached_cache();
  size_t asked = 0, whole = 0;
  for (size_t k = 0; k < n; ++k) {
    asked += bytes[k];
    whole += block_bytes(bytes[k]);
  }
  void* p = nullptr;
  {
    const Lock lock(global.mutex);
    if (!admitted(asked)) return nullptr;
    p = global.pages.allocate_row(whole, global.use);
    if (!p) {
      trim_locked(cache);
      p = global.pages.allocate_row(whole, global.use);
    }
    if (!p) return nullptr;
    count(cache, static_cast<int64_t>(asked), true);
  }
  if (global.poison) std::memset(p, 0xFF, whole);
  return p;
}

void trim() noexcept {
  ThreadCache& cache = attached_cache();
  const Lock lock(global.mutex);
  trim_locked(cache);
}

void set_memory_limit(size_t bytes) noexcept {
  attached_cache();
  const Lock lock(global.mutex);
  global.limit = static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX));
  update_fast_path();
}

void fail_after(int64_t n) noexcept {
  attached_cache();
  const Lock lock(global.mutex);
  global.fail_in = std::max<int64_t>(n, -1);
  update_fast_path();
}

}  // namespace brrr::cpu
