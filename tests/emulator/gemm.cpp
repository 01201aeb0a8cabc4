// Matrix products, summed in the order of k and accumulated in float64 whatever the type, so that
// results are at least as accurate as a GPU's.

#include "tests/emulator/gemm.h"

#include <cstring>

#include "tests/emulator/device.h"
#include "tests/emulator/mma.h"

namespace brrr::emulator {

using namespace cuda;

namespace {

struct Matrix {
  int64_t rows, columns, stride, batch_stride;
  // Elements from the first to the last one of all batches, gaps included.
  int64_t extent(int64_t batch) const {
    return (batch - 1) * batch_stride + (rows - 1) * stride + columns;
  }
};

// The operands as stored in memory.
Matrix matrix_a(const GemmShape& g) {
  return g.trans_a ? Matrix{g.k, g.m, g.lda, g.stride_a} : Matrix{g.m, g.k, g.lda, g.stride_a};
}
Matrix matrix_b(const GemmShape& g) {
  return g.trans_b ? Matrix{g.n, g.k, g.ldb, g.stride_b} : Matrix{g.k, g.n, g.ldb, g.stride_b};
}
Matrix matrix_c(const GemmShape& g) { return {g.m, g.n, g.ldc, g.stride_c}; }

size_t element_bytes(GemmShape::Type type) {
  switch (type) {
    case GemmShape::Float32:
      return 4;
    case GemmShape::Float64:
      return 8;
    case GemmShape::BFloat16:
    case GemmShape::Float16:
      return 2;
  }
  fail("choose: no type {}", static_cast<int>(type));
}

void check_matrix(const char* name, const Matrix& m) {
  BRRR_CHECK(m.stride >= m.columns, "choose: rows of {} have {} elements but a stride of {}", name,
             m.columns, m.stride);
  BRRR_CHECK(m.batch_stride >= 0, "choose: the batch stride of {} is {}", name, m.batch_stride);
}

void check_shape(const GemmShape& g) {
  BRRR_CHECK(g.m > 0 && g.n > 0 && g.k > 0 && g.batch > 0,
             "choose: m = {}, n = {}, k = {}, batch = {}", g.m, g.n, g.k, g.batch);
  BRRR_CHECK(g.batch <= INT32_MAX, "choose: {} products in one call", g.batch);
  check_matrix("a", matrix_a(g));
  check_matrix("b", matrix_b(g));
  const Matrix c = matrix_c(g);
  check_matrix("c", c);
  BRRR_CHECK(g.batch == 1 || g.stride_c >= (c.rows - 1) * c.stride + c.columns,
             "choose: the batches of c overlap");
  element_bytes(g.type);
}

// --- Elements ------------------------------------------------------------------------------------

struct BFloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};

double widen(float x) { return x; }
double widen(double x) { return x; }
double widen(BFloat16 x) { return widen_bf16(x.bits); }
double widen(Float16 x) { return widen_f16(x.bits); }

void narrow(double x, float& to) { to = static_cast<float>(x); }
void narrow(double x, double& to) { to = x; }
void narrow(double x, BFloat16& to) {
  const auto bits = std::bit_cast<unsigned>(static_cast<float>(x));
  to.bits = static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  if (x != x) to.bits = 0x7fff;
}
void narrow(double x, Float16& to) {
  const double magnitude = std::fabs(static_cast<float>(x));
  unsigned bits = 0x7c00;  // infinity
  if (x != x) {
    bits = 0x7fff;
  } else if (magnitude < 65520) {
    // In units in the last place: 2^-24 for magnitudes below 2^-13, then 2^-10 of the leading bit.
    // A carry out of the mantissa correctly increments the exponent.
    const int exponent = std::max(std::ilogb(magnitude), -14);
    const double units = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
    bits = static_cast<unsigned>((exponent + 14) * 1024 + units);
  }
  to.bits = static_cast<unsigned short>(bits | (std::signbit(x) ? 0x8000 : 0));
}

// --- Products ------------------------------------------------------------------------------------

using Four = double __attribute__((vector_size(32)));
constexpr size_t kRows = 4, kColumns = 8;

// A tile of c, summed in the order of k. The sums are separate variables, because g++ 12 does not
// keep an array of them in registers.
void add_tile(const double* a, const double* b, size_t k, double (&to)[kRows][kColumns]) {
  Four s0{}, s1{}, s2{}, s3{}, s4{}, s5{}, s6{}, s7{};
  for (; k > 0; --k, a += kRows, b += kColumns) {
    Four low, high;
    std::memcpy(&low, b, sizeof low);
    std::memcpy(&high, b + 4, sizeof high);
    s0 += a[0] * low, s1 += a[0] * high;
    s2 += a[1] * low, s3 += a[1] * high;
    s4 += a[2] * low, s5 += a[2] * high;
    s6 += a[3] * low, s7 += a[3] * high;
  }
  const Four all[] = {s0, s1, s2, s3, s4, s5, s6, s7};
  std::memcpy(to, all, sizeof to);
}

// One product of a batch. The factors are widened and packed in the order in which tiles read them.
template <class T> void multiply_one(const GemmShape& g, const T* a, const T* b, T* c) {
  const auto m = static_cast<size_t>(g.m), n = static_cast<size_t>(g.n);
  const auto k = static_cast<size_t>(g.k), ldc = static_cast<size_t>(g.ldc);
  const auto lda = static_cast<size_t>(g.lda), ldb = static_cast<size_t>(g.ldb);
  std::vector<double> wide_b((n + kColumns - 1) / kColumns * kColumns * k), wide_a(k * kRows);
  for (size_t j = 0; j < n; ++j) {
    double* const to = &wide_b[j / kColumns * kColumns * k + j % kColumns];
    for (size_t p = 0; p < k; ++p) {
      to[p * kColumns] = widen(g.trans_b ? b[j * ldb + p] : b[p * ldb + j]);
    }
  }
  for (size_t i = 0; i < m; i += kRows) {
    const size_t rows = std::min(kRows, m - i);
    for (size_t p = 0; p < k; ++p) {
      for (size_t r = 0; r < rows; ++r) {
        wide_a[p * kRows + r] = widen(g.trans_a ? a[p * lda + i + r] : a[(i + r) * lda + p]);
      }
    }
    for (size_t j = 0; j < n; j += kColumns) {
      double sum[kRows][kColumns];
      add_tile(wide_a.data(), &wide_b[j * k], k, sum);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t q = 0; q < std::min(kColumns, n - j); ++q) {
          narrow(sum[r][q], c[(i + r) * ldc + j + q]);
        }
      }
    }
  }
}

