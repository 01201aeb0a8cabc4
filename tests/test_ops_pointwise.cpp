// Every pointwise row of the registry, without naming one: gradients against finite differences,
// values against the oracle, layouts, in-place calls, and graph mode against eager mode.

#include <limits>
#include <utility>

#include "tests/special_values.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// --- gradients -----------------------------------------------------------------------------------

// The row as a function of its differentiable operands; the others are constants.
void check_gradients(const OpDef& op, const std::vector<IntList>& shapes) {
  Tensors all, wanted;
  std::vector<size_t> places;
  for (int i = 0; i < op.pointwise->n_in; ++i) {
    const auto& shape = shapes[static_cast<size_t>(i) % shapes.size()];
    all.push_back(operand_of(op, i, shape, kFloat64));
    const bool differentiable = op.pointwise->grads[i] && is_floating(all.back().dtype());
    if (!differentiable) continue;
    wanted.push_back(all.back());
    places.push_back(static_cast<size_t>(i));
  }
  REQUIRE(!wanted.empty());
  auto fn = [&](const Tensors& in) {
    Tensors operands = all;
    for (size_t k = 0; k < in.size(); ++k) operands[places[k]] = in[k];
    return run_row(op, operands)[0];
  };
  const auto r = gradcheck(fn, wanted, {.tolerance = 2e-6, .second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
}

// --- the oracle ----------------------------------------------------------------------------------

struct Format {
  int digits, lowest;  // Of the significand; the exponent of the smallest denormal.
  double largest;
};
Format format_of(DType t) {
  if (t == kFloat32) return {24, -149, std::numeric_limits<float>::max()};
  return {53, -1074, std::numeric_limits<double>::max()};
}
double ulp_of(double x, const Format& f) {
  if (x == 0 || !std::isfinite(x)) return std::ldexp(1.0, f.lowest);
  return std::ldexp(1.0, std::max(std::ilogb(x) + 1 - f.digits, f.lowest));
}

// A single function must be within 4 units in the last place of its result. A formula of n
// operations may lose 4 n units of its largest intermediate value, estimated by the largest of
// result, operands and 1 (the sampled range is moderate). Values out of range are infinite.
bool acceptable(double got, double want, double scale, int n, const Format& f) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::fabs(want) > f.largest) want = std::copysign(kInf, want);
  if (std::isinf(want) || std::isinf(got)) {
    const double edge = f.largest * (1 - std::ldexp(8.0, -f.digits));  // Rounding may exceed it.
    return got == want || (std::fabs(got) >= edge && std::fabs(want) >= edge && got * want > 0);
  }
  const double unit = ulp_of(n > 1 ? std::max({std::fabs(want), scale, 1.0}) : want, f);
  return std::fabs(got - want) <= 4.0 * n * unit;
}

void check_oracle(const OpDef& op, const Columns& values, DType dtype) {
  const Tensors in = as_tensors(op, values, dtype), out = run_row(op, in);
  const int n = operations(op);
  const Format format = format_of(dtype);
  Columns x, y;
  for (const Tensor& t : in) x.push_back(t.to(kFloat64).to_vector<double>());
  for (const Tensor& t : out) y.push_back(t.to(kFloat64).to_vector<double>());
  for (size_t i = 0; i < x[0].size(); ++i) {
    double operands[kMaxOperands], want[kMaxOutputs], scale = 0;
    std::string text;
    for (size_t k = 0; k < x.size(); ++k) {
      operands[k] = x[k][i];
      if (std::isfinite(operands[k])) scale = std::max(scale, std::fabs(operands[k]));
      text += fmt::format(" {}", operands[k]);
    }
    op.pointwise->oracle(operands, want);
    for (size_t k = 0; k < y.size(); ++k) {
      const bool ok = op.pointwise->mask_out[k] ? y[k][i] == want[k]
                                                : acceptable(y[k][i], want[k], scale, n, format);
      if (ok) continue;
      CHECK_MESSAGE(ok, fmt::format("{}({}), output {}, {}: {}, oracle {}", op.name, text, k,
                                    name(dtype), y[k][i], want[k]));
    }
  }
}

// --- graph mode ----------------------------------------------------------------------------------

