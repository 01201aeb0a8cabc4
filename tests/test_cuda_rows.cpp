// Kernels over rows on the device: softmax, norms and cross_entropy against the CPU's in float64.

#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr DType kTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16};

struct Words {
  std::vector<int64_t> integers;
  std::vector<double> floats;
};

// The results of the named row.
Tensors run(const char* name, const Tensors& in, const Words& words = {}) {
  const NoGradGuard guard;
  const OpDef* op = find_op(name);
  REQUIRE(op);
  std::vector<TensorImpl*> impls;
  for (const Tensor& t : in) impls.push_back(t.impl());
  OpCall c(*op, impls.data(), static_cast<int>(impls.size()));
  for (int64_t w : words.integers) c.attrs.push(w);
  for (double w : words.floats) c.attrs.push(w);
  dispatch(c);
  return {c.out, c.out + c.n_out - op->n_scratch};
}

Tensors moved(const Tensors& in) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(t.defined() ? on_gpu(t) : t);
  return out;
}
Tensors in_float64(const Tensors& in) {
  Tensors out;
  for (const Tensor& t : in) {
    out.push_back(t.defined() && is_floating(t.dtype()) ? t.to(kFloat64) : t);
  }
  return out;
}

double epsilon(DType t) {
  return t == kFloat64 ? 0x1p-53 : t == kFloat32 ? 0x1p-24 : t == kFloat16 ? 0x1p-11 : 0x1p-8;
}

double largest_of(const std::vector<double>& v) {
  double most = 0;
  for (double x : v) most = std::isfinite(x) ? std::max(most, std::fabs(x)) : most;
  return most;
}
// |got - want| is at most one rounding to the result's dtype plus those of the arithmetic, which
// grow with the root of the number of elements; more where the CPU's result in that dtype is off.
void check_near(const Tensor& got, const Tensor& want, const Tensor& on_host, int64_t n) {
  const auto a = on_cpu(got).to(kFloat64).to_vector<double>(), b = want.to_vector<double>();
  auto c = on_host.to(kFloat64).to_vector<double>();
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < c.size(); ++i) c[i] -= b[i];
  const DType t = got.dtype();
  const double arithmetic = epsilon(compute_type(t)) * std::sqrt(static_cast<double>(n));
  const double bound = largest_of(b) * (epsilon(t) + 4 * arithmetic) + 4 * largest_of(c);
  for (size_t i = 0; i < a.size(); ++i) {
    const bool near = std::isfinite(b[i]) ? std::fabs(a[i] - b[i]) <= bound
                                          : a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!near) REQUIRE_MESSAGE(near, fmt::format("element {}: {} against {}", i, a[i], b[i]));
  }
}

// While set, nothing is checked: calls on the CPU only collect the kernels the device will need.
bool collecting = false;

// Checks the device's results against the CPU's in float64; returns the CPU's in the given dtype.
Tensors check_row(const char* name, const Tensors& in, const Words& words = {}, int64_t n = 0) {
  CAPTURE(name);
  if (n == 0) n = in[0].dim() ? in[0].size(-1) : 1;
  const Tensors on_host = run(name, in, words);
  if (collecting) return on_host;
  const Tensors got = run(name, moved(in), words), want = run(name, in_float64(in), words);
  for (size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    REQUIRE(got[k].device() == kCUDA);
    REQUIRE(got[k].dtype() == on_host[k].dtype());
    REQUIRE(got[k].sizes() == on_host[k].sizes());
    check_near(got[k], want[k], on_host[k], n);
  }
  return on_host;
}

// Lengths for every way of dividing a row among threads, and at the boundaries between the ways.
std::vector<int64_t> lengths(DType t) {
  if (t != kFloat32)
    return long_tests() ? std::vector<int64_t>{33, 5000, 20000} : std::vector<int64_t>{33, 20000};
  if (!long_tests()) return {1, 32, 1025, 8193, 70000};
  return {1, 2, 8, 9, 31, 32, 33, 64, 65, 1000, 1024, 1025, 5000, 8192, 8193, 16384, 16385, 70000};
}
// Calls f() to collect kernels, builds all of them together, and calls f() again to check.
template <class F> void with_kernels(const F& f) {
  {
    KernelsNeeded needed;
    collecting = true;
    f();
    collecting = false;
    build_all(needed.rows);
  }
  f();
}
// Calls f(n, rows) for lengths(t) and one or several rows.
template <class F> void for_shapes(DType t, const F& f) {
  with_kernels([&] {
    for (int64_t n : lengths(t)) {
      for (int64_t rows : {1, n > 1000 ? 3 : 70}) {
        CAPTURE(n);
        CAPTURE(rows);
        f(n, rows);
      }
    }
  });
}