template <class T> void multiply_all(const GemmShape& g, const void* a, const void* b, void* c) {
  for (int64_t i = 0; i < g.batch; ++i) {
    multiply_one(g, static_cast<const T*>(a) + i * g.stride_a,
                 static_cast<const T*>(b) + i * g.stride_b, static_cast<T*>(c) + i * g.stride_c);
  }
}

void run_gemm(const GemmShape& g, const void* a, const void* b, void* c) {
  switch (g.type) {
    case GemmShape::Float32:
      return multiply_all<float>(g, a, b, c);
    case GemmShape::Float64:
      return multiply_all<double>(g, a, b, c);
    case GemmShape::BFloat16:
      return multiply_all<BFloat16>(g, a, b, c);
    case GemmShape::Float16:
      return multiply_all<Float16>(g, a, b, c);
  }
}

void check_memory(Device& d, const GemmShape& g, const void* a, const void* b, const void* c,
                  const void* workspace, size_t workspace_bytes) {
  const auto expect = [&](const char* what, const void* p, const Matrix& m) {
    const size_t size = element_bytes(g.type);
    d.memory.expect_device(what, p, static_cast<size_t>(m.extent(g.batch)) * size);
    BRRR_CHECK(reinterpret_cast<uintptr_t>(p) % kGemmAlignment == 0,
               "{} at {} is not aligned to {} bytes; copy it first", what, p, kGemmAlignment);
  };
  expect("multiply: a", a, matrix_a(g));
  expect("multiply: b", b, matrix_b(g));
  expect("multiply: c", c, matrix_c(g));
  if (workspace_bytes == 0) return;
  d.memory.expect_device("multiply: workspace", workspace, workspace_bytes);
  BRRR_CHECK(reinterpret_cast<uintptr_t>(workspace) % 256 == 0,
             "multiply: the workspace at {} is not aligned to 256 bytes", workspace);
}

}  // namespace

Failure choose(const GemmShape* shape, size_t workspace_bytes, Gemm** plan) {
  return guarded([&](Device& d) {
    check_shape(*shape);
    *plan = d.gemms.add({*shape, workspace_bytes});
  });
}

Failure multiply(Gemm* plan, const void* a, const void* b, void* c, void* workspace,
                 size_t workspace_bytes, Stream* s) {
  return queueing(s, [&](Device& d, Stream& stream) {
    const Gemm& gemm = d.gemms.get(plan, "plan");
    const GemmShape g = gemm.shape;
    BRRR_CHECK(workspace_bytes >= gemm.workspace_bytes,
               "multiply: a workspace of {} bytes; planned with {}", workspace_bytes,
               gemm.workspace_bytes);
    const auto check = [=, &d] { check_memory(d, g, a, b, c, workspace, workspace_bytes); };
    check();
    d.enqueue(stream, d.counters.kernels, [=, &d] {
      check();
      // Overwrites the workspace, as a GPU would.
      constexpr size_t most_poisoned = 4096;
      if (workspace_bytes > 0) {
        std::memset(workspace, poison, std::min(workspace_bytes, most_poisoned));
      }
      run_gemm(g, a, b, c);
      const size_t made = static_cast<size_t>(matrix_c(g).extent(g.batch)) * element_bytes(g.type);
      d.memory.marks.set(reinterpret_cast<uintptr_t>(c), made, true);
    });
  });
}

}  // namespace brrr::emulator
