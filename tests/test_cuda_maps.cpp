// Device kernels of cat, triangles, rotary embedding, argmax, argmin and cumsum, against the CPU.

#include <cmath>
#include <limits>

#include "brrr.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kAll[] = {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8, kBool};

// Checks that f(in) has the same bits on both devices.
void check_devices(const Tensors& in, const std::function<Tensor(const Tensors&)>& f) {
  const std::string d = device_difference(f(on_gpu(in)), f(in));
  CHECK_MESSAGE(d.empty(), d);
}

Tensor of(const IntList& sizes, DType t) { return randint(-40, 40, sizes).to(t); }

}  // namespace

TEST_CASE("cuda: cat in every dtype, dim and layout") {
  if (!have_device()) return;
  manual_seed(3);
  for (DType t : kAll) {
    // Kernels that only move elements are compiled once per element size.
    const bool twin = t == kFloat16 || t == kInt64 || t == kInt32 || t == kBool;
    if (twin && !long_tests()) continue;
    CAPTURE(std::string(name(t)));
    for (int64_t dim = 0; dim < 3; ++dim) {
      CAPTURE(dim);
      auto join = [&](const Tensors& in) { return cat(in, dim); };
      auto part = [&](int64_t length) {
        IntList sizes = {4, 8, 16};
        sizes[dim] = length;
        return of(sizes, t);
      };
      check_devices({part(8), part(16)}, join);  // 16 bytes at a time
      check_devices({part(3), part(0), part(1), part(5)}, join);
      check_devices({part(0), part(0)}, join);
      check_devices({part(7)}, join);
      // Operands in other layouts, or beginning at an odd address.
      const Tensor sliced = part(12).narrow(dim, 1, 7), other = part(5);
      check_devices({sliced, other, other.narrow(dim, 1, 0)}, join);
      check_devices({part(4).transpose(0, 2).contiguous().transpose(0, 2), other}, join);
      check_devices({of({1, 1, 1}, t).expand(part(6).sizes()), other}, join);
    }
    check_devices({of({33}, t).narrow(0, 1, 32), of({70}, t).narrow(0, 3, 67)},
                  [](const Tensors& in) { return cat(in); });
  }
}

TEST_CASE("cuda: cat of many, of other dtypes, stack, gradients") {
  if (!have_device()) return;
  manual_seed(4);
  for (int64_t n : {127, 128, 129, 300}) {
    Tensors in;
    for (int64_t i = 0; i < n; ++i) in.push_back(randn({3, i % 7}));
    check_devices(in, [](const Tensors& x) { return cat(x, 1); });
  }
  check_devices({of({40}, kInt32), randn({5}), of({30}, kBFloat16), randn({100000})},
                [](const Tensors& in) { return cat(in); });
  check_devices({randn({5, 6}), randn({5, 6})}, [](const Tensors& in) { return stack(in, 2); });
  auto gradients = [](const Tensors& in) {
    const Tensor a = leaf(in[0]), b = leaf(in[1]);
    (cat({a, b}, 1).square() * in[2]).sum().backward();
    return cat({a.grad(), b.grad()}, 1);
  };
  check_devices({randn({9, 5}), randn({9, 3}), randn({9, 8})}, gradients);
}

TEST_CASE("cuda: triangles") {
  if (!have_device()) return;
  manual_seed(5);
  const IntList shapes[] = {{1, 1}, {3, 5}, {16, 16}, {2, 33, 8}, {2, 3, 64, 48}, {0, 4}, {4, 0}};
  for (DType t : kAll) {
    // Kernels that only move elements are compiled once per element size.
    const bool twin = t == kFloat16 || t == kInt64 || t == kInt32 || t == kBool;
    if (twin && !long_tests()) continue;
    CAPTURE(std::string(name(t)));
    for (const IntList& sizes : shapes) {
      CAPTURE(to_string(sizes));
      const Tensor x = of(sizes, t);
      for (int64_t k : {int64_t{0}, int64_t{-1}, int64_t{2}, int64_t{-40}, INT64_MAX, INT64_MIN}) {
        check_devices({x}, [&](const Tensors& in) { return in[0].tril(k); });
        check_devices({x}, [&](const Tensors& in) { return in[0].triu(k); });
      }
      check_devices({x.transpose(-1, -2)}, [](const Tensors& in) { return in[0].tril(1); });
    }
    const Tensor room = of({6, 12, 20}, t);
    check_devices({room.narrow(2, 3, 16)}, [](const Tensors& in) { return in[0].triu(); });
    check_devices({room.narrow(0, 1, 2)}, [](const Tensors& in) { return in[0].triu(); });
    check_devices({room.narrow(1, 1, 1).expand({6, 12, 20})},
                  [](const Tensors& in) { return in[0].tril(-1); });
  }
  const Tensor bad = full({5, 5}, kNaN);  // Elements left out are 0, not NaN * 0.
  check_devices({bad}, [](const Tensors& in) { return in[0].tril(); });
}

