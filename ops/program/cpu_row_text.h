#pragma once
// Parts of the walk over rows (cpu_rows.cpp): a pass for each depth of folds, values that later
// passes load instead of recomputing them, the text of a pass over the elements of a row; and the
// second launch, which combines what threads left in scratch memory: sums over the rows and of
// whole tensors.

#include <algorithm>
#include <bit>
#include <functional>

#include "ops/kinds/reduction.h"
#include "ops/program/cpu_text.h"

namespace brrr::program {

// Most bytes of values that passes keep for later ones.
inline constexpr int64_t kKeptBytes = 64 << 10;
// Elements of a block of rows: short rows are latency-bound and need several side by side; long
// ones have to stay in L1, where rows streaming from and to memory need room as well.
inline constexpr int64_t kBlockElements = 4096, kBlockElementsStreaming = 1024;
// What interleaved passes may use of L1, whether it has 32 or 48 KB.
inline constexpr int64_t kPipelineL1Bytes = 32 << 10;

class RowText : public CpuText {
 public:
  explicit RowText(const Program& p)
      : CpuText(p),
        n_(p.row),
        rows_(p.space.numel() / p.row),
        block_(std::bit_floor<uint64_t>(std::clamp<int64_t>(
            (streaming_ ? kBlockElementsStreaming : kBlockElements) / n_, 1, 16))),
        padded_((n_ + 15) / 16 * 16),
        states_(row_states(p)) {
    for (int id = static_cast<int>(states_.size()); id-- > 0;) {
      if (!of(id).live) continue;
      live_.insert(live_.begin(), id);
      deepest_ = std::max(deepest_, of(id).depth);
      if (at(id).kind == Statement::FoldRows) columns_.push_back(id);
      if (at(id).kind == Statement::Total) totals_.push_back(id);
    }
    pipelined_ = streaming_ && deepest_ > 0 && n_ >= 64 && n_ <= kReduceChunk;
    make_passes();
    if (!pipelined_ || pipelining_pays()) return;
    pipelined_ = false;
    make_passes();
  }

 protected:
  /// Whether an L1 of 48 KB has room for the next two blocks beside the current one. Prefetching
  /// both took 0.86 of the time with 64 KB in all (a layer norm of a sum, rows of 2,048), 1.1 to
  /// 1.2 with 72 KB, as it did where two passes take many short rows at once.
  bool prefetches_far() const {
    constexpr int64_t room = 64 << 10;
    return prefetch_level() == 1 && !prefers_near() && (deepest_ > 1 || block_ <= 2) &&
           in_use([](int, bool) { return 3; }) <= room;
  }
  const RowState& of(int id) const { return states_[static_cast<size_t>(id)]; }
  bool loads_from(const RowPass& pass, int w) const {
    return std::ranges::any_of(
        pass.list, [&](int id) { return at(id).kind == Statement::Load && at(id).which == w; });
  }
  // Adds the per-element values that `id` is computed from, itself included.
  void add_elements(int id, std::set<int>& all) const {
    if (!in_row(id) || !all.insert(id).second) return;
    for (int a : at(id).args) add_elements(a, all);
  }
  // Whether a later pass should load the value rather than recompute it, and there is room for it.
  bool keeps(int id) {
    if (at(id).kind != Statement::Formula || !is_floating(at(id).type)) return false;
    std::set<int> elements;
    add_elements(id, elements);
    int loads = 0, cost = 0;
    for (int x : elements) {
      loads += at(x).kind == Statement::Load;
      cost += at(x).cost;
    }
    const bool worth = loads > 2 || cost > 1;
    if (!worth || kept_bytes_ + bytes_kept(id) > kKeptBytes) return false;
    kept_bytes_ += bytes_kept(id);
    return true;
  }

  /// How many blocks of a kept value are live at a time.
  int64_t blocks_kept(int id) const { return pipelined_ ? deepest_ - of(id).pass + 1 : 1; }
  int64_t bytes_kept(int id) const {
    return blocks_kept(id) * block_ * padded_ * static_cast<int64_t>(itemsize(at(id).type));
  }

