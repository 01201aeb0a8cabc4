// Matrix products of the emulated device.
#include <doctest/doctest.h>

#include <vector>

#include "tests/emulator_device.h"

using namespace brrr::test;

namespace {

// Two batches with padded rows; the padding of c must not change.
template <class T, class Encode>
void check_gemm(GemmShape::Type type, bool trans_a, bool trans_b, Encode encoded) {
  CAPTURE(type);
  CAPTURE(trans_a);
  CAPTURE(trans_b);
  Device d;
  const int m = 3, n = 4, k = 5, ld = 7, stride = 6 * ld;
  const auto a = [](int batch, int i, int l) { return (batch * 3 + i * 5 + l * 7) % 7 - 3; };
  const auto b = [](int batch, int l, int j) { return (batch * 2 + l * 3 + j * 5) % 5 - 2; };
  std::vector<T> in_a(2 * stride, encoded(9)), in_b = in_a, want = in_a;
  for (int batch = 0; batch < 2; ++batch) {
    const int start = batch * stride;
    for (int i = 0; i < m; ++i) {
      for (int l = 0; l < k; ++l) {
        in_a[start + (trans_a ? l * ld + i : i * ld + l)] = encoded(a(batch, i, l));
      }
    }
    for (int l = 0; l < k; ++l) {
      for (int j = 0; j < n; ++j) {
        in_b[start + (trans_b ? j * ld + l : l * ld + j)] = encoded(b(batch, l, j));
      }
    }
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        int sum = 0;
        for (int l = 0; l < k; ++l) sum += a(batch, i, l) * b(batch, l, j);
        want[start + i * ld + j] = encoded(sum);
      }
    }
  }
  T* c = d.device(std::vector<T>(2 * stride, encoded(9)));
  void* workspace = d.device(std::vector<char>(100));
  const GemmShape shape{type, false, trans_a, trans_b, m,      n,      k,
                        ld,   ld,    ld,      2,       stride, stride, stride};
  Gemm* plan = nullptr;
  GOOD(driver().choose(&shape, 100, &plan));
  GOOD(driver().multiply(plan, d.device(in_a), d.device(in_b), c, workspace, 100, d.stream));
  CHECK(d.host(c, 2 * stride) == want);
  CHECK_FAILS(driver().multiply(plan, c + 30, c, c, workspace, 100, d.stream), "multiply: a: ");
  CHECK_FAILS(driver().multiply(plan, c, c, c, workspace, 99, d.stream), "planned with 100");
  // The alignment that the module for GPUs requires.
  T *const a_at = d.device(in_a), *const b_at = d.device(in_b);
  for (int k = 0; k < 3; ++k) {
    T* p[] = {a_at, b_at, c};
    p[k] = d.device(std::vector<T>(3 * stride)) + 1;
    CHECK_FAILS(driver().multiply(plan, p[0], p[1], p[2], workspace, 100, d.stream),
                "is not aligned to 16 bytes");
  }
  void* shifted = d.device(std::vector<char>(200)) + 16;
  CHECK_FAILS(driver().multiply(plan, a_at, b_at, c, shifted, 100, d.stream),
              "is not aligned to 256 bytes");
  Gemm* const none = reinterpret_cast<Gemm*>(c);
  CHECK_FAILS(driver().multiply(none, c, c, c, workspace, 100, d.stream), "not a valid plan");
}

}  // namespace

TEST_CASE("emulator: matrix products") {
  for (int transposes = 0; transposes < 4; ++transposes) {
    const bool a = transposes & 1, b = transposes & 2;
    check_gemm<float>(GemmShape::Float32, a, b, [](int x) { return static_cast<float>(x); });
    check_gemm<double>(GemmShape::Float64, a, b, [](int x) { return static_cast<double>(x); });
    using Half = unsigned short;
    const auto half = [](bool bf16) {
      return [bf16](int x) { return static_cast<Half>(encode(x, bf16)); };
    };
    check_gemm<Half>(GemmShape::BFloat16, a, b, half(true));
    check_gemm<Half>(GemmShape::Float16, a, b, half(false));
  }
  GemmShape shape{GemmShape::Float32, false, false, false, 3, 4, 5, 4, 4, 4, 1, 0, 0, 0};
  Gemm* plan = nullptr;
  CHECK_FAILS(driver().choose(&shape, 0, &plan), "rows of a have 5 elements but a stride of 4");
}