TEST_CASE("cuda: rotary embedding has the CPU's bits") {
  if (!have_device()) return;
  manual_seed(6);
  for (DType t : {kFloat32, kBFloat16, kFloat16, kFloat64}) {
    if ((t == kFloat16 || t == kFloat64) && !long_tests()) continue;
    CAPTURE(std::string(name(t)));
    // Widths with every kind of access; the last has more frequencies than one launch takes.
    for (int64_t width : {2, 6, 8, 16, 64, 1030}) {
      CAPTURE(width);
      const Tensor x = randn({2, 3, 5, width}).to(t);
      const Tensor at = tensor({0, 1, -7, 100000, 1 << 30});
      auto turn = [](const Tensors& in) { return rotary_embedding(in[0], in[1], 500.0); };
      // In float64 the device uses its own cosine.
      auto check = [&](const Tensors& in) {
        if (t != kFloat64) return check_devices(in, turn);
        check_close(on_cpu(turn(on_gpu(in))), turn(in), 1e-14);
      };
      check({x, at});
      check({x.select(0, 1).select(0, 2), at});
      // Heads of a fused q, k, v projection, as in attention.
      const Tensor heads = randn({2, 5, 3, 4, width}).to(t).select(2, 1).transpose(1, 2);
      check({heads, at});
      check({x.transpose(-1, -2).contiguous().transpose(-1, -2), at});
      check({randn({2, 3, 5, width + 1}).to(t).narrow(3, 1, width), at});
      check({randn({1, 1, 5, width}).to(t).expand({2, 3, 5, width}), at});
      check({x, arange(0, 15, 3)});
      check({x, arange(10).slice(0, 0, 10, 2)});
    }
    check_devices({zeros({2, 0, 4}, t), arange(0)},
                  [](const Tensors& in) { return rotary_embedding(in[0], in[1]); });
  }
  auto gradient = [](const Tensors& in) {
    const Tensor x = leaf(in[0]);
    (rotary_embedding(x, in[1]) * in[2]).sum().backward();
    return x.grad();
  };
  check_devices({randn({3, 40, 32}), arange(40), randn({3, 40, 32})}, gradient);
}

TEST_CASE("cuda: sequences are made on the device") {
  if (!have_device()) return;
  auto same = [](const Tensor& gpu, const Tensor& cpu) {
    CHECK(device_difference(gpu, cpu) == "");
  };
  for (int64_t n : {0, 1, 257}) {
    same(arange(n, kCUDA), arange(n));
    same(linspace(-1.5, 2.25, n, kCUDA), linspace(-1.5, 2.25, n));
    same(eye(n, 3, kCUDA), eye(n, 3));
  }
  same(arange(5, -900, -7, kCUDA), arange(5, -900, -7));
  same(arange(0.1, 50, 0.3, kCUDA), arange(0.1, 50, 0.3));
  same(eye(5, -1, kCUDA), eye(5));
}

TEST_CASE("cuda: the gradient of a slice") {
  if (!have_device()) return;
  auto gradient = [](const Tensors& in) {
    const Tensor x = leaf(in[0]);
    (x.slice(1, 1, 9, 3) * in[1]).sum().backward();
    return x.grad();
  };
  for (DType t : {kFloat32, kBFloat16, kFloat64}) {
    check_devices({randn({4, 10, 3}).to(t), randn({4, 3, 3}).to(t)}, gradient);
  }
}

TEST_CASE("cuda: argmax and argmin, ties and NaN") {
  if (!have_device()) return;
  manual_seed(7);
  auto both = [](const Tensor& x, int64_t dim) {
    check_devices({x}, [&](const Tensors& in) { return argmax(in[0], dim); });
    check_devices({x}, [&](const Tensors& in) { return argmin(in[0], dim, true); });
  };
  for (DType t : kAll) {
    // Short tests take one dtype per element size.
    const bool twin = t == kFloat16 || t == kInt64 || t == kInt32 || t == kBool;
    if (twin && !long_tests()) continue;
    CAPTURE(std::string(name(t)));
    for (const IntList& sizes : {IntList{1}, IntList{7}, IntList{3, 100}, IntList{3, 1025},
                                 IntList{2, 300, 5}, IntList{1, 257, 33}, IntList{5, 1, 2}}) {
      CAPTURE(to_string(sizes));
      const Tensor x = randint(0, 9, sizes).to(t);  // Many ties.
      for (int64_t dim = 0; dim < x.dim(); ++dim) {
        both(x, dim);
        if (x.dim() < 2) continue;
        both(x.transpose(0, 1).contiguous().transpose(0, 1), dim);
        both(x.slice(dim, 0, x.size(dim), 2), dim);
        both(x.select(dim, 0).unsqueeze(dim).expand(sizes), dim);
      }
    }
  }
  both(zeros({0, 4}), 1);
  both(tensor(3.0), 0);
  // Several blocks per line, and several passes.
  for (const IntList& sizes : {IntList{3, 40000}, IntList{70000, 3}}) {
    const int64_t dim = sizes[0] < sizes[1];
    Tensor x = randint(0, 20000, sizes).to(kFloat32);
    both(x, dim);
    both(x.to(kInt64), dim);
    for (int64_t at : {39999, 20001, 20000, 5}) {
      x.select(dim, at).fill_(kNaN);
      both(x, dim);
    }
    both(full(sizes, kNaN), dim);
    both(full(sizes, -kInf), dim);
    both(x.to(kBFloat16), dim);
  }
}