Tensor classes(int64_t rows, int64_t n) {
  std::vector<int64_t> ids(static_cast<size_t>(rows));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 + 3) % n;
  return tensor(ids);
}

const Words kLastDim{{1}, {}};

void check_softmax(const Tensor& x, const Tensor& g) {
  const Tensor y = check_row("softmax", {x}, kLastDim)[0];
  check_row("softmax_backward", {x, y, g}, kLastDim);
  const Tensor z = check_row("log_softmax", {x}, kLastDim)[0];
  check_row("log_softmax_backward", {x, z, g}, kLastDim);
}

void check_norms(const Tensor& x, const Tensor& g, const Tensor& w, const Tensor& b) {
  const Words words{{1}, {1e-5}};
  const int64_t n = x.size(-1);
  const Tensors y = check_row("layer_norm", {x, w, b}, words);
  check_row("layer_norm_backward", {x, w, b, y[0], y[1], y[2], g}, words,
            std::max(n, x.numel() / n));
  const Tensors z = check_row("rms_norm", {x, w}, words);
  check_row("rms_norm_backward", {x, w, z[0], z[1], g}, words, std::max(n, x.numel() / n));
}

void check_cross_entropy(const Tensor& x, const Tensor& ids, int64_t ignored = -100,
                         double smoothing = 0) {
  const std::string row = smoothing != 0 ? "smooth_cross_entropy" : "cross_entropy";
  const Words words{{1, ignored}, {1 - smoothing, smoothing / static_cast<double>(x.size(1))}};
  Tensors in{x, ids, sum((ids != ignored).to(compute_type(x.dtype())))};
  for (const Tensor& y : check_row(row.c_str(), Tensors(in), words)) in.push_back(y);
  in.push_back(full({}, 0.75, x.dtype()));
  const std::string gradient = row + "_backward";
  check_row(gradient.c_str(), in, words);
  if (collecting || x.dtype() == kFloat64) return;  // float64's exp is another function.
  const Tensors got = run(gradient.c_str(), moved(in), words);
  CHECK(device_difference(got[0], run(gradient.c_str(), in, words)[0]) == "");
}

}  // namespace

TEST_CASE("cuda rows: softmax and log_softmax, every length and dtype") {
  if (!have_device()) return;
  manual_seed(1);
  for (DType t : kTypes) {
    CAPTURE(t);
    for_shapes(t, [&](int64_t n, int64_t rows) {
      check_softmax((randn({rows, n}) * 3.0).to(t), randn({rows, n}).to(t));
    });
  }
}

TEST_CASE("cuda rows: 16-bit elements in rows of odd length") {
  if (!have_device()) return;
  with_kernels([] {
    for (DType t : {kBFloat16, kFloat16}) {
      for (int64_t n : {17, 1023, 8195, 16383, 50257, 4099, 16387}) {
        const bool brief = n == 1023 || (t == kBFloat16 && (n == 17 || n == 8195 || n == 50257));
        if (!brief && !long_tests()) continue;
        CAPTURE(n);
        manual_seed(7);
        const int64_t rows = n < 2000 ? 37 : 3;  // Rows begin at varying offsets modulo 16 bytes.
        const Tensor x = (randn({rows, n}) * 3.0).to(t), g = randn({rows, n}).to(t);
        check_softmax(x, g);
        check_cross_entropy(x, classes(rows, n), 3, 0.1);
        check_norms(x, g, randn({n}).to(t), randn({n}).to(t));
      }
    }
  });
}

