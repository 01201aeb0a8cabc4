// The gradient of a row op: a row op made from its gradient lambdas.
#include "core/check.h"
#include "ops/kinds/row.h"

namespace brrr {

static std::string name_of_input(const RowInfo& info, int input) {
  const auto at = std::ranges::find_if(info.operands, [&](const RowOperand& o) {
    return o.kind != Operand::Scalar && o.input == input;
  });
  return info.name_of(static_cast<int>(at - info.operands.begin()));
}

// A gradient lambda may return one value for all elements of a row, or of the call: expand it.
static Tensor expanded_to(const Tensor& g, const IntList& sizes, const OpDef& op, int input) {
  const IntList own = g.sizes();
  if (own == sizes) return g;
  bool fits = own.empty() || own.size() == sizes.size();
  for (int d = 0; fits && d < own.size(); ++d) fits = own[d] == sizes[d] || own[d] == 1;
  BRRR_CHECK(
      fits,
      "{}: the gradient lambda gives {} for {}, which is {}; reduce it with row::over_rows for "
      "an operand that the rows share, row::sum for a scalar per row, row::total for a single one",
      op.name, describe(g.impl()), name_of_input(*op.row, input), to_string(sizes));
  return expand(g, sizes).contiguous();
}

// The input, as a bit, from which a gradient that reads no elements takes the rows' shape.
static uint64_t shape_bit(const RowInfo& gradient) {
  uint64_t first = 0;
  for (const RowOperand& o : gradient.operands) {
    if (o.kind != Operand::Each) continue;
    if (gradient.uses >> o.input & 1) return 0;
    if (!first) first = uint64_t{1} << o.input;
  }
  return first;
}

// The gradient of the first result; the decomposition gives those of the others.
static void row_vjp(VjpCall& v) {
  const Node& n = v.node;
  const RowInfo& info = *n.op->row;
  Tensor g = std::move(v.gout[0]);
  if (!g.defined()) return;
  const OpDef& row = *info.gradient;
  TensorImpl* in[kMaxRowOperands + kMaxOutputs + 1];
  Tensor held[kMaxOutputs];
  const int results = static_cast<int>(info.results.size());
  int last_wanted = 0;
  const uint64_t uses = row.row->uses;
  for (int i = 0; i < n.n_in; ++i) {
    const bool used = uses >> i & 1 && n.in[i].saved;
    in[i] = used ? v.borrow_input(i) : nullptr;
    if (!v.needs(i)) continue;
    BRRR_CHECK(i < row.n_out,
               "{}: its gradient lambda returns none for {}; return one for each of the first "
               "operands, up to it, or detach() it",
               n.op->name, name_of_input(info, i));
    last_wanted = i;
  }
  for (int k = 0; k < results; ++k) {
    if (uses >> (n.n_in + k) & 1) held[k] = v.output(k);
    in[n.n_in + k] = held[k].impl();
  }
  in[n.n_in + results] = g.impl();
  OpCall c(row, in, n.n_in + results + 1, last_wanted ? row.n_out : 1);
  std::copy_n(n.attrs.v, n.attrs.n, c.attrs.v);
  c.attrs.n = n.attrs.n;
  dispatch(c);
  for (int k = 0; k < c.n_out; ++k) {
    if (!v.needs(k)) continue;
    v.gin[k] = expanded_to(c.out[k], v.meta(k).sizes, *n.op, k).to(v.meta(k).dtype);
  }
}

void RowOp::attach(RowOp* gradient) {
  info.gradient = gradient;
  const uint64_t uses = gradient->info.uses |= shape_bit(gradient->info);
  // Other results are differentiated through the decomposition, which needs all operands.
  if (n_out == 1) saves_inputs = static_cast<uint32_t>(uses & ((1u << inputs_) - 1));
  saves_outputs = static_cast<uint32_t>(uses >> inputs_ & ((1u << n_out) - 1));
  vjp = row_vjp;
  vjp_outputs = 1;
  grad_aliases = 0;
}

}  // namespace brrr
