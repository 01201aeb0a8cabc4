#include "ops/kinds/reduction_layout.h"

#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

// Neighbouring dims that are both reduced or both kept, merged.
struct Runs {
  int n = 0;
  int64_t size[kMaxDims], stride[kMaxDims];
  bool reduced[kMaxDims];
  bool direct = true;  // Each run has one stride, the innermost run stride 1.
};

Runs find_runs(const TensorImpl& x, int64_t mask) {
  Runs r;
  for (int d = 0; d < x.ndim; ++d) {
    if (x.sizes[d] == 1) continue;
    const bool reduced = mask >> d & 1;
    const int last = r.n - 1;
    if (r.n && r.reduced[last] == reduced) {
      r.direct &= r.stride[last] == x.strides[d] * x.sizes[d];
      r.size[last] *= x.sizes[d];
      r.stride[last] = x.strides[d];
    } else {
      r.size[r.n] = x.sizes[d];
      r.stride[r.n] = x.strides[d];
      r.reduced[r.n++] = reduced;
    }
    r.direct &= x.strides[d] >= 0;
  }
  r.direct &= r.n == 0 || r.stride[r.n - 1] == 1;
  return r;
}

// x in the compute type with the reduced dims last, or where `permute` is false in its own order;
// its layout alone unless `filled`.
Tensor gathered(const TensorImpl& x, int64_t& mask, bool permute, DType compute, bool filled) {
  IntList sizes, strides;
  int64_t moved = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int d = 0; d < x.ndim; ++d) {
      const bool reduced = mask >> d & 1;
      if (permute ? reduced != (pass == 1) : pass == 1) continue;
      if (reduced) moved |= int64_t{1} << sizes.size();
      sizes.push_back(x.sizes[d]);
      strides.push_back(x.strides[d]);
    }
  }
  mask = moved;
  if (!filled) return tensor_on(*x.storage, compute, sizes, contiguous_strides(sizes), 0);
  return copied(*tensor_on(*x.storage, x.dtype, sizes, strides, x.offset).impl(), compute);
}

// Rows: (kept, reduced). Columns: one reduced run before a last kept one.
bool is_rows(const Runs& r) { return r.n > 0 && r.n <= 2 && r.reduced[r.n - 1]; }
bool is_columns(const Runs& r) { return r.n == 0 || (!r.reduced[r.n - 1] && r.n <= 3); }

bool is_shaped(const Runs& r) { return is_rows(r) || is_columns(r); }
bool is_gathered(const Runs& r) { return !is_shaped(r) || !r.direct; }

void set_extents(ReductionLayout& l, const TensorImpl& x, const Runs& r) {
  l.dtype = x.dtype;
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

}  // namespace

ReductionLayout reduction_layout(const OpCall& c, bool filled) {
  const TensorImpl* x = c.in[0];
  ReductionLayout l;
  l.compute = reduction_compute_dtype(*c.op, *x);
  l.count = x->numel / c.out[0].numel();
  if (x->numel == 0) return l;
  int64_t mask = c.attrs.as<ReductionAttrs>().mask;
  Runs runs = find_runs(*x, mask);
  if (is_gathered(runs)) {
    l.copy = gathered(*x, mask, !is_shaped(runs), l.compute, filled);
    x = l.copy.impl();
    runs = find_runs(*x, mask);
  }
  set_extents(l, *x, runs);
  if (filled) l.base = x->data();
  return l;
}

}  // namespace brrr
