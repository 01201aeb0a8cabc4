// View rows. Attributes are those of the public function, with dims wrapped and sizes resolved, so
// that equal words mean equal views.
#include "ops/view.h"

#include <algorithm>

#include "core/check.h"
#include "ops/factory_kernels.h"
#include "ops/pointwise.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// A call of a view row on one tensor.
template <class... Words> Tensor view_call(const OpDef& op, const Tensor& t, Words... words) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined", op.name);
  TensorImpl* in[] = {t.impl()};
  OpCall c(op, in, 1);
  (c.attrs.push(static_cast<int64_t>(words)), ...);
  dispatch(c);
  return std::move(c.out[0]);
}

Tensor view_call(const OpDef& op, const Tensor& t, const IntList& words) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined", op.name);
  TensorImpl* in[] = {t.impl()};
  OpCall c(op, in, 1);
  for (int64_t w : words) c.attrs.push(w);
  dispatch(c);
  return std::move(c.out[0]);
}

OutMeta& start(OpCall& c) {
  const TensorImpl& t = *c.in[0];
  OutMeta& m = c.meta[0];
  m.dtype = t.dtype;
  m.device = t.device;
  m.alias = 0;
  m.sizes = t.size_list();
  m.strides = t.stride_list();
  m.offset = t.offset;
  return m;
}

IntList words(const Attrs& a, int begin = 0) {
  return {a.v + begin, static_cast<size_t>(a.n - begin)};
}

// --- shape rules
// ------------------------------------------------------------------------------------

void alias_shape(OpCall& c) {
  start(c);
}

void permute_shape(OpCall& c) {
  OutMeta& m = start(c);
  const TensorImpl& t = *c.in[0];
  for (int i = 0; i < t.ndim; ++i) {
    m.sizes[i] = t.sizes[c.attrs.v[i]];
    m.strides[i] = t.strides[c.attrs.v[i]];
  }
}

// The strides that view `t` as `sizes`, if there are any (a run of old dims that is contiguous in
// itself must be cut into a run of new dims).
bool view_strides(const TensorImpl& t, const IntList& sizes, IntList& strides) {
  strides = contiguous_strides(sizes);
  if (t.contiguous() || t.numel == 0) return true;
  int to = sizes.size() - 1;
  for (int d = t.ndim - 1; d >= 0;) {
    int64_t run = t.sizes[d], step = t.strides[d];
    int first = d;
    while (first > 0 &&
           (t.sizes[first - 1] == 1 || t.strides[first - 1] == t.strides[first] * t.sizes[first])) {
      if (t.sizes[first - 1] == 1) break;
      run *= t.sizes[--first];
    }
    d = first - 1;
    if (run == 1) continue;
    int64_t left = run;
    while (to >= 0 && (left > 1 || sizes[to] == 1)) {
      if (left % sizes[to]) return false;
      strides[to] = step;
      step *= sizes[to];
      left /= sizes[to];
      --to;
    }
    if (left != 1) return false;
  }
  return true;
}

void view_shape(OpCall& c) {
  OutMeta& m = start(c);
  m.sizes = words(c.attrs);
  BRRR_CHECK(view_strides(*c.in[0], m.sizes, m.strides),
             "view: strides {} of {} do not allow sizes {} without a copy; use reshape",
             to_string(c.in[0]->stride_list()), describe(c.in[0]), to_string(m.sizes));
}

void expand_shape(OpCall& c) {
  OutMeta& m = start(c);
  const TensorImpl& t = *c.in[0];
  m.sizes = words(c.attrs);
  m.strides = m.sizes;
  const int shift = m.sizes.size() - t.ndim;
  for (int i = 0; i < m.sizes.size(); ++i) {
    const bool stretched = i < shift || (t.sizes[i - shift] == 1 && m.sizes[i] != 1);
    m.strides[i] = stretched ? 0 : t.strides[i - shift];
  }
}

// Words: dim, start, length, step.
void slice_shape(OpCall& c) {
  OutMeta& m = start(c);
  const int64_t* w = c.attrs.v;
  const int d = static_cast<int>(w[0]);
  m.offset += w[1] * m.strides[d];
  m.sizes[d] = w[2];
  m.strides[d] *= w[3];
}

