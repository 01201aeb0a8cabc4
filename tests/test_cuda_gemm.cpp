// Products on the device that do not go to the library directly: small ones, in every layout, at
// edges of tiles and k steps, in batches; large ones whose rows are not a multiple of 16 bytes.

#include <utility>

#include "backends/cuda/device.h"
#include "backends/cuda/backend.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;
using cuda::GemmShape;

namespace {

// Whole numbers, whose sums are exact in any order.
Tensor whole(int64_t n, int64_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>((static_cast<int64_t>(i) * 7 + seed) % 11 - 5);
  }
  return tensor(x);
}

GemmShape shape(int64_t m, int64_t n, int64_t k, int layout, int64_t batch) {
  GemmShape s{};
  s.trans_a = layout & 1, s.trans_b = layout & 2;
  s.m = m, s.n = n, s.k = k, s.batch = batch;
  // Leading dimensions with padding, a multiple of 16 bytes or not.
  s.lda = (s.trans_a ? m : k) + (layout & 4 ? 3 : 0);
  s.ldb = (s.trans_b ? k : n) + (layout & 8 ? 4 : 1);
  s.ldc = n;
  s.stride_a = (s.trans_a ? k : m) * s.lda + (layout & 8 ? 8 : 1);
  s.stride_b = layout & 4 ? 0 : (s.trans_b ? n : k) * s.ldb;  // One matrix for the whole batch.
  s.stride_c = m * n;
  return s;
}

std::vector<float> expected(const GemmShape& s, const std::vector<float>& a,
                            const std::vector<float>& b) {
  std::vector<float> c;
  for (int64_t i = 0; i < s.batch * s.m * s.n; ++i) {
    const int64_t z = i / (s.m * s.n), row = i / s.n % s.m, col = i % s.n;
    float sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const int64_t x = z * s.stride_a + (s.trans_a ? k * s.lda + row : row * s.lda + k);
      const int64_t y = z * s.stride_b + (s.trans_b ? col * s.ldb + k : k * s.ldb + col);
      sum += a[static_cast<size_t>(x)] * b[static_cast<size_t>(y)];
    }
    c.push_back(sum);
  }
  return c;
}

void check_product(int64_t m, int64_t n, int64_t k, int layout, int64_t batch) {
  const GemmShape s = shape(m, n, k, layout, batch);
  const Tensor a = whole(s.batch * s.stride_a, 1),
               b = whole((s.batch * s.n + s.k) * s.ldb * 2 + s.batch * s.stride_b, 3);
  const Tensor x = a.to(kCUDA), y = b.to(kCUDA);
  Tensor c = full({s.batch * s.m * s.n}, -1.0, kFloat32, kCUDA);
  cuda::multiply_small(s, x.data_ptr(), y.data_ptr(), c.data_ptr());
  INFO("m " << m << ", n " << n << ", k " << k << ", layout " << layout << ", batch " << batch);
  CHECK(c.to(kCPU).to_vector<float>() == expected(s, a.to_vector<float>(), b.to_vector<float>()));
}

}  // namespace

TEST_CASE("cuda small gemm: every layout, edges of tiles and k steps, batches") {
  if (!have_device()) return;
  const int64_t sizes[][3] = {{1, 1, 1},    {5, 7, 33},    {16, 32, 256}, {17, 33, 257},
                              {64, 65, 64}, {130, 31, 65}, {3, 100, 700}};
  for (const auto& [m, n, k] : sizes) {
    for (int layout = 0; layout < 16; ++layout) check_product(m, n, k, layout, layout % 3 + 1);
  }
}

TEST_CASE("cuda small gemm: every tile, with every width of copies") {
  if (!have_device()) return;
  const int64_t card = cuda::device().properties.multiprocessors;
  for (int layout = 0; layout < 16; ++layout) {
    for (const int64_t odd : {0, 3}) {
      check_product(16 - odd, 16, 64 + odd, layout, card);               // Small.
      check_product(16, 16 - odd, 300, layout, card);                    // Many threads.
      check_product(32 - odd, 64 - odd, 300 + odd, layout, card / 4);    // Flat.
      check_product(64, 64 - odd, 76 + odd, layout, 3 * card / 16 + 1);  // Large.
    }
  }
}

TEST_CASE("cuda small gemm: no block has more shared memory than the card gives it") {
  if (!have_device()) return;
  const EmulatorSetting other("BRRR_EMULATOR_CAPABILITY", "86");
  int& bytes = cuda::device().properties.shared_bytes;
  const int all = std::exchange(bytes, std::min(bytes, 99 << 10));
  const int64_t card = cuda::device().properties.multiprocessors;
  for (int layout = 0; layout < 4; ++layout) {
    check_product(16, 16, 300, layout, card);
    check_product(32, 64, 300, layout, card / 4);
    check_product(64, 64, 76, layout, 3 * card / 16 + 1);
  }
  bytes = all;
}

TEST_CASE("cuda small gemm: which products it takes, and that matmul sends them there") {
  if (!have_device()) return;
  GemmShape s = shape(32, 32, 32, 0, 1);
  CHECK(cuda::is_small(s));
  s.tf32 = true;
  CHECK(!cuda::is_small(s));
  s.tf32 = false, s.batch = 1 << 20;
  CHECK(!cuda::is_small(s));
  s.batch = 1, s.type = GemmShape::BFloat16;
  CHECK(!cuda::is_small(s));
  s.type = GemmShape::Float32, s.lda = int64_t{1} << 40;
  CHECK(!cuda::is_small(s));
  const Tensor a = whole(6 * 40, 1).view({6, 40}), b = whole(40 * 9, 2).view({40, 9});
  for (const Tensor& right : {b, b.t().contiguous().t()}) {
    check_same(on_cpu(matmul(a.to(kCUDA), right.to(kCUDA))), matmul(a, right));
  }
}

TEST_CASE("cuda gemm: rows that are not a multiple of 16 bytes, through padded copies") {
  if (!have_device()) return;
  const int64_t m = 1024, n = 1025, k = 520;
  const auto step = [&](Device device) {
    manual_seed(3);
    const auto made = [&](const IntList& sizes) {
      return (randn(sizes) * 0.1).to(kBFloat16).to(device).set_requires_grad();
    };
    const Tensor x = made({m, k}), w = made({n, k}), right = made({k, n});
    const Tensor g = (randn({m, n}) * 0.1).to(kBFloat16).to(device);
    Tensors all{matmul(x, w.t()), matmul(x, right)};
    for (const Tensor& y : Tensors(all)) {
      for (const Tensor& t : grad({y}, {x, w, right}, {.allow_unused = true}, {g})) {
        if (t.defined()) all.push_back(t);
      }
    }
    return all;
  };
  const Tensors got = step(kCUDA), want = step(kCPU);
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    check_close(on_cpu(got[i]), want[i], 0.02);
  }
}

TEST_CASE("cuda: uint8 products, whose copies are transposed, in a batch that broadcasts") {
  if (!have_device()) return;
  const auto product = [](Device device) {
    const Tensor a = arange(24).to(kUInt8).view({2, 1, 3, 4}).to(device);
    const Tensor b = arange(90).to(kUInt8).view({2, 3, 3, 5}).to(device);
    return matmul(a.transpose(-2, -1), b);
  };
  check_same(on_cpu(product(kCUDA)), product(kCPU));
}
