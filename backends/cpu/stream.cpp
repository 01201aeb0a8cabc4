#include "backends/cpu/stream.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "backends/cpu/pool.h"
#include "backends/limits.h"
#include "core/backend.h"
#include "core/check.h"
#include "ops/vocabulary/gemm_tile.h"

namespace brrr::cpu {
namespace {

// The minimum, not the median: a limit is what the machine reaches at best.
template <class F> double shortest(int rounds, const F& f) {
  double best = 1e9;
  for (int r = 0; r < rounds; ++r) {
    const auto start = Clock::now();
    f();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

constexpr int max_reads = 8;

// `count` arrays in one allocation on huge pages, touched beforehand: page faults cost more than
// everything that is measured here. The arrays start at different offsets within a page, because
// a load stalls behind a store with the same low 12 address bits (4 KB aliasing).
struct Arrays {
  std::size_t stride;  // Floats.
  std::unique_ptr<float, void (*)(void*)> base{nullptr, std::free};

  Arrays(int count, std::size_t bytes) {
    constexpr std::size_t page = 4096, huge_page = std::size_t{2} << 20;
    stride = ((bytes + page - 1) / page * page + 17 * 64) / sizeof(float);
    const std::size_t all = stride * static_cast<std::size_t>(count) * sizeof(float);
    const std::size_t size = (all + huge_page - 1) / huge_page * huge_page;
    base.reset(static_cast<float*>(std::aligned_alloc(huge_page, size)));
    if (!base) throw std::bad_alloc();
    madvise(base.get(), size, MADV_HUGEPAGE);  // may fail: without huge pages it is only slower
    std::fill_n(base.get(), size / sizeof(float), 1.0f);
  }
  float* operator[](int i) const { return base.get() + static_cast<std::size_t>(i) * stride; }
};

enum class Way { Plain, Streaming, Prefetching };

// Out of line, so that repeated passes over the same arrays cannot be merged. Where one core is
// bound by memory latency, software prefetching (3 KB ahead into L2, 512 bytes ahead into L1)
// beats the hardware prefetchers, and so do non-temporal stores.
template <int reads, Way way>
[[gnu::noinline]] void pass(float* out, const std::array<const float*, max_reads>& in,
                            std::size_t count) {
  constexpr std::size_t unroll = 4, width = tile::kWidth;
  const auto arrays = in;  // a local copy, which stores cannot alias: pointers stay in registers
  for (std::size_t i = 0; i < count; i += unroll * width) {
    for (int k = 0; way == Way::Prefetching && k < reads; ++k) {
      for (std::size_t line = 0; line < unroll * width; line += 16) {
        vx::prefetch<2>(arrays[k] + i + 768 + line);
        vx::prefetch<1>(arrays[k] + i + 128 + line);
      }
    }
#pragma GCC unroll 4
    for (std::size_t u = 0; u < unroll; ++u) {
      const std::size_t at = i + u * width;
      tile::Reg sum = tile::load(arrays[0] + at);
      for (int k = 1; k < reads; ++k) sum += tile::load(arrays[k] + at);
      way != Way::Plain ? vx::store_nontemporal(out + at, sum) : tile::store(out + at, sum);
    }
  }
  if constexpr (way != Way::Plain) vx::fence_nt();
}

using Pass = void (*)(float*, const std::array<const float*, max_reads>&, std::size_t);

template <Way way> Pass choose_pass(int reads) {
  constexpr auto passes = []<int... k>(std::integer_sequence<int, k...>) {
    return std::array<Pass, max_reads>{pass<k + 1, way>...};
  }
  (std::make_integer_sequence<int, max_reads>());
  return passes[static_cast<std::size_t>(reads - 1)];
}

// Independent multiply-add chains in registers: two units of latency 4 need at least eight; AVX-512
// has 32 registers, AVX2 16.
constexpr int fma_chain_count = tile::kWidth == 16 ? 16 : 12;

template <class T> [[gnu::noinline]] T fma_chains(std::int64_t iterations) {
  constexpr int chains = fma_chain_count;
  using Lanes = tile::RegOf<T>;
  Lanes acc[chains];
  for (int k = 0; k < chains; ++k) acc[k] = Lanes{} + static_cast<T>(k);
  const Lanes scale = Lanes{} + T(0.5), offset = Lanes{} + T(1);
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < chains; ++k) acc[k] = tile::fma(acc[k], scale, offset);
  }
  asm volatile("" ::: "memory");  // a side effect, so that no repeated call is optimised away
  Lanes sum = acc[0];
  for (int k = 1; k < chains; ++k) sum += acc[k];
  T total = 0;
  for (int i = 0; i < tile::kWidthOf<T>; ++i) total += sum[i];
  return total;
}

template <class T> double fma_peak() {
  constexpr std::int64_t iterations = 100'000;
  constexpr double lanes = tile::kWidthOf<T>;
  volatile T sink = fma_chains<T>(iterations);
  const double best = shortest(25, [&] { sink = fma_chains<T>(iterations); });
  return 2.0 * lanes * fma_chain_count * static_cast<double>(iterations) / best * 1e-9;
}

constexpr std::size_t step = 1024;  // a whole number of unrolled vectors at every width

StreamTime time_of(Pass run, int n_reads, std::size_t bytes, bool gang,
                   const std::function<void()>& before) {
  const Arrays arrays(n_reads + 1, bytes);
  std::array<const float*, max_reads> in{};
  for (int k = 0; k < n_reads; ++k) in[static_cast<std::size_t>(k)] = arrays[k + 1];
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin) * step / sizeof(float);
    auto from = in;
    for (const float*& p : from) p += first;
    run(arrays[0] + first, from, static_cast<std::size_t>(end - begin) * step / sizeof(float));
  };
  const auto steps = static_cast<std::int64_t>(bytes / step);
  const auto time = [&](std::size_t repeats) {
    const auto start = Clock::now();
    for (std::size_t r = 0; r < repeats; ++r) gang ? parallel_for(steps, 1, part) : part(0, steps);
    return seconds_since(start) / static_cast<double>(repeats);
  };
  // Small arrays: many passes per sample, so that the clock's overhead is negligible.
  time(2);
  const auto repeats =
      before ? 1 : std::max<std::size_t>(1, static_cast<std::size_t>(1e-3 / time(2)));
  std::vector<double> samples;
  const auto begin = Clock::now();
  while (samples.size() < 7 || (samples.size() < 51 && seconds_since(begin) < 0.1)) {
    if (before) before();
    samples.push_back(time(repeats));
  }
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  const double seconds = *middle;
  return {seconds, static_cast<double>(bytes) * (n_reads + 1) / seconds * 1e-9};
}

}  // namespace

