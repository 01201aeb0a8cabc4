#pragma once
// The text of a GPU's kernel over rows: the values of its statements, one per line, and the
// location of a row; and what it stores of folded rows: scalars, column sums and totals, the latter
// two to be finished by kernels of their own.

#include <algorithm>
#include <set>

#include "ops/program/cuda_rows.h"
#include "ops/program/printer.h"

namespace brrr::program {

class DeviceRowText : protected Printer {
 protected:
  DeviceRowText(const Program& p, const RowWalk& walk)
      : Printer(p),
        made_(p, walk.traits.split, values_kept(walk)),
        walk_(walk),
        last_(p.space.ndim - 1),
        names_(p.statements.size()) {
    for (int id : made_.live) {
      if (at(id).kind == Statement::FoldRows) columns_.push_back(id);
      if (is_total(id)) totals_.push_back(id);
    }
  }

  // The elements that a kept value is computed from free their registers.
  static int values_kept(const RowWalk& w) {
    return w.slots ? (w.spare + 16) / (w.slots * w.group() * w.traits.item / 4) : 0;
  }
  const RowState& of(int id) const { return made_.states[static_cast<size_t>(id)]; }
  const RowPass& pass_of(int d) const { return made_.passes[static_cast<size_t>(d)]; }
  const std::string& name(int id) const { return names_[static_cast<size_t>(id)]; }
  const std::string& named(int id) {
    return names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
  }
  bool is_kept(int w) const { return walk_.slots && std::ranges::count(made_.reused, w); }
  bool split() const { return walk_.traits.split; }
  bool is_total(int id) const {
    return at(id).kind == (split() ? Statement::Fold : Statement::Total);
  }

  // The address of a window's scalar of the row, or of the row's element `place`.
  std::string address(int w, const std::string& place = "") const {
    const bool varies = last_ > 0 && window(w).varies(last_ + 1);
    return fmt::format("p.a{}{}", w, varies ? fmt::format(" + o{}", w) : "") + along(w, place);
  }
  std::string along(int w, const std::string& place) const {
    if (place.empty() || !inner_stride(w)) return "";
    // A constant, so that groups are at constant distances.
    if (window(w).reach == Window::Row) return fmt::format(" + ({}) * {}", place, window(w).item());
    return fmt::format(" + ({}) * p.s{}_{}", place, w, last_);
  }
  // Loads the element to a register; where it is part of a loaded group, `own` is its name.
  std::string loaded(int id, const std::string& place, const std::string& own = "") const {
    const int w = at(id).which;
    if (window(w).index) {
      if (at(id).varies == Statement::Never) return "i64(0l)";
      return fmt::format("i64(o{}{})", w, along(w, place));
    }
    const std::string from =
        own.empty() ? fmt::format("(const {}*)({})", memory(w), address(w, place)) : "&" + own;
    return from_memory(window(w).dtype, fmt::format("load({})", from));
  }
  std::string id_of(const Statement& s) const { return fmt::format("id{}", s.which); }
  std::string counts(const Statement& s) const {
    return fmt::format("counts{}_{}", s.which, s.text);
  }
  // The expression of a statement that is neither a fold nor a store.
  std::string value(int id, const std::string& place, const std::string& own) const {
    const Statement& s = at(id);
    if (s.kind == Statement::Number) return splat(s.type, number(p_, s.which));
    if (s.kind == Statement::Length) return splat(s.type, "p.length");
    if (s.kind == Statement::Counts) return fmt::format("b16(-(int){})", counts(s));
    if (s.kind == Statement::IsAt) return fmt::format("b16(-(int)({} == {}))", place, id_of(s));
    if (s.kind == Statement::Pick)
      return fmt::format("{} ? {} : {}{{}}", counts(s), picked(s.args[0], id_of(s)), vector(id));
    if (s.kind == Statement::Load) return loaded(id, place, own);
    return formula(id, [&](int a) { return name(a); });
  }
  // An element of the row, recomputed at `place`.
  std::string picked(int id, const std::string& place) const {
    if (!in_row(id)) return name(id);
    if (at(id).kind != Statement::Formula) return value(id, place, "");
    return formula(id, [&](int a) { return "(" + picked(a, place) + ")"; });
  }
  void line(int id, const std::string& place = "", const std::string& own = "") {
    if (at(id).kind == Statement::Constant)
      names_[static_cast<size_t>(id)] = splat(at(id).type, at(id).text);
    else
      print("const auto {} = {};\n", named(id), value(id, place, own));
  }
  // A per-row value; where no row is left, another walker may be writing the stand-in row's.
  void line_of_row(int id) {
    const Statement& s = at(id);
    if (s.kind != Statement::Load || !window(s.which).in_memory()) return line(id);
    print("const auto {} = on ? {} : {}{{}};\n", named(id), loaded(id, ""), vector(id));
  }
  std::string combine(int fold) const {
    return fmt::format("[]({0} a, {0} b) {{ return {1}; }}", vector(fold),
                       fill(at(fold).text, {"a", "b"}));
  }
  std::string combined(int fold, const std::string& x) const {
    return fill(at(fold).text, {x, name(at(fold).args[0])});
  }
  const std::string& init(int fold) const { return name(at(fold).args[1]); }