void select_shape(OpCall& c) {
  OutMeta& m = start(c);
  const int d = static_cast<int>(c.attrs.v[0]);
  m.offset += c.attrs.v[1] * m.strides[d];
  m.sizes.erase(d);
  m.strides.erase(d);
}

void unsqueeze_shape(OpCall& c) {
  OutMeta& m = start(c);
  const int d = static_cast<int>(c.attrs.v[0]);
  const int64_t stride = d < m.sizes.size() ? m.sizes[d] * m.strides[d] : 1;
  m.sizes.insert(d, 1);
  m.strides.insert(d, stride);
}

void squeeze_shape(OpCall& c) {
  OutMeta& m = start(c);
  const int d = static_cast<int>(c.attrs.v[0]);
  m.sizes.erase(d);
  m.strides.erase(d);
}

// Words: ndim, offset from the tensor's own (a recorded step's inputs move), sizes, strides.
void as_strided_shape(OpCall& c) {
  OutMeta& m = start(c);
  const int n = static_cast<int>(c.attrs.v[0]);
  bool overflow = __builtin_add_overflow(m.offset, c.attrs.v[1], &m.offset);
  m.sizes = IntList(c.attrs.v + 2, static_cast<size_t>(n));
  m.strides = IntList(c.attrs.v + 2 + n, static_cast<size_t>(n));
  int64_t last = m.offset;
  for (int i = 0; i < n; ++i) {
    BRRR_CHECK(m.strides[i] >= 0, "as_strided: strides must not be negative: {}",
               to_string(m.strides));
    int64_t reach;
    overflow |=
        __builtin_mul_overflow(std::max<int64_t>(m.sizes[i], 1) - 1, m.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last);
  }
  const int64_t held = static_cast<int64_t>(c.in[0]->storage->bytes / itemsize(m.dtype));
  BRRR_CHECK(!overflow && (numel_of(m.sizes) == 0 || (m.offset >= 0 && last < held)),
             "as_strided: sizes {} with strides {} at {} reach beyond a storage of {} elements",
             to_string(m.sizes), to_string(m.strides), m.offset, held);
}

// --- gradients
// --------------------------------------------------------------------------------------

void alias_vjp(VjpCall& v) {
  v.gin[0] = v.gout[0];
}

void permute_vjp(VjpCall& v) {
  IntList inverse = words(v.attrs());
  for (int i = 0; i < v.attrs().n; ++i) inverse[static_cast<int>(v.attrs().v[i])] = i;
  v.gin[0] = v.gout[0].permute(inverse);
}

void reshape_vjp(VjpCall& v) {
  v.gin[0] = v.gout[0].reshape(v.meta(0).sizes);
}

void expand_vjp(VjpCall& v) {
  v.gin[0] = sum_to(v.gout[0], v.meta(0).sizes);
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

// --- rows
// -------------------------------------------------------------------------------------------

const ViewOp alias_row{"alias", "the same view again", alias_shape, alias_vjp};
const ViewOp permute_row{"permute", "dims in another order", permute_shape, permute_vjp};
const ViewOp view_row{"view", "other sizes over the same elements", view_shape, reshape_vjp};
const ViewOp expand_row{"expand", "dims of size 1 repeated without a copy", expand_shape,
                        expand_vjp};
const ViewOp slice_row{"slice", "every step-th element of a range of one dim", slice_shape,
                       slice_vjp};
const ViewOp select_row{"select", "one index of a dim, which goes away", select_shape, select_vjp};
const ViewOp unsqueeze_row{"unsqueeze", "a new dim of size 1", unsqueeze_shape, reshape_vjp};
const ViewOp squeeze_row{"squeeze", "a dim of size 1 removed", squeeze_shape, reshape_vjp};
const ViewOp as_strided_row{"as_strided", "any strides over the storage", as_strided_shape,
                            nullptr};

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
      c.meta[0].sizes = words(c.attrs, 3);
    };
    cpu = [](OpCall& c) {
      const TensorImpl& out = *c.out[0].impl();
      std::memset(out.data(), 0, static_cast<size_t>(out.numel) * itemsize(out.dtype));
      place(c);
    };
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

