#pragma once
// m::, the vocabulary that rows are written in, for every type a row is instantiated with:
// Num<vector> (eager kernels), Num<double> (the oracle), Sym (source text) and Tensor (the
// differentiable form). All overloads are declared here, before any row: a qualified call finds no
// later ones.

#include "ops/vocabulary/num.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/vocabulary/spelling.h"
#include "ops/vocabulary/sym.h"

namespace brrr::m {

// The only macros of the vocabulary: one line gives a function all its forms but Tensor's, which is
// the public op of the same name. The numbers are its Effort, counted from the definition for
// float32: floating-point operations, and long chains of them. `emit` records what is known of the
// results, which are a Num or a Mask.
//
// An addition, subtraction, multiplication, division, root, rounding to an integer or comparison is
// one operation, an fma two: counted in the branch of usual arguments, without AVX-512, which
// scales by a power of 2 in one operation instead of two. Selections, tables, conversions, signs
// and integer operations count as none. tests/counts checks the numbers against executed
// instructions.
#define BRRR_FUNCTIONS_OF_ONE(F)       \
  F(exp, 23, 1, rising_emit, Num)      \
  F(expm1, 27, 1, sym_emit, Num)       \
  F(log, 30, 1, sym_emit, Num)         \
  F(log1p, 31, 1, sym_emit, Num)       \
  F(sqrt, 1, 0, sym_emit, Num)         \
  F(rsqrt, 2, 0, sym_emit, Num)        \
  F(sin, 21, 1, wave_emit, Num)        \
  F(cos, 23, 1, wave_emit, Num)        \
  F(tanh, 39, 1, bounded_emit, Num)    \
  F(sigmoid, 25, 1, bounded_emit, Num) \
  F(erf, 25, 1, bounded_emit, Num)     \
  F(floor, 1, 0, sym_emit, Num)        \
  F(ceil, 1, 0, sym_emit, Num)         \
  F(round, 1, 0, sym_emit, Num)        \
  F(trunc, 1, 0, sym_emit, Num)        \
  F(abs, 0, 0, sym_emit, Num)          \
  F(sign, 2, 0, sym_emit, Num)         \
  F(isnan, 0, 0, mask_emit, Mask)      \
  F(isfinite, 1, 0, mask_emit, Mask)
#define BRRR_FUNCTIONS_OF_TWO(F) \
  F(pow, 96, 4)                  \
  F(min, 1, 0)                   \
  F(max, 1, 0)                   \
  F(remainder, 12, 1)            \
  F(floor_div, 20, 1)

#define BRRR_M1(fn, flops, chains, emit, Result)                              \
  template <class V> [[gnu::always_inline]] inline Result<V> fn(Num<V> x) {   \
    return {vx::fn(x.v)};                                                     \
  }                                                                           \
  inline auto fn(Sym x) { return emit(#fn "($0)", {x.id}, {flops, chains}); } \
  using brrr::fn;

#define BRRR_M2(fn, flops, chains)                                                    \
  template <class V>                                                                  \
  [[gnu::always_inline]] inline Num<V> fn(Num<V> x, std::type_identity_t<Num<V>> y) { \
    return vx::fn(x.v, y.v);                                                          \
  }                                                                                   \
  inline Sym fn(Sym x, Sym y) { return sym_emit(#fn "($0, $1)", {x.id, y.id}, {flops, chains}); }

BRRR_FUNCTIONS_OF_ONE(BRRR_M1)
BRRR_FUNCTIONS_OF_TWO(BRRR_M2)
#undef BRRR_M1
#undef BRRR_M2

using brrr::floor_div;
using brrr::pow;
using brrr::remainder;
inline Tensor min(const Tensor& a, const Tensor& b) { return brrr::minimum(a, b); }
inline Tensor min(const Tensor& a, Scalar b) { return brrr::minimum(a, b); }
inline Tensor max(const Tensor& a, const Tensor& b) { return brrr::maximum(a, b); }
inline Tensor max(const Tensor& a, Scalar b) { return brrr::maximum(a, b); }
#define BRRR_NUMBER_FIRST(fn, flops, chains) \
  inline Tensor fn(double a, const Tensor& b) { return fn(full({}, a, b.dtype(), b.device()), b); }
BRRR_FUNCTIONS_OF_TWO(BRRR_NUMBER_FIRST)
#undef BRRR_NUMBER_FIRST

/// x * y + z, rounded once except for tensors: the only contraction there is.
template <class V>
[[gnu::always_inline]] inline Num<V> fma(Num<V> x, std::type_identity_t<Num<V>> y,
                                         std::type_identity_t<Num<V>> z) {
  return vx::fma(x.v, y.v, z.v);
}
inline Sym fma(Sym x, Sym y, Sym z) { return sym_emit("fma($0, $1, $2)", {x.id, y.id, z.id}, {2}); }
template <class Y, class Z> Tensor fma(const Tensor& x, const Y& y, const Z& z) {
  return x * y + z;
}
template <class Z> Tensor fma(double x, const Tensor& y, const Z& z) { return y * x + z; }
inline Tensor fma(double x, double y, const Tensor& z) { return z + x * y; }

/// Phi(x), the normal distribution's CDF, to an absolute 2^-24: values near 0 have no more digits
/// than values near 1.
template <class V> [[gnu::always_inline]] inline Num<V> normal_cdf(Num<V> x) {
  return {vx::normal_cdf(x.v)};
}
inline Sym normal_cdf(Sym x) { return bounded_emit("normal_cdf($0)", {x.id}, {17, 1}); }
inline Tensor normal_cdf(const Tensor& x) { return fma(erf(x * 0x1.6a09e667f3bcdp-1), 0.5, 0.5); }

/// a where the mask holds, else b; both sides are computed.
template <class V>
[[gnu::always_inline]] inline Num<V> where(Mask<V> c, std::type_identity_t<Num<V>> a,
                                           std::type_identity_t<Num<V>> b) {
  return vx::where(c.m, a.v, b.v);
}
inline Sym where(SymMask c, Sym a, Sym b) {
  return sym_emit("where($0, $1, $2)", {c.id, a.id, b.id}, {0});
}
using brrr::where;
/// While it lives, literals that a condition chooses between, and row::count, have this dtype where
/// a formula is instantiated on tensors: nothing else determines it there.
class LiteralDTypeScope : NotCopied {
 public:
  explicit LiteralDTypeScope(DType t) : held_(now, t) {}
  inline static thread_local DType now = kFloat32;

 private:
  Held<DType> held_;
};
inline Tensor where(const Tensor& c, double a, double b) {
  if (LiteralDTypeScope::now == kFloat32) return brrr::where(c, Scalar(a), Scalar(b));
  return brrr::where(c, full({}, a, LiteralDTypeScope::now, c.device()), b);
}
/// The same with a condition on integers of the formula: positions, words of a draw.
template <class W, class V>
requires(!std::is_same_v<W, V>) Num<V> where(Mask<W> c, Num<V> a, std::type_identity_t<Num<V>> b) {
  return where(Mask<V>{c.m}, a, b);
}

// --- integers of a formula -----------------------------------------------------------------------

/// A formula's int64 operands: positions of the element, seeds, integers that must stay exact.
using Index = Num<vx::Line>;

/// An integer in the type of x.
template <class V, class I> Num<V> like(Num<V>, Num<I> i) {
  return vx::convert<V>(vx::spread(i.v));
}
inline Sym like(Sym, SymIndex i) {
  return sym_emit(to_compute(kInt64, SymScope::current().compute()).c_str(), {i.id}, {0});
}

/// i, an index that must be in [0, n): see PointwiseTraits::check. A GPU records one that is not.
template <class V> Num<V> checked(Num<V> i, std::type_identity_t<Num<V>>) { return i; }
inline Sym checked(Sym i, Sym n) { return sym_emit("checked($0, $1)", {i.id, n.id}, {0}); }

// Philox is long: by itself the compiler would not inline the functions around it.

/// The word of element i of draw `number` under `seed`, both of which all elements share.
[[gnu::always_inline]] inline Num<vx::u32> draw(Index seed, Index number, Index i) {
  return vx::draw(seed.v, number.v, i.v);
}
inline SymIndex draw(SymIndex seed, SymIndex number, SymIndex i) {
  return SymIndex(draw_emit(kInt64, "draw($0, $1, $2)", {seed.id, number.id, i.id}));
}
/// An integer in [0, range), which is unsigned.
[[gnu::always_inline]] inline Num<vx::i64> draw_below(Index range, Index seed, Index number,
                                                      Index i) {
  return vx::draw_below(range.v, seed.v, number.v, i.v);
}
inline SymIndex draw_below(SymIndex range, SymIndex seed, SymIndex number, SymIndex i) {
  return SymIndex(
      draw_emit(kInt64, "draw_below($0, $1, $2, $3)", {range.id, seed.id, number.id, i.id}));
}
/// Whether dropout keeps element i; limit / 2^32 is the probability that it does not.
[[gnu::always_inline]] inline Mask<vx::Line> draw_keeps(Index limit, Index seed, Index number,
                                                        Index i) {
  return {vx::draw_keeps(limit.v, seed.v, number.v, i.v)};
}
inline SymMask draw_keeps(SymIndex limit, SymIndex seed, SymIndex number, SymIndex i) {
  return {draw_emit(kBool, "draw_keeps($0, $1, $2, $3)", {limit.id, seed.id, number.id, i.id})};
}
/// A standard normal in the type of x.
template <class V>
[[gnu::always_inline]] inline Num<V> draw_normal(Num<V>, Index seed, Index number, Index i) {
  return vx::convert<V>(vx::draw_normal(seed.v, number.v, i.v));
}
inline Sym draw_normal(Sym, SymIndex seed, SymIndex number, SymIndex i) {
  const int z = draw_emit(kFloat32, "draw_normal($0, $1, $2)", {seed.id, number.id, i.id});
  return sym_emit(to_compute(kFloat32, SymScope::current().compute()).c_str(), {z}, {52, 4});
}

}  // namespace brrr::m