  // --- the text of a pass ------------------------------------------------------------------------

  std::string line(int id, int u, bool tail) override {
    const Statement& s = at(id);
    if (s.kind == Statement::IsAt) {
      return fmt::format(
          "const auto {} = eq(i32{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}, "
          "splat((int)(id{} - (i + {}))))",
          name(id, u), s.which, 16 * u);
    }
    if (s.kind == Statement::FoldRows) {
      const std::string to = address(fmt::format("c{}", id), u, tail);
      return fmt::format("store({0}, {1})", to,
                         combined(id, fmt::format("load({})", to), "(" + name(s.args[0], u) + ")"));
    }
    if (!of(id).kept) return CpuText::line(id, u, tail);
    const std::string kept = address(fmt::format("q{}", id), u, tail);
    if (of(id).pass < current_) return fmt::format("const auto {} = load({})", name(id, u), kept);
    return fmt::format("{}; store({}, {})", CpuText::line(id, u, tail), kept, name(id, u));
  }

  // Declares the pointers and scalars that the pass reads in row r.
  void row_names(const RowPass& pass) {
    std::set<int> used;  // A pick recomputes its element, whatever the pass has of it.
    for (int id : pass.picks) add_elements(at(id).args[0], used);
    used.insert(pass.list.begin(), pass.list.end());
    std::set<int> windows, ids, given, statements = used;
    statements.insert(pass.folds.begin(), pass.folds.end());
    statements.insert(pass.picks.begin(), pass.picks.end());
    for (int id : statements) {
      const Statement& s = at(id);
      if (s.kind == Statement::IsAt || s.kind == Statement::Pick) ids.insert(s.which);
      const bool reads = s.kind == Statement::Load && !(of(id).kept && of(id).pass < current_);
      if (reads || s.kind == Statement::Store) windows.insert(s.which);
      for (int a : s.args) {
        if (at(a).varies == Statement::WithRow) given.insert(a);
      }
    }
    text_ += "const long q = r0 + r;\n";
    row_pointers("q", windows);
    // A pipelined pass has no row before the first and after the last.
    const std::string guard = pipelined_ ? "r >= rows ? 0 : " : "";
    for (int w : ids) print("const long id{0} = {1}o{0}[q];\n", w, guard);
    for (int id : given) {
      if (ends_pass(at(id)) && of(id).depth > current_) continue;
      print("const auto v{} = {};\n", id,
            from_memory(at(id).type, fmt::format("splat(w{}[r])", id)));
    }
    for (int id : used) {
      if (of(id).kept) print("{0}* const q{1} = k{1} + r * {2};\n", element(id), id, padded_);
      if (at(id).kind == Statement::FoldRows) {
        print("{0}* const c{1} = s{1} + k * {2};\n", element(id), id, padded_);
      }
    }
  }

  // Picks an element of the row: recomputes it at the position that the id names.
  void pick(int id) {
    const Statement& s = at(id);
    const std::function<std::string(int)> value = [&](int x) -> std::string {
      const Statement& e = at(x);
      if (!in_row(x)) return name(x, 0);
      if (e.kind == Statement::Load) {
        const std::string place = fmt::format("id{} * {}", s.which, inner_stride(e));
        const auto text = fmt::runtime(window(e).index ? "splat(p{} + {})" : "splat(p{}[{}])");
        return from_memory(window(e).dtype, fmt::format(text, e.which, place));
      }
      if (e.kind == Statement::IsAt) {
        return fmt::format("first_lanes(id{} == id{} ? 16 : 0)", e.which, s.which);
      }
      return formula(x, [&](int a) { return "(" + value(a) + ")"; });
    };
    print("w{}[r] = id{} == {} ? 0 : ({})[0];\n", id, s.which, ignored(s), value(s.args[0]));
  }

