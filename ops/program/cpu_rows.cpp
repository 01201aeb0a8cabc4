// The CPU's kernel of a program with a row. A few rows at a time, pass by pass: each pass walks all
// of them and ends in numbers of each row, which are then computed with a row a lane; the last pass
// stores elements. A row's fold is in the order of ops/kinds/reduction.h ("rows"), that over the
// rows in blocks of 64 ("columns"), so that bits are those of eager kernels.
#include <algorithm>
#include <bit>
#include <functional>

#include "ops/kinds/reduction.h"
#include "ops/program/cpu_row_totals.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

namespace {

class RowWalk : public RowTotals {
 public:
  explicit RowWalk(const Program& p) : RowTotals(p) {}

  CpuKernel run() {
    out_.arguments = cpu_arguments(p_);
    plan_scratch();
    const int64_t unit = columns_.empty() ? block_ : kReduceBlock;
    out_.extent = (rows_ + unit - 1) / unit;
    out_.unit = unit * n_;
    out_.grain = std::max<int64_t>(1, kGrain / (unit * n_));
    plan_passes();
    out_.body = "(char* const* a, long begin, long end) {\n";
    begin();
    store_for_all();
    arrays();
    out_.body += fmt::format(
        "  for (long k = begin; k < end; ++k) {{\n    const long last = (k + 1) * {0} < {1} ? "
        "(k + 1) * {0} : {1};\n",
        unit, rows_);
    clear_columns();
    out_.body +=
        unit == block_
            ? fmt::format("    {{\n      const long r0 = k * {};\n", unit)
            : fmt::format("    for (long r0 = k * {}; r0 < last; r0 += {}) {{\n", unit, block_);
    out_.body +=
        fmt::format("      const int rows = last - r0 < {0} ? (int)(last - r0) : {0};\n", block_);
    for (int d = 0; d <= deepest_; ++d) {
      numbers(d);
      if (!passes_[static_cast<size_t>(d)].list.empty() ||
          !passes_[static_cast<size_t>(d)].folds.empty()) {
        pass(d);
      }
    }
    store_numbers();
    out_.body += "    }\n  }\n";
    if (any_around_) out_.body += "  fence_nt();\n";
    out_.body += "}\n";
    if (!columns_.empty() || !totals_.empty()) finish();
    return std::move(out_);
  }

 private:
  // --- the beginning -----------------------------------------------------------------------------

  // Numbers that depend on no row.
  void store_for_all() {
    for (int id = 0; id < static_cast<int>(p_.statements.size()); ++id) {
      const Statement& s = at(id);
      if (s.kind != Statement::Store || !is_for_all(s) || of(id).after) continue;
      const DType t = window(static_cast<size_t>(s.which)).dtype;
      out_.body += fmt::format("  if (begin == 0) store_n(o{}, {}, 1);\n", s.which,
                               fill(spelling(t).store, {name(s.args[0], 0)}));
    }
  }
  bool is_for_all(const Statement& s) const {
    const Window& w = window(static_cast<size_t>(s.which));
    return std::all_of(w.stride, w.stride + ndim_, [](int64_t x) { return x == 0; });
  }
  // Of each row a number, and what later passes load again.
  void arrays() {
    for (int id = 0; id < static_cast<int>(p_.statements.size()); ++id) {
      const std::string type = element(id);
      if (of(id).live && at(id).varies == Statement::WithRow) {
        out_.body += fmt::format("  alignas(64) {} w{}[16] = {{}};\n", type, id);
      }
      if (of(id).kept) {
        out_.body += fmt::format("  alignas(64) {} k{}[{}];\n", type, id, block_ * padded_);
      }
    }
  }
  // --- numbers of rows ---------------------------------------------------------------------------

  std::string from_memory(int id, const std::string& x) const {
    return fill(spelling(at(id).type).load, {x});
  }
  std::string to_memory(int id, const std::string& x) const {
    return fill(spelling(at(id).type).store, {x});
  }

  bool is_dense(const Window& w) const {
    int64_t next = 1;
    for (int d = ndim_ - 2; d >= 0; --d) {
      if (size_[d] > 1 && w.stride[d] != next) return false;
      next *= size_[d];
    }
    return w.source == Window::Memory;
  }

