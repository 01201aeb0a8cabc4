// Matrix products: shape rules, gradients and rows.
#include <algorithm>

#include "core/call.h"
#include "core/check.h"
#include "ops/library_ops.h"
#include "ops/rows/product.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

void check_operands(const OpCall& c) {
  const TensorImpl &a = *c.in[0], &b = *c.in[1];
  BRRR_CHECK(a.dtype == b.dtype, "{}: dtypes differ: {} x {}; convert one with to(dtype)",
             c.op->name, describe(&a), describe(&b));
  BRRR_CHECK(a.dtype != kBool, "{}: no products of bool: {} x {}; convert with to(dtype)",
             c.op->name, describe(&a), describe(&b));
  BRRR_CHECK(a.device == b.device, "{}: operands live on {} and {}; move one with to(device)",
             c.op->name, name(a.device), name(b.device));
}

void matmul_infer(OpCall& c) {
  const TensorImpl &a = *c.in[0], &b = *c.in[1];
  BRRR_CHECK(a.ndim > 0 && b.ndim > 0,
             "matmul: operands need at least one dim: {} x {}; use * for "
             "scalars",
             to_string(a.size_list()), to_string(b.size_list()));
  const int64_t inner = b.sizes[b.ndim == 1 ? 0 : b.ndim - 2];
  BRRR_CHECK(a.sizes[a.ndim - 1] == inner, "matmul: inner dimensions differ: {} x {}",
             to_string(a.size_list()), to_string(b.size_list()));
  check_operands(c);
  OutMeta& m = c.meta[0];
  m.dtype = a.dtype;
  m.device = a.device;
  if (a.ndim == 2 && b.ndim == 2) {
    m.sizes = {a.sizes[0], b.sizes[1]};
    return;
  }
  for (int d = 3; d <= std::min(a.ndim, b.ndim); ++d) {
    const int64_t na = a.sizes[a.ndim - d], nb = b.sizes[b.ndim - d];
    BRRR_CHECK(na == nb || na == 1 || nb == 1, "matmul: batch dims do not broadcast: {} x {}",
               to_string(a.size_list()), to_string(b.size_list()));
  }
  const IntList batch_a(a.sizes, static_cast<size_t>(std::max(a.ndim - 2, 0)));
  const IntList batch_b(b.sizes, static_cast<size_t>(std::max(b.ndim - 2, 0)));
  m.sizes = broadcast_shapes("matmul", batch_a, batch_b);
  if (a.ndim > 1) m.sizes.push_back(a.sizes[a.ndim - 2]);
  if (b.ndim > 1) m.sizes.push_back(b.sizes[b.ndim - 1]);
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
    if (sa.size() > 2 && sb.size() <= 2) {
      // One product sums over the batch as well.
      const int64_t n = g.size(-1),
                    rows = numel_of({sa.data(), static_cast<size_t>(sa.size() - 1)});
      a = a.reshape({rows, sa.back()});
      g = g.reshape({rows, n});
    }
    const Tensor gb = matmul(a.transpose(-2, -1), g);
    v.gin[1] = sb.size() == 1 ? sum_to(gb, {sb[0], 1}).reshape(sb) : sum_to(gb, sb);
  }
}

void linear_infer(OpCall& c) {
  const TensorImpl &x = *c.in[0], &w = *c.in[1];
  const TensorImpl* bias = c.in[2];
  BRRR_CHECK(x.ndim > 0 && w.ndim == 2 && x.sizes[x.ndim - 1] == w.sizes[1],
             "linear: x {} and weight {} do not match; x is [.., in] and weight is [out, in]",
             to_string(x.size_list()), to_string(w.size_list()));
  BRRR_CHECK(!bias || (bias->ndim == 1 && bias->sizes[0] == w.sizes[0]),
             "linear: bias {} does not match weight {}; weight is [out, in] and bias [out]",
             to_string(bias->size_list()), to_string(w.size_list()));
  check_operands(c);
  BRRR_CHECK(!bias || (bias->dtype == w.dtype && bias->device == w.device),
             "linear: bias is {} on {}, weight {} on {}; convert one with to()", describe(bias),
             name(bias->device), describe(&w), name(w.device));
  OutMeta& m = c.meta[0];
  m.dtype = x.dtype;
  m.device = x.device;
  m.sizes = x.size_list();
  m.sizes[x.ndim - 1] = w.sizes[0];
}

void linear_vjp(VjpCall& v) {
  const Tensor& g = v.gout[0];
  const IntList &sx = v.meta(0).sizes, &sw = v.meta(1).sizes;
  // The weight's first: it is the last to read x, whose memory the gradient of x may then have.
  if (v.needs(1)) {
    const Tensor x = v.input(0);
    if (sx.size() == 2) {
      v.gin[1] = matmul(g.t(), x);
    } else {
      const int64_t rows = numel_of({sx.data(), static_cast<size_t>(sx.size() - 1)});
      v.gin[1] = matmul(g.reshape({rows, sw[0]}).t(), x.reshape({rows, sw[1]}));
    }
  }
  if (v.needs(0)) v.gin[0] = matmul(g, v.input(1));
  if (v.needs(2)) {
    // Memory of its own in every case, so that a leaf can keep it.
    IntList leading;
    for (int d = 0; d + 1 < sx.size(); ++d) leading.push_back(d);
    v.gin[2] = leading.empty() ? g.clone() : g.sum(leading);
  }
}

void run_matmul(OpCall& c) {
  multiply(*c.in[0], *c.in[1], false, *c.out[0].impl());
}
void run_linear(OpCall& c) {
  multiply(*c.in[0], *c.in[1], true, *c.out[0].impl());
  if (c.in[2]) add_bias(*c.out[0].impl(), *c.in[2]);
}

template <bool kLinear> int64_t scratch_of(const OpCall& c) {
  return product_scratch(*c.in[0], *c.in[1], kLinear, kLinear ? c.in[2] : nullptr,
                         *c.out[0].impl());
}

const OpDef matmul_row{"matmul",
                       "matrix product; batch dims broadcast",
                       {.infer = matmul_infer,
                        .kernel = {{run_matmul}, {run_matmul}},
                        .scratch = scratch_of<false>,
                        .vjp = matmul_vjp,
                        .saves_inputs = 0b11,
                        .autocast = Autocast::Round}};

// The bias' gradient may be the output's gradient itself: for a vector x there is nothing to sum.
const OpDef linear_row{"linear",
                       "x W^T + b over the last dim",
                       {.infer = linear_infer,
                        .kernel = {{run_linear}, {run_linear}},
                        .scratch = scratch_of<true>,
                        .vjp = linear_vjp,
                        .saves_inputs = 0b011,
                        .autocast = Autocast::Round}};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  BRRR_CHECK(a.defined() && b.defined(), "matmul: an operand is an undefined tensor");
  return call(matmul_row, {a, b});
}

Tensor Tensor::matmul(const Tensor& o) const {
  return brrr::matmul(*this, o);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  BRRR_CHECK(x.defined() && weight.defined(), "linear: x or weight is an undefined tensor");
  return call(linear_row, {x, weight, bias});
}

}  // namespace brrr
