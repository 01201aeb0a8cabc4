// Device memory: the pool by itself on a driver that only counts, and tensors that run out of it.

#include <cstdlib>
#include <map>
#include <random>

#include "backends/cuda/device.h"
#include "backends/cuda/pool.h"
#include "core/device.h"
#include "core/device_kernel.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"

using namespace brrr;
using namespace brrr::test;
using namespace brrr::cuda;

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

// A device of `limit` bytes. A driver is plain functions without state, so there is one at a time.
struct Counting {
  explicit Counting(size_t bytes) {
    limit = bytes;
    used = calls = 0;
    broken = false;
    driver.allocate = [](void** p, size_t n) -> Failure {
      if (broken) return "the device is gone";
      ++calls;
      *p = used + n <= limit
               ? std::aligned_alloc(2 * kMiB, (n + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB))
               : nullptr;
      if (*p) used += sizes[*p] = n;
      return nullptr;
    };
    driver.release = [](void* p) -> Failure {
      used -= sizes.at(p);
      sizes.erase(p);
      std::free(p);
      return nullptr;
    };
    driver.memory = [](size_t* free, size_t* total) -> Failure {
      *free = limit - used;
      *total = limit;
      return nullptr;
    };
  }
  ~Counting() {
    for (const auto& [p, n] : sizes) std::free(p);
    sizes.clear();
  }
  Counting(const Counting&) = delete;

  Driver driver{};
  static inline size_t limit, used, calls;
  static inline bool broken;
  static inline std::map<void*, size_t> sizes;
};

BRRR_DEVICE_STRUCT(BeyondArguments, {
  const char* x;
  char* y;
});

constexpr DeviceKernel beyond{"beyond", BeyondArgumentsText, 128, {R"(
KERNEL(beyond, BeyondArguments, 128) {
  ((float*)p.y)[threadIdx.x] = ((const float*)p.x)[threadIdx.x + 1];
}
)"}};

}  // namespace

TEST_CASE("cuda pool: small blocks share segments, large ones have their own") {
  Counting device(64 * kMiB);
  Pool pool(device.driver);
  std::set<void*> blocks;
  for (int i = 0; i < 100; ++i) {
    void* p = pool.allocate(1 + static_cast<size_t>(i), "op");
    CHECK(reinterpret_cast<uintptr_t>(p) % 512 == 0);
    blocks.insert(p);
  }
  CHECK(blocks.size() == 100);
  CHECK(pool.stats().live == 100 * 512);
  CHECK(pool.stats().reserved == 2 * kMiB);
  CHECK(Counting::calls == 1);
  CHECK(pool.allocate(0, "op"));  // Also has its own address.
  void* large = pool.allocate(5 * kMiB + 1, "op");
  CHECK(pool.stats().reserved == 8 * kMiB);
  CHECK(Counting::calls == 2);
  pool.deallocate(large, 5 * kMiB + 1);
  CHECK(pool.allocate(6 * kMiB, "op") == large);
  CHECK(Counting::calls == 2);
  CHECK(pool.allocate(SIZE_MAX, "op") == nullptr);
  CHECK(pool.allocate(SIZE_MAX - 600, "op") == nullptr);
}

TEST_CASE("cuda pool: separate blocks have the size asked and are new, except within a capture") {
  Counting device(64 * kMiB);
  Pool pool(device.driver, true);
  void *a = pool.allocate(700, "op"), *b = pool.allocate(700, "op");
  CHECK(Counting::sizes.at(a) == 700);
  CHECK(Counting::sizes.at(b) == 700);
  void* large = pool.allocate(5 * kMiB + 1, "op");
  CHECK(Counting::sizes.at(large) == 5 * kMiB + 1);
  pool.deallocate(large, 5 * kMiB + 1);
  pool.deallocate(a, 700);
  CHECK(pool.stats().live == 700);
  CHECK(pool.stats().reserved == 5 * kMiB + 1 + 2 * 700);  // Kept for captures.
  size_t calls = Counting::calls;
  pool.hold();
  CHECK(pool.allocate(700, "op") == a);
  CHECK(Counting::calls == calls);
  pool.deallocate(a, 700);
  for (const auto& [p, bytes] : pool.taken()) pool.deallocate(p, bytes);
  pool.deallocate(b, 700);
  void* c = pool.allocate(700, "op");  // The blocks held before went back to the device.
  CHECK(Counting::calls == calls + 1);
  CHECK(Counting::sizes.at(c) == 700);
  CHECK(pool.stats().reserved == 5 * kMiB + 1 + 2 * 700);
  pool.trim();
  CHECK(Counting::used == 700);
}

