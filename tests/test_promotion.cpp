// Promotion, broadcasting, views and in-place calls against a table by PyTorch's documented rules
// (torch.promote_types, torch.result_type, "In-place semantics" of broadcasting).

#include <algorithm>
#include <cmath>
#include <numeric>

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr DType kTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8, kBool};

Tensor row(DType t) { return ones({3}, t); }
Tensor zero_d(DType t) { return ones({}, t); }

Tensor counted(const IntList& sizes) { return arange(numel_of(sizes)).to(kFloat32).view(sizes); }

}  // namespace

TEST_CASE("promotion: two tensors with dims") {
  constexpr DType f4 = kFloat32, f8 = kFloat64, bf = kBFloat16, hf = kFloat16, i8 = kInt64,
                  i4 = kInt32, u1 = kUInt8, b1 = kBool;
  const DType table[8][8] = {{f4, f8, f4, f4, f4, f4, f4, f4}, {f8, f8, f8, f8, f8, f8, f8, f8},
                             {f4, f8, bf, f4, bf, bf, bf, bf}, {f4, f8, f4, hf, hf, hf, hf, hf},
                             {f4, f8, bf, hf, i8, i8, i8, i8}, {f4, f8, bf, hf, i8, i4, i4, i4},
                             {f4, f8, bf, hf, i8, i4, u1, u1}, {f4, f8, bf, hf, i8, i4, u1, b1}};
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      const DType a = kTypes[i], b = kTypes[j], want = table[i][j];
      CAPTURE(std::string(name(a)));
      CAPTURE(std::string(name(b)));
      CHECK(promote(a, b) == want);
      CHECK((row(a) * row(b)).dtype() == want);
      CHECK((zero_d(a) * zero_d(b)).dtype() == want);
      CHECK(maximum(row(a), row(b)).dtype() == want);
      CHECK(where(row(kBool), row(a), row(b)).dtype() == want);
      CHECK(cat({row(a), row(b)}).dtype() == want);
      CHECK((row(a) < row(b)).dtype() == kBool);
      CHECK((row(a) / row(b)).dtype() == (is_floating(want) ? want : kFloat32));
    }
  }
}

