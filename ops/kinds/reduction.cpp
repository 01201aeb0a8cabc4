// Shape and dtype rules and gradients that all reduction rows share.
#include "ops/kinds/reduction.h"

#include "core/check.h"
#include "ops/kinds/composite.h"
#include "ops/view_ops.h"

namespace brrr {

ReductionOp::ReductionOp(const char* n, const char* d, const ReductionInfo& i)
    : OpDef(n, d,
            {.kind = OpKind::Reduction,
             .infer = reduction_infer,
             .kernel = {{reduction_run}},
             .scratch = reduction_scratch,
             .vjp = i.gradient ? reduction_vjp : nullptr,
             .saves_inputs = i.traits.saves_input,
             .saves_outputs = i.traits.saves_output,
             .grad_aliases = 1,  // A sum's gradient is a broadcast view of the output's.
             .autocast = Autocast::Widen,
             .reduction = &info}),
      info(i) {}

// --- shape and dtype ----------------------------------------------------------------------------

int64_t reduction_mask(const char* op, const Tensor& x, const IntList& dims) {
  const int ndim = defined(op, x).impl()->ndim;
  if (dims.empty()) return (int64_t{1} << ndim) - 1;
  int64_t mask = 0;
  for (int64_t d : dims) {
    const int64_t bit = int64_t{1} << wrap_dim(op, d, ndim);
    BRRR_CHECK(!(mask & bit), "{}: dim {} appears twice in {}; name each dim of {} once", op, d,
               to_string(dims), describe(x.impl()));
    mask |= bit;
  }
  return mask;
}

IntList reduced_sizes(const IntList& sizes, const ReductionAttrs& a) {
  IntList out;
  for (int d = 0; d < sizes.size(); ++d) {
    const bool reduced = a.mask >> d & 1;
    if (!reduced || a.keepdim) out.push_back(reduced ? 1 : sizes[d]);
  }
  return out;
}

int64_t reduced_count(const IntList& sizes, int64_t mask) {
  int64_t n = 1;
  for (int d = 0; d < sizes.size(); ++d) {
    if (mask >> d & 1) n *= sizes[d];
  }
  return n;
}

DType reduction_compute_dtype(const OpDef& op, const TensorImpl& x) {
  const ReductionKernels* kernels = op.reduction->kernels;
  const DType t = compute_type(x.dtype);
  if (kernels[compute_index(t)].elements.rows) return t;
  BRRR_CHECK(!is_floating(x.dtype) && kernels[compute_index(kInt64)].elements.rows,
             "{}: takes floating dtypes, got {}; convert with to(kFloat32)", op.name, describe(&x));
  return kInt64;
}

void reduction_infer(OpCall& c) {
  const ReductionTraits& traits = c.op->reduction->traits;
  const TensorImpl& x = *c.in[0];
  reduction_compute_dtype(*c.op, x);
  const IntList sizes = x.size_list();
  const auto a = c.attrs.as<ReductionAttrs>();
  BRRR_CHECK(!traits.needs_elements || reduced_count(sizes, a.mask) > 0,
             "{}: {} has no elements to reduce, for which {} is undefined; give a shape without 0",
             c.op->name, describe(&x), c.op->name);
  const bool widen = traits.result == ReductionResult::Wide && !is_floating(x.dtype);
  const DType t = traits.result == ReductionResult::Bool ? kBool : widen ? kInt64 : x.dtype;
  set_meta(c, 0, t, reduced_sizes(sizes, a));
}

Tensor reduce(const OpDef& op, const Tensor& x, const IntList& dims, bool keepdim) {
  return call(op, {x}, ReductionAttrs{reduction_mask(op.name, x, dims), keepdim});
}

void reduction_vjp(VjpCall& v) {
  if (!v.needs(0)) return;
  const ReductionInfo& info = *v.node.op->reduction;
  ReductionGrad r;
  r.sizes = v.meta(0).sizes;
  const auto a = v.attrs().as<ReductionAttrs>();
  for (int d = 0; d < r.sizes.size(); ++d) {
    if (a.mask >> d & 1) r.dims.push_back(d);
  }
  r.count = static_cast<double>(reduced_count(r.sizes, a.mask));
  const IntList kept = reduced_sizes(r.sizes, {a.mask, true});
  const bool reshaped = !a.keepdim;
  r.g = reshaped ? reshape(v.gout[0], kept) : v.gout[0];
  if (info.traits.saves_input) r.x = v.input(0);
  if (info.traits.saves_output) {
    r.y = v.output(0);
    if (reshaped) r.y = reshape(r.y, kept);
  }
  Tensor g = info.gradient(r);
  if (!(g.sizes() == r.sizes)) g = expand(g, r.sizes);
  v.gin[0] = g.to(v.meta(0).dtype);
}

std::string init_literal(double init, DType compute) {
  if (is_floating(compute)) return literal(init);
  return literal(compute == kInt64 ? reduction_init<int64_t>(init)
                                   : int64_t{reduction_init<int32_t>(init)});
}

}  // namespace brrr
