#include "ops/kinds/work.h"

#include <algorithm>
#include <map>

#include "core/context.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row.h"

namespace brrr {

namespace {

// Operation counts by how often statements run: once, per row, per element.
struct Counts {
  double of[3] = {};
  size_t cost = 0;  // See Statement.
  double over(double rows, double n) const { return of[0] + rows * (of[1] + n * of[2]); }
};

// The number of an absent Weight or Bias operand: formulas that read it are not counted.
constexpr int kAbsent = -1;

Counts count(const Statements& list) {
  Counts all;
  const auto absent = [&](int k) {
    const Statement& s = list[static_cast<size_t>(k)];
    return s.kind == Statement::Operand && s.which == kAbsent;
  };
  for (const Statement& s : list) {
    all.cost += s.cost;
    const bool formula = s.kind == Statement::Formula;
    if (formula && std::any_of(s.args.begin(), s.args.end(), absent)) continue;
    if (formula) all.of[s.varies] += s.flops;
    if (s.kind == Statement::Fold || s.kind == Statement::FoldRows) all.of[Statement::InRow] += 1;
    if (s.kind == Statement::Total) all.of[Statement::WithRow] += 1;
  }
  return all;
}

Statement::Varies varies(Operand kind) {
  if (kind == Operand::PerRow || kind == Operand::Id) return Statement::WithRow;
  return kind == Operand::Number || kind == Operand::Scalar ? Statement::Never : Statement::InRow;
}

// Bit k: operand k of a pointwise op is a scalar; input k of a row op is absent.
Counts count(const OpDef& op, uint64_t bits) {
  Statements list;
  SymScope scope(list, kFloat32);
  const auto operand = [&](int k, Statement::Varies v) {
    return scope.add({.kind = Statement::Operand, .type = kFloat32, .which = k, .varies = v});
  };
  if (op.pointwise) {
    Sym in[kMaxOperands];
    for (int k = 0; k < kMaxOperands; ++k) {
      in[k] = Sym(operand(k, bits >> k & 1 ? Statement::Never : Statement::InRow));
    }
    int out[kMaxOutputs];
    op.pointwise->emit(in, out);
  } else if (op.row) {
    int in[kMaxRowOperands];
    for (size_t k = 0; k < op.row->operands.size(); ++k) {
      const auto [kind, input, word] = op.row->operands[k];
      const bool absent = is_shared(kind) && bits >> input & 1;
      in[k] =
          absent ? operand(kAbsent, Statement::Never) : operand(static_cast<int>(k), varies(kind));
    }
    op.row->symbols(in);
  } else if (op.reduction) {
    const Statement length{.kind = Statement::Length, .type = kFloat32};
    op.reduction->symbols(operand(0, Statement::InRow), Statement::Fold, length, true, true);
  }
  return count(list);
}

const Counts& known(const OpDef& op, uint64_t bits) {
  struct All : std::map<std::pair<const OpDef*, uint64_t>, Counts> {};
  All& all = thread_own<All>();
  const auto [at, fresh] = all.try_emplace({&op, bits});
  if (fresh) at->second = count(op, bits);
  return at->second;
}

}  // namespace

size_t polynomials_of(const OpDef& op) { return known(op, 0).cost / 2; }

const char* kind_of(const OpDef& op, const Work& work) {
  if (work.product) return "contraction";
  if (op.row || op.reduction) return "normalisation";
  return op.pointwise ? "pointwise" : "other";
}

Work work_of(const OpCall& c) {
  if (c.op->is_view()) return {};
  if (c.op->work) return c.op->work(c);
  const double bytes = operand_bytes(c);
  const DType dtype = compute_type(c.out[0].dtype());
  const auto of = [](const TensorImpl* t) { return static_cast<double>(t->numel); };
  uint64_t bits = 0;
  for (int k = 0; k < c.n_in; ++k) {
    bits |= uint64_t{!c.in[k] || (c.op->pointwise && c.in[k]->ndim == 0)} << k;
  }
  if (c.op->pointwise) return {known(*c.op, bits).over(1, of(c.out[0].impl())), bytes, dtype};
  if (c.op->row) {
    const RowShape s(c);
    return {known(*c.op, bits).over(static_cast<double>(s.rows), static_cast<double>(s.n)), bytes,
            dtype};
  }
  if (c.op->reduction) {
    const double rows = of(c.out[0].impl());
    return {rows > 0 ? known(*c.op, 0).over(rows, of(c.in[0]) / rows) : 0, bytes, dtype};
  }
  return {0, bytes};
}

}  // namespace brrr
