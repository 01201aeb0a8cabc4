// Parts of a tensor along one dim, one of them or all: view rows and their gradients.
#include <algorithm>

#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/view.h"
#include "ops/rows/library_kernels.h"
#include "ops/view_ops.h"

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

// kShape for parts of length 1, with their dim dropped.
template <void (*kShape)(OpCall&)> void without_dim(OpCall& c) {
  kShape(c);
  for (int k = 0; k < c.n_out; ++k) {
    c.meta[k].sizes.erase(dim_of(c.attrs));
    c.meta[k].strides.erase(dim_of(c.attrs));
  }
}

void slice_vjp(VjpCall& v);
void select_vjp(VjpCall& v);

const OpDef slice_row{"slice", "every step-th element of a range of one dim",
                      view_spec(slice_shape, slice_vjp)};
const OpDef select_row{"select", "one index along a dim, which is dropped",
                       view_spec(without_dim<slice_shape>, select_vjp)};

// --- the gradient: zeros of the input's shape with g written where the view was. A row of its own,
// so that it is out of place and differentiable. The input's sizes follow SliceAttrs.

void slice_grad_infer(OpCall& c) { set_meta(c, 0, c.in[0]->dtype, c.attrs.after<SliceAttrs>()); }

void write_slice(OpCall& c) {
  const TensorImpl& out = *c.out[0].impl();
  const auto a = c.attrs.as<SliceAttrs>();
  fill_zero(out);
  copy_into_part(out, *c.in[0], static_cast<int>(a.dim), a.start, a.step);
}

void slice_grad_vjp(VjpCall& v) {
  v.gin[0] = call(slice_row, {v.gout[0]}, v.attrs().as<SliceAttrs>());
}

const OpDef slice_grad_row{"slice_backward",
                           "zeros with a tensor written into a slice of one dim",
                           {.infer = slice_grad_infer,
                            .kernel = {{write_slice}, {write_slice}},
                            .scratch = no_scratch,
                            .cut = cut_outside_dim,
                            .vjp = slice_grad_vjp,
                            .grad_aliases = 1,
                            .gradient_row = true}};

void grad_of_slice(VjpCall& v, const Tensor& g) {
  v.gin[0] = call(slice_grad_row, {g}, v.attrs().as<SliceAttrs>(), v.meta(0).sizes);
}
void slice_vjp(VjpCall& v) { grad_of_slice(v, v.gout[0]); }
void select_vjp(VjpCall& v) { grad_of_slice(v, v.gout[0].unsqueeze(dim_of(v.attrs()))); }

// --- all parts -----------------------------------------------------------------------------------

struct SplitAttrs {
  int64_t dim, length;
  /// Changes `sizes` from those of the whole to those of part k.
  void cut(IntList& sizes, int64_t k) const {
    int64_t& n = sizes[static_cast<int>(dim)];
    n = std::min(length, n - k * length);
  }
};

void split_shape(OpCall& c) {
  const auto a = c.attrs.as<SplitAttrs>();
  for (int k = 0; k < c.n_out; ++k) {
    OutMeta& m = view_meta(c, k);
    m.offset += k * a.length * m.strides[static_cast<int>(a.dim)];
    a.cut(m.sizes, k);
  }
}

// The gradients of all parts, to be concatenated: one pass over memory, whereas the gradients of
// separate selects or slices would each write a tensor of the full size and then be added up.
std::vector<Tensor> gradients_of_parts(const VjpCall& v, bool unbound) {
  const auto a = v.attrs().as<SplitAttrs>();
  const Meta& m = v.meta(0);
  std::vector<Tensor> parts(v.gout, v.gout + v.node.n_out);
  for (size_t k = 0; k < parts.size(); ++k) {
    IntList sizes = m.sizes;
    a.cut(sizes, static_cast<int64_t>(k));
    if (unbound) sizes.erase(static_cast<int>(a.dim));
    if (!parts[k].defined()) parts[k] = zeros(sizes, m.dtype, m.device);
  }
  return parts;
}

void split_vjp(VjpCall& v) { v.gin[0] = cat(gradients_of_parts(v, false), dim_of(v.attrs())); }

void unbind_vjp(VjpCall& v) {
  const int d = dim_of(v.attrs());
  const IntList& whole = v.meta(0).sizes;
  const auto parts = gradients_of_parts(v, true);
  v.gin[0] = d + 1 < whole.size() ? cat(parts, d).view(whole) : stack(parts, d);
}

