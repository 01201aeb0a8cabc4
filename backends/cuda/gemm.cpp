#include "backends/cuda/gemm.h"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "backends/cuda/device.h"
#include "backends/cuda/pool.h"
#include "core/check.h"
#include "core/context.h"
#include "core/tensor_impl.h"

namespace brrr::cuda {

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

GemmShape::Type type_of(DType t) {
  switch (t) {
    case kFloat32:
      return GemmShape::Float32;
    case kFloat64:
      return GemmShape::Float64;
    case kBFloat16:
      return GemmShape::BFloat16;
    case kFloat16:
      return GemmShape::Float16;
    default:
      fail("cuda: no matrix products of {} in the library", name(t));
  }
}

struct Less {
  static auto key(const GemmShape& s) {
    return std::tie(s.type, s.tf32, s.trans_a, s.trans_b, s.m, s.n, s.k, s.lda, s.ldb, s.ldc,
                    s.batch, s.stride_a, s.stride_b, s.stride_c);
  }
  bool operator()(const GemmShape& a, const GemmShape& b) const { return key(a) < key(b); }
};

struct Algorithms {
  std::mutex mutex;
  std::map<GemmShape, cuda::Gemm*, Less> by_shape;
  void* workspace = nullptr;
  size_t bytes = kWorkspace;
};
Algorithms& algorithms() {
  static Algorithms& p = *new Algorithms;
  return p;
}

// Once for the process, so that both modes and all steps have the same algorithms. Where there is
// no memory for it, algorithms that need none do.
void reserve_workspace(Algorithms& p) {
  const OpenDevice& d = device();
  const bool there = pool().make_room([&] {
    check(d.driver->allocate(&p.workspace, p.bytes), "workspace");
    return p.workspace != nullptr;
  });
  if (!there) p.bytes = 0;
}

// A factor where the library takes it: `rows` of `columns` as they lie in memory, for each of a
// batch. What is not aligned is moved as it lies, gaps included, so that it is the same problem and
// the product has the same bits wherever its factors begin.
class Aligned {
 public:
  Aligned(const void* p, DType dtype, int64_t rows, int64_t columns, int64_t ld, int64_t batch,
          int64_t stride)
      : at_(p) {
    if (reinterpret_cast<uintptr_t>(p) % kGemmAlignment == 0) return;
    const int64_t n = (batch - 1) * stride + (rows - 1) * ld + columns;
    moved_ = raw_empty({n}, dtype, kCUDA);
    char* const to = moved_.impl()->data();
    const OpenDevice& d = device();
    check(
        d.driver->copy(to, p, static_cast<size_t>(n) * itemsize(dtype), Way::OnDevice, d.stream()),
        "copy");
    at_ = to;
  }
  const void* get() const { return at_; }

 private:
  const void* at_;
  Tensor moved_;
};

Aligned left_of(const GemmShape& s, DType dtype, const void* a) {
  const int64_t rows = s.trans_a ? s.k : s.m, columns = s.trans_a ? s.m : s.k;
  return {a, dtype, rows, columns, s.lda, s.batch, s.stride_a};
}
Aligned right_of(const GemmShape& s, DType dtype, const void* b) {
  const int64_t rows = s.trans_b ? s.n : s.k, columns = s.trans_b ? s.k : s.n;
  return {b, dtype, rows, columns, s.ldb, s.batch, s.stride_b};
}

void multiply(const GemmShape& shape, DType dtype, const void* a, const void* b, void* c) {
  OpenDevice& d = device();
  if (shape.k == 0) {  // A sum of nothing; ldc is n, and batches follow one another.
    const auto bytes = static_cast<size_t>(shape.batch * shape.m * shape.n) * itemsize(dtype);
    return check(d.driver->fill(c, 0, bytes, d.stream()), "fill");
  }
  const Aligned left = left_of(shape, dtype, a), right = right_of(shape, dtype, b);
  Algorithms& p = algorithms();
  const std::lock_guard lock(p.mutex);
  if (!p.workspace && p.bytes) reserve_workspace(p);
  cuda::Gemm*& chosen = p.by_shape[shape];
  if (!chosen) check(d.tools->choose(&shape, p.bytes, &chosen), "matmul");
  d.counters.launches.fetch_add(1, std::memory_order_relaxed);
  check(d.tools->multiply(chosen, left.get(), right.get(), c, p.workspace, p.bytes, d.stream()),
        "matmul");
}

GemmShape shape_of(const brrr::Gemm& g) {
  const bool tf32 = g.dtype == kFloat32 && allow_tf32();
  return {
      type_of(g.dtype), tf32, g.trans_a, g.trans_b, g.m, g.n, g.k, g.lda, g.ldb, g.ldc, 1, 0, 0, 0};
}

}  // namespace

void gemm(const brrr::Gemm& g) {
  multiply(shape_of(g), g.dtype, g.a, g.b, g.c);
}

void gemm_batch(const brrr::Gemm& g, int64_t n, const int64_t* at) {
  const auto size = static_cast<int64_t>(itemsize(g.dtype));
  auto run = [&](int64_t first, int64_t batch) {
    GemmShape s = shape_of(g);
    s.batch = batch;
    const int64_t* from = at + 3 * first;
    if (batch > 1) {
      s.stride_a = from[3] - from[0];
      s.stride_b = from[4] - from[1];
      s.stride_c = from[5] - from[2];
    }
    multiply(s, g.dtype, static_cast<const char*>(g.a) + from[0] * size,
             static_cast<const char*>(g.b) + from[1] * size,
             static_cast<char*>(g.c) + from[2] * size);
  };
  // Runs of products at even distances.
  for (int64_t first = 0, last; first < n; first = last) {
    last = first + 1;
    auto step = [&](int64_t i, int operand) {
      return at[3 * i + operand] - at[3 * i - 3 + operand];
    };
    while (last < n) {
      bool even = true;
      for (int k = 0; k < 3; ++k) {
        const int64_t s = step(last, k);
        even &= s >= 0 && (last == first + 1 || s == step(first + 1, k));
      }
      if (!even) break;
      ++last;
    }
    run(first, last - first);
  }
}

}  // namespace brrr::cuda
