// Matrix products: shape rules, gradients and rows.
#include <algorithm>

#include "core/autocast.h"
#include "core/check.h"
#include "ops/kinds/composite.h"
#include "ops/library_ops.h"
#include "ops/rows/library_kernels.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

void check_operands(const OpCall& c) {
  const TensorImpl &a = *c.in[0], &b = *c.in[1];
  BRRR_CHECK(a.dtype == b.dtype, "{}: dtypes differ: {} x {}; convert one with to(dtype)",
             c.op->name, describe(&a), describe(&b));
  BRRR_CHECK(a.dtype != kBool, "{}: no products of bool: {} x {}; convert with to(dtype)",
             c.op->name, describe(&a), describe(&b));
  check_devices(c);
}

void matmul_infer(OpCall& c) {
  const TensorImpl &a = *c.in[0], &b = *c.in[1];
  BRRR_CHECK(a.ndim > 0 && b.ndim > 0,
             "matmul: operands need at least one dim: {} x {}; use * for scalars",
             to_string(a.size_list()), to_string(b.size_list()));
  const int64_t inner = b.sizes[b.ndim == 1 ? 0 : b.ndim - 2];
  BRRR_CHECK(a.sizes[a.ndim - 1] == inner, "matmul: inner dimensions differ: {} x {}",
             to_string(a.size_list()), to_string(b.size_list()));
  check_operands(c);
  if (a.ndim == 2 && b.ndim == 2) return set_meta(c, 0, a.dtype, {a.sizes[0], b.sizes[1]});
  for (int d = 3; d <= std::min(a.ndim, b.ndim); ++d) {
    const int64_t na = a.sizes[a.ndim - d], nb = b.sizes[b.ndim - d];
    BRRR_CHECK(na == nb || na == 1 || nb == 1, "matmul: batch dims do not broadcast: {} x {}",
               to_string(a.size_list()), to_string(b.size_list()));
  }
  const IntList batch_a(a.sizes, static_cast<size_t>(std::max(a.ndim - 2, 0)));
  const IntList batch_b(b.sizes, static_cast<size_t>(std::max(b.ndim - 2, 0)));
  IntList sizes = broadcast_shapes("matmul", batch_a, batch_b);
  if (a.ndim > 1) sizes.push_back(a.sizes[a.ndim - 2]);
  if (b.ndim > 1) sizes.push_back(b.sizes[b.ndim - 1]);
  set_meta(c, 0, a.dtype, sizes);
}

/// [rows, columns], the leading dims joined.
Tensor as_matrix(const Tensor& t) {
  const IntList sizes = t.sizes();
  return t.reshape({numel_of({sizes.data(), static_cast<size_t>(sizes.size() - 1)}), t.size(-1)});
}

void matmul_vjp(VjpCall& v) {
  const IntList &sa = v.meta(0).sizes, &sb = v.meta(1).sizes;
  Tensor g = v.gout[0];
  if (sb.size() == 1) g = g.unsqueeze(-1);
  if (sa.size() == 1) g = g.unsqueeze(-2);
  if (v.needs(0)) {
    Tensor b = v.input(1);
    if (sb.size() == 1) b = b.unsqueeze(-1);
    const Tensor ga = matmul(g, b.transpose(-2, -1));
    v.gin[0] = sa.size() == 1 ? sum_to(ga, {1, sa[0]}).reshape(sa) : sum_to(ga, sa);
  }
  if (v.needs(1)) {
    Tensor a = v.input(0);
    if (sa.size() == 1) a = a.unsqueeze(0);
    if (sa.size() > 2 && sb.size() <= 2) {  // One product sums over the batch as well.
      a = as_matrix(a);
      g = as_matrix(g);
    }
    const Tensor gb = matmul(a.transpose(-2, -1), g);
    v.gin[1] = sb.size() == 1 ? sum_to(gb, {sb[0], 1}).reshape(sb) : sum_to(gb, sb);
  }
}

void linear_infer(OpCall& c) {
  const TensorImpl &x = *c.in[0], &w = *c.in[1];
  BRRR_CHECK(x.ndim > 0 && w.ndim == 2 && x.sizes[x.ndim - 1] == w.sizes[1],
             "linear: x {} and weight {} do not match; x is [.., in] and weight is [out, in]",
             to_string(x.size_list()), to_string(w.size_list()));
  check_operands(c);
  IntList sizes = x.size_list();
  sizes[x.ndim - 1] = w.sizes[0];
  set_meta(c, 0, x.dtype, sizes);
}

void linear_vjp(VjpCall& v) {
  const Tensor& g = v.gout[0];
  // The weight's first: it is the last to read x, whose memory the gradient of x may then have.
  if (v.needs(1)) v.gin[1] = matmul(as_matrix(g).t(), as_matrix(v.input(0)));
  if (v.needs(0)) v.gin[0] = matmul(g, v.input(1));
}

const OpDef matmul_row{"matmul", "matrix product; batch dims broadcast",
                       product_spec(false, matmul_infer, matmul_vjp)};
const OpDef linear_row{"linear", "x W^T over the last dim",
                       product_spec(true, linear_infer, linear_vjp)};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  BRRR_CHECK(a.defined() && b.defined(), "matmul: an operand is an undefined tensor");
  return call(matmul_row, {a, b});
}

Tensor Tensor::matmul(const Tensor& o) const { return brrr::matmul(*this, o); }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  BRRR_CHECK(x.defined() && weight.defined(), "linear: x or weight is an undefined tensor");
  const Tensor b = autocast_operand(bias);
  BRRR_CHECK(
      !bias.defined() || (bias.dim() == 1 && weight.dim() > 0 && bias.size(0) == weight.size(0)),
      "linear: bias {} does not match weight {}; weight is [out, in] and bias [out]",
      to_string(bias.sizes()), to_string(weight.sizes()));
  const Tensor y = call(linear_row, {x, weight});
  if (b.defined()) {
    BRRR_CHECK(b.dtype() == y.dtype() && b.device() == weight.device(),
               "linear: bias is {} on {}, weight {} on {}; convert one with to()",
               describe(bias.impl()), name(bias.device()), describe(weight.impl()),
               name(weight.device()));
    y.add_(b);  // In place: nobody else has the product.
  }
  return y;
}

}  // namespace brrr
