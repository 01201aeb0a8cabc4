#include "ops/kinds/pointwise_iteration.h"

#include <algorithm>

#include "ops/kinds/merge_dims.h"

namespace brrr {

namespace {

void set_scalar(PointwiseOperand& o, const Attrs& a, int operand, int word) {
  const DType t = a.kind(operand) == 3 ? kFloat64 : kInt64;
  o = {.base = reinterpret_cast<char*>(&o.scalar),
       .dtype = t,
       .number = true,
       .stride = {},
       .scalar = a.v[word]};
}

void set_tensor(PointwiseOperand& o, const TensorImpl& t, int ndim) {
  o.base = t.data();
  o.number = false;
  o.dtype = t.dtype;
  const int shift = ndim - t.ndim;
  for (int d = 0; d < ndim; ++d) {
    o.stride[d] = d < shift || t.sizes[d - shift] == 1 ? 0 : t.strides[d - shift];
  }
}

// An operand whose elements are their positions in `shape`, which has ndim dims (see Integers).
void set_place(PointwiseOperand& o, int place, const TensorImpl& shape, int ndim) {
  o = {.base = nullptr, .dtype = kInt64, .number = false, .made = true, .stride = {}, .scalar = 0};
  if (place != kNumber) {
    o.stride[ndim - place] = 1;
    return;
  }
  const IntList strides = contiguous_strides(shape.size_list());
  std::copy(strides.begin(), strides.end(), o.stride);
}

bool same_layout(const TensorImpl& a, const TensorImpl& b) {
  return a.offset == b.offset && a.dtype == b.dtype && a.same_shape(b) &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
}

// The first output that may overlap the input in another layout, or null. Such an input is copied
// first, so that x[1:].copy_(x[:-1]) reads the original values.
const TensorImpl* overwriter(const OpCall& c, const TensorImpl& t) {
  for (int k = 0; c.into && k < c.n_out; ++k) {
    const TensorImpl& out = *c.out[k].impl();
    if (out.storage == t.storage && !same_layout(out, t) && !apart(out, t)) return &out;
  }
  return nullptr;
}

}  // namespace

int64_t pointwise_scratch(const OpCall& c) {
  int64_t bytes = 0;
  for (int i = 0; i < c.n_in; ++i) {
    const TensorImpl* t = c.in[i];
    if (t && overwriter(c, *t))
      bytes += scratch_for(t->numel, static_cast<int64_t>(itemsize(t->dtype)));
  }
  return bytes;
}

bool pointwise_iteration(const OpCall& c, Iteration& it) {
  const TensorImpl& first = *c.out[0].impl();
  if (first.numel == 0) return false;
  it.info = c.op->pointwise;
  it.n_out = c.n_out;
  it.n_in = c.n_in + it.info->n_made;
  it.numel = first.numel;
  it.ndim = std::max<int>(first.ndim, 1);
  it.size[0] = 1;
  std::copy_n(first.sizes, first.ndim, it.size);
  it.compute = pointwise_compute_dtype(c);
  for (int k = 0; k < c.n_out; ++k) set_tensor(it.operands[k], *c.out[k].impl(), it.ndim);
  for (int i = 0, word = 0; i < c.n_in; ++i) {
    PointwiseOperand& o = it.operands[c.n_out + i];
    const TensorImpl* t = c.in[i];
    if (!t) {
      set_scalar(o, c.attrs, i, word++);
      continue;
    }
    if (overwriter(c, *t)) {
      it.copies[i] = copied(*t, t->dtype);
      t = it.copies[i].impl();
    }
    set_tensor(o, *t, it.ndim);
  }
  for (int k = 0; k < it.info->n_made; ++k) {
    set_place(it.operands[c.n_out + c.n_in + k], it.info->place[k], first, it.ndim);
  }
  it.ndim =
      merge_dims(it.ndim, it.size, it.count(), 0, [&](int k) { return it.operands[k].stride; });
  return true;
}

}  // namespace brrr
