// Parts of a tensor along one dim: view rows, and the row that is their gradient.
#include <algorithm>

#include "core/check.h"
#include "ops/rows/factory_kernels.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/view.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// Words: dim, start, length, step.
void slice_shape(OpCall& c) {
  OutMeta& m = view_meta(c);
  const int64_t* w = c.attrs.v;
  const int d = static_cast<int>(w[0]);
  m.offset += w[1] * m.strides[d];
  m.sizes[d] = w[2];
  m.strides[d] *= w[3];
}

void select_shape(OpCall& c) {
  OutMeta& m = view_meta(c);
  const int d = static_cast<int>(c.attrs.v[0]);
  m.offset += c.attrs.v[1] * m.strides[d];
  m.sizes.erase(d);
  m.strides.erase(d);
}

// Zeros of the input's shape with g written where the view was. A row of its own, so that it is
// out of place and differentiable: words as the slice's, then the input's sizes.
Tensor slice_grad(const Tensor& g, const IntList& sizes, int64_t dim, int64_t from, int64_t step);

void slice_vjp(VjpCall& v) {
  const int64_t* w = v.attrs().v;
  v.gin[0] = slice_grad(v.gout[0], v.meta(0).sizes, w[0], w[1], w[3]);
}

void select_vjp(VjpCall& v) {
  const int64_t* w = v.attrs().v;
  v.gin[0] = slice_grad(v.gout[0].unsqueeze(w[0]), v.meta(0).sizes, w[0], w[1], 1);
}

const ViewOp slice_row{"slice", "every step-th element of a range of one dim", slice_shape,
                       slice_vjp};
const ViewOp select_row{"select", "one index of a dim, which goes away", select_shape, select_vjp};

struct SliceGradOp : OpDef {
  SliceGradOp() {
    name = "slice_backward";
    doc = "zeros with a tensor written into a slice of one dim";
    kind = OpKind::Library;
    gradient_row = true;
    grad_aliases = 1;
    infer = [](OpCall& c) {
      c.meta[0].dtype = c.in[0]->dtype;
      c.meta[0].device = c.in[0]->device;
      c.meta[0].sizes = attr_words(c.attrs, 3);
    };
    cpu = [](OpCall& c) {
      const TensorImpl& out = *c.out[0].impl();
      std::memset(out.data(), 0, static_cast<size_t>(out.numel) * itemsize(out.dtype));
      place(c);
    };
    scratch = no_scratch;
    cuda = [](OpCall& c) {
      zero_cuda(*c.out[0].impl());
      place(c);
    };
    vjp = [](VjpCall& v) {
      const int64_t* w = v.attrs().v;
      const int64_t length = v.meta(0).sizes[static_cast<int>(w[0])];
      v.gin[0] = view_call(slice_row, v.gout[0], w[0], w[1], length, w[2]);
    };
    register_row();
  }
  static void place(OpCall& c) {
    const TensorImpl& out = *c.out[0].impl();
    const int d = static_cast<int>(c.attrs.v[0]);
    IntList strides = out.stride_list();
    const int64_t offset = out.offset + c.attrs.v[1] * strides[d];
    strides[d] *= c.attrs.v[2];
    out.storage->refs.retain();
    auto part = Ref<TensorImpl>::adopt(
        new_impl(out.storage, out.dtype, c.in[0]->size_list(), strides, offset));
    copy_now(*part, *c.in[0]);
  }
};
const SliceGradOp slice_grad_row;

Tensor slice_grad(const Tensor& g, const IntList& sizes, int64_t dim, int64_t from, int64_t step) {
  TensorImpl* in[] = {g.impl()};
  OpCall c(slice_grad_row, in, 1);
  for (int64_t w : {dim, from, step}) c.attrs.push(w);
  for (int64_t s : sizes) c.attrs.push(s);
  dispatch(c);
  return std::move(c.out[0]);
}

}  // namespace

Tensor Tensor::slice(int64_t d, int64_t start, int64_t end, int64_t step) const {
  BRRR_CHECK(dim() > 0, "slice: a 0-d tensor has no dims");
  const int at = wrap_dim("slice", d, static_cast<int>(dim()));
  BRRR_CHECK(step > 0, "slice: step {} must be positive", step);
  const int64_t n = size(at);
  start = std::clamp<int64_t>(start < 0 ? start + n : start, 0, n);
  end = std::clamp<int64_t>(end < 0 ? end + n : end, start, n);
  const int64_t length = (end - start) / step + ((end - start) % step != 0);
  // A step beyond the end is never taken; as 1 its stride cannot overflow.
  return view_call(slice_row, *this, at, start, length, length > 1 ? step : 1);
}

Tensor Tensor::narrow(int64_t d, int64_t start, int64_t length) const {
  BRRR_CHECK(dim() > 0, "narrow: a 0-d tensor has no dims");
  const int at = wrap_dim("narrow", d, static_cast<int>(dim()));
  const int64_t n = size(at), first = start < 0 ? start + n : start;
  BRRR_CHECK(first >= 0 && length >= 0 && first <= n - length,
             "narrow: {} from {} on are out of range for dim {} of {}", length, start, at,
             describe(impl()));
  return view_call(slice_row, *this, at, first, length, 1);
}

Tensor Tensor::select(int64_t d, int64_t index) const {
  BRRR_CHECK(dim() > 0, "select: a 0-d tensor has no dims");
  const int at = wrap_dim("select", d, static_cast<int>(dim()));
  const int64_t n = size(at);
  BRRR_CHECK(index >= -n && index < n, "select: index {} is out of range for dim {} of {}", index,
             at, describe(impl()));
  return view_call(select_row, *this, at, index < 0 ? index + n : index);
}

std::vector<Tensor> Tensor::split(int64_t length, int64_t d) const {
  BRRR_CHECK(length > 0, "split: size {} must be positive", length);
  std::vector<Tensor> parts;
  const int64_t n = size(d);
  for (int64_t at = 0; at < n || at == 0; at += length) {
    parts.push_back(narrow(d, at, std::min(length, n - at)));
  }
  return parts;
}

std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t d) const {
  BRRR_CHECK(chunks > 0, "chunk: {} chunks asked; give at least 1", chunks);
  const int64_t n = size(d);
  if (n > 0) return split((n - 1) / chunks + 1, d);
  // There is no length that gives as many: all are empty, as PyTorch's.
  constexpr int64_t most = 1 << 20;
  BRRR_CHECK(chunks <= most, "chunk: {} pieces of dim {} of {}, which is empty; ask for at most {}",
             chunks, d, describe(impl()), most);
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < chunks; ++i) parts.push_back(narrow(d, 0, 0));
  return parts;
}

std::vector<Tensor> chunk(const Tensor& t, int64_t n, int64_t dim) {
  return t.chunk(n, dim);
}
std::vector<Tensor> split(const Tensor& t, int64_t size, int64_t dim) {
  return t.split(size, dim);
}

}  // namespace brrr
