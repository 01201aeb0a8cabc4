// Every row op alone, from its row: kernels against the decomposition and the float64 oracle, on
// every dtype and on lengths of every kind.
#include "tests/op_cases.h"
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

namespace {

// Row r of a per-row operand; the whole of a shared one.
Tensor row_of(const Tensor& t, Operand kind, int64_t r) {
  const bool of_rows = kind == Operand::Each || kind == Operand::PerRow || kind == Operand::Id;
  return of_rows ? t.narrow(0, r, 1).clone() : t;
}

}  // namespace

TEST_CASE("row ops: rows that share a vector have the bits of a single row") {
  manual_seed(5);
  const NoGradGuard guard;
  for_row_ops([](const OpDef& op) {
    const RowInfo& info = *op.row;
    for (DType t : kFloatTypes) {
      for (const auto& sizes : {std::pair{21, 1}, {2, 2}, {19, 2}, {33, 4}, {7, 8}, {16, 8}}) {
        const int rows = sizes.first, n = sizes.second;
        CAPTURE(t);
        CAPTURE(n);
        RowCase c = make_case(info, rows, n, t);
        if (info.operands[0].kind == Operand::Each) c.in[0].select(0, rows / 2).fill_(-0.0);
        const Tensors all = run(op, c, false);
        for (int64_t r = 0; r < rows; ++r) {
          RowCase one = c;
          for (const RowOperand& o : info.operands) {
            if (o.kind == Operand::Scalar) continue;
            const auto i = static_cast<size_t>(o.input);
            one.in[i] = row_of(c.in[i], o.kind, r);
          }
          const Tensors alone = run(op, one, false);
          for (size_t k = 0; k < all.size(); ++k) {
            const Operand kind = info.results[k];
            if (kind == Operand::Each || kind == Operand::PerRow)
              test::check_same(row_of(all[k], kind, r), alone[k]);
          }
        }
      }
    }
  });
}