struct RowCase {
  const OpDef* op;
  Tensors in;
};

// Every row once, or every n-th, with layouts that change from row to row and operand to operand.
std::vector<RowCase> row_cases(DType dtype, size_t shift, size_t every) {
  std::vector<RowCase> cases;
  const IntList shapes[] = {{5, 7}, {3, 17}, {1, 1}, {40, 67}};
  size_t at = shift;
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    if (++at % every) continue;
    RowCase c{op, {}};
    for (const Tensor& t : operands_of(*op, shapes[at % 4], dtype)) {
      c.in.push_back(leaf(laid_out(t, kLayouts[(at + at / 5 * c.in.size()) % 5])));
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

void add_case(Results& r, const RowCase& c) {
  if (!c.op->differentiable() || c.op->gradient_row) {
    NoGradGuard guard;
    const Tensors y = run_row(*c.op, c.in);
    for (size_t k = 0; k < y.size(); ++k) r.add(fmt::format("{}, output {}", c.op->name, k), y[k]);
  } else {
    add_with_gradients(r, c.op->name, run_row(*c.op, c.in)[0], c.in);
  }
}

}  // namespace

TEST_CASE("pointwise rows: gradients of both orders agree with finite differences") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    if (op->gradient_row || !op->differentiable()) continue;
    CAPTURE(std::string(op->name));
    check_gradients(*op, {{3, 4}});
    check_gradients(*op, {{3, 4}, {4}, {3, 1}});
    check_gradients(*op, {{}, {2, 3}, {3}});
  }
}

TEST_CASE("pow: a gradient keeps its digits where its factors alone would be denormal") {
  const Tensor x = tensor({1e-30f, 1e-20f}).set_requires_grad(), e = tensor({1e-20f, 1e-30f});
  const Tensor g = grad({pow(x, e)}, {x}, {}, {full({2}, 1e-25)})[0];
  const auto v = (g * 1e20).to_vector<float>();
  CHECK(v[0] == doctest::Approx(1e5).epsilon(1e-5));
  CHECK(v[1] == doctest::Approx(1e-15).epsilon(1e-5));
}

TEST_CASE("pow: second derivatives where a first one is 0 by convention") {
  for (DType t : {kFloat32, kFloat64}) {
    const Tensor x = tensor({0.0, 2.0}).to(t), e = tensor({0.0, 3.0}).to(t);
    x.set_requires_grad(), e.set_requires_grad();
    const auto second = [&](const Tensor& y, const Tensor& a, const Tensor& b) {
      const Tensor first = grad({y.sum()}, {a}, {.create_graph = true})[0];
      return grad({first.sum()}, {b})[0].to(kFloat32).to_vector<float>();
    };
    CHECK(second(pow(x, 0.0), x, x) == std::vector<float>{0, 0});
    CHECK(second(pow(x, e), x, x) == std::vector<float>{0, 12});
    CHECK(second(pow(x, int64_t{4}), x, x) == std::vector<float>{0, 48});
    CHECK(second(pow(x, e), e, e)[0] == 0);
    CHECK(second(pow(x, e), e, e)[1] == doctest::Approx(8 * std::log(2.0) * std::log(2.0)));
  }
}

TEST_CASE("floor and the like: the gradient is 0 whatever gradient comes in") {
  const Tensor x = tensor({0.0, 0.25}).set_requires_grad();
  for (const auto& f : {floor, trunc, round, ceil, sign}) {
    const Tensor root = f(x).sqrt();  // Infinite slope at 0.
    CHECK(grad({(root + x).sum(), (f(x) * kInf).sum()}, {x})[0].to_vector<float>()[0] == 1);
  }
}