TEST_CASE("promotion: scalars and 0-d tensors raise the category only") {
  struct Row {
    Tensor result;
    DType want;
  };
  const Row rows[] = {{row(kInt64) * 2.0, kFloat32},
                      {row(kInt64) * 2, kInt64},
                      {row(kInt32) * 2, kInt32},
                      {row(kUInt8) + 1, kUInt8},
                      {row(kBool) + 1, kInt64},
                      {row(kBool) * 2.0, kFloat32},
                      {row(kBFloat16) * 2.0, kBFloat16},
                      {row(kFloat16) - 1, kFloat16},
                      {row(kFloat64) * 2.0, kFloat64},
                      {1.0 - row(kInt32), kFloat32},
                      {2 - row(kInt32), kInt32},
                      {row(kFloat32) + zero_d(kFloat64), kFloat32},
                      {row(kBFloat16) + zero_d(kFloat32), kBFloat16},
                      {row(kInt64) + zero_d(kFloat32), kFloat32},
                      {row(kInt64) + zero_d(kFloat64), kFloat64},
                      {row(kInt64) + zero_d(kBFloat16), kBFloat16},
                      {row(kInt32) + zero_d(kInt64), kInt32},
                      {row(kUInt8) + zero_d(kInt64), kUInt8},
                      {row(kBool) + zero_d(kUInt8), kUInt8},
                      {zero_d(kInt64) * 2.0, kFloat32},
                      {zero_d(kFloat16) * 2.0, kFloat16},
                      {zero_d(kFloat64) + row(kFloat16), kFloat16},
                      {zero_d(kBool) + 1, kInt64},
                      {row(kInt32) / 2, kFloat32},
                      {where(row(kBool), row(kInt64), 1.5), kFloat32},
                      {where(row(kBool), 1, 2.0), kFloat32},
                      {where(row(kBool), row(kFloat16), 0), kFloat16},
                      {where(row(kBool), 1, 2), kInt64},
                      {clamp(row(kInt64), 0, 5), kInt64},
                      {clamp(row(kInt64), 0.5, 5), kFloat32},
                      {row(kInt64).sqrt(), kFloat32},
                      {row(kBool).exp(), kFloat32},
                      {row(kInt64).floor(), kInt64},
                      {row(kInt32).round(), kInt32},
                      {trunc(row(kUInt8)), kUInt8},
                      {ceil(row(kInt64)), kInt64},
                      {row(kInt32).abs(), kInt32},
                      {row(kInt64).square(), kInt64},
                      {pow(row(kInt64), 2), kInt64},
                      {row(kBool).sum(), kInt64},
                      {row(kInt32).sum(), kInt64},
                      {row(kUInt8).prod(), kInt64},
                      {row(kInt32).max(), kInt32},
                      {row(kBFloat16).sum(), kBFloat16},
                      {row(kInt64).any(), kBool},
                      {row(kFloat32) == 1, kBool},
                      {full({3}, 2), kInt64},
                      {full({3}, 2.0), kFloat32},
                      {full({3}, true), kBool},
                      {tensor(1.0), kFloat32},
                      {tensor({1, 2}), kInt64},
                      {tensor({1.0, 2.0}), kFloat32},
                      {arange(3), kInt64},
                      {arange(3.0), kFloat32}};
  int at = 0;
  for (const Row& r : rows) {
    CAPTURE(at++);
    const std::string text = std::string(name(r.result.dtype())) + " for " + name(r.want);
    CHECK_MESSAGE(r.result.dtype() == r.want, text);
  }
}

TEST_CASE("promotion: second derivatives have the digits of the wider operand") {
  const double x = 1.7, e = 2.3;
  const auto second = [](const Tensor& a, const Tensor& b, const Tensor& by) {
    const Tensor first = grad({pow(a, b).sum()}, {by}, {.create_graph = true})[0];
    return grad({first.sum()}, {by})[0];
  };
  for (const DType narrow : {kFloat32, kBFloat16}) {
    for (const DType wide : {kFloat64, kFloat32}) {
      if (narrow == wide) continue;
      const double most = wide == kFloat64 ? 1e-14 : 1e-6;
      const auto leaf = [](double v, DType t) { return full({2}, v, t).set_requires_grad(); };
      const Tensor nx = leaf(x, narrow), we = leaf(e, wide), wx = leaf(x, wide),
                   ne = leaf(e, narrow);
      const double xr = nx.to(kFloat64).select(0, 0).item<double>(),
                   er = ne.to(kFloat64).select(0, 0).item<double>();
      const Tensor d = second(nx, we, we), f = second(wx, ne, wx);
      CHECK((d.dtype() == wide && f.dtype() == wide));
      const double ef = we.to(kFloat64).select(0, 0).item<double>(),
                   xf = wx.to(kFloat64).select(0, 0).item<double>();
      const double log_r = std::log(xr), want_d = std::pow(xr, ef) * log_r * log_r,
                   want_f = er * (er - 1) * std::pow(xf, er - 2);
      CHECK(std::fabs(d.to(kFloat64).select(0, 0).item<double>() / want_d - 1) < most);
      CHECK(std::fabs(f.to(kFloat64).select(0, 0).item<double>() / want_f - 1) < most);
    }
  }
}