  // Those of depth d that are no folds, a row a lane.
  void numbers(int d) {
    std::vector<int> list, given;
    for (int id = 0; id < static_cast<int>(p_.statements.size()); ++id) {
      const Statement& s = at(id);
      if (!of(id).live || s.varies != Statement::WithRow || is_fold(id) ||
          s.kind == Statement::Store || of(id).depth != d) {
        continue;
      }
      list.push_back(id);
      for (int a : s.args) {
        if (at(a).varies == Statement::WithRow && (is_fold(a) || of(a).depth < d)) {
          given.push_back(a);
        }
      }
    }
    if (list.empty()) return;
    std::sort(given.begin(), given.end());
    given.erase(std::unique(given.begin(), given.end()), given.end());
    out_.body += "      {\n";
    for (int id : given) {
      out_.body += fmt::format("        const auto v{} = {};\n", id,
                               from_memory(id, fmt::format("load(w{})", id)));
    }
    for (int id : list) {
      scattered(id);
      out_.body += fmt::format("        const auto v{} = {};\n", id, number_of_row(id));
      out_.body += fmt::format("        store(w{}, {});\n", id, to_memory(id, name(id, 0)));
    }
    out_.body += "      }\n";
  }
  std::string number_of_row(int id) const {
    const Statement& s = at(id);
    if (s.kind == Statement::Counts) {
      return fmt::format("ne(load_n(o{} + r0, rows), splat({}))", s.which, ignored(s));
    }
    if (s.kind == Statement::Load) {
      const Window& w = window(static_cast<size_t>(s.which));
      if (!is_dense(w)) return from_memory(id, fmt::format("load(w{})", id));
      return fill(spelling(w.dtype).load, {fmt::format("load_n(o{} + r0, rows)", s.which)});
    }
    return line_value(id, 0);
  }
  // Numbers that do not lie one after the other are gathered first.
  void scattered(int id) {
    const Statement& s = at(id);
    if (s.kind != Statement::Load || is_dense(window(static_cast<size_t>(s.which)))) return;
    const auto w = static_cast<size_t>(s.which);
    out_.body += "        for (long r = 0; r < rows; ++r) {\n          const long q = r0 + r;\n";
    row_pointers("q", {w}, "          ");
    const std::string x = window(w).source == Window::Index ? fmt::format("splat(p{})", w)
                                                            : fmt::format("splat(*p{})", w);
    out_.body += fmt::format("          w{}[r] = {}[0];\n        }}\n", id,
                             to_memory(id, fill(spelling(window(w).dtype).load, {x})));
  }
  void store_numbers() {
    for (int id = 0; id < static_cast<int>(p_.statements.size()); ++id) {
      const Statement& s = at(id);
      if (!of(id).live) continue;
      const bool total = s.kind == Statement::Total;
      if (!total && (s.kind != Statement::Store || is_element_store(id) || is_for_all(s))) continue;
      if (!total && of(s.args[0]).after) continue;
      const int arg = s.args[0];
      const std::string v = at(arg).varies == Statement::WithRow
                                ? from_memory(arg, fmt::format("load(w{})", arg))
                                : name(arg, 0);
      if (total) {
        out_.body += fmt::format("      store_n(s{} + r0, {}, rows);\n", id, v);
      } else {
        const DType t = window(static_cast<size_t>(s.which)).dtype;
        out_.body += fmt::format("      store_n(o{} + r0, {}, rows);\n", s.which,
                                 fill(spelling(t).store, {v}));
      }
    }
  }

  // --- passes over elements ----------------------------------------------------------------------