TEST_CASE("minimum, maximum: an infinity that is not chosen has gradient 0, a NaN has a NaN") {
  const Tensor a = tensor({-kInf, kInf, -kInf, std::nan("")}).set_requires_grad();
  const auto gradient = [&](const Tensor& y) { return grad({y.sum()}, {a})[0].to_vector<float>(); };
  const auto low = gradient(maximum(a, 0.0)), high = gradient(minimum(a, zeros({4})));
  for (size_t k = 0; k < 3; ++k) {
    CHECK(low[k] == (k == 1));
    CHECK(high[k] == (k != 1));
  }
  CHECK((std::isnan(low[3]) && std::isnan(high[3])));
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  for (const Binary f : {Binary(maximum), Binary(minimum)}) {  // Also as the second operand.
    const Tensor b = zeros({4}).set_requires_grad();
    const std::vector<Tensor> both = grad({f(b, a).sum()}, {b, a});
    CHECK(both[0].to_vector<float>()[3] == 0);
    CHECK(std::isnan(both[1].to_vector<float>()[3]));
  }
}

TEST_CASE("pointwise rows: values agree with the oracle") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kFloat64}) {
      check_oracle(*op, sampled_columns(*op, 500), t);
      check_oracle(*op, special_columns(*op), t);
      if (operations(*op) == 1) check_oracle(*op, wide_columns(*op), t);
    }
  }
}

TEST_CASE("pointwise rows: 16-bit floats compute in float32 and round once") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kBFloat16, kFloat16}) {
      for (const Columns& values : {sampled_columns(*op, 100), special_columns(*op)}) {
        const Tensors in = as_tensors(*op, values, t);
        Tensors wide;
        for (const Tensor& x : in) wide.push_back(x.dtype() == t ? x.to(kFloat32) : x);
        const Tensors y = run_row(*op, in), z = run_row(*op, wide);
        for (size_t k = 0; k < y.size(); ++k) {
          CHECK(y[k].dtype() == (op->pointwise->mask_out[k] ? kBool : t));
          check_same(y[k], z[k].to(y[k].dtype()));
        }
      }
    }
  }
}

TEST_CASE("pointwise rows: integers") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kInt64, kInt32, kUInt8, kBool}) {
      if (refuses(*op, t)) continue;
      const Tensors in = operands_of(*op, {40}, t), out = run_row(*op, in);
      if (!is_number_row(*op)) {
        Tensors floats;
        for (const Tensor& x : in) floats.push_back(x.dtype() == t ? x.to(kFloat32) : x);
        check_same(out, run_row(*op, floats));
        continue;
      }
      Columns x;
      for (const Tensor& u : in) x.push_back(u.to(kFloat64).to_vector<double>());
      std::vector<double> want(40);
      for (size_t i = 0; i < want.size(); ++i) {
        double operands[kMaxOperands], y[kMaxOutputs];
        for (size_t k = 0; k < x.size(); ++k) operands[k] = x[k][i];
        op->pointwise->oracle(operands, y);
        want[i] = std::isfinite(y[0]) ? y[0] : 0;  // Integer division by zero gives 0.
      }
      const DType result = op->pointwise->mask_out[0] ? kBool : t;
      check_same(out[0], tensor(want).to(kInt64).to(result));
    }
  }
}

// All pairs of bytes, and a few of them in one run.
TEST_CASE("pointwise rows: bytes are computed as int32, and any but 0 is true") {
  constexpr int64_t kAll = 1 << 16, kFew = 300;
  std::vector<uint8_t> bytes[2];
  for (int64_t i = 0; i < kAll; ++i) {
    bytes[0].push_back(static_cast<uint8_t>(i));
    bytes[1].push_back(static_cast<uint8_t>(i >> 8));
  }
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    const PointwiseInfo& info = *op->pointwise;
    if (!is_number_row(*op)) continue;
    for (DType t : {kUInt8, kBool}) {
      if (refuses(*op, t)) continue;
      Tensors in, wide, few;
      for (int i = 0; i < info.n_in; ++i) {
        const bool condition = info.traits.condition >> i & 1;
        in.push_back(from_blob(bytes[i % 2].data(), {kAll}, condition ? kBool : t));
        wide.push_back(condition ? in.back() : in.back().to(kInt32));
        few.push_back(in.back().narrow(0, 1000, kFew));
      }
      const Tensor want = run_row(*op, wide)[0].to(info.mask_out[0] ? kBool : t);
      check_same(run_row(*op, in)[0], want);
      check_same(run_row(*op, few)[0], want.narrow(0, 1000, kFew));
      const auto& row = static_cast<const PointwiseOp&>(*op);
      if (info.n_in == 1) check_same(call(row, few[0]), want.narrow(0, 1000, kFew));
      if (info.n_in == 2) check_same(call(row, few[0], few[1]), want.narrow(0, 1000, kFew));
    }
  }
}

