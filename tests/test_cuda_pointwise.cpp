// Every pointwise row of the registry, none by name, gives the CPU's values on the device, in every
// dtype and layout.

#include "tests/cuda_cases.h"
#include "tests/special_values.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};

// One call of a row; an undefined operand is a scalar.
struct RowCall {
  const OpDef* op;
  Tensors in;
  const char* what;
  bool into = false;  // Written into the first operands.

  Tensors run(const Tensors& operands) const {
    if (into) {
      const Tensors out(operands.begin(), operands.begin() + static_cast<long>(op->n_out));
      run_row_into(*op, operands, out);
      return out;
    }
    PointwiseCall call(*op);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].defined())
        call.add(operands[i]);
      else if (i % 2)
        call.add(Scalar(3));
      else
        call.add(Scalar(0.625));
    }
    return call.run_all();
  }
};

// Values at the limits of formulas and conversions.
Tensors special(const OpDef& op, DType t) {
  if (is_floating(t)) {
    Columns all = special_columns(op);
    const Columns wide = wide_columns(op);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].insert(all[i].end(), wide[i].begin(), wide[i].end());
    }
    return as_tensors(op, all, t);
  }
  constexpr auto most = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> ends = {-most - 1, most, INT32_MIN, INT32_MAX, 0, 1, -1, 7};
  std::vector<int64_t> down, across;  // All pairs.
  for (int64_t a : ends) {
    for (int64_t b : ends) {
      down.push_back(a);
      across.push_back(b);
    }
  }
  Tensors in;
  for (int i = 0; i < op.pointwise->n_in; ++i) {
    const bool condition = op.pointwise->traits.condition >> i & 1;
    in.push_back(tensor(i == 0 ? down : across).to(condition ? kBool : t));
  }
  return in;
}

// Operands, each in another layout than the one before.
RowCall in_layouts(const OpDef& op, DType t, size_t first) {
  RowCall c{&op, {}, "layouts"};
  for (const Tensor& x : operands_of(op, {5, 19}, t)) {
    c.in.push_back(laid_out(x, kLayouts[(first + c.in.size()) % 5]));
  }
  return c;
}
RowCall broadcast(const OpDef& op, DType t) {
  RowCall c{&op, operands_of(op, {5, 2, 9}, t), "broadcast"};
  for (size_t i = 0; i < c.in.size(); ++i) {
    if (i % 3 == 1) c.in[i] = c.in[i].select(0, 0).slice(0, 0, 1);
    if (i % 3 == 2) c.in[i] = c.in[i].slice(1, 0, 1);
  }
  return c;
}
RowCall misaligned(const OpDef& op, DType t) {
  RowCall c{&op, {}, "misaligned"};
  for (const Tensor& x : operands_of(op, {104}, t)) c.in.push_back(x.narrow(0, 3, 101));
  return c;
}
RowCall splat(const OpDef& op, DType t) {
  RowCall c{&op, operands_of(op, {7, 30}, t), "0-d operands"};
  for (size_t i = 1; i < c.in.size(); i += 2) c.in[i] = c.in[i].select(0, 3).select(0, 4).clone();
  return c;
}
RowCall numbers(const OpDef& op, DType t) {
  RowCall c{&op, operands_of(op, {1030}, t), "numbers"};
  for (size_t i = 1; i < c.in.size(); ++i) {
    if (!(op.pointwise->traits.condition >> i & 1)) c.in[i] = Tensor();
  }
  return c;
}
RowCall mixed(const OpDef& op, DType t, size_t salt) {
  RowCall c{&op, operands_of(op, {3, 37}, t), "mixed dtypes"};
  for (size_t i = 1; i < c.in.size(); ++i) {
    if (op.pointwise->traits.condition >> i & 1) continue;
    c.in[i] = operand_of(op, static_cast<int>(i), {3, 37}, kDTypes[(salt + 3 * i) % 8]);
  }
  return c;
}
RowCall in_place(const OpDef& op, DType t, Layout layout) {
  RowCall c{&op, operands_of(op, {6, 11}, t), "in place", true};
  for (size_t k = 0; k < op.n_out; ++k) c.in[k] = laid_out(c.in[k].to(t), layout);
  return c;
}

