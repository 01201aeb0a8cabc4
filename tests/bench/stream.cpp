#include "tests/bench/stream.h"

#include <cblas.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <vector>

#include "tests/bench/measure/timing.h"
#include "tests/bench/simd.h"

namespace brrr::bench {
namespace {

using simd::Vec;

constexpr int max_reads = 8;

// `count` arrays in one allocation on huge pages, touched beforehand: the first touch of a page
// costs more than everything that is measured here. The arrays start at different offsets within a
// page, because loads behind stores with the same low 12 address bits wait for them.
class Arrays {
 public:
  Arrays(int count, std::size_t bytes)
      : stride_((bytes + page - 1) / page * page + 17 * 64),
        size_((stride_ * static_cast<std::size_t>(count) + huge_page - 1) / huge_page * huge_page),
        base_(static_cast<char*>(std::aligned_alloc(huge_page, size_))) {
    if (base_ == nullptr) throw std::bad_alloc();
    madvise(base_, size_, MADV_HUGEPAGE);  // only advice: a refusal costs speed, not correctness
    std::fill_n(reinterpret_cast<float*>(base_), size_ / sizeof(float), 1.0f);
  }
  ~Arrays() { std::free(base_); }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  float* operator[](int i) const {
    return reinterpret_cast<float*>(base_ + static_cast<std::size_t>(i) * stride_);
  }

 private:
  static constexpr std::size_t page = 4096, huge_page = std::size_t{2} << 20;
  std::size_t stride_, size_;
  char* base_;
};

// Out of line, so that repeated passes over the same arrays cannot be merged.
template <int reads, Store kind>
[[gnu::noinline]] void pass(float* out, const std::array<const float*, max_reads>& in,
                            std::size_t count) {
  constexpr std::size_t unroll = 4;
  const auto arrays = in;  // pointers in registers: the stores cannot change a local
  for (std::size_t i = 0; i < count; i += unroll * simd::width) {
#pragma GCC unroll 4
    for (std::size_t u = 0; u < unroll; ++u) {
      const std::size_t at = i + u * simd::width;
      Vec sum = simd::load(arrays[0] + at);
      for (int k = 1; k < reads; ++k) sum += simd::load(arrays[k] + at);
      if constexpr (kind == Store::Plain) {
        simd::store(out + at, sum);
      } else {
        simd::store_past_caches(out + at, sum);
      }
    }
  }
  if constexpr (kind == Store::PastCaches) simd::store_fence();
}

using Pass = void (*)(float*, const std::array<const float*, max_reads>&, std::size_t);

template <Store kind> Pass choose_pass(int reads) {
  constexpr std::array<Pass, max_reads> passes = {pass<1, kind>, pass<2, kind>, pass<3, kind>,
                                                  pass<4, kind>, pass<5, kind>, pass<6, kind>,
                                                  pass<7, kind>, pass<8, kind>};
  return passes[static_cast<std::size_t>(reads - 1)];
}

// Chains of multiply-adds kept in registers: two units of latency four need at least eight; AVX-512
// has 32 registers, the others 16.
constexpr int fma_chain_count = simd::width == 16 ? 16 : 12;

[[gnu::noinline]] float fma_chains(std::int64_t iterations) {
  constexpr int chains = fma_chain_count;
  Vec acc[chains];
  for (int k = 0; k < chains; ++k) acc[k] = simd::broadcast(static_cast<float>(k));
  const Vec scale = simd::broadcast(0.5f), offset = simd::broadcast(1.0f);
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < chains; ++k) acc[k] = simd::fma(acc[k], scale, offset);
  }
  asm volatile("" ::: "memory");  // a side effect, so that no call of a loop's is left out
  Vec sum = acc[0];
  for (int k = 1; k < chains; ++k) sum += acc[k];
  float total = 0.0f;
  for (std::size_t i = 0; i < simd::width; ++i) total += sum[i];
  return total;
}

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

