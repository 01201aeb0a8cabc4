#pragma once
// Sym: a row's lambda run on symbols writes down the source text of its formula.

#include <cstdint>
#include <string>
#include <vector>

namespace brrr {

/// Where symbols write their text. One statement per operation, in the dialect of
/// ops/vocabulary/vec.h (16 lanes on the CPU, one on a GPU).
class SymText {
 public:
  /// `lane` is the C++ type of one element ("float"), which constants are cast to. Names are
  /// prefix + number, so that several rows can write into one kernel.
  SymText(std::string lane, std::string prefix, std::string indent)
      : lane_(std::move(lane)), prefix_(std::move(prefix)), indent_(std::move(indent)) {}

  /// Names an operand; `operand` < 0 means that uses of it are not tracked.
  int operand(const std::string& name, int operand, bool unit = false);
  int constant(double v);
  /// Writes `const auto tN = text;` with `$0`, `$1`... replaced by the arguments' names.
  int emit(const char* text, std::initializer_list<int> args);
  const std::string& name(int id) const { return names_[id]; }
  /// Bit i set: the value depends on operand i.
  uint64_t uses(int id) const { return uses_[id]; }
  /// The value is known to lie in [-1, 1], or to be NaN.
  bool unit(int id) const { return unit_[id]; }
  void set_unit(int id) { unit_[id] = true; }
  const std::string& text() const { return text_; }

  /// Long chains of dependent operations written so far: polynomials.
  int chains = 0;

  /// The text that the symbols of this thread write to.
  inline static thread_local SymText* current = nullptr;

 private:
  int add(std::string name, uint64_t uses, bool unit = false);
  std::string lane_, prefix_, indent_, text_;
  std::vector<std::string> names_;
  std::vector<uint64_t> uses_;
  std::vector<bool> unit_;
};

struct Sym {
  int id = -1;
  Sym() = default;
  explicit Sym(int i) : id(i) {}
  Sym(double v) : id(SymText::current->constant(v)) {}  // NOLINT(google-explicit-constructor)
};
struct SymMask {
  int id = -1;
};

inline Sym sym_emit(const char* text, std::initializer_list<int> args) {
  return Sym(SymText::current->emit(text, args));
}
inline Sym chain_emit(const char* text, std::initializer_list<int> args) {
  ++SymText::current->chains;
  return sym_emit(text, args);
}
/// A chain as long as four.
inline Sym long_emit(const char* text, std::initializer_list<int> args) {
  SymText::current->chains += 3;
  return chain_emit(text, args);
}
/// A chain whose results lie in [-1, 1].
inline Sym bounded_emit(const char* text, std::initializer_list<int> args) {
  const Sym y = chain_emit(text, args);
  SymText::current->set_unit(y.id);
  return y;
}
/// One that has a cheaper form for an argument from there too, named unit_...
inline Sym wave_emit(const char* text, std::initializer_list<int> args) {
  const bool unit = SymText::current->unit(*args.begin());
  return bounded_emit(unit ? (std::string("unit_") + text).c_str() : text, args);
}
inline SymMask mask_emit(const char* text, std::initializer_list<int> args) {
  return {SymText::current->emit(text, args)};
}

inline Sym operator+(Sym a, Sym b) {
  return sym_emit("$0 + $1", {a.id, b.id});
}
inline Sym operator-(Sym a, Sym b) {
  return sym_emit("$0 - $1", {a.id, b.id});
}
inline Sym operator*(Sym a, Sym b) {
  return sym_emit("$0 * $1", {a.id, b.id});
}
inline Sym operator/(Sym a, Sym b) {
  return sym_emit("$0 / $1", {a.id, b.id});
}
inline Sym operator-(Sym a) {
  return sym_emit("-$0", {a.id});
}
inline SymMask operator<(Sym a, Sym b) {
  return mask_emit("lt($0, $1)", {a.id, b.id});
}
inline SymMask operator<=(Sym a, Sym b) {
  return mask_emit("le($0, $1)", {a.id, b.id});
}
inline SymMask operator>(Sym a, Sym b) {
  return mask_emit("gt($0, $1)", {a.id, b.id});
}
inline SymMask operator>=(Sym a, Sym b) {
  return mask_emit("ge($0, $1)", {a.id, b.id});
}
inline SymMask operator==(Sym a, Sym b) {
  return mask_emit("eq($0, $1)", {a.id, b.id});
}
inline SymMask operator!=(Sym a, Sym b) {
  return mask_emit("ne($0, $1)", {a.id, b.id});
}
inline SymMask operator&(SymMask a, SymMask b) {
  return mask_emit("$0 & $1", {a.id, b.id});
}
inline SymMask operator|(SymMask a, SymMask b) {
  return mask_emit("$0 | $1", {a.id, b.id});
}
inline SymMask operator!(SymMask a) {
  return mask_emit("~$0", {a.id});
}

}  // namespace brrr