TEST_CASE("cuda pool: a capture reuses a block that it freed if the size is equal") {
  for (const bool apart : {false, true}) {
    Counting device(64 * kMiB);
    Pool pool(device.driver, apart);
    pool.deallocate(pool.allocate(4 * kKiB, "op"), 4 * kKiB);
    pool.hold();
    void* const b = pool.allocate(kKiB, "op");
    if (apart) CHECK(Counting::sizes.at(b) == kKiB);
    void* const a = pool.allocate(4 * kKiB, "op");
    pool.deallocate(a, 4 * kKiB);
    CHECK(pool.allocate(kKiB, "op") != a);
    CHECK(pool.allocate(4 * kKiB, "op") == a);
    pool.deallocate(a, 4 * kKiB);
    for (const auto& [p, bytes] : pool.taken()) pool.deallocate(p, bytes);
    CHECK(pool.stats().live == 2 * kKiB);
  }
}

TEST_CASE("cuda pool: the last bytes of a device, too few for a segment, can be allocated") {
  Counting device(3 * kMiB);
  Pool pool(device.driver);
  CHECK(pool.allocate(2560 * kKiB, "op") != nullptr);
  CHECK(pool.stats().reserved == 2560 * kKiB);
}

TEST_CASE("cuda pool: with BRRR_POISON=1 the emulator sees what is read beyond a tensor") {
  const char* const poison = std::getenv("BRRR_POISON");
  if (!poison || *poison != '1' || !std::getenv("BRRR_EMULATOR_PTX")) return;
  if (!have_device() || !counters()) return;
  const Tensor x = ones({128}, kCUDA), behind = ones({128}, kCUDA), y = ones({128}, kCUDA);
  const std::string said = error_of([&] {
    const auto data = [](const Tensor& t) { return static_cast<char*>(t.data_ptr()); };
    run_kernel(beyond, {}, {1}, BeyondArguments{data(x), data(y)});
  });
  CHECK_MESSAGE(contains(said, "thread (127, 0, 0)"), said);
  CHECK_MESSAGE(contains(said, "accesses 4 bytes"), said);
}

TEST_CASE("cuda pool: a freed block is reused, and free neighbours are merged") {
  Counting device(64 * kMiB);
  Pool pool(device.driver);
  void* a = pool.allocate(700, "op");
  pool.deallocate(a, 700);
  CHECK(pool.allocate(1000, "op") == a);  // The same size class.
  for (int order = 0; order < 6; ++order) {
    void* part[3];
    for (void*& p : part) p = pool.allocate(1200 * kKiB, "op");
    const size_t calls = Counting::calls;
    CHECK(static_cast<char*>(part[1]) - static_cast<char*>(part[0]) == 1200 * kKiB);
    pool.deallocate(part[order % 3], 1200 * kKiB);
    pool.deallocate(part[(order + 1 + order / 3) % 3], 1200 * kKiB);
    pool.deallocate(part[(order + 2 - order / 3) % 3], 1200 * kKiB);
    void* whole = pool.allocate(4 * kMiB, "op");
    CHECK(whole == part[0]);
    CHECK(Counting::calls == calls);
    pool.deallocate(whole, 4 * kMiB);
  }
}

TEST_CASE("cuda pool: out of memory changes nothing, and freed memory can be allocated again") {
  Counting device(8 * kMiB);
  Pool pool(device.driver);
  void* a = pool.allocate(4 * kMiB, "matmul");
  void* b = pool.allocate(3 * kMiB, "softmax");
  const MemoryStats before = pool.stats();
  CHECK(pool.allocate(2 * kMiB, "exp") == nullptr);
  CHECK(pool.allocate(64 * kMiB, "exp") == nullptr);
  const MemoryStats after = pool.stats();
  CHECK(after.live == before.live);
  CHECK(after.peak == before.peak);
  CHECK(after.reserved == before.reserved);
  CHECK(after.allocations == before.allocations);
  const std::string said = pool.describe();
  CHECK(said ==
        "7340032 bytes held by tensors, 1048576 cached, 0 of the device's 8388608 free; the "
        "largest: 1 x 4194304 of matmul, 1 x 3145728 of softmax");
  pool.deallocate(a, 4 * kMiB);
  CHECK(pool.allocate(2 * kMiB, "exp") == a);
  pool.deallocate(b, 3 * kMiB);
  CHECK(pool.allocate(3 * kMiB, "exp") != nullptr);
  Counting::broken = true;  // A failing driver is an error, not a lack of memory.
  CHECK(contains(error_of([&] { pool.allocate(32 * kMiB, "exp"); }), "the device is gone"));
  Counting::broken = false;
}

TEST_CASE("cuda pool: when memory runs out, cached blocks of other sizes serve") {
  Counting device(2 * kMiB);
  Pool pool(device.driver);
  std::vector<void*> blocks;
  while (void* p = pool.allocate(kKiB, "op")) blocks.push_back(p);
  CHECK(blocks.size() == 2048);
  for (size_t i = 1; i < blocks.size(); ++i) pool.deallocate(blocks[i], kKiB);
  CHECK(contains(pool.describe(), "largest: 1 x 1024 of op"));  // Cached blocks are not listed.
  CHECK(pool.allocate(512 * kKiB, "op") != nullptr);
  CHECK(pool.allocate(kMiB, "op") != nullptr);
}

