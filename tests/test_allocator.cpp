#include "backends/cpu/allocator.h"

#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "brrr.h"
#include "core/backend.h"
#include "tests/sanitizer.h"

using namespace brrr::cpu;

namespace {

constexpr bool kPlainMalloc = brrr::test::kAddressSanitizer;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

using Blocks = std::vector<std::pair<unsigned char*, size_t>>;

unsigned char pattern(const std::pair<unsigned char*, size_t>& block) {
  return static_cast<unsigned char>(reinterpret_cast<uintptr_t>(block.first) >> 6 ^ block.second);
}

void fill(const std::pair<unsigned char*, size_t>& block) {
  block.first[0] = block.first[block.second / 2] = block.first[block.second - 1] = pattern(block);
}

bool intact(const std::pair<unsigned char*, size_t>& block) {
  const unsigned char mark = pattern(block);
  return block.first[0] == mark && block.first[block.second / 2] == mark &&
         block.first[block.second - 1] == mark;
}

void churn(unsigned seed, int rounds, size_t most) {
  std::mt19937 random(seed);
  Blocks blocks;
  bool good = true;
  for (int i = 0; i < rounds; ++i) {
    if (blocks.size() < 200 && random() % 2) {
      size_t bytes = 1 + random() % (random() % 8 ? 4096 : most);
      auto* p = static_cast<unsigned char*>(allocate(bytes));
      good = good && p && aligned(p);
      blocks.emplace_back(p, bytes);
      fill(blocks.back());
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      good = good && intact(blocks.back());
      deallocate(blocks.back().first, blocks.back().second);
      blocks.pop_back();
    }
  }
  for (const auto& block : blocks) {
    good = good && intact(block);
    deallocate(block.first, block.second);
  }
  CHECK(good);
}

}  // namespace

TEST_CASE("allocator: size classes cover every small size with at most a quarter of waste") {
  int last = 0;
  for (size_t units = 1; units <= detail::kSmallUnits; ++units) {
    const int c = detail::small_class(units);
    CHECK_UNARY(c == last || c == last + 1);
    last = c;
  }
  CHECK(last == detail::kSmallClasses - 1);
}

TEST_CASE("allocator: blocks are aligned, writable and disjoint") {
  Blocks blocks;
  std::set<void*> seen;
  for (size_t bytes = 1; bytes < (size_t{40} << 20); bytes += bytes / 5 + 1) {
    auto* p = static_cast<unsigned char*>(allocate(bytes));
    REQUIRE(p);
    CHECK(aligned(p));
    CHECK(seen.insert(p).second);
    blocks.emplace_back(p, bytes);
    fill(blocks.back());
  }
  for (const auto& block : blocks) CHECK(intact(block));
  for (const auto& block : blocks) deallocate(block.first, block.second);
  void* none = allocate(0);
  CHECK(none != nullptr);
  deallocate(none, 0);
}

TEST_CASE("allocator: freed blocks are reused") {
  if (kPlainMalloc) return;
  for (size_t bytes : {size_t{1}, size_t{64}, size_t{1000}, size_t{65536}, size_t{65537},
                       size_t{3} << 20, size_t{50} << 20}) {
    void* first = allocate(bytes);
    deallocate(first, bytes);
    void* second = allocate(bytes);
    CHECK(first == second);
    deallocate(second, bytes);
  }
}

TEST_CASE("allocator: large neighbours merge") {
  if (kPlainMalloc) return;
  trim();
  const size_t piece = size_t{1} << 20;
  std::vector<void*> pieces;
  for (int i = 0; i < 24; ++i) pieces.push_back(allocate(piece));
  const size_t reserved = memory_stats().reserved;
  for (int i :
       {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}) {
    deallocate(pieces[static_cast<size_t>(i)], piece);
  }
  void* whole = allocate(24 * piece);
  CHECK(memory_stats().reserved == reserved);
  deallocate(whole, 24 * piece);
}

TEST_CASE("allocator: a request beyond the address space returns nullptr") {
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, size_t{1} << 50}) {
    if (kPlainMalloc) break;  // AddressSanitizer aborts on these by default
    CHECK(allocate(bytes) == nullptr);
  }
}

TEST_CASE("allocator: random churn keeps contents, alone and on eight threads") {
  churn(1, 40000, size_t{4} << 20);
  const size_t before = memory_stats().live;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 8; ++t) threads.emplace_back([t] { churn(t, 5000, 1 << 20); });
    for (auto& thread : threads) thread.join();
  }
  CHECK(memory_stats().live == before);
}

TEST_CASE("allocator: thread churn does not grow memory") {
  if (kPlainMalloc) return;
  const auto work = [] {
    void* blocks[64];
    for (size_t i = 0; i < 64; ++i) blocks[i] = allocate(i * 300 + 1);
    for (size_t i = 0; i < 64; ++i) deallocate(blocks[i], i * 300 + 1);
  };
  std::thread(work).join();
  const size_t reserved = memory_stats().reserved;
  for (int i = 0; i < 200; ++i) std::thread(work).join();
  CHECK(memory_stats().reserved == reserved);
}

