#include "ops/kinds/reduction_layout.h"

#include <algorithm>

#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

// Neighbouring dims that are both reduced or both kept, merged.
struct Runs {
  int n = 0;
  int64_t size[kMaxDims], stride[kMaxDims];
  bool reduced[kMaxDims];
  bool merged = true;   // Every run has a single stride.
  bool direct = true;   // Also, the innermost run's is 1.
  int before_last = 0;  // Dims before the last run.
};

// `order` lists the dims in iteration order.
Runs find_runs(const TensorImpl& x, int64_t mask, const IntList& order) {
  Runs r;
  for (int i = 0; i < order.size(); ++i) {
    const int64_t d = order[i], whole = x.strides[d] * x.sizes[d];
    const bool reduced = mask >> d & 1;
    if (r.n == 0 || r.reduced[r.n - 1] != reduced) {
      r.before_last = i;
      r.size[r.n] = 1;
      r.stride[r.n] = whole;
      r.reduced[r.n++] = reduced;
    }
    r.merged &= r.stride[r.n - 1] == whole;
    r.size[r.n - 1] *= x.sizes[d];
    r.stride[r.n - 1] = x.strides[d];
  }
  r.direct = r.merged && (r.n == 0 || r.stride[r.n - 1] == 1);
  return r;
}

// Rows: (kept, reduced). Columns: one reduced run before a last kept one.
bool is_rows(const Runs& r) { return r.n > 0 && r.n <= 2 && r.reduced[r.n - 1]; }
bool is_columns(const Runs& r) { return r.n == 0 || (!r.reduced[r.n - 1] && r.n <= 3); }

Runs choose_order(const TensorImpl& x, int64_t mask, IntList& order) {
  for (int d = 0; d < x.ndim; ++d) {
    if (x.sizes[d] != 1) order.push_back(d);
  }
  Runs runs = find_runs(x, mask, order);
  if (!is_rows(runs) && !is_columns(runs)) {
    std::stable_partition(order.begin(), order.end(), [&](int64_t d) { return !(mask >> d & 1); });
    runs = find_runs(x, mask, order);
  }
  return runs;
}

void set_extents(ReductionLayout& l, const Runs& r) {
  int left = r.n;
  if (is_columns(r)) l.cols = left ? r.size[--left] : 1;
  if (left) {
    l.rows = r.size[--left];
    l.row_stride = r.stride[left];
    l.outer_stride = l.rows;
  }
  if (left) {
    l.outer = r.size[0];
    l.outer_stride = r.stride[0];
  }
}

IntList in_order(const int64_t* of, const IntList& order) {
  IntList v;
  for (int64_t d : order) v.push_back(of[d]);
  return v;
}

}  // namespace

ReductionLayout::ReductionLayout(const OpCall& c)
    : compute(reduction_compute_dtype(*c.op, *c.in[0])),
      dtype(c.in[0]->dtype),
      count(c.in[0]->numel / c.out[0].numel()) {
  const TensorImpl& x = *c.in[0];
  if (x.numel == 0) return;
  const Runs runs = choose_order(x, c.attrs.as<ReductionAttrs>().mask, order);
  set_extents(*this, runs);
  direct = runs.direct;
  strided = !order.empty() && x.strides[order.back()] != 1;
  if (direct) return;
  const bool transposed = runs.merged && runs.n == 2 && !cols && runs.stride[0] == 1;
  if (transposed && outer >= kTransposedRows) col_step = runs.stride[1];
  elements = std::make_shared<StridedMatrix>(x.dtype, in_order(x.sizes, order),
                                             in_order(x.strides, order), runs.before_last);
}

ReductionLayout direct_layout(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  ReductionLayout l(c);
  l.base = x.data();
  if (l.direct) return l;
  const Tensor ordered = tensor_on(*x.storage, x.dtype, in_order(x.sizes, l.order),
                                   in_order(x.strides, l.order), x.offset);
  l.copy = copied(*ordered.impl(), l.compute);
  l.direct = true;
  l.dtype = l.compute;
  l.base = l.copy.impl()->data();
  l.row_stride = l.cols;
  l.outer_stride = l.rows * std::max<int64_t>(1, l.cols);
  return l;
}

}  // namespace brrr