  // --- a row -------------------------------------------------------------------------------------

  // Locates the row: byte offset `o<w>` in window w, and its number of elements: 0 if no row is
  // left, as another walker may be writing the row that stands in for it.
  void find_row(const std::string& row, const std::string& matrix, const char* on = "on",
                const char* n = "n", const char* o = "o") {
    print("{} r = {};\n", rows_type(), row);
    if (walk_.ragged()) {
      print(
          "const long left = p.length - (long)({1} % ({3})p.pieces) * p.size{0};\n"
          "const {2} {5} = !({4}) ? 0 : left < p.size{0} ? left : p.size{0};\n",
          last_, matrix, length(), rows_type(), on, n);
    } else {
      print("const {} {} = {} ? p.size{} : 0;\n", length(), n, on, last_);
    }
    text_ += unflatten({.ndim = last_, .wide = walk_.wide}, rows_type());
    for (int w = 0; w < windows(); ++w) {
      if (window(w).touched()) print("const long {}{} = {};\n", o, w, offset_of(w, last_));
    }
  }
  // A 64-bit division is a function of a hundred instructions.
  const char* rows_type() const { return walk_.wide ? "long" : "unsigned"; }
  std::string walkers() const {
    return fmt::format("const {0} walkers = ({0})(p.matrix + p.steps - 1) / ({0})p.steps",
                       rows_type());
  }
  const char* length() const { return walk_.wide ? "long" : "int"; }
  // The ids (positions in the row) that it names, and whether they count.
  void find_ids() {
    std::set<std::string> known;
    for (int id : made_.live) {
      const Statement& s = at(id);
      if (!reads_id(s)) continue;
      if (known.insert(id_of(s)).second) {
        print("const long {} = on ? *(const long*)({}) : 0;\n", id_of(s), address(s.which));
      }
      if (known.insert(counts(s)).second) {
        print("const bool {0} = on && {1} != {2} && in_range(p.fault, {1}, n, p.op);\n", counts(s),
              id_of(s), number(p_, p_.ignored(s)));
      }
    }
  }

  // --- what is left of rows ----------------------------------------------------------------------

  // Stores values that depend on no row; with totals, only once nothing reads what this overwrites.
  void store_uniform(const char* before) {
    for (int id : made_.live) {
      if (is_scalar_store(id) && is_uniform(id)) text_ += before + stored(id) + ";\n";
    }
  }
  bool is_scalar_store(int id) const {
    return at(id).kind == Statement::Store && !of(id).after && inner_stride(at(id)) == 0;
  }
  bool is_uniform(int id) const {
    return at(at(id).args[0]).varies == Statement::Never && !window(at(id)).varies(last_);
  }
  std::string stored(int id, const std::string& place = "") const {
    const int w = at(id).which;
    return fmt::format("store(({}*)({}), {})", memory(w), address(w, place),
                       to_memory(window(w).dtype, name(at(id).args[0])));
  }

