#include "backends/cpu/gemm.h"

#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "backends/cpu/pool.h"
#include "core/check.h"

namespace brrr::cpu {

namespace {

// --- one thread a call ---------------------------------------------------------------------------

// OpenBLAS built with OpenMP asks the calling thread's OpenMP setting on every call, so each
// thread's is 1 for the time of a call and then again what the program had set. Other builds obey
// openblas_set_num_threads.
struct OpenMP {
  int (*get)() = nullptr;
  void (*set)(int) = nullptr;
  OpenMP() {
    auto* g = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    auto* s = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (g && s && openblas_get_parallel() == 2) {
      get = g;
      set = s;
    }
    const int before = get ? get() : 1;
    openblas_set_num_threads(1);
    if (get) set(before);
  }
};

class OneThread {
 public:
  OneThread() : omp_(openmp()) {
    if (!omp_.get) return;
    before_ = omp_.get();
    if (before_ != 1) omp_.set(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_.set(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static const OpenMP& openmp() {
    static const OpenMP omp;
    return omp;
  }
  const OpenMP& omp_;
  int before_ = 1;
};

// --- the decomposition ---------------------------------------------------------------------------

// Rows of a panel: a function of shape and transposes alone. Each panel packs B anew, which costs
// 10 % at 128 rows and 5 % at 256; products of at most 10^6 without a transposed B run in kernels
// that pack nothing and are faster than one large call.
int64_t panel_rows(const Gemm& g) {
  constexpr double kWorthSplitting = 2e6, kUnpacked = 1e6;
  const double per_row = static_cast<double>(g.n) * static_cast<double>(g.k);
  if (g.m < 128 || static_cast<double>(g.m) * per_row < kWorthSplitting) return g.m;
  if (!g.trans_b && 64 * per_row <= kUnpacked) return 64;
  if (g.m < 256) return g.m;
  return g.m < 1024 ? 128 : 256;
}

template <class T> void run_rows(const Gemm& g, int64_t begin, int64_t rows) {
  const auto* a = static_cast<const T*>(g.a) + begin * (g.trans_a ? 1 : g.lda);
  const auto* b = static_cast<const T*>(g.b);
  auto* c = static_cast<T*>(g.c) + begin * g.ldc;
  const auto ta = g.trans_a ? CblasTrans : CblasNoTrans;
  const auto tb = g.trans_b ? CblasTrans : CblasNoTrans;
  const auto m = static_cast<blasint>(rows), n = static_cast<blasint>(g.n);
  const auto k = static_cast<blasint>(g.k), lda = static_cast<blasint>(g.lda);
  const auto ldb = static_cast<blasint>(g.ldb), ldc = static_cast<blasint>(g.ldc);
  if constexpr (sizeof(T) == 4) {
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
  }
}

void run_panel(const Gemm& g, int64_t begin, int64_t rows) {
  if (g.dtype == kFloat32)
    run_rows<float>(g, begin, rows);
  else
    run_rows<double>(g, begin, rows);
}

void fill_zero(const Gemm& g) {
  const auto size = static_cast<int64_t>(itemsize(g.dtype));
  for (int64_t i = 0; i < g.m; ++i) {
    std::memset(static_cast<char*>(g.c) + i * g.ldc * size, 0, static_cast<size_t>(g.n * size));
  }
}

void check_limits(const Gemm& g, int64_t rows) {
  // OpenBLAS counts in blasint, 32 bits as Debian builds it; the last panel has up to 2 * rows.
  const int64_t most = sizeof(blasint) == 8 ? INT64_MAX : INT_MAX;
  const int64_t panel = rows == g.m ? rows : 2 * rows;
  BRRR_CHECK(std::max({panel, g.n, g.k, g.lda, g.ldb, g.ldc}) <= most,
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
  const int64_t rows = panel_rows(g);
  check_limits(g, rows);
  const int64_t panels = g.m / rows;
  if (panels == 1) {
    const OneThread one;
    return run_panel(g, 0, g.m);
  }
  parallel_for(panels, 1, [&](int64_t begin, int64_t end) {
    const OneThread one;
    for (int64_t p = begin; p < end; ++p) {
      // The last panel takes what is left, so that none is short.
      run_panel(g, p * rows, p + 1 == panels ? g.m - p * rows : rows);
    }
  });
}

std::string blas_core() {
  return openblas_get_corename();
}

bool blas_crippled() {
  return std::getenv("OPENBLAS_CORETYPE") || std::getenv("OPENBLAS_L2_SIZE");
}

}  // namespace brrr::cpu
