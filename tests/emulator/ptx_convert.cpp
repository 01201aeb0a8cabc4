// cvt, and the instructions that move bits: mov, selp, cvta.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/emulator/ptx_warp.h"

namespace brrr::emulator::ptx {

namespace {

enum class Way { even, zero, down, up };

template <Way way, class T> T integral(T x) {
  switch (way) {
    case Way::even:
      return std::nearbyint(x);
    case Way::zero:
      return std::trunc(x);
    case Way::down:
      return std::floor(x);
    case Way::up:
      return std::ceil(x);
  }
}

// Clamps to the range. NaN gives 0 if neither type has 64 bits, else only the highest bit set.
template <class D, class A, Way way> D to_integer(A x) {
  if (std::isnan(x)) {
    constexpr bool zero = !std::is_same_v<A, double> && sizeof(D) < 8;
    return zero ? D{0} : static_cast<D>(uint64_t{1} << (sizeof(D) * 8 - 1));
  }
  const double r = integral<way>(static_cast<double>(x));
  using L = std::numeric_limits<D>;
  if (r <= static_cast<double>(L::min())) return L::min();
  if (r >= static_cast<double>(L::max())) return L::max();
  return static_cast<D>(r);
}

template <class D, class A> void add_integers(Table& t, const char* d, const char* a) {
  t[std::string("cvt") + d + a] = {unary<D, A, [](A x) { return static_cast<D>(x); }>};
}
template <class A> void add_integers_from(Table& t, const char* a) {
  add_integers<uint8_t, A>(t, ".u8", a);
  add_integers<int8_t, A>(t, ".s8", a);
  add_integers<uint16_t, A>(t, ".u16", a);
  add_integers<int16_t, A>(t, ".s16", a);
  add_integers<uint32_t, A>(t, ".u32", a);
  add_integers<int32_t, A>(t, ".s32", a);
  add_integers<uint64_t, A>(t, ".u64", a);
  add_integers<int64_t, A>(t, ".s64", a);
  t[std::string("cvt.rn.f32") + a] = {unary<float, A, [](A x) { return static_cast<float>(x); }>};
  t[std::string("cvt.rn.f64") + a] = {unary<double, A, [](A x) { return static_cast<double>(x); }>};
}

template <class A, Way way> void add_rounded(Table& t, const std::string& mode, const char* a) {
  t["cvt." + mode + a + a] = {unary<A, A, integral<way, A>>};
  t["cvt." + mode + ".u16" + a] = {unary<uint16_t, A, to_integer<uint16_t, A, way>>};
  t["cvt." + mode + ".s16" + a] = {unary<int16_t, A, to_integer<int16_t, A, way>>};
  t["cvt." + mode + ".u32" + a] = {unary<uint32_t, A, to_integer<uint32_t, A, way>>};
  t["cvt." + mode + ".s32" + a] = {unary<int32_t, A, to_integer<int32_t, A, way>>};
  t["cvt." + mode + ".u64" + a] = {unary<uint64_t, A, to_integer<uint64_t, A, way>>};
  t["cvt." + mode + ".s64" + a] = {unary<int64_t, A, to_integer<int64_t, A, way>>};
}
template <class A> void add_rounded_from(Table& t, const char* a) {
  add_rounded<A, Way::even>(t, "rni", a);
  add_rounded<A, Way::zero>(t, "rzi", a);
  add_rounded<A, Way::down>(t, "rmi", a);
  add_rounded<A, Way::up>(t, "rpi", a);
}

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float of_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
uint16_t to_f16(float x) {
  if (std::isnan(x)) return 0x7fff;
  return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
}
float of_f16(uint16_t x) { return static_cast<float>(std::bit_cast<_Float16>(x)); }
// The first operand becomes the upper half.
template <uint16_t (*narrow)(float)> uint32_t two(float high, float low) {
  return static_cast<uint32_t>(narrow(high)) << 16 | narrow(low);
}
float narrowed(double x) {
  return std::isnan(x) ? std::bit_cast<float>(0x7fffffffu) : static_cast<float>(x);
}

template <class T> T same(T x) { return x; }
template <uint64_t window> uint64_t to_generic(uint64_t x) { return x + window; }
template <uint64_t window> uint64_t of_generic(uint64_t x) { return x - window; }

template <class T> void add_move(Table& t, const char* type) {
  t[std::string("mov") + type] = {unary<T, T, same<T>>};
}

// Of the two values only the selected one must be defined.
template <class T> void select(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1), &b = w.operand(i, 2),
                &p = w.operand(i, 3);
  const uint64_t *x = w.row(a), *y = w.row(b);
  uint64_t* to = w.row_of(d);
  const Mask yes = w.truth_of(p);
  each(m, [&](int l) { to[l] = put<T>(get<T>(yes >> l & 1 ? x[l] : y[l])); });
  w.define(d, m, w.known_of(p) & ((yes & w.known_of(a)) | (~yes & w.known_of(b))));
}

}  // namespace