  // A fold of one row, or of a chunk of it: a body that adds a vector to each accumulator,
  void fold_body(const std::vector<int>& list, const std::vector<int>& folds) {
    at_body(4);
    accumulate(list, folds, 4);
  }
  // the elements left after whole bodies,
  void rest(const std::vector<int>& list, const std::vector<int>& folds, int64_t chunks) {
    if (n_ % 64 == 0) return;
    const int whole = static_cast<int>(n_ % 64 / 16), left = static_cast<int>(n_ % 16);
    text_ += chunks > 1 ? fmt::format("if (c + 1 == {}) {{\n", chunks) : "{\n";
    accumulate(list, folds, whole);
    if (left) {
      print("i += {};\nconst int n = {};\n{{\n", 16 * whole, left);
      accumulate(list, folds, 1, true, fmt::format("a$0_{}", whole));
      text_ += "}\n";
    }
    text_ += "}\n";
  }
  // and the scalar that the accumulators reduce to.
  void reduced(const std::vector<int>& folds, const std::string& to) {
    for (int f : folds) {
      print("{} = {};\n", fmt::format(fmt::runtime(to), f), fold_four(f, fmt::format("a{}_$0", f)));
    }
  }

  // --- when all rows are done --------------------------------------------------------------------

  // Scratch: column sums of each block of rows, then for each total a scalar per row.
  void plan_scratch() {
    const int64_t blocks = (rows_ + kReduceBlock - 1) / kReduceBlock;
    const auto room = [&](int id, int64_t count) {
      scratch_of_.emplace_back(id, out_.scratch);
      const auto item = static_cast<int64_t>(itemsize(at(id).type));
      out_.scratch += (count * item + 63) / 64 * 64;
    };
    for (int id : columns_) room(id, blocks * padded_);
    for (int id : totals_) room(id, rows_ + 16);
    if (out_.scratch) out_.arguments.push_back({CpuArgument::Scratch});
  }

  // Pointers, and values that are the same for all rows.
  void begin() {
    pointers();
    for (const auto& [id, offset] : scratch_of_) {
      print("{0}* const s{1} = ({0}*)(a[{2}] + {3});\n", element(id), id, out_.arguments.size() - 1,
            offset);
    }
    std::vector<int> never = all(Statement::Never);
    std::erase_if(never, [&](int id) {
      return !of(id).live || of(id).after || at(id).kind == Statement::Store;
    });
    emit(never, 1, false);
  }

  // Initialises the column sums of a block of rows.
  void clear_columns() {
    for (int id : columns_) {
      const std::string clear =
          function(fmt::format("static __attribute__((noinline)) void $0({}* x, long n, {} v) {{\n"
                               "for (long i = 0; i < n; i += 16) store(x + i, v);\n}}\n",
                               element(id), vector(id)));
      print("{0}(s{1} + k * {2}, {2}, {3});\n", clear, id, padded_, name(at(id).args[1], 0));
    }
  }

  // The second launch: totals, then columns.
  void finish() {
    text_ = "(char* const* a, long, long) {\n";
    begin();
    for (int id : totals_) fold_all(id, std::to_string(rows_));
    std::vector<int> places;  // Per-element statements after the folds.
    for (int id : live_) {
      const Statement& s = at(id);
      if (!of(id).after) continue;
      const bool store = s.kind == Statement::Store;
      if (store ? inner_stride(s) != 0 : in_row(id)) {
        places.push_back(id);
      } else if (s.kind == Statement::Formula) {
        print("const auto v{} = {};\n", id, value(id, 0));
      } else if (store) {
        store_scalar(s);
      }
    }
    if (!columns_.empty()) finish_columns(places);
    text_ += "}\n";
    out_.last = printed();
  }