TEST_CASE("promotion: values of integers, conversions and Python's division") {
  const Tensor a = tensor({-7, 7, -7, 7}), b = tensor({2, 2, -2, -2});
  check_same(floor_div(a, b), tensor({-4, 3, 3, -4}));
  check_same(remainder(a, b), tensor({1, 1, -1, -1}));
  check_same(a / b, tensor({-3.5, 3.5, 3.5, -3.5}));
  check_same(remainder(a, 3), tensor({2, 1, 2, 1}));
  check_same(full({1}, 250, kUInt8) + 10, full({1}, 4, kUInt8));
  check_same(tensor({2.7, -2.7, 0.0}).to(kInt64), tensor({2, -2, 0}));
  check_same(tensor({2.7, -0.0, 0.0}).to(kBool), tensor({true, false, false}));
  check_same(tensor({0.5, 1.5, -0.5, -2.5}).round(), tensor({0.0, 2.0, -0.0, -2.0}));
  check_same(tensor({300, -1}).to(kUInt8).to(kInt64), tensor({44, 255}));
  // Integers beyond 2^53 stay exact: they are never converted to double.
  const int64_t big = (int64_t{1} << 60) + 1;
  check_same(full({2}, big) + 2, full({2}, big + 2));
  CHECK((full({2}, big) * 1).select(0, 0).item<int64_t>() == big);
}

TEST_CASE("conversions: many elements give what each gives alone") {
  const Tensor numbers =
      cat({tensor({0.0,  -0.0,    1.0,     -1.5, 2.5,   255.0,    256.0,     -1.0, 3e9, -3e9,
                   1e19, 65504.0, 65520.0, 6e-8, 1e-40, INFINITY, -INFINITY, NAN,  0.1, 1e300}),
           arange(-9.0, 9.0)})
          .to(kFloat64);
  for (DType from : kTypes) {
    const Tensor x = numbers.to(from);
    for (DType to : kTypes) {
      CAPTURE(name(from));
      CAPTURE(name(to));
      std::vector<Tensor> alone;
      for (int64_t i = 0; i < x.numel(); ++i) alone.push_back(x.slice(0, i, i + 1).to(to));
      check_same(x.to(to), cat(alone));
    }
  }
}

