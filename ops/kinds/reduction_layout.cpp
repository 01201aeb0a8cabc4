#include "ops/kinds/reduction_layout.h"

#include <algorithm>

#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

// The dims that are walked, in this order.
struct Order {
  int n = 0;
  int dim[kMaxDims];
};

// Neighbouring dims that are both reduced or both kept, merged.
struct Runs {
  int n = 0;
  int64_t size[kMaxDims], stride[kMaxDims];
  bool reduced[kMaxDims];
  bool direct = true;   // Each run has one stride, the innermost run stride 1.
  int before_last = 0;  // Dims before the last run.
};

Runs find_runs(const TensorImpl& x, int64_t mask, const Order& order) {
  Runs r;
  for (int i = 0; i < order.n; ++i) {
    const int d = order.dim[i], last = r.n - 1;
    const bool reduced = mask >> d & 1;
    if (r.n && r.reduced[last] == reduced) {
      r.direct &= r.stride[last] == x.strides[d] * x.sizes[d];
      r.size[last] *= x.sizes[d];
      r.stride[last] = x.strides[d];
    } else {
      r.before_last = i;
      r.size[r.n] = x.sizes[d];
      r.stride[r.n] = x.strides[d];
      r.reduced[r.n++] = reduced;
    }
    r.direct &= x.strides[d] >= 0;
  }
  r.direct &= r.n == 0 || r.stride[r.n - 1] == 1;
  return r;
}

// Rows: (kept, reduced). Columns: one reduced run before a last kept one.
bool is_rows(const Runs& r) { return r.n > 0 && r.n <= 2 && r.reduced[r.n - 1]; }
bool is_columns(const Runs& r) { return r.n == 0 || (!r.reduced[r.n - 1] && r.n <= 3); }

Runs choose_order(const TensorImpl& x, int64_t mask, Order& order) {
  for (int d = 0; d < x.ndim; ++d) {
    if (x.sizes[d] != 1) order.dim[order.n++] = d;
  }
  Runs runs = find_runs(x, mask, order);
  if (!is_rows(runs) && !is_columns(runs)) {
    std::stable_partition(order.dim, order.dim + order.n, [&](int d) { return !(mask >> d & 1); });
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

IntList in_order(const int64_t* of, const Order& order) {
  IntList v;
  for (int i = 0; i < order.n; ++i) v.push_back(of[order.dim[i]]);
  return v;
}

}  // namespace

static void set_layout(ReductionLayout& l, const OpCall& c, Order& order) {
  const TensorImpl& x = *c.in[0];
  l.compute = reduction_compute_dtype(*c.op, x);
  l.dtype = x.dtype;
  l.count = x.numel / c.out[0].numel();
  if (x.numel == 0) return;
  const Runs runs = choose_order(x, c.attrs.as<ReductionAttrs>().mask, order);
  set_extents(l, runs);
  l.direct = runs.direct;
  l.across = order.n > 0 && x.strides[order.dim[order.n - 1]] != 1;
  if (l.direct) return;
  l.elements = std::make_shared<StridedMatrix>(x.dtype, in_order(x.sizes, order),
                                               in_order(x.strides, order), runs.before_last);
}

void set_layout(ReductionLayout& l, const OpCall& c) {
  Order order;
  set_layout(l, c, order);
}

ReductionLayout direct_layout(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  ReductionLayout l;
  Order order;
  set_layout(l, c, order);
  l.base = x.data();
  if (l.direct) return l;
  l.copy = copied(*tensor_on(*x.storage, x.dtype, in_order(x.sizes, order),
                             in_order(x.strides, order), x.offset)
                       .impl(),
                  l.compute);
  l.direct = true;
  l.dtype = l.compute;
  l.base = l.copy.impl()->data();
  l.row_stride = l.cols;
  l.outer_stride = l.rows * std::max<int64_t>(1, l.cols);
  return l;
}

}  // namespace brrr
