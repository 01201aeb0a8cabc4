// Copies: clone, contiguous, dtype conversion, copy_ and fill_ all call one row, the identity.
#include "core/backend.h"
#include "core/check.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kMoves{.moves = true};
const NumberOp copy_row{"copy", "the same values, in new memory or another dtype", kMoves,
                        [](auto x) { return x; }, [](auto, auto, auto g) { return g; }};

}  // namespace

// Fills `dst` with zeros if `src` is null.
static void launch_copy(const TensorImpl& dst, const TensorImpl* src) {
  TensorImpl* in[] = {const_cast<TensorImpl*>(src)};
  OpCall c(copy_row, in, 1);
  if (!src) c.attrs.set_only(0, 2, int64_t{0});
  c.into = true;
  c.out[0] = Tensor(Ref<TensorImpl>::share(const_cast<TensorImpl*>(&dst)));
  backend(dst.device.type).launch(c);
}
void copy_now(TensorImpl& dst, const TensorImpl& src) { launch_copy(dst, &src); }
void zero_now(const TensorImpl& dst) { launch_copy(dst, nullptr); }
Tensor copied(const TensorImpl& t, DType dtype) {
  Tensor copy = raw_empty(t.size_list(), dtype, t.device);
  copy_now(*copy.impl(), t);
  return copy;
}

Tensor Tensor::clone() const { return PointwiseCall(copy_row).add(*this).run(); }

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::to(DType t) const {
  if (dtype() == t) return *this;
  return PointwiseCall(copy_row).add(*this).dtype(t).run();
}

const Tensor& Tensor::copy_(const Tensor& src) const {
  BRRR_CHECK(defined() && src.defined(), "copy_: an undefined tensor");
  if (src.device() != device()) return copy_(src.to(device()));
  PointwiseCall(copy_row).add(src).dtype(dtype()).run_into({*this});
  return *this;
}

const Tensor& Tensor::fill_(Scalar v) const {
  check_holds("fill_", v, dtype());
  if (dtype() == kBool) v = v.to_double() != 0;
  PointwiseCall(copy_row).add(v).dtype(dtype()).run_into({*this});
  return *this;
}

const Tensor& Tensor::zero_() const { return fill_(0); }

}  // namespace brrr