StreamTime stream_like(int n_reads, std::size_t bytes, Store store) {
  constexpr std::size_t step = 1024;  // a whole number of unrolled vectors at every width
  if (n_reads < 1 || n_reads > max_reads || bytes < step) {
    throw std::invalid_argument("stream_like: " + std::to_string(n_reads) + " reads of " +
                                std::to_string(bytes) +
                                " bytes; pass 1 to 8 reads of 1024 or more");
  }
  bytes = bytes / step * step;
  const Arrays arrays(n_reads + 1, bytes);
  std::array<const float*, max_reads> in{};
  for (int k = 0; k < n_reads; ++k) in[static_cast<std::size_t>(k)] = arrays[k + 1];
  const Pass run = store == Store::Plain ? choose_pass<Store::Plain>(n_reads)
                                         : choose_pass<Store::PastCaches>(n_reads);
  const auto time = [&](std::size_t repeats) {
    const auto start = Clock::now();
    for (std::size_t r = 0; r < repeats; ++r) run(arrays[0], in, bytes / sizeof(float));
    return seconds_since(start) / static_cast<double>(repeats);
  };
  // Small arrays: many passes per sample, so that reading the clock does not count.
  time(2);
  const auto repeats = std::max<std::size_t>(1, static_cast<std::size_t>(1e-3 / time(2)));
  std::vector<double> samples;
  const auto begin = Clock::now();
  while (samples.size() < 7 || (samples.size() < 51 && seconds_since(begin) < 0.1)) {
    samples.push_back(time(repeats));
  }
  const double seconds = median(std::move(samples));
  return {seconds, static_cast<double>(bytes) * (n_reads + 1) / seconds * 1e-9};
}

StreamTime stream_like(int n_reads, std::size_t bytes) {
  const StreamTime plain = stream_like(n_reads, bytes, Store::Plain);
  const StreamTime past = stream_like(n_reads, bytes, Store::PastCaches);
  return plain.seconds <= past.seconds ? plain : past;
}

StreamTime copy_bandwidth(std::size_t bytes, Store store) { return stream_like(1, bytes, store); }

double fma_peak_gflops() {
  constexpr std::int64_t iterations = 100'000;
  volatile float sink = fma_chains(iterations);
  double best = 1e9;  // a peak is what the machine can do: the fastest, not the median
  for (int r = 0; r < 25; ++r) {
    const auto start = Clock::now();
    sink = fma_chains(iterations);
    best = std::min(best, seconds_since(start));
  }
  static_cast<void>(sink);
  return 2.0 * simd::width * fma_chain_count * static_cast<double>(iterations) / best * 1e-9;
}

BlasInfo blas_info() {
  BlasInfo info{openblas_get_corename(), openblas_get_config(), ""};
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    if (!info.warning.empty()) info.warning += ", ";
    info.warning += std::string(name) + "=" + value;
  }
  if (!info.warning.empty()) info.warning += " is set: OpenBLAS may run far below its speed";
  return info;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

MachineLimits measure_machine() {
  MachineLimits m;
  m.cpu = cpu_model();
  m.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  m.cores_allowed = allowed_cores();
  m.blas = blas_info();
  m.copy_cached_gbs = copy_bandwidth(std::size_t{256} << 10, Store::Plain).gb_per_second;
  m.copy_memory_gbs = stream_like(1, std::size_t{256} << 20).gb_per_second;
  m.fma_gflops = fma_peak_gflops();
  return m;
}

std::string machine_line(const MachineLimits& m, int threads, double spin_round_trip_ns) {
  char figures[256];
  std::snprintf(figures, sizeof figures,
                " | %d of %d cores | threads %d | copy %.0f GB/s (256 KB), %.0f GB/s (256 MB) | "
                "FMA peak %.0f GFLOP/s a core",
                m.cores_allowed, m.cores, threads, m.copy_cached_gbs, m.copy_memory_gbs,
                m.fma_gflops);
  std::string line = m.cpu + figures + " | OpenBLAS core " + m.blas.core;
  if (spin_round_trip_ns > 0) {
    line += " | spin round trip " + std::to_string(static_cast<int>(spin_round_trip_ns)) + " ns";
  }
  if (!m.blas.warning.empty()) line += " | WARNING: " + m.blas.warning;
  return line;
}

}  // namespace brrr::bench