// Sizes with at most one -1 resolved so that they hold `n` elements.
IntList resolve_sizes(const char* op, const IntList& sizes, const Tensor& t) {
  IntList out = sizes;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < out.size(); ++i) {
    BRRR_CHECK(out[i] >= -1, "{}: size {} in {}; only one -1 is allowed", op, out[i],
               to_string(sizes));
    BRRR_CHECK(out[i] != -1 || unknown < 0, "{}: more than one -1 in {}", op, to_string(sizes));
    if (out[i] == -1)
      unknown = i;
    else
      known *= out[i];
  }
  if (unknown >= 0) {
    BRRR_CHECK(known > 0 && t.numel() % known == 0, "{}: {} cannot be shaped as {}", op,
               describe(t.impl()), to_string(sizes));
    out[unknown] = t.numel() / known;
  }
  BRRR_CHECK(numel_of(out) == t.numel(), "{}: {} has {} elements, sizes {} hold {}", op,
             describe(t.impl()), t.numel(), to_string(out), numel_of(out));
  return out;
}

}  // namespace

// --- public
// -----------------------------------------------------------------------------------------

Tensor alias(const Tensor& t) {
  return view_call(alias_row, t);
}

Tensor as_strided(const Tensor& t, const IntList& sizes, const IntList& strides, int64_t offset) {
  BRRR_CHECK(sizes.size() == strides.size() && sizes.size() <= 5,
             "as_strided: {} sizes and {} strides; give as many of both, at most 5", sizes.size(),
             strides.size());
  BRRR_CHECK(!t.requires_grad() || !grad_enabled(),
             "as_strided: has no gradient; use slice, permute or expand");
  IntList all;
  TensorImpl* in[] = {t.impl()};
  OpCall c(as_strided_row, in, 1);
  c.attrs.push(static_cast<int64_t>(sizes.size()));
  c.attrs.push(offset - t.impl()->offset);
  for (int64_t s : sizes) c.attrs.push(s);
  for (int64_t s : strides) c.attrs.push(s);
  dispatch(c);
  return std::move(c.out[0]);
}

Tensor Tensor::view(const IntList& sizes) const {
  return view_call(view_row, *this, resolve_sizes("view", sizes, *this));
}

Tensor Tensor::reshape(const IntList& wanted) const {
  const IntList sizes = resolve_sizes("reshape", wanted, *this);
  if (sizes == this->sizes()) return *this;
  IntList strides;
  const Tensor source = view_strides(*impl(), sizes, strides) ? *this : contiguous();
  return view_call(view_row, source, sizes);
}

Tensor Tensor::permute(const IntList& dims) const {
  BRRR_CHECK(dims.size() == dim(), "permute: {} dims given for {}; name each dim once", dims.size(),
             describe(impl()));
  IntList order = dims;
  uint32_t seen = 0;
  for (int64_t& d : order) {
    d = wrap_dim("permute", d, static_cast<int>(dim()));
    BRRR_CHECK(!(seen >> d & 1), "permute: dim {} is named twice in {}", d, brrr::to_string(dims));
    seen |= 1u << d;
  }
  return view_call(permute_row, *this, order);
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  const int n = static_cast<int>(dim());
  IntList order;
  for (int i = 0; i < n; ++i) order.push_back(i);
  const int x = wrap_dim("transpose", a, n), y = wrap_dim("transpose", b, n);
  if (n > 0) std::swap(order[x], order[y]);
  return view_call(permute_row, *this, order);
}

Tensor Tensor::t() const {
  BRRR_CHECK(dim() <= 2, "t: takes a matrix, got {}; use transpose", describe(impl()));
  return dim() < 2 ? *this : transpose(0, 1);
}

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
  BRRR_CHECK(start >= 0 && length >= 0 && start <= size(at) - length,
             "narrow: [{}, {}) is out of range for dim {} of {}", start, start + length, at,
             describe(impl()));
  return view_call(slice_row, *this, at, start, length, 1);
}

