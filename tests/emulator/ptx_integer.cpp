// Integer and predicate instructions.

#include <algorithm>
#include <bit>
#include <limits>

#include "tests/emulator/ptx_warp.h"

namespace brrr::emulator::ptx {

namespace {

template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T> struct TwiceOf;
template <> struct TwiceOf<int16_t> { using type = int32_t; };
template <> struct TwiceOf<uint16_t> { using type = uint32_t; };
template <> struct TwiceOf<int32_t> { using type = int64_t; };
template <> struct TwiceOf<uint32_t> { using type = uint64_t; };
template <> struct TwiceOf<int64_t> { using type = __int128; };
template <> struct TwiceOf<uint64_t> { using type = unsigned __int128; };
template <class T> using Twice = typename TwiceOf<T>::type;

template <class T> constexpr uint32_t width = sizeof(T) * 8;
// Wraps around. Computed in 64 bits, because C++ would compute 16-bit products as int.
template <class T> constexpr T wrap(uint64_t x) { return static_cast<T>(x); }

template <class T> T high(T a, T b) {
  return static_cast<T>((static_cast<Twice<T>>(a) * static_cast<Twice<T>>(b)) >> width<T>);
}
template <class T> T shift_left(T a, uint32_t n) {
  return n >= width<T> ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << n);
}
template <class T> T shift_right(T a, uint32_t n) {
  return static_cast<T>(a >> std::min(n, width<T> - 1) >> (n >= width<T> ? 1 : 0));
}

// Division by zero fails: its result is unspecified in the ISA.
template <class T, bool remainder> void divide(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1), &b = w.operand(i, 2);
  const uint64_t *x = w.row(a), *y = w.row(b);
  uint64_t* to = w.row_of(d);
  const Mask known = w.known_of(a) & w.known_of(b);
  each(m, [&](int l) {
    const T p = get<T>(x[l]), q = get<T>(y[l]);
    if (q == 0 && known >> l & 1) fail_at(w, i, l, "divides an integer by zero");
    // Division by -1 is a negation: the CPU would fault on the least integer by -1.
    const bool minus = q == 0 || (std::is_signed_v<T> && q == static_cast<T>(-1));
    if (remainder)
      to[l] = put<T>(minus ? T{0} : static_cast<T>(p % q));
    else
      to[l] = put<T>(minus ? wrap<T>(-static_cast<uint64_t>(p)) : static_cast<T>(p / q));
  });
  w.define(d, m, known);
}

template <class T, auto f> void add_ops(Table& t, const std::string& name, const char* type) {
  t[name + type] = {binary<T, T, T, f>};
}

template <class T> void add_arithmetic(Table& t, const char* type) {
  add_ops<T, [](T a, T b) { return wrap<T>(uint64_t(a) + uint64_t(b)); }>(t, "add", type);
  add_ops<T, [](T a, T b) { return wrap<T>(uint64_t(a) - uint64_t(b)); }>(t, "sub", type);
  add_ops<T, [](T a, T b) { return wrap<T>(uint64_t(a) * uint64_t(b)); }>(t, "mul.lo", type);
  add_ops<T, [](T a, T b) { return high<T>(a, b); }>(t, "mul.hi", type);
  add_ops<T, [](T a, T b) { return std::min(a, b); }>(t, "min", type);
  add_ops<T, [](T a, T b) { return std::max(a, b); }>(t, "max", type);
  const auto mad = [](T a, T b, T c) { return wrap<T>(uint64_t(a) * uint64_t(b) + uint64_t(c)); };
  t[std::string("mad.lo") + type] = {ternary<T, T, T, mad>};
  const auto mad_high = [](T a, T b, T c) {
    return wrap<T>(static_cast<uint64_t>(high<T>(a, b)) + uint64_t(c));
  };
  t[std::string("mad.hi") + type] = {ternary<T, T, T, mad_high>};
  t[std::string("div") + type] = {divide<T, false>};
  t[std::string("rem") + type] = {divide<T, true>};
  t[std::string("shr") + type] = {
      binary<T, T, uint32_t, [](T a, uint32_t n) { return shift_right<T>(a, n); }>};
  if constexpr (std::is_signed_v<T>) {
    t[std::string("neg") + type] = {unary<T, T, [](T a) { return wrap<T>(-uint64_t(a)); }>};
    t[std::string("abs") + type] = {
        unary<T, T, [](T a) { return a < 0 ? wrap<T>(-uint64_t(a)) : a; }>};
  }
  if constexpr (sizeof(T) < 8) {
    using D = Twice<T>;
    const auto wide = [](T a, T b) { return static_cast<D>(a) * static_cast<D>(b); };
    t[std::string("mul.wide") + type] = {binary<D, T, T, wide>};
    const auto mad_wide = [](T a, T b, D c) {
      return wrap<D>(static_cast<uint64_t>(static_cast<D>(a) * static_cast<D>(b)) + uint64_t(c));
    };
    t[std::string("mad.wide") + type] = {ternary<D, T, D, mad_wide>};
  }
}

