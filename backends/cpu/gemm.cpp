#include "backends/cpu/gemm.h"

#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "core/check.h"
#include "core/moved.h"

namespace brrr::cpu {

namespace {

// --- one OpenBLAS thread per call ----------------------------------------------------------------

// OpenBLAS built with OpenMP reads the calling thread's OpenMP thread count on every call, so that
// count is set to 1 during a call and restored afterwards. Other builds obey
// openblas_set_num_threads.
struct OpenMP {
  int (*get)() = [] { return 1; };
  void (*set)(int) = [](int) {};
  OpenMP() {
    auto* g = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    auto* s = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (g && s && openblas_get_parallel() == 2) {
      get = g;
      set = s;
    }
    const int before = get();
    openblas_set_num_threads(1);
    set(before);
  }
};
const OpenMP& openmp() {
  static const OpenMP omp;
  return omp;
}

struct OneThread : NotCopied {
  const OpenMP& omp = openmp();
  const int before = omp.get();
  OneThread() {
    if (before != 1) omp.set(1);
  }
  ~OneThread() {
    if (before != 1) omp.set(before);
  }
};

// --- the decomposition ---------------------------------------------------------------------------

// The blocks of C that a product is cut into: a function of shape, transposes and dtype alone.
struct Block {
  int64_t rows, cols;
};

// float32 on AVX-512: OpenBLAS has kernels without packing, used only for M * N * K <= 10^6. At
// small batches packing costs more than it saves, so a product cut into blocks of that size beats
// one call (1.2 to 1.6 times at batch 32, 784 to 256). With B transposed those kernels are slow for
// wide blocks. Otherwise row panels are used: each packs B again, which costs 3 to 10 %, less than
// running the panels in parallel gains.
Block block_of(const Gemm& g) {
  const Block whole{g.m, g.n};
  if (!(g.trans_b && g.m >= 256) && g.dtype == kFloat32) {
    const int64_t rows = std::min<int64_t>(g.m, 64);
    int64_t cols = 1'000'000 / (rows * g.k);
    if (g.trans_b) cols = std::min({cols, 1024 / rows, int64_t{32}});
    if (cols >= g.n && rows == g.m) return whole;
    cols = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(cols)));
    if (cols >= (g.trans_b ? 16 : 32)) return {rows, std::min(cols, g.n)};
  }
  if (g.m < 256 || multiplications(g) < 2e6) return whole;
  return {g.m < 1024 ? 128 : 256, g.n};
}

template <class T>
void run_block(const Gemm& g, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  const auto* a = static_cast<const T*>(g.a) + row * (g.trans_a ? 1 : g.lda);
  const auto* b = static_cast<const T*>(g.b) + col * (g.trans_b ? g.ldb : 1);
  auto* c = static_cast<T*>(g.c) + row * g.ldc + col;
  const auto ta = g.trans_a ? CblasTrans : CblasNoTrans;
  const auto tb = g.trans_b ? CblasTrans : CblasNoTrans;
  const auto m = static_cast<blasint>(rows), n = static_cast<blasint>(cols);
  const auto k = static_cast<blasint>(g.k), lda = static_cast<blasint>(g.lda);
  const auto ldb = static_cast<blasint>(g.ldb), ldc = static_cast<blasint>(g.ldc);
  if constexpr (sizeof(T) == 4) {
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
  }
}

// Blocks [begin, end) in row-major order; the last block of a row or column may be smaller.
void run_blocks(const Gemm& g, const Block& block, int64_t begin, int64_t end) {
  const int64_t across = (g.n + block.cols - 1) / block.cols;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / across * block.rows, col = i % across * block.cols;
    const int64_t rows = std::min(block.rows, g.m - row), cols = std::min(block.cols, g.n - col);
    if (g.dtype == kFloat32) {
      run_block<float>(g, row, col, rows, cols);
    } else {
      run_block<double>(g, row, col, rows, cols);
    }
  }
}

void fill_zero(const Gemm& g) {
  const auto size = static_cast<int64_t>(itemsize(g.dtype));
  for (int64_t i = 0; i < g.m; ++i) {
    std::memset(static_cast<char*>(g.c) + i * g.ldc * size, 0, static_cast<size_t>(g.n * size));
  }
}

void check_limits(const Gemm& g) {
  // OpenBLAS counts in blasint, 32 bits as Debian builds it.
  const int64_t most = sizeof(blasint) == 8 ? INT64_MAX : INT_MAX;
  BRRR_CHECK(std::max({g.m, g.n, g.k, g.lda, g.ldb, g.ldc}) <= most,
             "gemm: [{}, {}] x [{}, {}] with rows {} and {} apart is beyond OpenBLAS's 32-bit "
             "sizes; split the matrices",
             g.m, g.k, g.k, g.n, g.lda, g.ldb);
}

}  // namespace

void gemm(const Gemm& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) return fill_zero(g);
  BRRR_CHECK(g.dtype == kFloat32 || g.dtype == kFloat64,
             "gemm: takes float32 and float64, got {}; convert first", name(g.dtype));
  if (g.chain || use_small_gemm(g)) return small_gemm(g);
  const Block block = block_of(g);
  check_limits(g);
  const int64_t blocks =
      (g.m + block.rows - 1) / block.rows * ((g.n + block.cols - 1) / block.cols);
  // A thread gets at least 10^6 multiplications' worth of blocks.
  const int64_t grain = std::max<int64_t>(1, 1'000'000 / (block.rows * block.cols * g.k + 1));
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const OneThread one;
    run_blocks(g, block, begin, end);
  });
}

void gemm_batch(const Gemm& g, int64_t n, const int64_t* at) {
  const bool floats = g.dtype == kFloat32 && g.m > 0 && g.n > 0 && g.k > 0;
  if (floats && n > 1 && use_small_gemm(g) && !has_few_rows(g)) return small_gemm(g, n, at);
  const auto size = static_cast<int64_t>(itemsize(g.dtype));
  for (int64_t i = 0; i < n; ++i, at += 3) {
    Gemm one = g;
    one.a = static_cast<const char*>(g.a) + at[0] * size;
    one.b = static_cast<const char*>(g.b) + at[1] * size;
    one.c = static_cast<char*>(g.c) + at[2] * size;
    gemm(one);
  }
}

}  // namespace brrr::cpu
