// View rows. Attributes are those of the public function, with dims wrapped and sizes resolved, so
// that equal attributes mean equal views.
#include "ops/kinds/view.h"

#include <algorithm>

#include "core/check.h"
#include "ops/kinds/merge_dims.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

void alias_shape(OpCall& c) { view_meta(c); }

void permute_shape(OpCall& c) {
  OutMeta& m = view_meta(c);
  const TensorImpl& t = *c.in[0];
  const IntList dims = c.attrs.list();
  for (int i = 0; i < t.ndim; ++i) {
    m.sizes[i] = t.sizes[dims[i]];
    m.strides[i] = t.strides[dims[i]];
  }
}

// Finds the strides that view `t` as `sizes`; false if there are none: each run of old dims that
// merge into one must split into consecutive new dims.
bool view_strides(const TensorImpl& t, const IntList& sizes, IntList& strides) {
  strides = contiguous_strides(sizes);
  if (t.contiguous() || t.numel == 0) return true;
  IntList run = t.size_list(), own = t.stride_list();
  const int runs = merge_dims(t.ndim, run.begin(), 1, -1, [&](int) { return own.begin(); });
  int to = sizes.size() - 1;
  for (int r = runs - 1; r >= 0; --r) {
    int64_t left = run[r], step = own[r];
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
  OutMeta& m = view_meta(c);
  m.sizes = c.attrs.list();
  BRRR_CHECK(view_strides(*c.in[0], m.sizes, m.strides),
             "view: strides {} of {} do not allow sizes {} without a copy; use reshape",
             to_string(c.in[0]->stride_list()), describe(c.in[0]), to_string(m.sizes));
}

void expand_shape(OpCall& c) {
  OutMeta& m = view_meta(c);
  const TensorImpl& t = *c.in[0];
  m.sizes = c.attrs.list();
  m.strides = m.sizes;
  const int shift = m.sizes.size() - t.ndim;
  for (int i = 0; i < m.sizes.size(); ++i) {
    const bool stretched = i < shift || (t.sizes[i - shift] == 1 && m.sizes[i] != 1);
    m.strides[i] = stretched ? 0 : t.strides[i - shift];
  }
}

struct AsStridedAttrs {
  int64_t shift;  ///< Relative to the tensor's own offset: inputs of a recorded step may move.
};                // Sizes and strides follow.
constexpr int kMaxStridedDims = (kMaxAttrs - 1) / 2;

void as_strided_shape(OpCall& c) {
  OutMeta& m = view_meta(c);
  bool overflow = __builtin_add_overflow(m.offset, c.attrs.as<AsStridedAttrs>().shift, &m.offset);
  const int n = (c.attrs.n - 1) / 2;
  m.sizes = IntList(c.attrs.v + 1, static_cast<size_t>(n));
  m.strides = IntList(c.attrs.v + 1 + n, static_cast<size_t>(n));
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
  BRRR_CHECK(!overflow && (numel_of(m.sizes, c.op->name) == 0 || (m.offset >= 0 && last < held)),
             "as_strided: sizes {} with strides {} at {} reach beyond a storage of {} elements",
             to_string(m.sizes), to_string(m.strides), m.offset, held);
}

void alias_vjp(VjpCall& v) { v.gin[0] = v.gout[0]; }

void permute_vjp(VjpCall& v) {
  const IntList dims = v.attrs().list();
  IntList inverse = dims;
  for (int i = 0; i < dims.size(); ++i) inverse[static_cast<int>(dims[i])] = i;
  v.gin[0] = v.gout[0].permute(inverse);
}

void reshape_vjp(VjpCall& v) { v.gin[0] = v.gout[0].reshape(v.meta(0).sizes); }

void expand_vjp(VjpCall& v) { v.gin[0] = sum_to(v.gout[0], v.meta(0).sizes); }

const OpDef alias_row{"alias", "the same sizes and strides", view_spec(alias_shape, alias_vjp)};
const OpDef permute_row{"permute", "dims in another order", view_spec(permute_shape, permute_vjp)};
const OpDef view_row{"view", "other sizes over the same elements",
                     view_spec(view_shape, reshape_vjp)};
const OpDef expand_row{"expand", "dims of size 1 repeated without a copy",
                       view_spec(expand_shape, expand_vjp)};
const OpDef as_strided_row{"as_strided", "any strides over the storage",
                           view_spec(as_strided_shape, nullptr)};

// `sizes` with at most one -1 resolved; throws unless they hold as many elements as `t`.
IntList resolve_sizes(const char* op, const IntList& sizes, const Tensor& t) {
  IntList out = sizes;
  int unknown = -1;
  for (int i = 0; i < out.size(); ++i) {
    BRRR_CHECK(out[i] >= -1, "{}: size {} in {}; only one -1 is allowed", op, out[i],
               to_string(sizes));
    BRRR_CHECK(out[i] != -1 || unknown < 0, "{}: more than one -1 in {}", op, to_string(sizes));
    if (out[i] == -1) unknown = i;
  }
  if (unknown >= 0) {
    out[unknown] = 1;
    const int64_t known = numel_of(out, op);
    BRRR_CHECK(known > 0 && t.numel() % known == 0, "{}: {} cannot be shaped as {}", op,
               describe(t), to_string(sizes));
    out[unknown] = t.numel() / known;
  }
  const int64_t n = numel_of(out, op);
  BRRR_CHECK(n == t.numel(), "{}: {} has {} elements, sizes {} hold {}", op, describe(t), t.numel(),
             to_string(out), n);
  return out;
}

}  // namespace

