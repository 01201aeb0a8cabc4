// Parts of a tensor along one dim: view rows, and the row that is their gradient.
#include <algorithm>

#include "core/check.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/view.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

struct SliceAttrs {
  int64_t dim, start, length, step;
};

void slice_shape(OpCall& c) {
  OutMeta& m = view_meta(c);
  const auto a = c.attrs.as<SliceAttrs>();
  const int d = static_cast<int>(a.dim);
  m.offset += a.start * m.strides[d];
  m.sizes[d] = a.length;
  m.strides[d] *= a.step;
}

// The only index of a slice, whose dim goes away.
void select_shape(OpCall& c) {
  slice_shape(c);
  const int d = static_cast<int>(c.attrs.as<SliceAttrs>().dim);
  c.meta[0].sizes.erase(d);
  c.meta[0].strides.erase(d);
}

void slice_vjp(VjpCall& v);
void select_vjp(VjpCall& v);

const OpDef slice_row{"slice", "every step-th element of a range of one dim",
                      view_spec(slice_shape, slice_vjp)};
const OpDef select_row{"select", "one index of a dim, which goes away",
                       view_spec(select_shape, select_vjp)};

// --- the gradient: zeros of the input's shape with g written where the view was. A row of its own,
// so that it is out of place and differentiable. The input's sizes follow the slice's words.

void slice_grad_infer(OpCall& c) { set_meta(c, 0, c.in[0]->dtype, c.attrs.after<SliceAttrs>()); }

void write_slice(OpCall& c) {
  const TensorImpl& out = *c.out[0].impl();
  const auto a = c.attrs.as<SliceAttrs>();
  fill_zero(out);
  copy_into_part(out, *c.in[0], static_cast<int>(a.dim), a.start, a.step);
}

int slice_grad_cut(const OpCall& c, int, int64_t) {
  return c.attrs.as<SliceAttrs>().dim > 0 ? 0 : kUncut;
}

void slice_grad_vjp(VjpCall& v) {
  v.gin[0] = call(slice_row, {v.gout[0]}, v.attrs().as<SliceAttrs>());
}

const OpDef slice_grad_row{"slice_backward",
                           "zeros with a tensor written into a slice of one dim",
                           {.infer = slice_grad_infer,
                            .kernel = {{write_slice}, {write_slice}},
                            .scratch = no_scratch,
                            .cut = slice_grad_cut,
                            .vjp = slice_grad_vjp,
                            .grad_aliases = 1,
                            .gradient_row = true}};

void grad_of_slice(VjpCall& v, const Tensor& g) {
  v.gin[0] = call(slice_grad_row, {g}, v.attrs().as<SliceAttrs>(), v.meta(0).sizes);
}
void slice_vjp(VjpCall& v) { grad_of_slice(v, v.gout[0]); }
void select_vjp(VjpCall& v) {
  grad_of_slice(v, v.gout[0].unsqueeze(v.attrs().as<SliceAttrs>().dim));
}

int cut_dim(const char* op, const Tensor& t, int64_t dim) {
  BRRR_CHECK(t.dim() > 0, "{}: a 0-d tensor has no dims", op);
  return wrap_dim(op, dim, static_cast<int>(t.dim()));
}

}  // namespace

Tensor Tensor::slice(int64_t d, int64_t start, int64_t end, int64_t step) const {
  const int at = cut_dim("slice", *this, d);
  BRRR_CHECK(step > 0, "slice: step {} must be positive", step);
  const int64_t n = size(at);
  start = std::clamp<int64_t>(start < 0 ? start + n : start, 0, n);
  end = std::clamp<int64_t>(end < 0 ? end + n : end, start, n);
  const int64_t length = (end - start) / step + ((end - start) % step != 0);
  // A step beyond the end is never taken; as 1 its stride cannot overflow.
  return call(slice_row, {*this}, SliceAttrs{at, start, length, length > 1 ? step : 1});
}

Tensor Tensor::narrow(int64_t d, int64_t start, int64_t length) const {
  const int at = cut_dim("narrow", *this, d);
  const int64_t n = size(at), first = start < 0 ? start + n : start;
  BRRR_CHECK(first >= 0 && length >= 0 && first <= n - length,
             "narrow: {} from {} on are out of range for dim {} of {}", length, start, at,
             describe(impl()));
  return call(slice_row, {*this}, SliceAttrs{at, first, length, 1});
}

Tensor Tensor::select(int64_t d, int64_t index) const {
  const int at = cut_dim("select", *this, d);
  const int64_t n = size(at);
  BRRR_CHECK(index >= -n && index < n, "select: index {} is out of range for dim {} of {}", index,
             at, describe(impl()));
  return call(select_row, {*this}, SliceAttrs{at, index < 0 ? index + n : index, 1, 1});
}

}  // namespace brrr