TEST_CASE("cuda: cumsum, exact where the order is the CPU's") {
  if (!have_device()) return;
  manual_seed(8);
  auto sums = [](int64_t dim) { return [dim](const Tensors& in) { return in[0].cumsum(dim); }; };
  for (DType t : kAll) {
    // Short tests take one dtype per element size.
    const bool twin = t == kFloat16 || t == kInt64 || t == kInt32 || t == kBool;
    if (twin && !long_tests()) continue;
    CAPTURE(std::string(name(t)));
    // Whole numbers whose sums the dtype holds: any order gives the same bits.
    const bool narrow = t == kBFloat16 || t == kFloat16;
    auto whole = [&](const IntList& sizes) {
      return narrow ? randint(-1, 2, sizes).to(t) : randint(0, 40, sizes).to(t);
    };
    for (const IntList& sizes : {IntList{1}, IntList{64}, IntList{65}, IntList{2, 100},
                                 IntList{3, 2050}, IntList{2, 300, 5}, IntList{300, 2, 1}}) {
      CAPTURE(to_string(sizes));
      const Tensor x = whole(sizes);
      for (int64_t dim = 0; dim < x.dim(); ++dim) {
        check_devices({x}, sums(dim));
        if (x.dim() < 2) continue;
        check_devices({x.transpose(0, 1)}, sums(dim));
        check_devices({x.slice(dim, 0, x.size(dim), 2)}, sums(dim));
      }
    }
    check_devices({whole({0, 3})}, sums(0));
  }
  check_devices({randint(-9, 9, {2, 5000})}, sums(1));
  check_devices({randint(-9, 9, {300000})}, sums(0));  // Chunks of chunks.
  check_devices({randint(-9, 9, {70000, 2})}, sums(0));
  // Short lines are summed sequentially, as on the CPU.
  check_devices({randn({40, 64})}, sums(1));
  check_devices({randn({256, 40})}, sums(0));
  check_devices({randn({300, 1 << 16})}, sums(0));
}

TEST_CASE("cuda: cumsum of long lines") {
  if (!have_device()) return;
  manual_seed(9);
  for (const IntList& sizes : {IntList{3, 2048}, IntList{2, 10001}, IntList{140000}}) {
    const Tensor x = randn(sizes), gpu = on_gpu(x).cumsum(-1);
    check_close(on_cpu(gpu), x.to(kFloat64).cumsum(-1), 2e-5);
    // The order of summation depends on the shape only: neither on strides nor on other lines.
    const Tensor strided = randn({x.numel() * 2}).view({-1, 2}).to(kCUDA);
    strided.select(1, 1).copy_(on_gpu(x).flatten());
    const Tensor again = strided.select(1, 1).view(sizes).cumsum(-1);
    CHECK(device_difference(again, on_cpu(gpu)) == "");
    const Tensor line = on_gpu(x.view({-1, x.size(-1)}).narrow(0, 0, 1)).cumsum(1);
    CHECK(device_difference(line, on_cpu(gpu.view({-1, x.size(-1)}).narrow(0, 0, 1))) == "");
  }
  const Tensor columns = randn({5000, 3});
  check_close(on_cpu(on_gpu(columns).cumsum(0)), columns.to(kFloat64).cumsum(0), 1e-4);
  // Values that every order of additions keeps.
  Tensor odd = zeros({5000});
  odd.fill_(-0.0);
  check_devices({odd}, [](const Tensors& in) { return in[0].cumsum(0); });
  odd.narrow(0, 3000, 1).fill_(kInf);
  check_devices({odd}, [](const Tensors& in) { return in[0].cumsum(0); });
  odd.narrow(0, 4500, 1).fill_(-kInf);
  check_devices({odd}, [](const Tensors& in) { return in[0].cumsum(0); });
  // The gradient sums from the end.
  auto gradient = [](const Tensors& in) {
    const Tensor x = leaf(in[0]);
    (x.cumsum(-1) * in[1]).sum().backward();
    return x.grad();
  };
  const Tensors in = {randn({2, 5000}), randint(-9, 9, {2, 5000}).to(kFloat32)};
  check_devices(in, gradient);
}
