// Which instructions one kernel can walk over together, and which values pass between them in
// registers.
#include <algorithm>

#include "graph/schedule.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row.h"

namespace brrr::graph {

namespace {

bool dense(const Value& v, int64_t numel) { return !v.strided && v.numel == numel; }

// One element, even if it is expanded.
bool is_scalar(const Value& v) {
  int d = 0;
  while (d < v.ndim && (v.sizes[d] == 1 || v.strides[d] == 0)) ++d;
  return d == v.ndim;
}

// Longer rows, and a few long ones, are better not fused: one thread walks a row. Short rows leave
// most of a vector empty, which costs the pointwise ops more than a pass over memory, unless a
// vector holds several rows (cpu_packed_rows.cpp): no sums over the rows then, no indices into
// them. A single row is a whole tensor, which a kernel takes in chunks (cpu_whole.cpp): only
// reductions have one, and no element may read their results.
constexpr int64_t kShortestRow = 8, kShortestInVector = 2, kFewRows = 8;

// The rows that an instruction folds: how many, and their length n; n = 0: it folds none.
struct Rows {
  int64_t rows = 0, n = 0;
  bool operator==(const Rows&) const = default;
};

// The rows if they are worth fusing, else none. `apart`: several short ones cannot share a vector.
Rows if_worth_fusing(const Rows& all, int64_t longest, bool apart = false) {
  const bool together = !apart && vx::packs_rows(all.rows, all.n);
  const bool fits = all.n >= (together ? kShortestInVector : kShortestRow) && all.n <= longest &&
                    (all.rows >= kFewRows || all.rows * all.n <= longest) && all.rows > 1;
  return fits ? all : Rows{};
}

// Whether a reduction folds over the rows: it keeps the innermost dim.
bool reduces_over_rows(const Recording& r, const Instr& i) {
  const Value& x = r.value(r.in(i)[0]);
  int d = x.ndim - 1;
  while (d > 0 && x.sizes[d] == 1) --d;
  return d >= 0 && !(i.attrs.as<ReductionAttrs>().mask >> d & 1);
}

// The rows of a reduction that folds within each row, or over all rows; others have none.
Rows reduced_rows(const Recording& r, const Target& target, const Instr& i) {
  const Value &x = r.value(r.in(i)[0]), &y = r.value(r.out(i)[0]);
  const int64_t mask = i.attrs.as<ReductionAttrs>().mask;
  int changes = 0, last = -1;
  int64_t reduced = 1, kept = 1;
  for (int d = 0; d < x.ndim; ++d) {
    if (x.sizes[d] == 1) continue;
    const int is_reduced = static_cast<int>(mask >> d & 1);
    changes += last >= 0 && is_reduced != last;
    last = is_reduced;
    (is_reduced ? reduced : kept) *= x.sizes[d];
  }
  if (!is_floating(x.dtype) || !is_floating(y.dtype) || changes > 1) return {};
  if (last == 1 && kept == 1) return {1, reduced};
  if (last == 1) return if_worth_fusing({kept, reduced}, target.longest_row);
  return changes == 1 ? if_worth_fusing({reduced, kept}, target.longest_row, true) : Rows{};
}

Rows rows_of(const Recording& r, const Target& target, const Instr& i) {
  if (i.op->reduction) return reduced_rows(r, target, i);
  if (!i.op->row) return {};
  for (const RowOperand& o : i.op->row->operands) {
    if (o.kind != Operand::Each || r.in(i)[o.input] == kNone) continue;
    const Value& x = r.value(r.in(i)[o.input]);
    const int dims = static_cast<int>(std::min<int64_t>(i.attrs.as<RowAttrs>().dims, x.ndim));
    Rows all{1, 1};
    for (int d = 0; d < x.ndim; ++d) (d < x.ndim - dims ? all.rows : all.n) *= x.sizes[d];
    const RowInfo& info = *i.op->row;
    return if_worth_fusing(all, target.longest_of_row_op, !info.loops[0].together);
  }
  return {};
}

Role row_op_role(const Recording& r, const Instr& i, int k) {
  const RowInfo& info = *i.op->row;
  if (r.value(r.all(i)[k]).strided) return Role::Other;
  if (k >= i.n_in) {
    const Operand y = info.results[static_cast<size_t>(k - i.n_in)];
    return y == Operand::Each ? Role::Each : y == Operand::PerRow ? Role::PerRow : Role::Sum;
  }
  for (const RowOperand& o : info.operands) {
    if (o.input != k || o.kind == Operand::Scalar) continue;
    if (o.kind == Operand::Each) return Role::Each;
    if (o.kind == Operand::PerRow) return Role::PerRow;
    if (o.kind == Operand::Id) return Role::Id;
    return o.kind == Operand::Number ? Role::One : Role::Shared;
  }
  return Role::Other;
}

// The role of a pointwise operand over `shape`, whose last dims make a row of length n.
Role broadcast_role(const Value& v, const IntList& shape, int64_t n) {
  int64_t inner = 1, dense_inner = 1, dense_outer = 1;
  bool shared = true, per_row = true;
  for (int d = shape.size() - 1; d >= 0; --d) {
    const int own = d - (shape.size() - v.ndim);
    const bool has = own >= 0 && v.sizes[own] > 1 && v.strides[own] != 0;
    if (inner < n) {
      inner *= shape[d];
      shared &= shape[d] == 1 || (has && v.strides[own] == dense_inner);
      per_row &= !has;
      dense_inner *= shape[d];
    } else {
      shared &= !has;
      per_row &= shape[d] == 1 || (has && v.strides[own] == dense_outer);
      dense_outer *= shape[d];
    }
  }
  if (inner != n) return Role::Other;
  return shared ? Role::Shared : per_row ? Role::PerRow : Role::Other;
}

}  // namespace

Role role(const Recording& r, const Instr& i, int k, const Domain& w) {
  const Value& v = r.value(r.all(i)[k]);
  const int64_t rows = w.row ? numel_of(w.space) / w.row : 0;
  if (i.op->row) return row_op_role(r, i, k);
  if (i.op->reduction) {
    if (v.strided) return Role::Other;
    return k < i.n_in ? Role::Each : reduces_over_rows(r, i) ? Role::Sum : Role::PerRow;
  }
  const Value& out = r.value(r.out(i)[0]);
  if (w.row && out.numel == rows) {  // A scalar of each row.
    return dense(v, rows) ? Role::PerRow : is_scalar(v) ? Role::One : Role::Other;
  }
  if (w.row && out.numel == 1) return Role::One;  // A scalar for all rows.
  if (dense(v, out.numel)) return Role::Each;
  if (is_scalar(v)) return Role::One;
  return w.row ? broadcast_role(v, out.size_list(), w.row) : Role::Other;
}

// Whether the instruction needs its own shape, not just any of the same size.
static bool is_exact(const Recording& r, const Instr& i, const Domain& w) {
  for (int k = 0; k < i.n_in + i.n_out; ++k) {
    const bool given = r.all(i)[k] != kNone;
    if (given && role(r, i, k, w) == Role::Other) return true;
  }
  if (!i.op->pointwise) return false;
  const PointwiseInfo& info = *i.op->pointwise;  // An index in a dim is one of this shape.
  return std::any_of(info.place, info.place + info.n_made, [](int p) { return p != kNumber; });
}

// Adds an instruction to a domain, which has rows if any of its instructions has; false: it cannot.
static bool add(const Recording& r, const Target& target, Domain& w, const Instr& i) {
  const Value& out = r.value(r.out(i)[0]);
  const int64_t numel = numel_of(w.space);
  const bool exact = is_exact(r, i, w);
  if (!i.op->pointwise) return rows_of(r, target, i) == Rows{numel / w.row, w.row} && !exact;
  const bool scalar = out.numel == 1 && !i.into;  // In place, readers may come before the write.
  if (w.row && (out.numel == numel / w.row || scalar)) {
    return !exact && i.op->pointwise->n_made == 0;
  }
  if (out.numel != numel) return false;
  if (!exact) return true;
  if (w.row && (out.ndim == 0 || out.sizes[out.ndim - 1] != w.row)) return false;
  if (w.row && reads_transposed(r, i)) return false;  // Row kernels transpose no blocks.
  if (w.exact && w.space != out.size_list()) return false;
  w.space = out.size_list();
  w.exact = true;
  return true;
}

bool join(const Recording& r, const Target& target, const std::vector<uint32_t>& others,
          Domain& domain, uint32_t instr) {
  const Instr& i = r.instrs[instr];
  const Rows own = rows_of(r, target, i);
  if (!i.op->pointwise && own.n == 0) return false;
  Domain w = domain;
  if (own.n && !w.row) {  // From now on all of them walk over rows.
    w = {.space = {own.rows, own.n}, .row = own.n};
    for (uint32_t at : others) {
      if (!add(r, target, w, r.instrs[at])) return false;
    }
  }
  if (!add(r, target, w, i)) return false;
  domain = w;
  return true;
}

bool join(const Recording& r, const Target& target, const std::vector<uint32_t>& a,
          const std::vector<uint32_t>& b, const Domain& of_a, const Domain& of_b, Domain& domain) {
  const auto joins = [&](const auto& first, const auto& second, const Domain& start) {
    std::vector<uint32_t> all = first;
    domain = start;
    return std::ranges::all_of(second, [&](uint32_t at) {
      const bool joined = join(r, target, all, domain, at);
      all.push_back(at);
      return joined;
    });
  };
  return joins(a, b, of_a) || joins(b, a, of_b);
}

Role role(const Recording& r, const Access& a, const Domain& w) {
  const Instr& i = r.instrs[a.instr];
  int k = a.write ? i.n_in : 0;
  while (r.all(i)[k] != a.value) ++k;
  return role(r, i, k, w);
}

bool passes(const Recording& r, const Access& a, const Access& b, const Domain& w) {
  const Value &x = r.value(a.value), &y = r.value(b.value);
  const bool same = x.same_elements(y);
  // A scalar of each row, or a single one, also passes to readers of an expanded view.
  if (!same && !(w.row && a.write && !b.write && x.offset == y.offset && x.dtype == y.dtype)) {
    return false;
  }
  // A CPU checks values before it runs the kernel of `b`, so that kernel cannot compute them.
  const Instr& i = r.instrs[b.instr];
  const bool looks = i.op->check_values && r.storages[y.storage].device == kCPU;
  if (a.write && !b.write && looks && std::ranges::count(checked_values(r, i), b.value))
    return false;
  if (!w.row) return true;
  const Role from = role(r, a, w);
  if (from != role(r, b, w)) return false;
  if (from == Role::Other) return same && x.numel == numel_of(w.space);
  return (same && from == Role::Each) || from == Role::PerRow || from == Role::One;
}

bool passes(const Recording& r, const Schedule& s, uint32_t a, uint32_t b, const Domain& w) {
  // By the groups' few operands: a weight may have thousands of accesses.
  const auto storage = [&](const Access& x) { return r.value(x.value).storage; };
  const auto accesses = [&](uint32_t group) {
    std::vector<Access> all;
    r.each_access(s.groups[group].instrs, [&](const Access& x) {
      if (r.written[storage(x)]) all.push_back(x);
    });
    return all;
  };
  std::vector<Access> later = accesses(b);
  std::ranges::sort(later, {}, storage);
  return std::ranges::all_of(accesses(a), [&](const Access& x) {
    return std::all_of(std::ranges::lower_bound(later, storage(x), {}, storage),
                       std::ranges::upper_bound(later, storage(x), {}, storage),
                       [&](const Access& y) { return !r.conflict(x, y) || passes(r, x, y, w); });
  });
}

}  // namespace brrr::graph