Tensor Tensor::select(int64_t d, int64_t index) const {
  BRRR_CHECK(dim() > 0, "select: a 0-d tensor has no dims");
  const int at = wrap_dim("select", d, static_cast<int>(dim()));
  const int64_t n = size(at);
  BRRR_CHECK(index >= -n && index < n, "select: index {} is out of range for dim {} of {}", index,
             at, describe(impl()));
  return view_call(select_row, *this, at, index < 0 ? index + n : index);
}

Tensor Tensor::expand(const IntList& wanted) const {
  const int shift = wanted.size() - static_cast<int>(dim());
  BRRR_CHECK(shift >= 0, "expand: {} has more dims than {}", describe(impl()),
             brrr::to_string(wanted));
  IntList sizes = wanted;
  for (int i = 0; i < sizes.size(); ++i) {
    const int64_t own = i < shift ? 1 : impl()->sizes[i - shift];
    if (sizes[i] == -1 && i >= shift) sizes[i] = own;
    BRRR_CHECK(sizes[i] >= 0 && (own == 1 || own == sizes[i]),
               "expand: {} cannot become {}: dim {} is {}, only 1 stretches", describe(impl()),
               brrr::to_string(wanted), i, own);
  }
  return view_call(expand_row, *this, sizes);
}

Tensor Tensor::unsqueeze(int64_t d) const {
  return view_call(unsqueeze_row, *this, wrap_dim("unsqueeze", d, static_cast<int>(dim()) + 1));
}

Tensor Tensor::squeeze(int64_t d) const {
  const int at = wrap_dim("squeeze", d, static_cast<int>(dim()));
  if (dim() == 0 || size(at) != 1) return *this;
  return view_call(squeeze_row, *this, at);
}

Tensor Tensor::flatten(int64_t start, int64_t end) const {
  const int n = static_cast<int>(dim());
  const int a = wrap_dim("flatten", start, n), b = wrap_dim("flatten", end, n);
  BRRR_CHECK(a <= b, "flatten: start dim {} comes after end dim {}", start, end);
  if (n == 0) return reshape({1});
  IntList sizes;
  int64_t run = 1;
  for (int i = 0; i < n; ++i) {
    if (i < a || i > b)
      sizes.push_back(size(i));
    else
      run *= size(i);
    if (i == b) sizes.push_back(run);
  }
  return reshape(sizes);
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
  return split(std::max<int64_t>(1, (size(d) + chunks - 1) / chunks), d);
}

Tensor transpose(const Tensor& t, int64_t a, int64_t b) {
  return t.transpose(a, b);
}
Tensor reshape(const Tensor& t, const IntList& sizes) {
  return t.reshape(sizes);
}
Tensor permute(const Tensor& t, const IntList& dims) {
  return t.permute(dims);
}
Tensor unsqueeze(const Tensor& t, int64_t dim) {
  return t.unsqueeze(dim);
}
Tensor squeeze(const Tensor& t, int64_t dim) {
  return t.squeeze(dim);
}
Tensor expand(const Tensor& t, const IntList& sizes) {
  return t.expand(sizes);
}
Tensor flatten(const Tensor& t, int64_t start, int64_t end) {
  return t.flatten(start, end);
}
std::vector<Tensor> chunk(const Tensor& t, int64_t n, int64_t dim) {
  return t.chunk(n, dim);
}
std::vector<Tensor> split(const Tensor& t, int64_t size, int64_t dim) {
  return t.split(size, dim);
}

Tensor sum_to(const Tensor& t, const IntList& sizes) {
  if (t.sizes() == sizes) return t;
  const int shift = static_cast<int>(t.dim()) - sizes.size();
  IntList dims;
  for (int i = 0; i < t.dim(); ++i) {
    if (i < shift || (sizes[i - shift] == 1 && t.size(i) != 1)) dims.push_back(i);
  }
  const Tensor s = dims.empty() ? t : t.sum(dims, /*keepdim=*/true);
  return s.sizes() == sizes ? s : s.reshape(sizes);
}

}  // namespace brrr
