#pragma once
// Sym: a row's lambda, instantiated on symbols, records the statements of its formula.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/moved.h"

namespace brrr {

/// One value of a program, identified by its index in the list of statements.
struct Statement {
  enum Kind : uint8_t {
    Operand,   ///< Operand `which` of a formula that is in no program.
    Load,      ///< An element of window `which`; a mask if that is bool.
    Number,    ///< Scalar `which` of the program, cast to `type`.
    Constant,  ///< The literal `text`, cast to `type`.
    Formula,   ///< `text` in the dialect of ops/vocabulary/vec.h, `$0`.. being its arguments.
    Store,     ///< Stores its argument to window `which`.
    // Over rows. `which` is an operand, in a program a window; in the three that read an id `text`
    // is the program's scalar that holds the id to ignore.
    Fold,      ///< Folds its argument over the row, from its second argument (an identity) on:
               ///< `text` combines a partial result, $0, with an element or another one, $1.
    FoldRows,  ///< The same over all rows, at each position: one row of results.
    Length,    ///< The number of elements in a row.
    Pick,      ///< Its argument at the index in id `which`; 0 if that is ignored.
    Counts,    ///< A mask: whether id `which` is not ignored.
    IsAt,      ///< A mask: whether the element's index is id `which`.
    Total,     ///< Folds its argument, a scalar per row, over all rows.
  };
  /// How the value varies.
  enum Varies : uint8_t { Never, WithRow, InRow };
  /// What holds for every value that is not NaN: functions may have a cheaper form for it.
  enum Known : uint8_t { Anything, Unit /* in [-1, 1] */, NotPositive };

  Kind kind;
  DType type;  ///< Of the register; kBool: a mask.
  int which = -1;
  std::string text = {};
  std::vector<int> args = {};
  uint8_t cost = 0;   ///< Twice the number of long dependent chains (polynomials) in it.
  uint8_t flops = 0;  ///< Floating-point operations per element, an fma being two.
  Known known = Anything;
  Varies varies = Never;
};
using Statements = std::vector<Statement>;
inline bool reads_id(const Statement& s) {
  return s.kind == Statement::Pick || s.kind == Statement::Counts || s.kind == Statement::IsAt;
}
/// Appends a statement, which varies at least as its arguments do; returns its index.
int append(Statements& list, Statement s);

/// While it lives, the symbols of this thread append to its list.
class SymScope : NotCopied {
 public:
  /// Formulas and scalars are of type `compute`.
  SymScope(Statements& list, DType compute)
      : list_(list), compute_(compute), held_(current_, this) {}

  static SymScope& current() { return *current_; }
  int add(Statement s) { return append(list_, std::move(s)); }
  int operand(int which) { return add({Statement::Operand, compute_, which}); }
  DType compute() const { return compute_; }
  const Statement& operator[](int id) const { return list_[static_cast<size_t>(id)]; }

