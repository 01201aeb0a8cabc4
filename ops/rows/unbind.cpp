// Taking a tensor apart along a dim: one row with as many outputs as a call may have.
#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/view.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

void unbind_shape(OpCall& c) {
  const int d = dim_of(c.attrs);
  for (int k = 0; k < c.n_out; ++k) {
    OutMeta& m = view_meta(c, k);
    m.offset += k * m.strides[d];
    m.sizes.erase(d);
    m.strides.erase(d);
  }
}

// The parts' gradients side by side: one pass over memory, where as many selects would each write
// a tensor of the whole size and then be added up.
void unbind_vjp(VjpCall& v) {
  const int d = dim_of(v.attrs());
  const Meta& m = v.meta(0);
  const auto n = static_cast<size_t>(m.sizes[d]);
  IntList part = m.sizes;
  part.erase(d);
  std::vector<Tensor> parts(v.gout, v.gout + n);
  for (Tensor& g : parts) {
    if (!g.defined()) g = zeros(part, m.dtype, m.device);
  }
  v.gin[0] = d < part.size() ? cat(parts, d).view(m.sizes) : stack(parts, d);
}

const OpDef unbind_row{"unbind", "the slices of a dim, which goes away",
                       view_spec(unbind_shape, unbind_vjp)};

}  // namespace

std::vector<Tensor> unbind(const Tensor& t, int64_t dim) {
  BRRR_CHECK(t.defined() && t.dim() > 0, "unbind: needs a tensor of at least one dim, got {}",
             describe(t));
  const int d = wrap_dim("unbind", dim, static_cast<int>(t.dim()));
  const int64_t n = t.size(d);
  std::vector<Tensor> parts;
  if (n == 0 || n > kMaxOutputs) {
    for (int64_t i = 0; i < n; ++i) parts.push_back(t.select(d, i));
    return parts;
  }
  const Outputs all = call_outputs(unbind_row, static_cast<int>(n), {t}, DimAttrs{d});
  return {all.begin(), all.begin() + n};
}

}  // namespace brrr
