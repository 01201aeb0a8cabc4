#pragma once
// The state of a running warp, and helpers to define instructions on it.

#include <bit>
#include <cstring>
#include <type_traits>

#include "core/check.h"
#include "tests/emulator/ptx_program.h"
#include "tests/emulator/ptx_shadow.h"

namespace brrr::emulator::ptx {

/// Windows of generic addresses, where neither global memory nor host memory is.
constexpr uint64_t shared_window = uint64_t{1} << 60, local_window = uint64_t{2} << 60,
                   parameter_window = uint64_t{3} << 60;

struct Block;

/// A pending cp.async of a lane to shared memory.
struct Copy {
  int lane;
  uint32_t count;
  uint64_t to;
  unsigned char bytes[16];
};

struct Warp {
  Block* block = nullptr;
  unsigned number = 0;
  const Operand* operands = nullptr;
  const uint64_t* constants = nullptr;
  std::vector<uint64_t> file;            // registers, one row of 32 lanes each
  std::vector<Mask> known;               // by register: the lanes in which its value is defined
  std::vector<Mask> truth, truth_known;  // predicates
  Mask carry = 0;
  Mask live = 0, waiting = 0, existing = 0;
  uint32_t at[lanes] = {};  // the program counters
  std::vector<uint32_t> calls[lanes];
  std::vector<Copy> copies;
  std::vector<unsigned char> local;        // local memory, lane after lane
  std::vector<unsigned char> local_known;  // by byte: whether it was written
  uint32_t epoch = 0;                      // barriers so far

  const Operand& operand(const Insn& i, int k) const { return operands[i.first + k]; }
  const uint64_t* row(const Operand& o) const {
    return (o.kind == Operand::Constant ? constants : file.data()) + size_t{o.at} * lanes;
  }
  uint64_t* row_of(const Operand& o) { return file.data() + size_t{o.at} * lanes; }
  Mask known_of(const Operand& o) const {
    switch (o.kind) {
      case Operand::Register:
        return known[o.at];
      case Operand::Predicate:
        return truth_known[o.at];
      default:
        return all_lanes;
    }
  }
  Mask truth_of(const Operand& o) const {
    return o.kind == Operand::Truth ? (o.at ? all_lanes : 0) : truth[o.at];
  }
  void define(const Operand& o, Mask m, Mask k) { known[o.at] = (known[o.at] & ~m) | (k & m); }
  void set_truth(const Operand& o, Mask m, Mask value, Mask k) {
    truth[o.at] = (truth[o.at] & ~m) | (value & m);
    truth_known[o.at] = (truth_known[o.at] & ~m) | (k & m);
  }
};

/// Fails the launch with a message about the thread in `lane`.
[[noreturn]] void fail_at(const Warp& w, const Insn& i, int lane, const std::string& what);
inline int first_of(Mask m) { return std::countr_zero(m); }

template <class F> inline void each(Mask m, F f) {
  if (m == all_lanes) {
    for (int l = 0; l < lanes; ++l) f(l);
    return;
  }
  for (; m; m &= m - 1) f(first_of(m));
}

template <class T> inline T get(uint64_t x) {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(static_cast<uint32_t>(x));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(x);
  else
    return static_cast<T>(x);
}
// All registers are stored in 64 bits; get() truncates to the type's width.
template <class T> inline uint64_t put(T x) {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<uint32_t>(x);
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<uint64_t>(x);
  else
    return static_cast<uint64_t>(static_cast<int64_t>(x));
}

template <class D, class A, auto f> void unary(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1);
  const uint64_t* x = w.row(a);
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) { to[l] = put<D>(f(get<A>(x[l]))); });
  w.define(d, m, w.known_of(a));
}
template <class D, class A, class B, auto f> void binary(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1), &b = w.operand(i, 2);
  const uint64_t *x = w.row(a), *y = w.row(b);
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) { to[l] = put<D>(f(get<A>(x[l]), get<B>(y[l]))); });
  w.define(d, m, w.known_of(a) & w.known_of(b));
}
template <class D, class A, class C, auto f> void ternary(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1), &b = w.operand(i, 2),
                &c = w.operand(i, 3);
  const uint64_t *x = w.row(a), *y = w.row(b), *z = w.row(c);
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) { to[l] = put<D>(f(get<A>(x[l]), get<A>(y[l]), get<C>(z[l]))); });
  w.define(d, m, w.known_of(a) & w.known_of(b) & w.known_of(c));
}

template <class T, auto f> void compare(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1), &b = w.operand(i, 2);
  const uint64_t *x = w.row(a), *y = w.row(b);
  Mask yes = 0;
  each(m, [&](int l) { yes |= static_cast<Mask>(f(get<T>(x[l]), get<T>(y[l]))) << l; });
  w.set_truth(d, m, yes, w.known_of(a) & w.known_of(b));
}

struct Block {
  const Kernel* kernel = nullptr;
  const Work* work = nullptr;
  Memory* memory = nullptr;
  brrr_emulator::Index index{};
  uint32_t serial = 0, first_serial = 0;  // its number across launches; that of the launch's first
  uint32_t epoch = 0;                     // barriers so far
  std::vector<unsigned char> shared;
  Shadow shared_shadow{4};
  Shadow* global_shadow = nullptr;
  uintptr_t begin = 0, end = 0;  // the allocation or variable accessed last
  bool is_variable = false;      // it is a variable of the program
};

}  // namespace brrr::emulator::ptx
