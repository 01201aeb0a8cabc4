// Every row op by itself, from its row: kernels against the decomposition and the float64 oracle,
// on every dtype and on lengths of every kind.
#include "ops/kinds/row.h"
#include "tests/nn_cases.h"

using namespace brrr;
using namespace brrr::nn_test;

namespace {

// Operands for `rows` rows of n elements, and the words that belong to them.
struct Case {
  Tensors in;
  std::vector<RowNumbers> numbers;
  std::vector<RowNumberIds> ids;
  Attrs words;
};
constexpr double kScalar = 0.25;

RowNumbers numbers_of(const Tensor& t, int64_t rows, int64_t columns, int64_t n) {
  return {.rows = rows, .columns = columns, .n = n, .v = t.to(kFloat64).to_vector<double>()};
}

Case make_case(const RowInfo& info, int64_t rows, int64_t n, DType t) {
  Case c;
  c.words.push(RowAttrs{1});
  for (const RowOperand& o : info.operands) {
    RowNumbers of;
    RowNumberIds ids{.at = {}, .n = n};
    if (o.kind == Operand::Scalar) {
      c.words.push(kScalar);
      of = {.n = n, .v = {kScalar}};
    } else if (o.kind == Operand::Id) {
      c.in.push_back(classes_for(rows, n));
      c.words.push(int64_t{1});  // Class 1 does not count.
      for (int64_t id : c.in.back().to_vector<int64_t>()) ids.at.push_back(id == 1 ? -1 : id);
    } else {
      const bool number = o.kind == Operand::Number, per_row = o.kind == Operand::PerRow;
      const bool shared = o.kind == Operand::Weight || o.kind == Operand::Bias;
      const IntList sizes = number   ? IntList{}
                            : shared ? IntList{n}
                                     : IntList{rows, per_row ? 1 : n};
      const Tensor x = number || per_row ? rand(sizes) + 0.5 : randn(sizes);
      c.in.push_back(x.to(number || per_row ? compute_type(t) : t));
      of = numbers_of(c.in.back(), number || shared ? 1 : rows, number || per_row ? 1 : n, n);
    }
    c.numbers.push_back(of);
    c.ids.push_back(ids);
  }
  return c;
}

Tensors run(const OpDef& op, const Case& c, bool decompose) {
  std::vector<TensorImpl*> impls;
  for (const Tensor& t : c.in) impls.push_back(t.impl());
  OpCall call(op, impls.data(), static_cast<int>(impls.size()));
  call.attrs = c.words;
  if (decompose)
    op.decompose(call, c.in.data());
  else
    dispatch(call);
  return {call.out, call.out + call.n_out};
}

template <class F> void for_row_ops(const F& f) {
  int found = 0;
  for (const OpDef* op : registry()) {
    if (!op->row) continue;
    CAPTURE(std::string(op->name));
    f(*op);
    ++found;
  }
  CHECK(found >= 12);
}

}  // namespace

TEST_CASE("row ops: kernels equal the decompositions") {
  manual_seed(1);
  const NoGradGuard guard;
  for_row_ops([](const OpDef& op) {
    for (DType t : kFloatTypes) {
      for (int64_t n : {2, 10, 16, 17, 64, 257, 1000, 4097, 9000}) {
        for (int64_t rows : {1, 9, 130}) {
          if (rows > 9 && n > 1000) continue;
          CAPTURE(n);
          CAPTURE(rows);
          const Case c = make_case(*op.row, rows, n, t);
          check_same({run(op, c, false), run(op, c, true)});
        }
      }
    }
  });
}

TEST_CASE("row ops: kernels agree with the oracle") {
  manual_seed(2);
  const NoGradGuard guard;
  for_row_ops([](const OpDef& op) {
    for (int64_t n : {3, 40, 5000}) {
      const Case c = make_case(*op.row, 5, n, kFloat64);
      const Tensors got = run(op, c, false);
      const auto want = op.row->oracle(c.numbers.data(), c.ids.data());
      for (size_t k = 0; k < got.size(); ++k) {
        CAPTURE(k);
        const auto values = got[k].to(kFloat64).to_vector<double>();
        const int64_t columns =
            op.row->results[k] == RowResult::Each || op.row->results[k] == RowResult::Column ? n
                                                                                             : 1;
        for (size_t i = 0; i < values.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          const double exact = want[k].at(at / columns, at % columns);
          if (!(std::fabs(values[i] - exact) <= 1e-9 * (1 + std::fabs(exact)))) {
            REQUIRE(values[i] == exact);
          }
        }
      }
    }
  });
}

TEST_CASE("row ops: absent weights are 1, absent biases 0") {
  const NoGradGuard guard;
  for_row_ops([](const OpDef& op) {
    manual_seed(3);
    Case c = make_case(*op.row, 4, 33, kFloat32), with = c;
    for (const RowOperand& o : op.row->operands) {
      if (o.kind != Operand::Weight && o.kind != Operand::Bias) continue;
      const auto i = static_cast<size_t>(o.input);
      with.in[i] = full({33}, o.kind == Operand::Weight ? 1.0 : -0.0);
      c.in[i] = Tensor();
    }
    check_same({run(op, c, false), run(op, with, false)});
  });
}