TEST_CASE("cuda pool: peak and trim") {
  Counting device(64 * kMiB);
  Pool pool(device.driver);
  void* a = pool.allocate(3 * kMiB, "op");
  void* b = pool.allocate(kKiB, "op");
  pool.deallocate(a, 3 * kMiB);
  CHECK(pool.stats().peak == 3 * kMiB + kKiB);
  CHECK(pool.stats().live == kKiB);
  pool.reset_peak();
  CHECK(pool.stats().peak == kKiB);
  pool.trim();
  CHECK(pool.stats().reserved == 2 * kMiB);
  pool.deallocate(b, kKiB);
  pool.trim();
  CHECK(pool.stats().reserved == 0);
  CHECK(Counting::used == 0);
}

TEST_CASE("cuda pool: in any order of calls blocks are disjoint and the sums right") {
  std::mt19937 random(5);
  for (int round = 0; round < random_cases(20, 500); ++round) {
    Counting device(24 * kMiB);
    Pool pool(device.driver);
    std::map<char*, size_t> live;  // Bytes asked, by address.
    for (int step = 0; step < 600; ++step) {
      if (random() % 5 < 3) {
        const size_t bytes = random() % 3 ? random() % 4000 : random() % (3 * kMiB);
        auto* p = static_cast<char*>(pool.allocate(bytes, "op"));
        if (p) {
          const auto next = live.lower_bound(p);
          REQUIRE((next == live.end() || p + bytes <= next->first));
          REQUIRE((next == live.begin() ||
                   std::prev(next)->first + std::max<size_t>(std::prev(next)->second, 1) <= p));
          live[p] = bytes;
        }
      } else if (!live.empty()) {
        auto it = live.begin();
        std::advance(it, static_cast<long>(random() % live.size()));
        pool.deallocate(it->first, it->second);
        live.erase(it);
      } else {
        pool.trim();
      }
      REQUIRE(pool.stats().reserved == Counting::used);
      REQUIRE(pool.stats().live <= pool.stats().reserved);
    }
    for (const auto& [p, bytes] : live) pool.deallocate(p, bytes);
    CHECK(pool.stats().live == 0);
    pool.trim();
    CHECK(Counting::used == 0);
  }
}

TEST_CASE("pitfall C8 on a device: out of memory names what holds it, and smaller work goes on") {
  if (!have_device()) return;
  matmul(ones({2, 2}, kCUDA), ones({2, 2}, kCUDA));  // Its workspace stays allocated.
  empty_cache(kCUDA);
  const size_t before = memory_stats(kCUDA).live;
  size_t free = 0, total = 0;
  REQUIRE(!device().driver->memory(&free, &total));
  const EmulatorSetting small("BRRR_EMULATOR_MEMORY", std::to_string(total - free + 24 * kMiB));
  // A step on a batch of n rows: half of its tensors live until the end.
  auto step = [](int64_t n) {
    const Tensor w = on_gpu(sampled({256, 64}, kFloat32)).set_requires_grad(true);
    const Tensor x = ones({n, 256}, kCUDA);
    matmul(x, w).exp().mean().backward();
    return on_cpu(w.grad());
  };
  const int64_t most = static_cast<int64_t>(device().properties.memory_bytes / 1024);
  const Tensor want = step(64);
  for (int64_t batch : {int64_t{16384}, most * 2}) {
    if (batch == 16384 && std::string(device().driver->name) != "emulator") continue;
    const std::string said = error_of([&] { step(batch); });
    CHECK_MESSAGE(contains(said, "out of memory on cuda"), said);
    CHECK_MESSAGE(contains(said, " bytes asked for; "), said);
    CHECK_MESSAGE(contains(said, " bytes held by tensors, "), said);
    CHECK_MESSAGE(contains(said, " free; the largest: "), said);
    if (batch == 16384) CHECK_MESSAGE(contains(said, "1 x 16777216 of full"), said);
    CHECK(memory_stats(kCUDA).live == before);
    check_same(step(64), want);
  }
}

TEST_CASE(
    "pitfall B6 on a device: a thousand lives of tensors, gradients and errors leave nothing") {
  if (!have_device()) return;
  const size_t before = memory_stats(kCUDA).live;
  size_t reserved = 0;
  for (int i = 0; i < 1000; ++i) {
    const Tensor x = on_gpu(sampled({8, 16}, kFloat32)).set_requires_grad(true);
    const Tensor y = (x * x).sum();
    if (i % 3 == 0) y.backward();
    if (i % 10 == 0) CHECK(!error_of([&] { matmul(x, x); }).empty());
    if (i == 10) reserved = memory_stats(kCUDA).reserved;
  }
  CHECK(memory_stats(kCUDA).live == before);
  CHECK(memory_stats(kCUDA).reserved == reserved);
}