TEST_CASE("conversions: any byte of a bool but 0 is true, in every layout") {
  std::vector<uint8_t> bytes;
  for (int i = 0; i < 300; ++i) bytes.push_back(static_cast<uint8_t>(i % 5 * 60));
  const Tensor x = from_blob(bytes.data(), {20, 15}, kBool);
  const Tensor want = ne(from_blob(bytes.data(), {20, 15}, kUInt8), 0);
  for (DType t : {kFloat32, kInt64, kUInt8, kBFloat16, kFloat64}) {
    check_same(x.to(t), want.to(t));
    check_same(x.t().to(t), want.t().to(t));
    check_same(x.select(0, 3).to(t), want.select(0, 3).to(t));
  }
}

TEST_CASE("pointwise rows: layouts do not change a bit") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    const IntList shape = {20, 70};  // Beyond one block of a strided operand.
    for (DType t : {kFloat32, kFloat64, kBFloat16, kInt64, kUInt8, kBool}) {
      CAPTURE(std::string(name(t)));
      for (size_t l = 0; l < 5; ++l) {
        Tensors in, dense;
        for (const Tensor& x : operands_of(*op, shape, t)) {
          in.push_back(laid_out(x, kLayouts[(l + in.size()) % 5]));
          dense.push_back(in.back().clone());
        }
        check_same(run_row(*op, in), run_row(*op, dense));
      }
      // One row of values for all: a splat along the other dim, and operands of fewer dims.
      Tensors in = operands_of(*op, shape, t), full = in;
      for (size_t i = 0; i < in.size(); ++i) {
        if (i % 3 == 0) continue;
        in[i] = i % 3 == 1 ? in[i].select(0, 0) : in[i].slice(1, 0, 1);
        full[i] = in[i].expand(shape).clone();
      }
      check_same(run_row(*op, in), run_row(*op, full));
    }
  }
}

TEST_CASE("pointwise rows: short rows with broadcast operands are one run, and keep their bits") {
  const auto whole = [](const Tensor& t, const IntList& sizes) {
    return expand(t, sizes).contiguous();
  };
  for (const int64_t n : {2, 3, 8, 15, 16, 17, 100, 256, 257}) {
    CAPTURE(n);
    for (const IntList& sizes : {IntList{37, n}, {3, 700, n}, {2, 3, 5, n}}) {
      const auto dims = sizes.size();
      IntList row = sizes, number = sizes, outer = sizes;
      number[dims - 1] = 1;
      for (int d = 0; d + 1 < dims; ++d) row[d] = 1;
      for (int d = 1; d < dims; ++d) outer[d] = 1;
      const Tensor x = randn(sizes), w = randn(row), m = randn(number), o = randn(outer);
      const Tensor wide = randn({numel_of(number), 5});
      const Tensor apart = wide.select(1, 3).reshape(number);  // Five elements apart.
      for (const Tensor& other : {w, m, o, apart, m.to(kBFloat16), w.to(kFloat64), m.to(kInt32)}) {
        CAPTURE(describe(other));
        const Tensor all = whole(other, sizes);
        check_same(x - other, x - all);
        check_same(other / x, all / x);
        check_same(x > other, x > all);
        check_same(where(other > 0.0, x, other), where(all > 0.0, x, all));
        check_same((x > 0.0) | (other > 0.0), (x > 0.0) | (all > 0.0));
        check_same(x.clone().mul_(other), x.clone().mul_(all));
        check_same(m + other * w, whole(m, sizes) + all * whole(w, sizes));
      }
      const Tensor y = x.clone(), first = y.narrow(-1, 0, 1);
      check_same(y.sub_(first), x - whole(x.narrow(-1, 0, 1).contiguous(), sizes));
    }
  }
}

