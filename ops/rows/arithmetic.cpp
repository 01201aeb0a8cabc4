// Rows: arithmetic of two operands and selection.
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kPlain{};
constexpr PointwiseTraits kDifference{
    .no_bool =
        "use logical_not to invert a mask, logical_xor for where two "
        "differ, to(dtype) for arithmetic"};
constexpr auto kSame = [](auto, auto, auto, auto g) { return g; };

const NumberOp add_row{"add", "a + b", kPlain, [](auto a, auto b) { return a + b; }, kSame, kSame};

const NumberOp sub_row{"sub",       "a - b",
                       kDifference, [](auto a, auto b) { return a - b; },
                       kSame,       [](auto, auto, auto, auto g) { return -g; }};

const NumberOp mul_row{"mul",
                       "a * b",
                       kPlain,
                       [](auto a, auto b) { return a * b; },
                       [](auto, auto b, auto, auto g) { return g * b; },
                       [](auto a, auto, auto, auto g) { return g * a; }};

const PointwiseOp div_row{"div",
                          "a / b",
                          {.lo = 0.5, .hi = 2.0},
                          [](auto a, auto b) { return a / b; },
                          [](auto, auto b, auto, auto g) { return g / b; },
                          // Recomputes a / b: the caller may overwrite the result, as in PyTorch.
                          [](auto a, auto b, auto, auto g) { return -(g * (a / b)) / b; }};

const NumberOp floor_div_row{"floor_div", "floor(a / b); integers by zero give 0", kPlain,
                             [](auto a, auto b) { return m::floor_div(a, b); }};

const NumberOp remainder_row{
    "remainder",
    "a - floor(a / b) * b, with the sign of b",
    {.lo = 0.6, .hi = 0.9},
    [](auto a, auto b) { return m::remainder(a, b); },
    kSame,
    [](auto a, auto b, auto, auto g) { return -(g * m::floor_div(a, b)); }};

const NumberOp neg_row{"neg", "-a", kDifference, [](auto a) { return -a; },
                       [](auto, auto, auto g) { return -g; }};

constexpr PointwiseTraits kBound{.beyond = Beyond::Saturate};

// The gradient of operand a: g where a is chosen, g / 2 at a tie (as in PyTorch), NaN where a is
// NaN, else 0. where() instead of a product with 0, so that neither an infinite operand nor an
// infinite g of an operand not chosen gives NaN; the same holds for second derivatives.
constexpr auto kShare = [](auto chosen, auto tie, auto a, auto g) {
  return m::where(chosen, g, m::where(tie, g * 0.5, m::where(m::isnan(a), a, 0.0)));
};

const NumberOp minimum_row{
    "minimum",
    "the smaller operand; NaN if either is",
    kBound,
    [](auto a, auto b) { return m::min(a, b); },
    [](auto a, auto b, auto, auto g) { return kShare(a < b, a == b, a, g); },
    [](auto a, auto b, auto, auto g) { return kShare(b < a, a == b, b, g); }};

const NumberOp maximum_row{
    "maximum",
    "the larger operand; NaN if either is",
    kBound,
    [](auto a, auto b) { return m::max(a, b); },
    [](auto a, auto b, auto, auto g) { return kShare(a > b, a == b, a, g); },
    [](auto a, auto b, auto, auto g) { return kShare(b > a, a == b, b, g); }};

const NumberOp clamp_row{
    "clamp", "min(max(x, lo), hi)", kBound,
    [](auto x, auto lo, auto hi) { return m::min(m::max(x, lo), hi); },
    [](auto x, auto lo, auto hi, auto, auto g) { return m::where((x >= lo) & (x <= hi), g, 0.0); }};

