#pragma once
// What the text of the CPU's kernels shares in all walks (cpu.cpp, cpu_transposed.cpp,
// cpu_rows.cpp, cpu_packed_rows.cpp, cpu_whole.cpp): loads, stores and statements over vectors.

#include <functional>
#include <set>

#include "ops/program/cpu.h"
#include "ops/program/printer.h"

namespace brrr::program {

inline constexpr int64_t kGrain = 1 << 15;  ///< Fewest elements worth a thread.

/// Prefetch distance in bytes: 4 KB comes late, 16 KB begins to evict what is in use.
inline constexpr int64_t kAhead = 8 << 10;

/// The cache level to prefetch into: an L1 of 32 KB is full of data that is re-read, and a line
/// evicted before its use would come from memory twice; one of 48 KB has room.
int prefetch_level();
/// Whether to prefetch only 1 KB ahead: with an L2 of 2 MB (Intel) the hardware prefetcher is early
/// within a page, and prefetches beyond the page come late.
bool prefers_near();
/// A single stream is prefetched twice, because the first prefetch of some lines is late: how many
/// bytes ahead into L2, then into the level that they are used from.
struct Distance {
  int64_t second, used;
};
Distance one_stream_distance();

/// Names in the text: `o<w>` points to the beginning of window w, `p<w>` to that of its row;
/// `v<id>` is a statement's value, for a per-element statement `v<id>_<u>` in vector u of the body.
class CpuText : protected Printer {
 public:
  explicit CpuText(const Program& p);

 protected:
  const Number& number(const Statement& s) const {
    return p_.numbers[static_cast<size_t>(s.which)];
  }
  /// The id that a statement ignores.
  std::string ignored(const Statement& s) const {
    return literal(p_.numbers[static_cast<size_t>(p_.ignored(s))]);
  }
  /// The statements of that variance, without literals.
  std::vector<int> all(Statement::Varies which) const;

  const char* origin() const { return ndim_ > 1 ? "o" : "p"; }
  static std::string pointer_type(const Window& w) {
    return w.index ? "long" : fmt::format("{}*", spelling(w.dtype).element);
  }
  /// Whether every element of the space has its own element in memory.
  bool streams(const Window& w) const;
  /// Declares the arguments as pointers, and whether non-temporal stores may be used.
  void pointers();
  /// Declares `<name><w>`, pointers to the windows' elements in row `r` (an expression).
  void row_pointers(const std::string& r, const std::set<int>& windows, const char* name = "p");
  /// Loops over the innermost dim from `from` to `to`: `unroll` vectors at a time, then a masked
  /// tail, which a known `length` that is a multiple of that does without.
  void loops(const std::vector<int>& ids, const std::string& from, const std::string& to,
             int unroll, int64_t length = 0);
  /// `body` for each `step` elements that end by `to`. Where a known `length` leaves one iteration
  /// there is no loop: a loop costs the compiler two milliseconds, whatever it does.
  void bodies(int64_t step, const std::string& to, int64_t length,
              const std::function<void()>& body);
  /// Prints each statement for all vectors of an unrolled body: independent chains interleave.
  void emit(const std::vector<int>& ids, int unroll, bool tail);
  virtual std::string line(int id, int u, bool tail);
  std::string load(const Statement& x, int u, bool tail);
  /// The value in vector u of a statement that is neither a load nor a store.
  std::string value(int id, int u) const;
  /// Stores `count` lanes of `value` from `place` on; the one scalar of a window.
  void store_scalars(const Statement& s, const std::string& place, const std::string& value,
                     const std::string& count);
  void store_scalar(const Statement& s);
  /// The address of vector u of a body in the row at `pointer`, to which a body adds `i` only once.
  std::string address(const std::string& pointer, int u, bool tail);
  virtual void at_body(int /*unroll*/) {}
  /// Ends the text of a launch.
  void end_body() {
    if (!nontemporal_.empty()) text_ += "fence_nt();\n";
    text_ += "}\n";
    out_.body = printed();
  }
  /// The name of a statement's value in vector u.
  std::string name(int id, int u) const;
  /// The fold's combine, applied to two expressions.
  std::string combined(int fold, const std::string& x, const std::string& y) const {
    return fill(at(fold).text, {x, y});
  }
  /// The type of a loop-carried variable for a statement's values, and the value in it. A vector
  /// that fits a register is carried as such, which compiles faster than Parts of it.
  std::string carried(int id) const {
    return fits_register(id) ? vector(id) : fmt::format("Parts<{}>", vector(id));
  }
  std::string value_of(int id, const std::string& carried) const {
    return fits_register(id) ? carried : carried + ".get()";
  }
  /// Adds a function of that text (its name is `$0`) and returns the name: functions that several
  /// kernels call are compiled once.
  std::string function(const std::string& text);
  /// Declares four accumulators per fold; prints the statements for `unroll` vectors and combines
  /// each into its accumulator, named by `names` with the fold for $0 and the vector for $1.
  void accumulators(const std::vector<int>& folds);
  void accumulate(const std::vector<int>& ids, const std::vector<int>& folds, int unroll,
                  bool tail = false, const std::string& names = "a$0_$1");
  /// Reduces the fold's four accumulators, named by `names` with 0 to 3 for `$0`, over all lanes.
  std::string fold_four(int fold, const std::string& names);
  /// Folds the first `count` elements of an array, in the order of a row, into its first element.
  void fold_array(int fold, const std::string& array, const std::string& count);
  /// The same for the fold's own array; declares the result as the fold's value.
  void fold_all(int fold, const std::string& count);
  /// How many vectors a body of these statements takes at once.
  int choose_unroll(const std::vector<int>& ids) const;

  const int ndim_;
  const int64_t* const size_;
  bool streaming_;             // Moves more bytes than the caches keep.
  std::set<int> nontemporal_;  // Windows that may be stored non-temporally.
  CpuKernel out_;

 private:
  std::string store(const Statement& x, int u, bool tail);
  bool is_literal(const Statement& s) const {
    return s.kind == Statement::Constant || (s.kind == Statement::Number && !number(s).control);
  }
  bool fits_register(int id) const;
  size_t live_vectors(const std::vector<int>& ids) const;

  std::vector<std::string> addressed_;  // Pointers that the body being printed offsets by `i`.
};

/// Kernels of programs with rows: cpu_rows.cpp; with a single row: cpu_whole.cpp.
CpuKernel cpu_rows(const Program& p);
CpuKernel cpu_whole(const Program& p);
/// Whether rows are at most a vector long and contiguous enough that a walk over elements takes
/// several in one vector; and its kernel: cpu_packed_rows.cpp.
bool packs_rows(const Program& p);
CpuKernel cpu_packed_rows(const Program& p);
/// Whether a program without rows reads a window transposed; and its kernel: cpu_transposed.cpp.
bool reads_transposed(const Program& p);
CpuKernel cpu_transposed(const Program& p);

}  // namespace brrr::program