TEST_CASE("allocator: threads that only drop tensors leave nothing behind") {
  const auto drop = [](int threads) {
    for (int i = 0; i < threads; ++i) {
      std::vector<brrr::Tensor> tensors;
      for (int k = 0; k < 200; ++k) tensors.push_back(brrr::zeros({1}));
      std::thread([&] { tensors.clear(); }).join();
    }
    return mallinfo2().uordblks;
  };
  const size_t before = drop(5);
  CHECK(drop(200) < before + (size_t{1} << 20));  // Leaked free lists would take 12 MB.
}

TEST_CASE("allocator: blocks freed on another thread") {
  const auto before = memory_stats();
  for (int round = 0; round < 20; ++round) {
    Blocks blocks;
    std::thread([&] {
      for (size_t i = 1; i <= 2000; ++i) {
        blocks.emplace_back(static_cast<unsigned char*>(allocate(i % 700 + 1)), i % 700 + 1);
        fill(blocks.back());
      }
    }).join();
    bool good = true;
    for (const auto& block : blocks) {
      good = good && intact(block);
      deallocate(block.first, block.second);
    }
    CHECK(good);
  }
  CHECK(memory_stats().live == before.live);
  if (!kPlainMalloc) CHECK(memory_stats().reserved <= before.reserved + (size_t{8} << 20));
}

TEST_CASE("allocator: a thread-local owner may free after its thread's cache is gone") {
  struct Late {
    void* p = nullptr;
    ~Late() {
      deallocate(p, 100);
      void* again = allocate(100);  // and even allocate
      deallocate(again, 100);
    }
  };
  const size_t live = memory_stats().live;
  std::thread([] {
    static thread_local Late late;  // constructed before the cache, destroyed after it
    late.p = nullptr;
    late.p = allocate(100);
  }).join();
  CHECK(memory_stats().live == live);
}

TEST_CASE("allocator: statistics are exact on one thread") {
  const auto before = memory_stats();
  reset_peak();
  CHECK(memory_stats().peak == before.live);
  Blocks blocks;
  size_t sum = 0;
  for (size_t bytes : {1, 64, 65, 1000, 70000, 3000000, 65536, 8}) {
    blocks.emplace_back(static_cast<unsigned char*>(allocate(bytes)), bytes);
    sum += bytes;
    CHECK(memory_stats().live == before.live + sum);
  }
  for (const auto& block : blocks) deallocate(block.first, block.second);
  const auto after = memory_stats();
  CHECK(after.live == before.live);
  CHECK(after.peak == before.live + sum);
  CHECK(after.allocations == before.allocations + blocks.size());
  for (int i = 0; i < 100; ++i) {  // usage below the peak does not move the peak
    void* p = allocate(500);
    deallocate(p, 500);
  }
  CHECK(memory_stats().peak == after.peak);
  reset_peak();
  void* p = allocate(12345);
  deallocate(p, 12345);
  CHECK(memory_stats().peak == before.live + 12345);
}

TEST_CASE("allocator: an injected failure hits exactly one allocation") {
  for (int n = 0; n < 5; ++n) {
    fail_after(n);
    for (int i = 0; i < 8; ++i) {
      void* p = allocate(i % 2 ? 100 : 100000);
      CHECK((p == nullptr) == (i == n));
      if (p) deallocate(p, i % 2 ? 100 : 100000);
    }
  }
  fail_after(0);
  fail_after(-1);
  void* p = allocate(8);
  CHECK(p != nullptr);
  deallocate(p, 8);
}

TEST_CASE("allocator: trim gives unused memory back and keeps memory in use") {
  if (kPlainMalloc) return;
  trim();
  const size_t base = memory_stats().reserved;
  Blocks blocks;
  for (int i = 0; i < 20000; ++i) {
    blocks.emplace_back(static_cast<unsigned char*>(allocate(1024)), 1024);
    fill(blocks.back());
  }
  blocks.emplace_back(static_cast<unsigned char*>(allocate(100 << 20)), 100 << 20);
  auto* kept = static_cast<unsigned char*>(allocate(5 << 20));
  std::memset(kept, 7, 5 << 20);
  CHECK(memory_stats().reserved > base + (size_t{100} << 20));
  for (const auto& block : blocks) deallocate(block.first, block.second);
  trim();
  CHECK(memory_stats().reserved <= base + (size_t{36} << 20));
  bool good = true;
  for (size_t i = 0; i < (5 << 20); ++i) good = good && kept[i] == 7;
  CHECK(good);
  deallocate(kept, 5 << 20);
  trim();
  CHECK(memory_stats().reserved <= base);
  churn(3, 5000, 1 << 20);
}