Tensor alias(const Tensor& t) { return call(alias_row, {t}); }

Tensor as_strided(const Tensor& t, const IntList& sizes, const IntList& strides, int64_t offset) {
  BRRR_CHECK(sizes.size() == strides.size() && sizes.size() <= kMaxStridedDims,
             "as_strided: {} sizes and {} strides; give as many of both, at most {}", sizes.size(),
             strides.size(), kMaxStridedDims);
  BRRR_CHECK(!t.requires_grad() || !grad_enabled(),
             "as_strided: has no gradient; use slice, permute or expand");
  int64_t from = 0;
  BRRR_CHECK(!__builtin_sub_overflow(offset, t.storage_offset(), &from),
             "as_strided: the offset {} lies before the storage", offset);
  return call(as_strided_row, {t}, AsStridedAttrs{from}, sizes, strides);
}

Tensor Tensor::view(const IntList& sizes) const {
  return call(view_row, {*this}, resolve_sizes("view", sizes, *this));
}

Tensor Tensor::reshape(const IntList& wanted) const {
  const IntList sizes = resolve_sizes("reshape", wanted, *this);
  if (sizes == this->sizes()) return alias(*this);
  IntList strides;
  if (view_strides(*impl(), sizes, strides)) return call(view_row, {*this}, sizes);
  return sole_view(call(view_row, {contiguous()}, sizes));
}

Tensor Tensor::permute(const IntList& dims) const {
  BRRR_CHECK(dims.size() == dim(), "permute: {} dims given for {}; name each dim once", dims.size(),
             describe(*this));
  IntList order = dims;
  uint32_t seen = 0;
  for (int64_t& d : order) {
    d = wrap_dim("permute", d, static_cast<int>(dim()));
    BRRR_CHECK(!(seen >> d & 1), "permute: dim {} is named twice in {}", d, brrr::to_string(dims));
    seen |= 1u << d;
  }
  return call(permute_row, {*this}, order);
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  const int n = static_cast<int>(dim());
  IntList order;
  for (int i = 0; i < n; ++i) order.push_back(i);
  const int x = wrap_dim("transpose", a, n), y = wrap_dim("transpose", b, n);
  if (n > 0) std::swap(order[x], order[y]);
  return call(permute_row, {*this}, order);
}