  size_t place_of(int id) const {
    return static_cast<size_t>(std::ranges::find(columns_, id) - columns_.begin());
  }
  // Where a walker stores its part of column `i`.
  std::string part(int id, const std::string& walker, const std::string& i) const {
    return fmt::format("({}*)p.t{} + ({}) * p.size{} + {}", element(id), place_of(id), walker,
                       last_, i);
  }
  void accumulators(int id) {
    if (!walk_.slots) return;
    print(
        "{0} c{1}[{2}][{3}];\n#pragma unroll\nfor (int k = 0; k < {2}; ++k) {{\n"
        "#pragma unroll\nfor (int u = 0; u < {3}; ++u) c{1}[k][u] = {4};\n}}\n",
        vector(id), id, walk_.slots, walk_.group(), init(id));
  }
  void add_to_column(int id) {
    if (walk_.slots) {
      const std::string sum = fmt::format("c{}[k][u]", id);
      print("{} = {};\n", sum, combined(id, sum));
      return;
    }
    print(
        "{{\nauto* const to = {};\n"
        "const {} so_far = row > first ? load(to) : {};\nstore(to, {});\n}}\n",
        part(id, "walker", "i + u"), vector(id), init(id), combined(id, "so_far"));
  }
  void store_accumulators() {
    text_ += "if (first >= end) return;\n";
    // n is the same for all pieces but the last; nothing reads beyond that one's end.
    print(
        "#pragma unroll\nfor (int k = 0; k < {0}; ++k) {{\n"
        "const int i = (k * {1} + lane) * {2};\nif (i >= p.size{3}) continue;\n",
        walk_.slots, walk_.lanes(), walk_.group(), last_);
    for (int id : columns_) print("{} y{}[{}];\n", element(id), place_of(id), walk_.group());
    print("#pragma unroll\nfor (int u = 0; u < {}; ++u) {{\n", walk_.group());
    for (int id : columns_) print("y{}[u] = c{}[k][u].v;\n", place_of(id), id);
    text_ += "}\n";
    for (int id : columns_) {
      print("give((char*)({}), y{});\n", part(id, "walker", "i"), place_of(id));
    }
    text_ += "}\n";
  }

  // A block takes some columns of a matrix, with several slots each for walkers' parts.
  void columns() {
    print(
        "const int slot = threadIdx.x / {2};\n"
        "const unsigned across = (p.size{0} + {2} - 1) / {2}, m = block / across;\n"
        "const long i = (long)(block % across) * {2} + threadIdx.x % {2}, row = m * p.matrix;\n"
        "{1};\nconst bool on = true;\n",
        last_, walkers(), walk_.width());
    find_row("row", "m");
    // The loads of all folds are in flight together.
    for (int id : columns_) print("{} {} = {};\n", vector(id), named(id), init(id));
    print(
        "if (i < n) {{\n#pragma unroll {}\n"
        "for (long w = slot; w < (long)walkers; w += {}) {{\n",
        columns_.size() > 2 ? 4 : 8, walk_.col_slots());
    for (int id : columns_) {
      print("const auto next{} = load({});\n", id, part(id, "(long)m * walkers + w", "i"));
    }
    for (int id : columns_) {
      print("{} = {};\n", name(id), fill(at(id).text, {name(id), fmt::format("next{}", id)}));
    }
    text_ += "}\n}\n";
    for (int id : columns_) {
      print("{0} = down<{1}, {2}>({0}, {3});\n", name(id), walk_.col_slots(), walk_.width(),
            combine(id));
    }
    text_ += "if (slot != 0 || i >= n) return;\n";
    after_folds([&](int id) { return of_column(id); }, "i");
  }
  template <class Which> void after_folds(const Which& which, const std::string& place) {
    for (int id : made_.live) {
      const Statement& s = at(id);
      if (s.kind == Statement::FoldRows || !which(id)) continue;
      if (s.kind == Statement::Store)
        print("{};\n", stored(id, place));
      else
        line(id, place);
    }
  }
  // Whether it depends on column folds; or is an operand of such: an element that all rows share.
  bool of_column(int id) const {
    const Statement& s = at(id);
    if (s.kind == Statement::Store) return of(id).after && inner_stride(s) != 0;
    if (of(id).after || !in_row(id)) return in_row(id);
    for (int x = id + 1; x < statements(); ++x) {
      if (at(x).kind == Statement::FoldRows || at(x).kind == Statement::Total) continue;
      if (std::ranges::count(at(x).args, id) && of_column(x)) return true;
    }
    return false;
  }

  // One block: each total as a row of its own, then what depends on them.
  void totals() {
    for (size_t k = 0; k < totals_.size(); ++k) {
      const int id = totals_[k];
      const std::string& v = named(id);
      print(
          "{0} {1} = {2};\n#pragma unroll 4\n"
          "for (long r = threadIdx.x; r < p.rows; r += 1024) {{\n"
          "const auto next = load((const {3}*)p.t{4} + r);\n{1} = {5};\n}}\n"
          "{1} = across<1024>({1}, {6});\n",
          vector(id), v, init(id), element(id), columns_.size() + k, fill(at(id).text, {v, "next"}),
          combine(id));
    }
    text_ += "if (threadIdx.x != 0) return;\n";
    store_uniform("");
    after_folds([&](int id) { return of(id).after && !of_column(id) && !is_total(id); }, "");
  }

  const DeviceRowPasses made_;
  const RowWalk& walk_;
  const int last_;
  std::vector<std::string> names_;  // By statement: its name in the text.
  std::vector<int> columns_, totals_;
};

}  // namespace brrr::program