 private:
  Statements& list_;
  DType compute_;
  inline static thread_local SymScope* current_ = nullptr;
  Held<SymScope*> held_;
};

/// Whether s is the maximum of the elements x over their row.
bool is_largest_of(const Statement& s, int x);
/// Statement `id`, a formula of operands alone, as a pattern: operand k is $k.
std::string pattern(const Statements& list, int id);
/// Bit k is set: statement `id` depends on operand k.
uint64_t operands_used(const Statements& list, int id);
/// A value as text: hex floats keep every bit.
std::string literal(double v);
std::string literal(int64_t v);

struct Sym {
  int id = -1;
  Sym() = default;
  explicit Sym(int i) : id(i) {}
  Sym(double v);  // NOLINT(google-explicit-constructor)
};
struct SymMask {
  int id = -1;
};

/// The cost of a formula's text: operations, an fma being two; chains of them (see Statement).
struct Effort {
  int flops = 1, chains = 0;
};
inline Sym sym_emit(const char* text, std::initializer_list<int> args, Effort e = {},
                    Statement::Known known = Statement::Anything) {
  SymScope& s = SymScope::current();
  return Sym(s.add({Statement::Formula, s.compute(), -1, text, args,
                    static_cast<uint8_t>(2 * e.chains), static_cast<uint8_t>(e.flops), known}));
}
/// A formula whose results lie in [-1, 1].
inline Sym bounded_emit(const char* text, std::initializer_list<int> args, Effort e) {
  return sym_emit(text, args, e, Statement::Unit);
}
inline Statement::Known known_of(int id) { return SymScope::current()[id].known; }
/// The same, with a cheaper form for an argument in [-1, 1], named unit_...
inline Sym wave_emit(const char* text, std::initializer_list<int> args, Effort e) {
  const bool unit = known_of(*args.begin()) == Statement::Unit;
  return bounded_emit(unit ? (std::string("unit_") + text).c_str() : text, args, e);
}
/// A formula with a cheaper form for an argument that is not positive, named falling_...
inline Sym rising_emit(const char* text, std::initializer_list<int> args, Effort e) {
  const bool falls = known_of(*args.begin()) == Statement::NotPositive;
  return sym_emit(falls ? (std::string("falling_") + text).c_str() : text, args, e);
}
inline SymMask mask_emit(const char* text, std::initializer_list<int> args, Effort e = {}) {
  return {SymScope::current().add(
      {Statement::Formula, kBool, -1, text, args, 0, static_cast<uint8_t>(e.flops)})};
}

/// Appends the Fold, FoldRows or Total of x from the literal `init` on; combine(a, b): a formula.
template <class F>
Sym fold_emit(Statement::Kind kind, const F& combine, Sym x, const std::string& init) {
  SymScope& s = SymScope::current();
  Statements formula;
  int y;
  {
    SymScope scope(formula, s.compute());
    const Sym so_far(scope.operand(0)), next(scope.operand(1));
    y = combine(so_far, next).id;
  }
  const int from = s.add({Statement::Constant, s.compute(), -1, init});
  return Sym(s.add({kind, s.compute(), -1, pattern(formula, y), {x.id, from}}));
}

inline Sym operator+(Sym a, Sym b) { return sym_emit("$0 + $1", {a.id, b.id}); }
inline Sym operator-(Sym a, Sym b) {
  const bool below = is_largest_of(SymScope::current()[b.id], a.id);
  return sym_emit("$0 - $1", {a.id, b.id}, {},
                  below ? Statement::NotPositive : Statement::Anything);
}
inline Sym operator*(Sym a, Sym b) { return sym_emit("$0 * $1", {a.id, b.id}); }
inline Sym operator/(Sym a, Sym b) { return sym_emit("$0 / $1", {a.id, b.id}); }
inline Sym operator-(Sym a) { return sym_emit("-$0", {a.id}, {0}); }
inline SymMask operator&(SymMask a, SymMask b) { return mask_emit("$0 & $1", {a.id, b.id}, {0}); }
inline SymMask operator|(SymMask a, SymMask b) { return mask_emit("$0 | $1", {a.id, b.id}, {0}); }
inline SymMask operator!(SymMask a) { return mask_emit("~$0", {a.id}, {0}); }

/// An int64 of a formula, whatever type the rest of it has: a position of the element, a seed.
struct SymIndex {
  int id = -1;
  explicit SymIndex(int i) : id(i) {}
  SymIndex(int64_t v)  // NOLINT(google-explicit-constructor)
      : id(SymScope::current().add({Statement::Constant, kInt64, -1, literal(v)})) {}
};

/// A draw of `type`, at the cost of four chains.
inline int draw_emit(DType type, const char* text, std::initializer_list<int> args) {
  return SymScope::current().add({Statement::Formula, type, -1, text, args, 8});
}
inline SymIndex index_emit(const char* text, std::initializer_list<int> args) {
  return SymIndex(SymScope::current().add({Statement::Formula, kInt64, -1, text, args}));
}

inline SymIndex operator+(SymIndex a, SymIndex b) { return index_emit("$0 + $1", {a.id, b.id}); }
inline SymIndex operator-(SymIndex a, SymIndex b) { return index_emit("$0 - $1", {a.id, b.id}); }
inline SymIndex operator>>(SymIndex a, SymIndex b) { return index_emit("$0 >> $1", {a.id, b.id}); }

#define BRRR_COMPARE(sign, fn)                                                                   \
  inline SymMask operator sign(Sym a, Sym b) { return mask_emit(#fn "($0, $1)", {a.id, b.id}); } \
  inline SymMask operator sign(SymIndex a, SymIndex b) {                                         \
    return mask_emit(#fn "($0, $1)", {a.id, b.id}, {0});                                         \
  }
BRRR_COMPARE(<, lt)
BRRR_COMPARE(<=, le)
BRRR_COMPARE(>, gt)
BRRR_COMPARE(>=, ge)
BRRR_COMPARE(==, eq)
BRRR_COMPARE(!=, ne)
#undef BRRR_COMPARE

}  // namespace brrr