TEST_CASE("cuda rows: layer_norm and rms_norm, every length and dtype") {
  if (!have_device()) return;
  manual_seed(2);
  for (DType t : kTypes) {
    CAPTURE(t);
    for_shapes(t, [&](int64_t n, int64_t rows) {
      check_norms((randn({rows, n}) + 2.0).to(t), randn({rows, n}).to(t), randn({n}).to(t),
                  randn({n}).to(t));
    });
  }
}

TEST_CASE("cuda rows: cross_entropy, every length and dtype") {
  if (!have_device()) return;
  manual_seed(3);
  for (DType t : kTypes) {
    CAPTURE(t);
    for_shapes(t, [&](int64_t n, int64_t rows) {
      const Tensor x = (randn({rows, n}) * 3.0).to(t), ids = classes(rows, n);
      check_cross_entropy(x, ids);
      if (n == 33 || n == 5000 || n >= 20000) check_cross_entropy(x, ids, 3, 0.1);
    });
  }
}

TEST_CASE("cuda rows: layouts, mixed dtypes, absent weights, more dims") {
  if (!have_device()) return;
  manual_seed(4);
  for (int64_t n : {12, 200}) {
    if (n == 200 && !long_tests()) continue;
    const Tensor x = randn({9, n}), g = randn({9, n}), w = randn({n}), b = randn({n});
    for (Layout l : kLayouts) {
      CAPTURE(static_cast<int>(l));
      check_softmax(laid_out(x, l), laid_out(g, Layout::Dense));
      check_softmax(x, laid_out(g, l));
      check_norms(laid_out(x, l), laid_out(g, l), laid_out(w.view({1, n}), l).view({n}), b);
      check_cross_entropy(laid_out(x, l), classes(18, n).slice(0, 0, 18, 2));
      const Tensor there = laid_out(x, l);
      CHECK(device_difference(softmax(on_gpu(there), 1), on_cpu(softmax(there.to(kCUDA), 1))) ==
            "");
    }
    const Tensor h = x.to(kBFloat16), gh = g.to(kBFloat16);
    check_norms(h, gh, w, b.to(kFloat16));
    check_norms(h, gh, w.to(kBFloat16), b);
    check_norms(h, gh, w, Tensor());
    check_norms(h, gh, Tensor(), b);
    check_norms(x, g, Tensor(), Tensor());
    check_norms(h, g, Tensor(), Tensor());
    check_softmax(h, g);
    check_softmax(x.view({3, 3, n}), g.view({3, 3, n}));
  }
  check_softmax(full({}, 2.0), ones({}));
  const Tensor x = randn({3, 4, 5, 6}), g = randn({3, 4, 5, 6}), w = randn({5, 6});
  const Tensors y = check_row("layer_norm", {x, w, w}, {{2}, {1e-5}}, 30);
  check_row("layer_norm_backward", {x, w, w, y[0], y[1], y[2], g}, {{2}, {1e-5}}, 30);
  for (int64_t dim : {0, 1, 2, 3}) {
    check_near(softmax(on_gpu(x), dim), softmax(x.to(kFloat64), dim), softmax(x, dim), 6);
  }
}

TEST_CASE("cuda rows: many rows") {
  if (!have_device()) return;
  manual_seed(5);
  for (int64_t n : {3, 24}) {
    const Tensor x = randn({5000, n}), g = randn({5000, n});
    check_softmax(x, g);
    check_norms(x, g, randn({n}), randn({n}));
    check_cross_entropy(x, classes(5000, n), 1, 0.0);
  }
}

TEST_CASE("cuda rows: no rows, no elements") {
  if (!have_device()) return;
  for (const IntList& sizes : {IntList{0, 5}, IntList{3, 0}}) {
    const Tensor x = zeros(sizes);
    check_row("softmax", {x}, kLastDim);
    check_row("log_softmax", {x}, kLastDim);
    check_row("softmax_backward", {x, x, x}, kLastDim);
  }
  const Tensor x = zeros({0, 5}), w = ones({5}), stats = zeros({0, 1});
  check_row("layer_norm", {x, w, w}, {{1}, {1e-5}});
  check_row("layer_norm_backward", {x, w, w, x, stats, stats, x}, {{1}, {1e-5}});
  check_row("rms_norm_backward", {x, w, x, stats, x}, {{1}, {1e-5}});
  check_cross_entropy(x, zeros({0}, kInt64));
}