TEST_CASE("allocator: a request that no free block can hold takes no more than its own size") {
  if (kPlainMalloc) return;
  trim();
  const size_t base = memory_stats().reserved;
  for (const size_t bytes : {size_t{40} << 20, size_t{60} << 20, size_t{80} << 20}) {
    deallocate(allocate(bytes), bytes);
    CHECK(memory_stats().reserved < base + bytes + (size_t{1} << 20));
  }
  trim();
}

TEST_CASE("allocator: when the system refuses, cached memory is given up first") {
  if (brrr::test::kThreadSanitizer) return;  // Its shadow memory exceeds any limit.
  if (kPlainMalloc) return;
  trim();
  rlimit old{};
  getrlimit(RLIMIT_AS, &old);
  std::vector<void*> small(4096);  // 256 MB
  for (void*& p : small) p = allocate(detail::kSmallLimit);
  for (void* p : small) deallocate(p, detail::kSmallLimit);
  void* cached = allocate(size_t{512} << 20);
  const size_t reserved = memory_stats().reserved;
  deallocate(cached, size_t{512} << 20);
  size_t pages = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%zu", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  REQUIRE(pages > 0);
  rlimit tight = old;
  tight.rlim_cur = pages * 4096 + (size_t{256} << 20);
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  void* larger = allocate(size_t{900} << 20);  // fits only once all of these are unmapped
  void* hopeless = allocate(size_t{4} << 30);
  setrlimit(RLIMIT_AS, &old);
  CHECK(larger != nullptr);
  CHECK(hopeless == nullptr);
  CHECK(memory_stats().reserved < reserved + (size_t{200} << 20));
  deallocate(larger, size_t{900} << 20);
  trim();
}

TEST_CASE("allocator: BRRR_POISON fills fresh blocks with NaNs") {
  const char* poison = std::getenv("BRRR_POISON");
  if (!poison || *poison != '1') return;
  for (size_t bytes : {4, 4096, 1 << 20}) {
    auto* p = static_cast<float*>(allocate(bytes));
    CHECK(std::isnan(p[0]));
    CHECK(std::isnan(p[bytes / 4 - 1]));
    std::memset(p, 0, bytes);
    deallocate(p, bytes);
  }
}

TEST_CASE("allocator: a forked child allocates while other threads hold the lock") {
  if (brrr::test::kThreadSanitizer) return;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) deallocate(allocate(1 << 20), 1 << 20);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);  // a deadlock ends the child
      void* p = allocate(1 << 20);
      _exit(p ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  stop = true;
  busy.join();
}

TEST_CASE("allocator: a forked child has threads where its parent had some") {
  if (brrr::test::kThreadSanitizer) return;
  std::atomic<bool> ready{false}, stop{false};
  std::thread other([&] {
    deallocate(allocate(64), 64);
    ready = true;
    while (!stop) std::this_thread::yield();
  });
  while (!ready) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // an endless list of threads ends the child
    std::thread([] { deallocate(allocate(64), 64); }).join();
    memory_stats();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  stop = true;
  other.join();
}

TEST_CASE("allocator: a million cycles touch no new page and map nothing") {
  if (kPlainMalloc) return;
  const size_t sizes[] = {4, 64, 200, 4096, 20000, 65536, 100000, size_t{3} << 20};
  const auto cycle = [](size_t bytes) {
    auto* p = static_cast<char*>(allocate(bytes));
    p[0] = p[bytes / 2] = p[bytes - 1] = 1;
    deallocate(p, bytes);
  };
  const auto faults = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  for (size_t bytes : sizes) cycle(bytes);
  const size_t reserved = memory_stats().reserved;
  const long before = faults();
  for (int i = 0; i < 1000000; ++i) cycle(sizes[i % 8]);
  CHECK(faults() < before + 100);
  CHECK(memory_stats().reserved == reserved);
}

TEST_CASE("allocator: blocks allocated as a row are freed one by one") {
  const size_t sizes[] = {(size_t{64} << 10) + 4, size_t{700} << 10, size_t{17} << 20};
  // AddressSanitizer's blocks cannot be split.
  if (brrr::host::block_bytes(sizes[0]) == 0) return;
  CHECK(brrr::host::block_bytes(64) == 0);
  const size_t live = memory_stats().live;
  for (const std::array<int, 3>& order :
       {std::array{0, 1, 2}, std::array{2, 0, 1}, std::array{1, 2, 0}}) {
    auto* begin = static_cast<char*>(brrr::host::allocate_row(sizes, 3));
    REQUIRE(begin);
    CHECK(memory_stats().live == live + sizes[0] + sizes[1] + sizes[2]);
    char* at[3] = {begin};
    for (int k = 0; k < 2; ++k) at[k + 1] = at[k] + brrr::host::block_bytes(sizes[k]);
    for (int k = 0; k < 3; ++k) std::memset(at[k], k, sizes[k]);
    for (int k : order) {
      CHECK(at[k][0] == k);
      CHECK(at[k][sizes[k] - 1] == k);
      deallocate(at[k], sizes[k]);
    }
    CHECK(memory_stats().live == live);
  }
}