TEST_CASE("pointwise rows: every size, empty and 0-d tensors") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kBFloat16, kUInt8, kBool}) {
      const Tensors whole = operands_of(*op, {67}, t), y = run_row(*op, whole);
      for (int64_t n = 0; n <= 67; ++n) {
        Tensors part, shifted;
        for (const Tensor& x : whole) part.push_back(x.narrow(0, 67 - n, n));
        const Tensors z = run_row(*op, part);
        for (size_t k = 0; k < y.size(); ++k) check_same(z[k], y[k].narrow(0, 67 - n, n));
      }
      Tensors scalars;
      for (const Tensor& x : whole) scalars.push_back(x.select(0, 5));
      const Tensors z = run_row(*op, scalars);
      for (size_t k = 0; k < y.size(); ++k) check_same(z[k], y[k].select(0, 5));
    }
  }
}

TEST_CASE("pointwise rows: in place is the same as out of place") {
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    CAPTURE(std::string(op->name));
    const auto n_out = static_cast<size_t>(op->n_out);
    for (DType t : {kFloat32, kFloat64, kBFloat16}) {
      for (Layout l : {Layout::Dense, Layout::Transposed, Layout::Sliced, Layout::Offset}) {
        Tensors in = operands_of(*op, {6, 11}, t);
        for (size_t k = 0; k < n_out; ++k) in[k] = laid_out(in[k].to(t), l);
        const Tensors y = run_row(*op, in);
        run_row_into(*op, in, Tensors(in.begin(), in.begin() + static_cast<long>(n_out)));
        for (size_t k = 0; k < n_out; ++k) check_same(in[k], y[k].to(t));
      }
    }
  }
}

TEST_CASE("pointwise rows: graph mode equals eager mode, forward and backward") {
  const size_t shifts = long_tests() ? 5 : 1;
  for (DType t : {kFloat32, kBFloat16, kFloat64, kFloat16}) {
    if (!long_tests() && (t == kFloat64 || t == kFloat16)) continue;
    for (size_t shift = 0; shift < shifts; ++shift) {
      CAPTURE(std::string(name(t)));
      const auto cases = row_cases(t, shift, long_tests() ? 1 : t == kFloat32 ? 3 : 6);
      check_step([&](Results& r) {
        for (const RowCase& c : cases) add_case(r, c);
      });
    }
  }
}

TEST_CASE("pointwise rows: graph mode equals eager mode at special values, in place, empty, 0-d") {
  struct Case {
    const OpDef* op;
    Tensors in;
  };
  std::vector<Case> cases;
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    cases.push_back({op, as_tensors(*op, special_columns(*op), kFloat32)});
    cases.push_back({op, operands_of(*op, {0, 3}, kFloat32)});
    cases.push_back({op, operands_of(*op, {}, kBFloat16)});
    if (!is_number_row(*op)) continue;
    for (DType t : {kInt64, kInt32, kUInt8}) {
      Tensors in;
      constexpr auto most = std::numeric_limits<int64_t>::max();
      const std::vector<int64_t> ends = {-most - 1, most, INT32_MIN, INT32_MAX, 0, 1, -1, 7};
      for (int i = 0; i < op->pointwise->n_in; ++i) {
        const Tensor v = tensor(ends).to(t);  // All pairs: a column with rows.
        in.push_back(i == 0 ? v.unsqueeze(1) : v);
      }
      cases.push_back({op, in});
    }
  }
  if (!long_tests()) {  // A kernel of all takes the compiler a minute: a few, in turn.
    size_t at = 0;
    std::erase_if(cases, [&](const Case&) { return at++ % 7 != 0; });
  }
  check_step([&](Results& r) {
    for (const Case& c : cases) {
      const Tensors y = run_row(*c.op, c.in);
      for (size_t k = 0; k < y.size(); ++k) {
        r.add(fmt::format("{} of {}, output {}", c.op->name, name(c.in[0].dtype()), k), y[k]);
      }
      if (!is_floating(c.in[0].dtype())) continue;
      Tensors in = c.in, out;
      for (size_t k = 0; k < c.op->n_out; ++k) {
        in[k] = in[k].to(y[0].dtype() == kBool ? kFloat32 : y[0].dtype()).clone();
        out.push_back(in[k]);
      }
      run_row_into(*c.op, in, out);
      for (const Tensor& t : out) r.add(fmt::format("{} in place", c.op->name), t);
    }
  });
}