TEST_CASE("cuda rows: rows of 2 GiB are indexed with 64 bits") {
  for (const int64_t n : {(int64_t{1} << 28) - 1, int64_t{1} << 28}) {
    program::Space space{.ndim = 2, .size = {2, n}};
    program::Window x{.dtype = kFloat64, .loaded = true, .stride = {n, 1}};
    CHECK(plan_rows(space, {&x, 1}, {.folds = true, .item = 8}).wide ==
          (n * 8 >= int64_t{1} << 31));
  }
}

TEST_CASE("cuda rows: infinities and NaN as on the CPU") {
  if (!have_device()) return;
  for (int64_t n : {5, 40, 300, 3000, 20000}) {
    CAPTURE(n);
    if (n != 40 && n != 20000 && !long_tests()) continue;
    Tensor x = sampled({7, n}, kFloat32);
    x.select(0, 0).fill_(-kInf);
    x.select(0, 1).fill_(-kInf).slice(0, n - 1, n).fill_(1.0);
    x.select(0, 2).slice(0, 0, n / 2).fill_(-kInf);
    x.select(0, 3).slice(0, n / 2, n / 2 + 1).fill_(kInf);
    x.select(0, 4).slice(0, 0, 1).fill_(NAN);
    x.select(0, 5).fill_(NAN);
    const Tensor g = sampled({7, n}, kFloat32, -1, 1);
    check_softmax(x, g);
    check_norms(x, g, ones({n}), ones({n}));
    const Tensor ids = full({7}, n - 1);
    for (double smoothing : {0.0, 0.1}) check_cross_entropy(x, ids, -100, smoothing);
    // First all rows whose loss is not finite are ignored, then every row.
    check_cross_entropy(x, tensor({-1l, n - 1, n - 1, -1l, -1l, -1l, 0l}), -1, 0.0);
    check_cross_entropy(x, full({7}, -1), -1, 0.1);
  }
}

TEST_CASE("cuda rows: ids out of range raise at the next read") {
  if (!have_device()) return;
  const Tensor x = randn({4, 6}), stats = ones({4, 1});
  const Tensor device_x = on_gpu(x), device_stats = on_gpu(stats), g = on_gpu(ones({}));
  for (int64_t bad : {int64_t{6}, int64_t{-1}, int64_t{1} << 40, INT64_MIN}) {
    const Tensor ids = on_gpu(tensor({0l, bad, -100l, 5l}));
    CHECK(error_of([&] { on_cpu(cross_entropy(device_x, ids)); }) ==
          fmt::format("cross_entropy: index {} is out of range: the dim has size 6, so indices are "
                      "in [0, 6) (found by the device after the call)",
                      bad));
    CHECK(error_of([&] {
            on_cpu(run("cross_entropy_backward",
                       {device_x, ids, g, g, device_stats, device_stats, g},
                       {{1, -100}, {1, 0}})[0]);
          }).find(fmt::format("cross_entropy_backward: index {} is out of range", bad)) == 0);
  }
  const Tensor good = tensor({0l, 1l, -100l, 5l});
  check_near(cross_entropy(device_x, on_gpu(good)), cross_entropy(x.to(kFloat64), good),
             cross_entropy(x, good), 6);
}

TEST_CASE("cuda rows: gradients of whole calls") {
  if (!have_device()) return;
  manual_seed(6);
  const auto gradients = [](const Tensors& in) {
    Tensors leaves;
    for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
    const Tensor y = layer_norm(leaves[0], {12}, leaves[1], leaves[2], 1e-5);
    const Tensor z = rms_norm(log_softmax(softmax(y, 0), 1), {12}, leaves[1], 1e-5);
    const Tensor ids = tensor({1l, -100l, 11l, 4l, 0l, 3l, 7l}).to(in[0].device());
    return grad({cross_entropy(z, ids, {.label_smoothing = 0.1})}, leaves);
  };
  const Tensors in{randn({7, 12}), randn({12}), randn({12})};
  const Tensors got = gradients(on_gpu(in)), want = gradients(in_float64(in));
  const Tensors on_host = gradients(in);
  for (size_t k = 0; k < got.size(); ++k) check_near(got[k], want[k], on_host[k], 84);
}
