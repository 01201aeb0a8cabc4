// Taking a tensor apart along a dim: rows with as many outputs as a call may have.
#include <algorithm>

#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/kinds/view.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

struct SplitAttrs {
  int64_t dim, length;
  /// Makes of the whole's `sizes` those of part k.
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

// Parts of length 1, whose dim goes away.
void unbind_shape(OpCall& c) {
  split_shape(c);
  const int d = dim_of(c.attrs);
  for (int k = 0; k < c.n_out; ++k) {
    c.meta[k].sizes.erase(d);
    c.meta[k].strides.erase(d);
  }
}

// All parts' gradients, to be put side by side: one pass over memory, where as many selects or
// slices would each write a tensor of the whole size and then be added up.
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

const OpDef unbind_row{"unbind", "the slices of a dim, which goes away",
                       view_spec(unbind_shape, unbind_vjp)};
const OpDef split_row{"split", "parts of one length along a dim, the last as long as it is",
                      view_spec(split_shape, split_vjp)};

// The outputs of a row that has `count` of them in this call.
std::vector<Tensor> first_of(int64_t count, const OpDef& row, const Tensor& t, SplitAttrs attrs) {
  const Outputs all = call_outputs(row, static_cast<int>(count), {t}, attrs);
  return {all.begin(), all.begin() + count};
}

int dim_to_part(const char* op, const Tensor& t, int64_t dim) {
  BRRR_CHECK(t.defined() && t.dim() > 0, "{}: needs a tensor of at least one dim, got {}", op,
             describe(t));
  return wrap_dim(op, dim, static_cast<int>(t.dim()));
}

}  // namespace

std::vector<Tensor> unbind(const Tensor& t, int64_t dim) {
  const int d = dim_to_part("unbind", t, dim);
  const int64_t n = t.size(d);
  std::vector<Tensor> parts;
  if (n == 0 || n > kMaxOutputs) {
    for (int64_t i = 0; i < n; ++i) parts.push_back(t.select(d, i));
    return parts;
  }
  return first_of(n, unbind_row, t, SplitAttrs{d, 1});
}

std::vector<Tensor> Tensor::split(int64_t length, int64_t d) const {
  BRRR_CHECK(length > 0, "split: size {} must be positive", length);
  const int dim = dim_to_part("split", *this, d);
  const int64_t n = size(dim), count = n / length + (n % length != 0);
  if (count > 1 && count <= kMaxOutputs) {
    return first_of(count, split_row, *this, SplitAttrs{dim, length});
  }
  std::vector<Tensor> parts;
  for (int64_t at = 0; at < n || at == 0; at += length) {
    parts.push_back(narrow(d, at, std::min(length, n - at)));
  }
  return parts;
}

std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t d) const {
  BRRR_CHECK(chunks > 0, "chunk: {} chunks asked; give at least 1", chunks);
  const int64_t n = size(dim_to_part("chunk", *this, d));
  if (n > 0) return split((n - 1) / chunks + 1, d);
  // There is no length that gives as many: all are empty, as PyTorch's.
  constexpr int64_t most = 1 << 20;
  BRRR_CHECK(chunks <= most, "chunk: {} pieces of dim {} of {}, which is empty; ask for at most {}",
             chunks, d, describe(impl()), most);
  std::vector<Tensor> parts(static_cast<size_t>(chunks));
  for (Tensor& part : parts) part = narrow(d, 0, 0);
  return parts;
}

std::vector<Tensor> chunk(const Tensor& t, int64_t n, int64_t dim) { return t.chunk(n, dim); }
std::vector<Tensor> split(const Tensor& t, int64_t size, int64_t dim) { return t.split(size, dim); }

}  // namespace brrr
