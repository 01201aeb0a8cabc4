#include <map>
#include <mutex>

#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/pool.h"
#include "core/check.h"
#include "core/tensor_impl.h"

namespace brrr::cuda {

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

// Algorithms are chosen once per process, so that both modes and all steps use the same. If there
// is no memory for a workspace, algorithms are chosen that need none.
struct Algorithms {
  std::mutex mutex;
  std::map<GemmShape, cuda::Gemm*> by_shape;
  void* workspaces[2] = {};  // For the main stream and for the second one.
  size_t bytes = kWorkspace;

  bool reserve(bool beside) {
    return pool().retry_after_trim([&] {
      check(device().driver->allocate(&workspaces[beside], bytes), "workspace");
      return workspaces[beside] != nullptr;
    });
  }
};

// The address of a factor (`batch` matrices of rows x columns, or their transposes), aligned as the
// library needs it. An unaligned factor is copied to `moved` with its layout, gaps included: the
// shape and so the algorithm and the bits of the product do not depend on alignment.
const void* aligned(Tensor& moved, const void* p, DType dtype, bool transposed, int64_t rows,
                    int64_t columns, int64_t ld, int64_t batch, int64_t stride) {
  if (reinterpret_cast<uintptr_t>(p) % kGemmAlignment == 0) return p;
  if (transposed) std::swap(rows, columns);
  const int64_t n = (batch - 1) * stride + (rows - 1) * ld + columns;
  moved = raw_empty({n}, dtype, kCUDA);
  const TensorImpl& to = *moved.impl();
  queue_copy(to.data(), p, to.storage->bytes, Way::OnDevice, device().stream());
  return to.data();
}

void multiply(const GemmShape& s, DType dtype, const void* a, const void* b, void* c) {
  const OpenDevice& d = device();
  if (s.k == 0) {  // An empty sum is 0. C is contiguous: ldc is n, and so are the batches.
    const auto bytes = static_cast<size_t>(s.batch * s.m * s.n) * itemsize(dtype);
    return check(d.driver->fill(c, 0, bytes, d.stream()), "fill");
  }
  if (is_small(s)) return multiply_small(s, a, b, c);
  Tensor moved[2];
  a = aligned(moved[0], a, dtype, s.trans_a, s.m, s.k, s.lda, s.batch, s.stride_a);
  b = aligned(moved[1], b, dtype, s.trans_b, s.k, s.n, s.ldb, s.batch, s.stride_b);
  Algorithms& p = process_own<Algorithms>();
  const std::lock_guard lock(p.mutex);
  void* const& workspace = p.workspaces[OpenDevice::beside];
  BRRR_CHECK(workspace || !p.bytes || !OpenDevice::beside,
             "cuda: no device memory left for the second stream's matrix products");
  if (!workspace && p.bytes && !p.reserve(false)) p.bytes = 0;
  cuda::Gemm*& chosen = p.by_shape[s];
  if (!chosen) check(d.driver->choose(&s, p.bytes, &chosen), "matmul");
  check(d.driver->multiply(chosen, a, b, c, workspace, p.bytes, d.stream()), "matmul");
}

static_assert(int{GemmShape::Float64} == static_cast<int>(kFloat64) &&
              int{GemmShape::BFloat16} == static_cast<int>(kBFloat16) &&
              int{GemmShape::Float16} == static_cast<int>(kFloat16));

GemmShape shape_of(const brrr::Gemm& g) {
  BRRR_CHECK(is_floating(g.dtype), "cuda: no matrix products of {} in the library", name(g.dtype));
  const auto type = static_cast<GemmShape::Type>(g.dtype);
  const bool tf32 = g.dtype == kFloat32 && allow_tf32();
  return {type, tf32, g.trans_a, g.trans_b, g.m, g.n, g.k, g.lda, g.ldb, g.ldc, 1, 0, 0, 0};
}

}  // namespace

void reserve_beside() {
  Algorithms& a = process_own<Algorithms>();
  const std::lock_guard lock(a.mutex);
  if (a.bytes) a.reserve(true);
}

// Backend::gemm requires uniform batch strides on a GPU; ops/rows/matmul.cpp sees to that.
void gemm(const brrr::Gemm& g, int64_t n, const int64_t* at) {
  const auto size = static_cast<int64_t>(itemsize(g.dtype));
  GemmShape s = shape_of(g);
  s.batch = n;
  if (n > 1) {
    s.stride_a = at[3] - at[0];
    s.stride_b = at[4] - at[1];
    s.stride_c = at[5] - at[2];
  }
  multiply(s, g.dtype, static_cast<const char*>(g.a) + at[0] * size,
           static_cast<const char*>(g.b) + at[1] * size, static_cast<char*>(g.c) + at[2] * size);
}

}  // namespace brrr::cuda