  // Adds up the blocks' column sums in order.
  void finish_columns(const std::vector<int>& places) {
    const int64_t blocks = (rows_ + kReduceBlock - 1) / kReduceBlock;
    for (int id : places) {
      if (at(id).kind != Statement::Store) continue;
      print("{0} const p{1} = o{1};\n", pointer_type(window(at(id))), at(id).which);
    }
    for (int id : columns_) {
      if (blocks == 1) continue;
      const std::string add = function(
          fmt::format("static __attribute__((noinline)) void $0({}* x, long n, long blocks) {{\n"
                      "for (long b = 1; b < blocks; ++b) {{\n"
                      "for (long i = 0; i < n; i += 16) store(x + i, {});\n}}\n}}\n",
                      element(id), combined(id, "load(x + i)", "load(x + b * n + i)")));
      print("{}(s{}, {}, {});\n", add, id, padded_, blocks);
    }
    print(
        "for (long i = 0; i < {0}; i += 16) {{\nconst int n = {0} - i < 16 ? (int)({0} - i) "
        ": 16;\n",
        n_);
    for (int id : columns_) print("const auto v{0}_0 = load(s{0} + i);\n", id);
    for (int id : places) {
      if (at(id).kind != Statement::FoldRows) text_ += CpuText::line(id, 0, true) + ";\n";
    }
    text_ += "}\n";
  }

  const int64_t n_, rows_;
  const int64_t block_;   // Rows that a pass takes before the next pass begins.
  const int64_t padded_;  // Length of a row in the kernel's own arrays.
  int deepest_ = 0;
  bool pipelined_ = false;  // Passes are interleaved, each a block behind the one before.
  std::vector<int> live_, columns_, totals_;  // Live statements; of those, FoldRows and Total.
  std::vector<RowPass> passes_;
  int current_ = 0;  // The pass being printed.

 private:
  void make_passes() {
    kept_bytes_ = 0;
    for (RowState& s : states_) s.pass = -1, s.kept = false;
    passes_ = row_passes(p_, states_, deepest_, [&](int id) { return keeps(id); });
  }

  // Whether interleaving the passes pays. A row stays in use from the first pass that loads it to
  // the last. Without polynomials, which would otherwise wait for memory, these rows have to stay
  // in L1 beside weights and columns (a layer norm: up to 1,536 elements 1.4 times as fast; with
  // 2,048 it would take 1.3 times as long, its backward from 1,024 on). Cores that prefetch into L1
  // also lose by it with two input streams: a layer norm's backward takes 1.4 times as long,
  // softmax's 1.25, in rows of 128 to 2,048.
  bool pipelining_pays() const {
    int64_t streams_in = 0;
    const int64_t bytes = in_use([&](int w, bool moves) {
      const auto loads = [&](const RowPass& pass) { return loads_from(pass, w); };
      streams_in += moves;
      return std::find_if(passes_.rbegin(), passes_.rend(), loads).base() -
             std::ranges::find_if(passes_, loads);
    });
    // Where a vector takes several registers, the sums of two passes over several streams would
    // spill.
    constexpr bool whole = BRRR_VX_BYTES == 64;
    if ((prefetch_level() == 1 || !whole) && streams_in > 1) return false;
    const auto is_polynomial = [&](int id) { return at(id).cost > 0; };
    return bytes <= kPipelineL1Bytes || std::ranges::any_of(passes_, [&](const RowPass& pass) {
             return std::ranges::any_of(pass.list, is_polynomial);
           });
  }

  // Bytes of columns, of operands that all rows share, and of `blocks(w, moves)` blocks per stream.
  template <class F> int64_t in_use(const F& blocks) const {
    int64_t bytes = 0;
    for (int id : columns_) bytes += n_ * static_cast<int64_t>(itemsize(at(id).type));
    for (int w = 0; w < windows(); ++w) {
      const auto loads = [&](const RowPass& pass) { return loads_from(pass, w); };
      if (inner_stride(w) == 0 || std::ranges::none_of(passes_, loads)) continue;
      const bool moves = streams(window(w));
      const int64_t count = blocks(w, moves);
      bytes += (moves ? block_ * count : 1) * n_ * window(w).item();
    }
    return bytes;
  }

  std::vector<RowState> states_;
  int64_t kept_bytes_ = 0;
  std::vector<std::pair<int, int64_t>> scratch_of_;  // Statements, offsets in scratch memory.
};

}  // namespace brrr::program
