// Every row op by itself, from its row: kernels against the decomposition and the float64 oracle,
// on every dtype and on lengths of every kind.
#include "tests/row_cases.h"

using namespace brrr;
using namespace brrr::nn_test;

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
          const RowCase c = make_case(*op.row, rows, n, t);
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
      const RowCase c = make_case(*op.row, 5, n, kFloat64);
      const Tensors got = run(op, c, false);
      const auto want = op.row->oracle(c.numbers.data(), c.ids.data());
      for (size_t k = 0; k < got.size(); ++k) {
        CAPTURE(k);
        const auto values = got[k].to(kFloat64).to_vector<double>();
        const int64_t columns =
            op.row->results[k] == Operand::Each || op.row->results[k] == Operand::Column ? n : 1;
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
    RowCase c = make_case(*op.row, 4, 33, kFloat32), with = c;
    for (const RowOperand& o : op.row->operands) {
      if (o.kind != Operand::Weight && o.kind != Operand::Bias) continue;
      const auto i = static_cast<size_t>(o.input);
      with.in[i] = full({33}, o.kind == Operand::Weight ? 1.0 : -0.0);
      c.in[i] = Tensor();
    }
    check_same({run(op, c, false), run(op, with, false)});
  });
}
