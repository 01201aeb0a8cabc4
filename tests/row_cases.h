#pragma once
// Shared by registry-driven tests of row ops: operands for any of them.

#include "ops/kinds/row.h"
#include "tests/nn_cases.h"

namespace brrr::nn_test {

// Operands for `rows` rows of n elements, and the matching attribute words.
struct RowCase {
  Tensors in;
  std::vector<RowNumbers> numbers;
  std::vector<RowNumberIds> ids;
  Attrs words;
};
inline constexpr double kScalar = 0.25;

inline RowNumbers numbers_of(const Tensor& t, int64_t rows, int64_t columns, int64_t n) {
  return {.rows = rows, .columns = columns, .n = n, .v = t.to(kFloat64).to_vector<double>()};
}

inline RowCase make_case(const RowInfo& info, int64_t rows, int64_t n, DType t) {
  RowCase c;
  c.words.push(RowAttrs{1});
  for (const RowOperand& o : info.operands) {
    RowNumbers of;
    RowNumberIds ids{.at = {}, .n = n};
    if (o.kind == Operand::Scalar) {
      c.words.push(kScalar);
      of = {.n = n, .v = {kScalar}};
    } else if (o.kind == Operand::Id) {
      c.in.push_back(classes_for(rows, n));
      c.words.push(int64_t{1});  // Class 1 is the ignored one.
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

inline Tensors run(const OpDef& op, const RowCase& c, bool decompose) {
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

}  // namespace brrr::nn_test