// The cheap calls always; of those that need kernels of their own a subset that changes from row to
// row, all of them in long tests.
std::vector<RowCall> calls_of(const OpDef& op, DType t, size_t salt) {
  std::vector<RowCall> all = {{&op, operands_of(op, {3, 67}, t), "dense"},
                              {&op, operands_of(op, {1}, t), "one element"},
                              {&op, operands_of(op, {}, t), "0-d"},
                              {&op, operands_of(op, {0, 3}, t), "empty"},
                              {&op, special(op, t), "special values"}};
  const bool own_loops = is_floating(t) || is_number_row(op);  // Otherwise converted to float32.
  if (is_floating(t)) all.push_back(in_place(op, t, Layout::Dense));
  std::vector<RowCall> more = {in_layouts(op, t, salt),     misaligned(op, t), splat(op, t),
                               mixed(op, t, salt),          numbers(op, t),    broadcast(op, t),
                               in_layouts(op, t, salt + 2), misaligned(op, t)};
  if (is_floating(t)) more.back() = in_place(op, t, kLayouts[salt % 2 ? 1 : 2]);
  const size_t wanted = long_tests() ? more.size() : own_loops ? 2 : 0;
  for (size_t i = 0; i < wanted; ++i) all.push_back(more[(salt + i) % more.size()]);
  return all;
}

// Short tests check every `turns`-th row.
void check_rows(DType t, size_t turns = 1) {
  if (!have_device()) return;
  std::vector<RowCall> calls;
  size_t salt = static_cast<size_t>(t), row = 0;
  for (const OpDef* op : rows_of(OpKind::Pointwise)) {
    const bool turn = (row++ + static_cast<size_t>(t)) % turns == 0;
    if (refuses(*op, t) || !(turn || long_tests())) continue;
    for (RowCall& c : calls_of(*op, t, salt++)) calls.push_back(std::move(c));
  }
  std::vector<Tensors> moved, want;
  for (const RowCall& c : calls) moved.push_back(on_gpu(c.in));
  {
    const KernelsNeeded needed;
    for (const RowCall& c : calls) want.push_back(c.run(c.in));
    build_all(kernels_of(needed.calls));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const RowCall& c = calls[i];
    const Tensors got = c.run(moved[i]);
    for (size_t k = 0; k < got.size(); ++k) {
      const std::string d = device_difference(got[k], want[i][k]);
      CHECK_MESSAGE(d.empty(),
                    fmt::format("{} of {}, {}, output {}: {}", c.op->name, name(t), c.what, k, d));
    }
  }
}

}  // namespace

TEST_CASE("cuda: tensors move to the device and back in any layout") {
  if (!have_device()) return;
  for (DType t : kDTypes) {
    for (Layout l : kLayouts) {
      const Tensor x = laid_out(sampled({5, 7}, t), l), y = on_gpu(x);
      CHECK(y.strides() == x.strides());
      CHECK(device_difference(y, x) == "");
      CHECK(device_difference(x.to(kCUDA), x) == "");
      CHECK(device_difference(y.contiguous(), x) == "");
    }
  }
}

// Where rounding the reciprocal of a denominator is a tie.
TEST_CASE("cuda: sigmoid has the CPU's bits also for a denominator just below a power of two") {
  if (!have_device()) return;
  const Tensor x = arange(-64.0, 64.0) * 0x1p-25;
  const std::string said = device_difference(sigmoid(on_gpu(x)), sigmoid(x));
  CHECK_MESSAGE(said.empty(), said);
}
TEST_CASE("cuda: pointwise rows of float32") { check_rows(kFloat32); }
TEST_CASE("cuda: pointwise rows of float64") { check_rows(kFloat64); }
TEST_CASE("cuda: pointwise rows of 16-bit floats") {
  check_rows(kBFloat16, 2);
  check_rows(kFloat16, 2);
}
TEST_CASE("cuda: pointwise rows of integers and bool") {
  for (DType t : {kInt64, kInt32, kUInt8, kBool}) check_rows(t, 2);
}