TEST_CASE("copies: any order of dims, in eager and graph mode") {
  for (const IntList& sizes : {IntList{43, 130}, IntList{16, 64, 33}, IntList{3, 8, 17, 70}}) {
    IntList order = sizes;
    std::iota(order.begin(), order.end(), 0);
    do {
      CAPTURE(to_string(order));
      for (DType t : {kFloat32, kInt64, kBFloat16, kBool}) {
        const Tensor x = (randn(sizes) * 3.0).to(t), y = x.permute(order);
        const std::vector<double> all = x.to(kFloat64).to_vector<double>();
        std::vector<double> want;
        for (int64_t n = 0; n < y.numel(); ++n) {
          int64_t at = 0, rest = n;
          for (int d = y.dim() - 1; d >= 0; rest /= y.size(d--))
            at += rest % y.size(d) * y.strides()[d];
          want.push_back(all[static_cast<size_t>(at)]);
        }
        CHECK(y.clone().to(kFloat64).to_vector<double>() == want);
        CHECK(y.to(kFloat64).to_vector<double>() == want);
        Tensor into = empty(sizes, t);
        into.permute(order).copy_(y);
        check_same(into, x);
        auto step = brrr::step([&](const Tensor& in) { return (in.permute(order) + 1) * 2; },
                               StepOptions{.build_at_first_call = true});
        check_same(step(x), (y.clone() + 1) * 2);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("broadcasting: shapes") {
  const Tensor a = ones({3, 1, 4}), b = ones({2, 1});
  CHECK((a + b).sizes() == IntList{3, 2, 4});
  CHECK((a + ones({})).sizes() == IntList{3, 1, 4});
  CHECK((ones({0}) + ones({1})).sizes() == IntList{0});
  CHECK((ones({0, 3}) + ones({3})).sizes() == IntList{0, 3});
  const std::string error = error_of([&] { add(ones({3, 4}), ones({3})); });
  CHECK(error.find("add") == 0);
  CHECK(error.find("[3, 4]") != std::string::npos);
  CHECK(error.find("[3]") != std::string::npos);
  CHECK(!error_of([&] { mul(ones({0}), ones({2})); }).empty());
}

TEST_CASE("in place: categories and shapes") {
  struct Row {
    const char* op;
    std::function<void()> call;
  };
  const Tensor i = row(kInt64), u = row(kUInt8), b = row(kBool), f = row(kFloat32),
               h = row(kFloat16);
  const Row wrong[] = {
      {"add_", [&] { i.add_(1.5); }},
      {"add_", [&] { i.add_(f); }},
      {"div_", [&] { i.div_(2); }},
      {"add_", [&] { b.add_(1); }},
      {"mul_", [&] { u.mul_(0.5); }},
      {"sub_", [&] { b.sub_(i); }},
      {"clamp_", [&] { i.clamp_(0.5, 2.0); }},
      {"add_",
       [&] {
         f.add_(ones({2, 3}));
       }},
      {"add_", [&] { f.add_(ones({4})); }},
      {"mul_", [&] { zero_d(kFloat32).mul_(f); }},
      {"copy_",
       [&] {
         f.copy_(ones({2, 3}));
       }},
      {"add_",
       [&] {
         ones({1, 3}).expand({2, 3}).add_(1.0);
       }},
      {"copy_", [&] { ones({1}).expand({3}).copy_(f); }},
      {"copy_", [&] { ones({1}).expand({3}).fill_(1.0); }}};  // fill_ calls this row.
  for (const Row& r : wrong) {
    const std::string error = error_of(r.call);
    const std::string op(r.op, std::strlen(r.op) - 1);
    CHECK_MESSAGE(error.find(op) == 0, op, ": ", error);
  }
  for (const Tensor& t : {i, u, b, f}) check_same(t, row(t.dtype()));

  check_same(f.clone().add_(row(kFloat64)), full({3}, 2.0));  // Any dtype within a category.
  check_same(h.clone().add_(row(kFloat64)), full({3}, 2.0, kFloat16));
  check_same(u.clone().add_(i), full({3}, 2, kUInt8));
  check_same(f.clone().add_(i), full({3}, 2.0));  // And of a lower one.
  check_same(i.clone().add_(b), full({3}, 2));
  check_same(i.clone().copy_(full({3}, 2.9)), full({3}, 2));  // copy_ converts to any dtype.
  check_same(b.clone().copy_(full({3}, 0.5)), row(kBool));
  check_same(ones({2, 3}).add_(f), full({2, 3}, 2.0));
  check_same(ones({2, 3}).add_(ones({2, 1})), full({2, 3}, 2.0));
  const Tensor t = ones({2});
  t += 1.0;
  t *= t;
  t -= 1;
  t /= 2;
  check_same(t, full({2}, 1.5));
}

TEST_CASE("in place: operands that overlap are read before they are written") {
  for (int64_t n : {5, 70, 3000}) {
    const Tensor x = counted({n}), y = x.clone();
    y.narrow(0, 1, n - 1).copy_(y.narrow(0, 0, n - 1));
    check_same(y.narrow(0, 1, n - 1), x.narrow(0, 0, n - 1));
    const Tensor z = x.clone();
    z.narrow(0, 0, n - 1).copy_(z.narrow(0, 1, n - 1));
    check_same(z.narrow(0, 0, n - 1), x.narrow(0, 1, n - 1));
    const Tensor w = x.clone();
    w.narrow(0, 1, n - 1).add_(w.narrow(0, 0, n - 1));
    check_same(w.narrow(0, 1, n - 1), x.narrow(0, 1, n - 1) + x.narrow(0, 0, n - 1));
  }
  const Tensor m = counted({50, 50}), t = m.clone();
  t.copy_(t.t());
  check_same(t, m.t().contiguous());
  t.add_(t.t());
  check_same(t, m.t() + m);
  const Tensor s = m.clone();
  s.add_(s.select(0, 3));  // A row of its own, broadcast.
  check_same(s, m + m.select(0, 3));
  const Tensor q = m.clone();
  q.mul_(q.select(0, 1).select(0, 1));
  check_same(q, m * m.select(0, 1).select(0, 1).clone());
}

TEST_CASE("views: sizes, strides and sharing") {
  const Tensor x = counted({2, 3, 4});
  CHECK(x.strides() == IntList{12, 4, 1});
  CHECK(x.permute({2, 0, 1}).strides() == IntList{1, 12, 4});
  CHECK(x.transpose(0, -1).sizes() == IntList{4, 3, 2});
  CHECK(x.select(1, 2).storage_offset() == 8);
  CHECK(x.slice(2, 1, 4, 2).sizes() == IntList{2, 3, 2});
  CHECK(x.slice(2, 1, 4, 2).strides() == IntList{12, 4, 2});
  CHECK(x.slice(1, -2, 100).sizes() == IntList{2, 2, 4});
  CHECK(x.slice(1, 2, 1).sizes() == IntList{2, 0, 4});
  CHECK(x.select(0, 0).expand({5, -1, -1}).strides() == IntList{0, 4, 1});
  CHECK(x.unsqueeze(-1).sizes() == IntList{2, 3, 4, 1});
  CHECK(x.unsqueeze(1).squeeze(1).is_contiguous());
  CHECK(x.squeeze(0).sizes() == x.sizes());
  CHECK(x.flatten(1).sizes() == IntList{2, 12});
  CHECK(x.view({-1}).sizes() == IntList{24});
  CHECK(x.transpose(0, 1).view({3, 2, 2, 2}).sizes() == IntList{3, 2, 2, 2});
  CHECK(!error_of([&] { x.transpose(1, 2).view({24}); }).empty());
  CHECK(x.chunk(2, 1).size() == 2);
  CHECK(x.chunk(2, 1)[1].sizes() == IntList{2, 1, 4});
  CHECK(x.split(3, 2)[1].sizes() == IntList{2, 3, 1});
}

TEST_CASE("views: parts of a dim without elements") {
  const Tensor x = zeros({2, 0});
  CHECK(x.chunk(3, 1).size() == 3);  // The requested number.
  for (const Tensor& part : x.chunk(3, 1)) CHECK(part.sizes() == IntList{2, 0});
  CHECK(x.split(4, 1).size() == 1);
  CHECK(x.chunk(3, 0).size() == 2);
  CHECK(unbind(x, 1).empty());
  CHECK(arange(5).narrow(0, -2, 2).to_vector<int64_t>() == std::vector<int64_t>{3, 4});
  CHECK_THROWS_AS(arange(5).narrow(0, -6, 1), Error);
  CHECK_THROWS_AS(arange(5).narrow(0, -1, 2), Error);
  const Tensor leaf = zeros({0}).requires_grad_();
  cat(leaf.chunk(2)).sum().backward();
  CHECK(leaf.grad().sizes() == IntList{0});
}

TEST_CASE("views share memory, copies do not") {
  const Tensor x = counted({2, 3});
  for (const Tensor& v : {x.t(), x.view({6}), x.reshape({3, 2}), x.slice(1, 0, 2), x.select(0, 0),
                          x.unsqueeze(0), x.detach(), x.flatten(), x.contiguous(), alias(x)}) {
    CHECK(v.impl()->storage == x.impl()->storage);
  }
  for (const Tensor& c :
       {x.clone(), x.t().contiguous(), x.t().reshape({6}), x + 0.0, x.to(kFloat64)}) {
    CHECK(c.impl()->storage != x.impl()->storage);
  }
  x.t().select(0, 1).fill_(9.0);
  check_same(x, tensor({{0.f, 9.f, 2.f}, {3.f, 9.f, 5.f}}));
  CHECK(x.version() == 1);
}