template <class T> void add_bits(Table& t, const char* type) {
  add_ops<T, [](T a, T b) { return static_cast<T>(a & b); }>(t, "and", type);
  add_ops<T, [](T a, T b) { return static_cast<T>(a | b); }>(t, "or", type);
  add_ops<T, [](T a, T b) { return static_cast<T>(a ^ b); }>(t, "xor", type);
  t[std::string("not") + type] = {unary<T, T, [](T a) { return static_cast<T>(~a); }>};
  t[std::string("shl") + type] = {
      binary<T, T, uint32_t, [](T a, uint32_t n) { return shift_left<T>(a, n); }>};
  t[std::string("shr") + type] = {
      binary<T, T, uint32_t, [](T a, uint32_t n) { return shift_right<T>(a, n); }>};
  if constexpr (sizeof(T) > 2) {
    using U = uint32_t;
    t[std::string("popc") + type] = {unary<U, T, [](T a) { return U(std::popcount(a)); }>};
    t[std::string("clz") + type] = {unary<U, T, [](T a) { return U(std::countl_zero(a)); }>};
    const auto reversed = [](T a) {
      T r = 0;
      for (uint32_t k = 0; k < width<T>; ++k) r |= (a >> k & 1) << (width<T> - 1 - k);
      return r;
    };
    t[std::string("brev") + type] = {unary<T, T, reversed>};
  }
}

// bfi: inserts the low bits of a into b; operands are d, a, b, position and length.
void insert_bits(Warp& w, const Insn& i, Mask m) {
  const Operand& d = w.operand(i, 0);
  const uint64_t *a = w.row(w.operand(i, 1)), *b = w.row(w.operand(i, 2)),
                 *c = w.row(w.operand(i, 3)), *e = w.row(w.operand(i, 4));
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) {
    const uint32_t position = c[l] & 0xff, length = e[l] & 0xff;
    const uint64_t ones = length >= 32 ? 0xffffffff : (uint64_t{1} << length) - 1;
    const uint64_t place = position >= 32 ? 0 : ones << position & 0xffffffff;
    const uint64_t put_in = position >= 32 ? 0 : (a[l] & 0xffffffff) << position;
    to[l] = (b[l] & ~place & 0xffffffff) | (put_in & place);
  });
  Mask known = all_lanes;
  for (int k = 1; k < 5; ++k) known &= w.known_of(w.operand(i, k));
  w.define(d, m, known);
}

template <class T> T extract(T a, T position, uint32_t length) {
  const uint32_t p = position & 0xff, n = length & 0xff;
  const bool negative = std::is_signed_v<T> && n > 0 && a >> std::min(p + n - 1, width<T> - 1) & 1;
  Unsigned<T> r = 0;
  for (uint32_t k = 0; k < width<T>; ++k) {
    const bool bit = k < n && p + k < width<T> ? a >> (p + k) & 1 : negative;
    r |= static_cast<Unsigned<T>>(bit) << k;
  }
  return static_cast<T>(r);
}

uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  uint32_t r = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t s = selector >> (4 * k) & 15;
    auto byte = static_cast<uint32_t>(both >> (8 * (s & 7)) & 0xff);
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * k);
  }
  return r;
}

template <bool left, bool clamps> uint32_t funnel(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t n = clamps ? std::min(c, 32u) : c & 31;
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  return static_cast<uint32_t>(left ? both << n >> 32 : both >> n);
}

void logic(Warp& w, const Insn& i, Mask m) {
  const Operand& d = w.operand(i, 0);
  const uint64_t *a = w.row(w.operand(i, 1)), *b = w.row(w.operand(i, 2)),
                 *c = w.row(w.operand(i, 3));
  const uint64_t table = *w.row(w.operand(i, 4));
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) {
    uint64_t r = 0;
    for (int k = 0; k < 8; ++k) {
      if (!(table >> k & 1)) continue;
      r |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    }
    to[l] = r & 0xffffffff;
  });
  Mask known = all_lanes;
  for (int k = 1; k < 4; ++k) known &= w.known_of(w.operand(i, k));
  w.define(d, m, known);
}

// d = x + y or x - y, which may read and write the carry flag (add.cc, addc, subc, ...).
template <bool subtracts, bool reads, bool writes, class T>
void carried(Warp& w, const Operand& d, Mask m, Mask known, const T& x, const uint64_t* y) {
  uint64_t* to = w.row_of(d);
  Mask carry = 0;
  each(m, [&](int l) {
    const uint64_t a = x(l), b = y[l] & 0xffffffff, c = reads ? w.carry >> l & 1 : 0;
    const uint64_t r = subtracts ? a - b - c : a + b + c;
    to[l] = r & 0xffffffff;
    if (r >> 32) carry |= Mask{1} << l;
  });
  if (writes) w.carry = (w.carry & ~m) | carry;
  w.define(d, m, known);
}
template <bool subtracts, bool reads, bool writes> void add_carry(Warp& w, const Insn& i, Mask m) {
  const Operand &a = w.operand(i, 1), &b = w.operand(i, 2);
  const uint64_t* x = w.row(a);
  carried<subtracts, reads, writes>(
      w, w.operand(i, 0), m, w.known_of(a) & w.known_of(b),
      [&](int l) { return x[l] & 0xffffffff; }, w.row(b));
}
template <bool upper, bool reads, bool writes> void mad_carry(Warp& w, const Insn& i, Mask m) {
  const Operand &a = w.operand(i, 1), &b = w.operand(i, 2), &c = w.operand(i, 3);
  const uint64_t *x = w.row(a), *y = w.row(b);
  const auto product = [&](int l) {
    const uint64_t p = (x[l] & 0xffffffff) * (y[l] & 0xffffffff);
    return upper ? p >> 32 : p & 0xffffffff;
  };
  carried<false, reads, writes>(w, w.operand(i, 0), m,
                                w.known_of(a) & w.known_of(b) & w.known_of(c), product, w.row(c));
}

template <class T> void add_comparisons(Table& t, const char* type) {
  const auto name = [&](const char* what) { return std::string("setp.") + what + type; };
  t[name("eq")] = {compare<T, [](T a, T b) { return (a == b); }>};
  t[name("ne")] = {compare<T, [](T a, T b) { return (a != b); }>};
  t[name("lt")] = {compare<T, [](T a, T b) { return (a < b); }>};
  t[name("le")] = {compare<T, [](T a, T b) { return (a <= b); }>};
  t[name("gt")] = {compare<T, [](T a, T b) { return (a > b); }>};
  t[name("ge")] = {compare<T, [](T a, T b) { return (a >= b); }>};
}