const NumberOp where_row{
    "where",
    "a where the condition holds, else b",
    {.beyond = Beyond::Refuse, .condition = 1},
    [](auto c, auto a, auto b) { return m::where(c != 0.0, a, b); },
    [](auto c, auto, auto, auto, auto g) { return g * 0.0 + c * 0.0; },
    [](auto c, auto, auto, auto, auto g) { return m::where(c != 0.0, g, 0.0); },
    [](auto c, auto, auto, auto, auto g) { return m::where(c != 0.0, 0.0, g); }};

}  // namespace

#define BRRR_OPERATION(name)                                                       \
  Tensor name(const Tensor& a, const Tensor& b) { return call(name##_row, a, b); } \
  Tensor name(const Tensor& a, Scalar b) { return call(name##_row, a, b); }
BRRR_OPERATION(add)
BRRR_OPERATION(sub)
BRRR_OPERATION(mul)
BRRR_OPERATION(div)
BRRR_OPERATION(floor_div)
BRRR_OPERATION(remainder)
BRRR_OPERATION(minimum)
BRRR_OPERATION(maximum)
#undef BRRR_OPERATION
Tensor sub(Scalar a, const Tensor& b) { return call(sub_row, a, b); }
Tensor div(Scalar a, const Tensor& b) { return call(div_row, a, b); }
Tensor neg(const Tensor& a) { return call(neg_row, a); }
Tensor clamp(const Tensor& a, Scalar lo, Scalar hi) {
  return PointwiseCall(clamp_row).add(a).add(lo).add(hi).run();
}
// Compares floating conditions first: integer arithmetic would truncate a fraction, which is true.
template <class A, class B> static Tensor choose(const Tensor& c, const A& a, const B& b) {
  const bool fraction = c.defined() && is_floating(c.dtype());
  return PointwiseCall(where_row).add(fraction ? ne(c, 0.0) : c).add(a).add(b).run();
}
Tensor where(const Tensor& c, const Tensor& a, const Tensor& b) { return choose(c, a, b); }
Tensor where(const Tensor& c, const Tensor& a, Scalar b) { return choose(c, a, b); }
Tensor where(const Tensor& c, Scalar a, const Tensor& b) { return choose(c, a, b); }
Tensor where(const Tensor& c, Scalar a, Scalar b) { return choose(c, a, b); }

Tensor Tensor::clamp(Scalar lo, Scalar hi) const { return brrr::clamp(*this, lo, hi); }

// --- in place ------------------------------------------------------------------------------------

template <class B> static const Tensor& into(const PointwiseOp& op, const Tensor& a, const B& b) {
  call_into(op, a, b);
  return a;
}
// The value before it is overwritten: a copy if the gradient of `differentiated` reads it.
static Tensor old_value(const Tensor& a, const Tensor& differentiated) {
  return grad_enabled() && differentiated.requires_grad() ? a.clone() : a;
}
const Tensor& Tensor::add_(const Tensor& o) const { return into(add_row, *this, o); }
const Tensor& Tensor::sub_(const Tensor& o) const { return into(sub_row, *this, o); }
static const Tensor& into_keeping(const PointwiseOp& op, const Tensor& a, const Tensor& b) {
  const Tensor was = old_value(a, b);
  PointwiseCall(op).add(was).add(b.impl() == a.impl() ? was : b).run_into({a});
  return a;
}
const Tensor& Tensor::mul_(const Tensor& o) const { return into_keeping(mul_row, *this, o); }
const Tensor& Tensor::div_(const Tensor& o) const { return into_keeping(div_row, *this, o); }
const Tensor& Tensor::add_(Scalar o) const { return into(add_row, *this, o); }
const Tensor& Tensor::sub_(Scalar o) const { return into(sub_row, *this, o); }
const Tensor& Tensor::mul_(Scalar o) const { return into(mul_row, *this, o); }
const Tensor& Tensor::div_(Scalar o) const { return into(div_row, *this, o); }
const Tensor& Tensor::clamp_(Scalar lo, Scalar hi) const {
  const Tensor was = old_value(*this, *this);
  PointwiseCall(clamp_row).add(was).add(lo).add(hi).run_into({*this});
  return *this;
}

}  // namespace brrr