  std::string line(int id, int u, bool tail) override {
    const Statement& s = at(id);
    if (s.kind == Statement::Length) {
      return fmt::format("const auto {} = {}", name(id, u), splat(s.type, fmt::format("{}", n_)));
    }
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

  // Pointers and numbers of row r that a pass reads.
  void begin_row(const Pass& pass) {
    std::vector<int> used = pass.list;
    for (int id : pass.folds) {
      if (at(id).kind == Statement::Pick) picked(at(id).args[0], used);
    }
    std::vector<size_t> windows, ids;
    std::vector<int> given, statements = used;
    statements.insert(statements.end(), pass.folds.begin(), pass.folds.end());
    for (int id : statements) {
      const Statement& s = at(id);
      if (s.kind == Statement::IsAt || s.kind == Statement::Pick) {
        ids.push_back(static_cast<size_t>(s.which));
      }
      const bool reads = s.kind == Statement::Load && !(of(id).kept && of(id).pass < current_);
      if (reads || s.kind == Statement::Store) windows.push_back(static_cast<size_t>(s.which));
      for (int a : s.args) {
        if (at(a).varies == Statement::WithRow) given.push_back(a);
      }
    }
    distinct(windows), distinct(ids), distinct(given), distinct(used);
    out_.body += "      for (long r = 0; r < rows; ++r) {\n        const long q = r0 + r;\n";
    row_pointers("q", windows, "        ");
    for (size_t w : ids) out_.body += fmt::format("        const long id{0} = o{0}[q];\n", w);
    for (int id : given) {
      if (is_fold(id) && of(id).depth > current_) continue;
      out_.body += fmt::format("        const auto v{} = {};\n", id,
                               from_memory(id, fmt::format("splat(w{}[r])", id)));
    }
    for (int id : used) {
      if (of(id).kept) {
        out_.body +=
            fmt::format("        {0}* const q{1} = k{1} + r * {2};\n", element(id), id, padded_);
      }
      if (at(id).kind == Statement::FoldRows) {
        out_.body +=
            fmt::format("        {0}* const c{1} = s{1} + k * {2};\n", element(id), id, padded_);
      }
    }
  }
  template <class T> static void distinct(std::vector<T>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  void picked(int id, std::vector<int>& list) const {
    if (!in_row(id)) return;
    list.push_back(id);
    for (int a : at(id).args) picked(a, list);
  }

  void pass(int d) {
    current_ = d;
    const Pass& pass = passes_[static_cast<size_t>(d)];
    begin_row(pass);
    std::vector<int> folds;
    for (int id : pass.folds) {
      if (at(id).kind == Statement::Pick)
        pick(id);
      else
        folds.push_back(id);
    }
    if (d == deepest_) {
      int unroll = choose_unroll(pass.list);
      while (unroll > 1 && n_ % (16 * unroll) != 0 && (n_ % 16 == 0 || n_ < 16 * unroll)) {
        unroll /= 2;
      }
      loops(pass.list, "0", fmt::format("{}", n_), unroll, "        ", n_);
    } else if (!folds.empty()) {
      fold(pass.list, folds);
    }
    out_.body += "      }\n";
  }

  // The next block's rows are asked for: a pass over what a cache holds would leave memory idle,
  // and the hardware does not look beyond a page. Twice, because some come too early for the first
  // level and others too late; not in the last of many passes, whose stores keep memory busy.
  void at_body(int unroll, const std::string& indent) override {
    const bool asks = streaming_ && current_ <= std::max(1, deepest_ - 1);
    for (size_t w = 0; w < p_.windows.size() && asks; ++w) {
      const Window& x = window(w);
      if (!x.in_memory() || !x.loaded || inner_stride(w) != 1 || !streams(x)) continue;
      bool dense = true;
      for (int d = 0; d + 2 < ndim_; ++d) dense &= x.stride[d] == x.stride[d + 1] * size_[d + 1];
      const int64_t row = x.stride[ndim_ - 2];
      const int level = block_ * n_ * x.item() > (8 << 10) ? 2 : prefetch_level();
      for (int64_t at = 0; dense && at < 16 * unroll; at += 64 / x.item()) {
        out_.body += fmt::format("{}prefetch<{}>((const char*)(o{} + (q + {}) * {} + i + {}));\n",
                                 indent, level, w, block_, row, at);
      }
    }
  }

  // Element `id` of the row, computed where it is.
  void pick(int id) {
    const Statement& s = at(id);
    const std::function<std::string(int)> value = [&](int x) -> std::string {
      const Statement& e = at(x);
      if (!in_row(x)) return name(x, 0);
      if (e.kind == Statement::Load) {
        const auto w = static_cast<size_t>(e.which);
        const std::string place = fmt::format("id{} * {}", s.which, inner_stride(w));
        const std::string v = window(w).source == Window::Index
                                  ? fmt::format("splat(p{} + {})", w, place)
                                  : fmt::format("splat(p{}[{}])", w, place);
        return fill(spelling(window(w).dtype).load, {v});
      }
      if (e.kind == Statement::IsAt) return "first_lanes(16)";
      std::vector<std::string> args;
      for (int a : e.args) args.push_back("(" + value(a) + ")");
      return fill(e.text, args);
    };
    out_.body += fmt::format("        w{}[r] = id{} == {} ? 0 : ({})[0];\n", id, s.which,
                             ignored(s), value(s.args[0]));
  }

  // Adds the u-th vector of the body to accumulator `to`.
  void take(const std::vector<int>& folds, int u, int to, bool tail, const std::string& indent) {
    for (int f : folds) {
      const std::string sum = fmt::format("a{}_{}", f, to), x = name(at(f).args[0], u);
      out_.body += fmt::format(
          "{}{} = {};\n", indent, sum,
          combined(f, value_of(f, sum),
                   tail ? fmt::format("where(first_lanes(n), {}, {})", x, name(at(f).args[1], 0))
                        : "(" + x + ")"));
    }
  }
  // All folds in one walk over the row: chunks of kReduceChunk, in each four accumulators.
  void fold(const std::vector<int>& list, const std::vector<int>& folds) {
    const int64_t chunks = (n_ + kReduceChunk - 1) / kReduceChunk;
    std::string indent = "        ";
    if (chunks > 1) {
      for (int f : folds) {
        out_.body += fmt::format("{}{} c{}[{}];\n", indent, element(f), f, chunks);
      }
      out_.body += fmt::format("{}for (long c = 0; c < {}; ++c) {{\n", indent, chunks);
      indent += "  ";
    }
    for (int f : folds) {
      for (int u = 0; u < 4; ++u) {
        out_.body +=
            fmt::format("{}{} a{}_{} = {};\n", indent, carried(f), f, u, name(at(f).args[1], 0));
      }
    }
    out_.body += indent + "{\n";
    const std::string first = chunks > 1 ? fmt::format("c * {}", kReduceChunk) : "0";
    const std::string last =
        chunks > 1 ? fmt::format("(c + 1 < {0} ? (c + 1) * {1} : {2})", chunks, kReduceChunk, n_)
                   : fmt::format("{}", n_);
    out_.body += fmt::format("{}long i = {};\n", indent, first);
    if (n_ >= 64) {
      bodies(64, last, chunks > 1 ? 0 : n_, indent, [&](const std::string& inner) {
        at_body(4, inner);
        emit(list, 4, false, inner);
        for (int u = 0; u < 4; ++u) take(folds, u, u, false, inner);
      });
    }
    rest(list, folds, chunks, indent);
    out_.body += indent + "}\n";
    for (int f : folds) {
      out_.body += fmt::format("{}{} = {};\n", indent,
                               chunks > 1 ? fmt::format("c{}[c]", f) : fmt::format("w{}[r]", f),
                               fold_four(f, fmt::format("a{}_$0", f)));
    }
    if (chunks == 1) return;
    out_.body += "        }\n";
    for (int f : folds) {
      const std::string array = fmt::format("c{}", f);
      out_.body += fold_array(f, array, fmt::format("{}", chunks), "        ");
      out_.body += fmt::format("        w{}[r] = *{};\n", f, array);
    }
  }
  // What is left of a row, or of its last chunk, behind whole bodies.
  void rest(const std::vector<int>& list, const std::vector<int>& folds, int64_t chunks,
            const std::string& indent) {
    if (n_ % 64 == 0) return;
    const int whole = static_cast<int>(n_ % 64 / 16), left = static_cast<int>(n_ % 16);
    out_.body += indent + (chunks > 1 ? fmt::format("if (c + 1 == {}) {{\n", chunks) : "{\n");
    emit(list, whole, false, indent + "  ");
    for (int u = 0; u < whole; ++u) take(folds, u, u, false, indent + "  ");
    if (left) {
      out_.body += fmt::format("{0}  i += {1};\n{0}  const int n = {2};\n{0}  {{\n", indent,
                               16 * whole, left);
      emit(list, 1, true, indent + "    ");
      take(folds, 0, whole, true, indent + "    ");
      out_.body += indent + "  }\n";
    }
    out_.body += indent + "}\n";
  }
  int current_ = 0;  // The pass that is printed.
};

}  // namespace

CpuKernel cpu_rows(const Program& p) { return RowWalk(p).run(); }

}  // namespace brrr::program