const OpDef unbind_row{"unbind", "the slices along a dim, which is dropped",
                       view_spec(without_dim<split_shape>, unbind_vjp)};
const OpDef split_row{"split", "parts of equal length along a dim; the last may be shorter",
                      view_spec(split_shape, split_vjp)};

// Calls a row with `count` outputs and returns them.
std::vector<Tensor> outputs_of(int64_t count, const OpDef& row, const Tensor& t, SplitAttrs attrs) {
  const Outputs all = call_outputs(row, static_cast<int>(count), {t}, attrs);
  return {all.begin(), all.begin() + count};
}

int dim_to_part(const char* op, const Tensor& t, int64_t dim) {
  BRRR_CHECK(t.defined() && t.dim() > 0, "{}: needs a tensor of at least one dim, got {}", op,
             describe(t));
  return wrap_dim(op, dim, static_cast<int>(t.dim()));
}

}  // namespace

Tensor Tensor::slice(int64_t d, int64_t start, int64_t end, int64_t step) const {
  const int at = dim_to_part("slice", *this, d);
  BRRR_CHECK(step > 0, "slice: step {} must be positive", step);
  const int64_t n = size(at);
  start = std::clamp<int64_t>(start < 0 ? start + n : start, 0, n);
  end = std::clamp<int64_t>(end < 0 ? end + n : end, start, n);
  const int64_t length = (end - start) / step + ((end - start) % step != 0);
  // With at most one element the step is never taken; a step of 1 cannot overflow the stride.
  return call(slice_row, {*this}, SliceAttrs{at, start, length, length > 1 ? step : 1});
}

Tensor Tensor::narrow(int64_t d, int64_t start, int64_t length) const {
  const int at = dim_to_part("narrow", *this, d);
  const int64_t n = size(at), first = start < 0 ? start + n : start;
  BRRR_CHECK(first >= 0 && length >= 0 && first <= n - length,
             "narrow: length {} from start {} is out of range for dim {} of {}", length, start, at,
             describe(*this));
  return call(slice_row, {*this}, SliceAttrs{at, first, length, 1});
}

Tensor Tensor::select(int64_t d, int64_t index) const {
  const int at = dim_to_part("select", *this, d);
  const int64_t n = size(at);
  BRRR_CHECK(index >= -n && index < n, "select: index {} is out of range for dim {} of {}", index,
             at, describe(*this));
  return call(select_row, {*this}, SliceAttrs{at, index < 0 ? index + n : index, 1, 1});
}

std::vector<Tensor> unbind(const Tensor& t, int64_t dim) {
  const int d = dim_to_part("unbind", t, dim);
  const int64_t n = t.size(d);
  std::vector<Tensor> parts;
  if (n == 0 || n > kMaxOutputs) {
    for (int64_t i = 0; i < n; ++i) parts.push_back(t.select(d, i));
    return parts;
  }
  return outputs_of(n, unbind_row, t, SplitAttrs{d, 1});
}

std::vector<Tensor> Tensor::split(int64_t length, int64_t d) const {
  BRRR_CHECK(length > 0, "split: size {} must be positive", length);
  const int dim = dim_to_part("split", *this, d);
  const int64_t n = size(dim), count = n / length + (n % length != 0);
  if (count > 1 && count <= kMaxOutputs) {
    return outputs_of(count, split_row, *this, SplitAttrs{dim, length});
  }
  std::vector<Tensor> parts;
  for (int64_t at = 0; at < n || at == 0; at += length) {
    parts.push_back(narrow(d, at, std::min(length, n - at)));
  }
  return parts;
}

std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t d) const {
  BRRR_CHECK(chunks > 0, "chunk: chunks is {}; give at least 1", chunks);
  const int64_t n = size(dim_to_part("chunk", *this, d));
  if (n > 0) return split((n - 1) / chunks + 1, d);
  // No part length gives this many chunks of an empty dim: all are empty, as in PyTorch.
  constexpr int64_t most = 1 << 20;
  BRRR_CHECK(chunks <= most, "chunk: {} pieces of dim {} of {}, which is empty; ask for at most {}",
             chunks, d, describe(*this), most);
  std::vector<Tensor> parts(static_cast<size_t>(chunks));
  for (Tensor& part : parts) part = narrow(d, 0, 0);
  return parts;
}

std::vector<Tensor> chunk(const Tensor& t, int64_t n, int64_t dim) { return t.chunk(n, dim); }
std::vector<Tensor> split(const Tensor& t, int64_t size, int64_t dim) { return t.split(size, dim); }

}  // namespace brrr
