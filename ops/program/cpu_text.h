#pragma once
// What the CPU's kernels of all walks (cpu.cpp, cpu_across.cpp, cpu_rows.cpp, cpu_whole.cpp) spell
// alike: loads, stores and statements over vectors.

#include <functional>
#include <set>

#include "ops/program/cpu.h"
#include "ops/program/printer.h"

namespace brrr::program {

inline constexpr int64_t kGrain = 1 << 15;  ///< Elements worth a thread.

/// How many bytes ahead of time lines are asked for: 4 KB is late, 16 KB begins to push out what is
/// in use.
inline constexpr int64_t kAhead = 8 << 10;

/// The level that lines are asked for into ahead of time: a first level of 32 KB is full of what is
/// read again, and a line that it throws out before its use would come from memory twice; in one of
/// 48 KB there is room.
int prefetch_level();
/// Whether lines are asked for near by, 1 KB ahead: beside a second level of 2 MB (Intel) the
/// hardware is early within a page, and what is asked for beyond it comes late.
bool asks_near();
/// A stream alone is asked for twice, because some lines are late the first time: how many bytes
/// ahead into the second level, then into the level that they are used from.
struct Ahead {
  int64_t second, used;
};
Ahead ahead_of_one_stream();

/// Names of the text: `o<w>` is where window w begins, `p<w>` where it does in the row; `v<id>` a
/// statement's value, that of elements `v<id>_<u>` in vector u of an unrolled body.
class CpuText : protected Printer {
 public:
  explicit CpuText(const Program& p);

 protected:
  const Number& number(const Statement& s) const {
    return p_.numbers[static_cast<size_t>(s.which)];
  }
  /// What does not count among the ids that a statement reads.
  std::string ignored(const Statement& s) const {
    return literal(p_.numbers[static_cast<size_t>(p_.ignored(s))]);
  }
  /// The statements that vary so, but for literals.
  std::vector<int> all(Statement::Varies which) const;

  const char* origin() const { return ndim_ > 1 ? "o" : "p"; }
  static std::string pointer_type(const Window& w) {
    return w.index ? "long" : fmt::format("{}*", spelling(w.dtype).element);
  }
  /// Every element of the space has a place of its own there.
  bool streams(const Window& w) const;
  /// The arguments as pointers, and whether stores may go around the caches.
  void pointers();
  /// `p<w>`, or of another name, of windows in row `r`, a number.
  void row_pointers(const std::string& r, const std::set<int>& windows, const char* name = "p");
  /// The innermost dim from `from` to `to`, `unroll` vectors at a time, then under a mask; nothing
  /// is left for that if a known length is made of whole vectors.
  void loops(const std::vector<int>& ids, const std::string& from, const std::string& to,
             int unroll, int64_t length = 0);
  /// `body` for `step` elements after the other while they reach up to `to`. Where a known length
  /// leaves one turn there is no loop: one costs the compiler two milliseconds, whatever it does.
  void bodies(int64_t step, const std::string& to, int64_t length,
              const std::function<void()>& body);
  /// Statement by statement over all vectors of an unrolled body: independent chains side by side.
  void emit(const std::vector<int>& ids, int unroll, bool tail);
  virtual std::string line(int id, int u, bool tail);
  std::string load(const Statement& x, int u, bool tail);
  /// Of a statement that is neither load nor store: its value in vector u.
  std::string value(int id, int u) const;
  /// Stores `count` numbers, lanes of `value`, from `place` on; the one number that a window has.
  void store_numbers(const Statement& s, const std::string& place, const std::string& value,
                     const std::string& count);
  void store_number(const Statement& s);
  /// Where vector u of a body begins for a pointer of the row; a body adds `i` to each but once.
  std::string address(const std::string& pointer, int u, bool tail);
  virtual void at_body(int /*unroll*/) {}
  /// What ends the text of a launch.
  void end_body() {
    if (!around_.empty()) text_ += "fence_nt();\n";
    text_ += "}\n";
    out_.body = printed();
  }
  /// What the name of a statement's value is in vector u.
  std::string name(int id, int u) const;
  /// The fold's combine of two expressions.
  std::string combined(int fold, const std::string& x, const std::string& y) const {
    return fill(at(fold).text, {x, y});
  }
  /// The type of what a loop carries on of a statement's values, and the value of that. Where it
  /// fits a register that is the vector itself, which compiles faster than Parts of it.
  std::string carried(int id) const {
    return fits(id) ? vector(id) : fmt::format("Parts<{}>", vector(id));
  }
  std::string value_of(int id, const std::string& carried) const {
    return fits(id) ? carried : carried + ".get()";
  }
  /// The name of a function of that text, whose `$0` is the name: what several kernels call is
  /// compiled once for all of them.
  std::string function(const std::string& text);
  /// The folds' accumulators, four each, and statements over so many vectors that are added to
  /// theirs of those names, where $0 is the fold and $1 the vector.
  void accumulators(const std::vector<int>& folds);
  void take(const std::vector<int>& ids, const std::vector<int>& folds, int unroll,
            bool tail = false, const std::string& names = "a$0_$1");
  /// Of the fold's four accumulators, whose names are `names` with 0 to 3 for `$0`, what all their
  /// lanes come to.
  std::string fold_four(int fold, const std::string& names);
  /// Folds the first `count` elements of an array, as a row does, into its first.
  void fold_array(int fold, const std::string& array, const std::string& count);
  /// The same of the fold's own array, which gives its value.
  void fold_all(int fold, const std::string& count);
  /// How many vectors the body of such statements takes at once.
  int choose_unroll(const std::vector<int>& ids) const;

  const int ndim_;
  const int64_t* const size_;
  bool streaming_;        // It moves more than the caches keep.
  std::set<int> around_;  // Windows that may be stored around the caches.
  CpuKernel out_;

 private:
  std::string store(const Statement& x, int u, bool tail);
  bool is_literal(const Statement& s) const {
    return s.kind == Statement::Constant || (s.kind == Statement::Number && !number(s).control);
  }
  bool fits(int id) const;
  size_t live_vectors(const std::vector<int>& ids) const;

  std::vector<std::string> addressed_;  // Pointers of the body that is printed.
};

/// The kernel of a program with rows: cpu_rows.cpp; with one: cpu_whole.cpp.
CpuKernel cpu_rows(const Program& p);
CpuKernel cpu_whole(const Program& p);
/// Whether its rows are no longer than a vector and lie so that a walk over elements takes them
/// together, and the kernel that does: cpu_together.cpp.
bool lie_together(const Program& p);
CpuKernel cpu_together(const Program& p);
/// Whether a window of a program without rows is read across, and the kernel that does:
/// cpu_across.cpp.
bool reads_across(const Program& p);
CpuKernel cpu_across(const Program& p);

}  // namespace brrr::program
