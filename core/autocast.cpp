#include "core/autocast.h"

#include <vector>

#include "core/check.h"
#include "core/context.h"

namespace brrr {

AutocastGuard::AutocastGuard(DType dtype) : dtype_(context.autocast, dtype) {
  BRRR_CHECK(dtype == kBFloat16 || dtype == kFloat16 || dtype == kFloat32,
             "AutocastGuard: {} is not an autocast dtype; use kBFloat16, kFloat16, or kFloat32 to "
             "switch it off",
             name(dtype));
}
DType autocast_dtype() { return context.autocast; }

// The dtype that an operand of dtype `t` is cast to; `t` itself: no cast.
static DType operand_dtype(Autocast rule, DType t) {
  if (!is_floating(t) || t == kFloat64) return t;
  return rule == Autocast::Round ? context.autocast : kFloat32;
}

Tensor autocast_operand(const Tensor& t) {
  if (context.autocast == kFloat32 || !t.defined()) return t;
  return t.to(operand_dtype(Autocast::Round, t.dtype()));
}

void detail::dispatch_autocast(OpCall& c) {
  const auto n = static_cast<size_t>(c.n_in);
  std::vector<Tensor> casts(n);  // Kept until the call has run.
  std::vector<TensorImpl*> in(c.in, c.in + n);
  for (size_t i = 0; i < n; ++i) {
    if (!in[i]) continue;
    const DType want = operand_dtype(c.op->autocast, in[i]->dtype);
    if (want == in[i]->dtype) continue;
    casts[i] = Tensor(Ref<TensorImpl>::share(in[i])).to(want);
    in[i] = casts[i].impl();
  }
  const Held cast(c.in, in.data());
  dispatch_inline(c);
}

}  // namespace brrr