StreamTime stream_like(int n_reads, std::size_t bytes, bool gang,
                       const std::function<void()>& before) {
  if (n_reads < 1 || n_reads > max_reads || bytes < step) {
    fail("stream_like: {} reads of {} bytes; pass 1 to 8 reads of 1024 or more", n_reads, bytes);
  }
  bytes = bytes / step * step;
  const auto time = [&](Pass pass) { return time_of(pass, n_reads, bytes, gang, before); };
  const StreamTime plain = time(choose_pass<Way::Plain>(n_reads));
  if (bytes < kPrivateCacheBytes) return plain;
  const StreamTime streaming = time(choose_pass<Way::Streaming>(n_reads)),
                   prefetching = time(choose_pass<Way::Prefetching>(n_reads));
  const auto faster = [](const StreamTime& a, const StreamTime& b) {
    return a.seconds < b.seconds;
  };
  return std::min({plain, streaming, prefetching}, faster);
}

double fma_peak_gflops() { return fma_peak<float>(); }

// The best of 41 rounds of 200 empty regions.
double round_trip_ns() {
  std::atomic<int> ranges{0};
  const auto region = [&](int64_t, int64_t) { ranges.fetch_add(1); };
  parallel_for(num_threads(), 1, region);
  if (ranges < 2) return 0;  // It ran inline on this thread.
  constexpr int per_round = 200;
  const double best = shortest(41, [&] {
    for (int i = 0; i < per_round; ++i) parallel_for(num_threads(), 1, region);
  });
  return best / per_round * 1e9;
}

static DeviceLimits measure(Keep& keep) {
  const CoreWatch watch;
  DeviceLimits l;
  l.threads = num_threads();
  const int cores = std::min(l.threads, num_cpus());
  const double single = fma_peak<float>(), twice = fma_peak<double>();
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {  // 16-bit floats compute in float32.
    l.peaks.push_back({t, (t == kFloat64 ? twice : single) * cores, jit::product_gflops(kCPU, t)});
  }
  l.round_trip_ns = round_trip_ns();
  const bool gang = l.threads > 1;
  // Without a round trip another thread holds the gang: the figures are those of one thread.
  const bool whole = !gang || l.round_trip_ns > 0;
  for (size_t array = size_t{8} << 10; array <= size_t{256} << 20; array *= 4) {
    double best = stream_like(1, array, gang).gb_per_second;
    // A small copy finishes on one thread before the gang has started, the more so where threads
    // have to wait for a core.
    if (gang && array < kPrivateCacheBytes)
      best = std::max(best, stream_like(1, array).gb_per_second);
    l.copies.push_back({2.0 * static_cast<double>(array), best});
  }
  const bool sleeps = l.threads > cores;  // Waiting for its own workers: no sign of other load.
  keep = !whole ? Keep::Not : sleeps || watch.had_core() ? Keep::OnDisk : Keep::InProcess;
  return l;
}

DeviceLimits limits(bool anew) {
  const std::string build =
      fmt::format("{} threads, {} lanes, {} of {} cores, caches {}, {}", num_threads(),
                  tile::kWidth, num_cpus(), sysconf(_SC_NPROCESSORS_ONLN),
                  sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE));
  return jit::cached_limits(kCPU, build, anew, measure);
}

}  // namespace brrr::cpu