Tensor Tensor::t() const {
  BRRR_CHECK(dim() <= 2, "t: takes a matrix, got {}; use transpose", describe(*this));
  return dim() < 2 ? alias(*this) : transpose(0, 1);
}

Tensor Tensor::expand(const IntList& wanted) const {
  const int shift = wanted.size() - static_cast<int>(dim());
  BRRR_CHECK(shift >= 0, "expand: {} has more dims than {}", describe(*this),
             brrr::to_string(wanted));
  IntList sizes = wanted;
  for (int i = 0; i < sizes.size(); ++i) {
    const int64_t own = i < shift ? 1 : impl()->sizes[i - shift];
    if (sizes[i] == -1 && i >= shift) sizes[i] = own;
    BRRR_CHECK(sizes[i] >= 0 && (own == 1 || own == sizes[i]),
               "expand: {} cannot become {}: dim {} is {}, only 1 stretches", describe(*this),
               brrr::to_string(wanted), i, own);
  }
  return call(expand_row, {*this}, sizes);
}

Tensor Tensor::unsqueeze(int64_t d) const {
  const int at = wrap_dim("unsqueeze", d, static_cast<int>(dim()) + 1);
  BRRR_CHECK(dim() < kMaxDims, "unsqueeze: {} already has {} dims, the maximum; flatten some",
             describe(*this), kMaxDims);
  IntList sizes = this->sizes();
  sizes.insert(at, 1);
  return call(view_row, {*this}, sizes);
}

Tensor Tensor::squeeze(int64_t d) const {
  const int at = wrap_dim("squeeze", d, static_cast<int>(dim()));
  if (dim() == 0 || size(at) != 1) return alias(*this);
  IntList sizes = this->sizes();
  sizes.erase(at);
  return call(view_row, {*this}, sizes);
}

Tensor Tensor::flatten(int64_t start, int64_t end) const {
  const int n = static_cast<int>(dim());
  const int a = wrap_dim("flatten", start, n), b = wrap_dim("flatten", end, n);
  BRRR_CHECK(a <= b, "flatten: start dim {} comes after end dim {}", start, end);
  if (n == 0) return reshape({1});
  if (a == b) return *this;  // As in PyTorch.
  IntList sizes = this->sizes();
  for (int i = a; i < b; ++i) {
    sizes[a] *= sizes[a + 1];
    sizes.erase(a + 1);
  }
  return reshape(sizes);
}

Tensor transpose(const Tensor& t, int64_t a, int64_t b) { return t.transpose(a, b); }
Tensor reshape(const Tensor& t, const IntList& sizes) { return t.reshape(sizes); }
Tensor permute(const Tensor& t, const IntList& dims) { return t.permute(dims); }
Tensor unsqueeze(const Tensor& t, int64_t dim) { return t.unsqueeze(dim); }
Tensor squeeze(const Tensor& t, int64_t dim) { return t.squeeze(dim); }
Tensor expand(const Tensor& t, const IntList& sizes) { return t.expand(sizes); }
Tensor flatten(const Tensor& t, int64_t start, int64_t end) { return t.flatten(start, end); }
Tensor sum_to(const Tensor& t, const IntList& sizes) {
  if (t.sizes() == sizes) return t;
  const int shift = static_cast<int>(t.dim()) - sizes.size();
  IntList dims;
  bool fits = shift >= 0;
  for (int i = 0; i < t.dim() && fits; ++i) {
    const int64_t to = i < shift ? 1 : sizes[i - shift];
    fits = to == 1 || to == t.size(i);
    if (i < shift || (to == 1 && t.size(i) != 1)) dims.push_back(i);
  }
  BRRR_CHECK(fits, "sum_to: {} cannot be summed to {}, which does not broadcast to it", describe(t),
             to_string(sizes));
  if (dims.size() == shift) return t.sum(dims);  // No view: a leaf can keep it as its gradient.
  return sole_view(t.sum(dims, /*keepdim=*/true).reshape(sizes));
}

}  // namespace brrr