void add_conversions(Table& t) {
  add_integers_from<uint8_t>(t, ".u8");
  add_integers_from<int8_t>(t, ".s8");
  add_integers_from<uint16_t>(t, ".u16");
  add_integers_from<int16_t>(t, ".s16");
  add_integers_from<uint32_t>(t, ".u32");
  add_integers_from<int32_t>(t, ".s32");
  add_integers_from<uint64_t>(t, ".u64");
  add_integers_from<int64_t>(t, ".s64");
  add_rounded_from<float>(t, ".f32");
  add_rounded_from<double>(t, ".f64");
  t["cvt.f64.f32"] = {unary<double, float, [](float x) { return static_cast<double>(x); }>};
  t["cvt.rn.f32.f64"] = {unary<float, double, narrowed>};
  t["cvt.rn.bf16.f32"] = {unary<uint16_t, float, to_bf16>};
  t["cvt.f32.bf16"] = {unary<float, uint16_t, of_bf16>};
  t["cvt.rn.f16.f32"] = {unary<uint16_t, float, to_f16>};
  t["cvt.f32.f16"] = {unary<float, uint16_t, of_f16>};
  t["cvt.rn.bf16x2.f32"] = {binary<uint32_t, float, float, two<to_bf16>>};
  t["cvt.rn.f16x2.f32"] = {binary<uint32_t, float, float, two<to_f16>>};
}

void add_moves(Table& t) {
  for (const char* type : {".b16", ".u16", ".s16"}) {
    add_move<uint16_t>(t, type);
    t[std::string("selp") + type] = {select<uint16_t>};
  }
  for (const char* type : {".b32", ".u32", ".s32", ".f32"}) {
    add_move<uint32_t>(t, type);
    t[std::string("selp") + type] = {select<uint32_t>};
  }
  for (const char* type : {".b64", ".u64", ".s64", ".f64"}) {
    add_move<uint64_t>(t, type);
    t[std::string("selp") + type] = {select<uint64_t>};
  }
  using U = uint64_t;
  t["cvta.global.u64"] = t["cvta.to.global.u64"] = {unary<U, U, same<U>>};
  t["cvta.shared.u64"] = {unary<U, U, to_generic<shared_window>>};
  t["cvta.to.shared.u64"] = {unary<U, U, of_generic<shared_window>>};
  t["cvta.local.u64"] = {unary<U, U, to_generic<local_window>>};
  t["cvta.to.local.u64"] = {unary<U, U, of_generic<local_window>>};
  t["cvta.param.u64"] = {unary<U, U, to_generic<parameter_window>>};
  t["cvta.to.param.u64"] = {unary<U, U, of_generic<parameter_window>>};
}

void pack(Warp& w, const Insn& i, Mask m) {
  const Operand& d = w.operand(i, 0);
  const int bits = d.bits / i.sources;
  uint64_t packed[lanes] = {};
  Mask known = all_lanes;
  for (int k = 0; k < i.sources; ++k) {
    const Operand& a = w.operand(i, 1 + k);
    const uint64_t* x = w.row(a);
    known &= w.known_of(a);
    each(m, [&](int l) { packed[l] |= (x[l] & ((uint64_t{1} << bits) - 1)) << (k * bits); });
  }
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) { to[l] = packed[l]; });
  w.define(d, m, known);
}

void unpack(Warp& w, const Insn& i, Mask m) {
  const Operand& a = w.operand(i, i.targets);
  uint64_t whole[lanes];
  std::memcpy(whole, w.row(a), sizeof whole);
  const Mask known = w.known_of(a);
  for (int k = 0; k < i.targets; ++k) {
    const Operand& d = w.operand(i, k);
    uint64_t* to = w.row_of(d);
    each(m, [&](int l) { to[l] = whole[l] >> (k * d.bits) & ((uint64_t{1} << d.bits) - 1); });
    w.define(d, m, known);
  }
}

}  // namespace brrr::emulator::ptx