// The result is defined if an undefined input cannot change it.
template <int op> void predicate_logic(Warp& w, const Insn& i, Mask m) {
  const Operand &a = w.operand(i, 1), &b = w.operand(i, 2);
  const Mask x = w.truth_of(a), y = w.truth_of(b), kx = w.known_of(a), ky = w.known_of(b);
  Mask known = kx & ky;
  if (op == 0) known |= (kx & ~x) | (ky & ~y);
  if (op == 1) known |= (kx & x) | (ky & y);
  w.set_truth(w.operand(i, 0), m, op == 0 ? x & y : op == 1 ? x | y : x ^ y, known);
}
template <bool inverts> void move_predicate(Warp& w, const Insn& i, Mask m) {
  const Operand& a = w.operand(i, 1);
  w.set_truth(w.operand(i, 0), m, inverts ? ~w.truth_of(a) : w.truth_of(a), w.known_of(a));
}

template <class T> void add_type(Table& t, const char* type) {
  add_arithmetic<T>(t, type);
  add_comparisons<T>(t, type);
}

}  // namespace

void add_integer(Table& t) {
  add_type<int16_t>(t, ".s16");
  add_type<uint16_t>(t, ".u16");
  add_type<int32_t>(t, ".s32");
  add_type<uint32_t>(t, ".u32");
  add_type<int64_t>(t, ".s64");
  add_type<uint64_t>(t, ".u64");
  add_bits<uint16_t>(t, ".b16");
  add_bits<uint32_t>(t, ".b32");
  add_bits<uint64_t>(t, ".b64");
  add_comparisons<uint16_t>(t, ".b16");
  add_comparisons<uint32_t>(t, ".b32");
  add_comparisons<uint64_t>(t, ".b64");
  t["bfi.b32"] = {insert_bits};
  using U = uint32_t;
  using S = int32_t;
  t["bfe.u32"] = {ternary<U, U, U, [](U a, U b, U c) { return extract<U>(a, b, c); }>};
  t["bfe.s32"] = {ternary<S, S, U, [](S a, S b, U c) { return extract<S>(a, b, c); }>};
  t["prmt.b32"] = {ternary<U, U, U, permute>};
  t["lop3.b32"] = {logic};
  t["shf.l.wrap.b32"] = {ternary<U, U, U, funnel<true, false>>};
  t["shf.r.wrap.b32"] = {ternary<U, U, U, funnel<false, false>>};
  t["shf.l.clamp.b32"] = {ternary<U, U, U, funnel<true, true>>};
  t["shf.r.clamp.b32"] = {ternary<U, U, U, funnel<false, true>>};
  t["add.cc.u32"] = {add_carry<false, false, true>};
  t["addc.cc.u32"] = {add_carry<false, true, true>};
  t["addc.u32"] = {add_carry<false, true, false>};
  t["sub.cc.u32"] = {add_carry<true, false, true>};
  t["subc.cc.u32"] = {add_carry<true, true, true>};
  t["subc.u32"] = {add_carry<true, true, false>};
  t["mad.lo.cc.u32"] = {mad_carry<false, false, true>};
  t["madc.lo.cc.u32"] = {mad_carry<false, true, true>};
  t["madc.hi.cc.u32"] = {mad_carry<true, true, true>};
  t["madc.lo.u32"] = {mad_carry<false, true, false>};
  t["madc.hi.u32"] = {mad_carry<true, true, false>};
  t["mad.hi.cc.u32"] = {mad_carry<true, false, true>};
  t["and.pred"] = {predicate_logic<0>};
  t["or.pred"] = {predicate_logic<1>};
  t["xor.pred"] = {predicate_logic<2>};
  t["not.pred"] = {move_predicate<true>};
  t["mov.pred"] = {move_predicate<false>};
}

}  // namespace brrr::emulator::ptx
