#pragma once
// What a GPU's kernels over rows leave of rows that are folded: numbers, and sums of columns and
// totals, which kernels of their own finish.
#include <algorithm>
#include <string>
#include <vector>

#include "ops/program/cuda_row_values.h"

namespace brrr::program {

class RowFolds : protected RowValues {
 protected:
  RowFolds(const Program& p, const RowWalk& walk) : RowValues(p, walk) {
    for (int id = 0; id < count(); ++id) {
      if (!of(id).live) continue;
      if (at(id).kind == Statement::FoldRows) columns_.push_back(id);
      if (is_total(id)) totals_.push_back(id);
    }
  }

  // Those that depend on no row; where there are totals, once nobody reads what may lie there.
  void store_numbers(const char* before) {
    for (int id = 0; id < count(); ++id) {
      if (is_number_store(id) && at(at(id).args[0]).varies == Statement::Never && is_for_all(id)) {
        text_ += before + stored(id) + ";\n";
      }
    }
  }
  bool is_number_store(int id) const {
    return of(id).live && at(id).kind == Statement::Store && !of(id).after && !is_element_store(id);
  }
  bool is_for_all(int id) const { return !window(at(id).which).varies(last_); }
  std::string stored(int id, const std::string& place = "") const {
    const int w = at(id).which;
    return fmt::format("store(({}*)({}), {})", memory(w), address(w, place),
                       fill(spelling(window(w).dtype).store, {name(at(id).args[0])}));
  }

  size_t place_of(int id) const {
    return static_cast<size_t>(std::find(columns_.begin(), columns_.end(), id) - columns_.begin());
  }
  // What a walker leaves of column `i`.
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
  void leave_accumulators() {
    text_ += "if (first >= end) return;\n";
    // Of all pieces but the last one n is the same; what lies behind that one's end nobody reads.
    print(
        "#pragma unroll\nfor (int k = 0; k < {0}; ++k) {{\n"
        "const int i = (k * {1} + lane) * {2};\nif (i >= p.size{3}) continue;\n"
        "#pragma unroll\nfor (int u = 0; u < {2}; ++u) {{\n",
        walk_.slots, walk_.lanes(), walk_.group(), last_);
    for (int id : columns_) print("store({}, c{}[k][u]);\n", part(id, "walker", "i + u"), id);
    text_ += "}\n}\n";
  }

  // A block has 32 columns of a matrix and 32 slots for walkers.
  void columns() {
    print(
        "const int slot = threadIdx.x / 32;\n"
        "const unsigned across = (p.size{0} + 31) / 32, m = block / across;\n"
        "const long i = (long)(block % across) * 32 + threadIdx.x % 32, row = m * p.matrix;\n"
        "{1};\nconst bool on = true;\n",
        last_, walkers());
    find_row("row", "m");
    // Of all folds what is loaded is under way together.
    for (int id : columns_) print("{} {} = {};\n", vector(id), named(id), init(id));
    print(
        "if (i < n) {{\n#pragma unroll {}\n"
        "for (long w = slot; w < (long)walkers; w += 32) {{\n",
        columns_.size() > 2 ? 4 : 8);
    for (int id : columns_) {
      print("const auto next{} = load({});\n", id, part(id, "(long)m * walkers + w", "i"));
    }
    for (int id : columns_) {
      print("{} = {};\n", name(id), fill(at(id).text, {name(id), fmt::format("next{}", id)}));
    }
    text_ += "}\n}\n";
    for (int id : columns_) print("{0} = down({0}, {1});\n", name(id), combine(id));
    text_ += "if (slot != 0 || i >= n) return;\n";
    after_folds([&](int id) { return of_column(id); }, "i");
  }
  template <class Which> void after_folds(const Which& which, const std::string& place) {
    for (int id = 0; id < count(); ++id) {
      const Statement& s = at(id);
      if (!of(id).live || s.kind == Statement::FoldRows || !which(id)) continue;
      if (s.kind == Statement::Store)
        print("{};\n", stored(id, place));
      else
        line(id, place);
    }
  }
  // Whether it is made of columns' folds; or an operand of such, an element that all rows share.
  bool of_column(int id) const {
    const Statement& s = at(id);
    if (s.kind == Statement::Store) return of(id).after && inner_stride(s.which) != 0;
    if (of(id).after || !in_row(s)) return in_row(s);
    for (int x = id + 1; x < count(); ++x) {
      const auto& args = at(x).args;
      if (at(x).kind == Statement::FoldRows || at(x).kind == Statement::Total) continue;
      if (std::find(args.begin(), args.end(), id) != args.end() && of_column(x)) return true;
    }
    return false;
  }

  // One block: each total as a row of its own, then what is made of them.
  void numbers() {
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
    store_numbers("");
    after_folds([&](int id) { return of(id).after && !of_column(id) && !is_total(id); }, "");
  }

  std::vector<int> columns_, totals_;
};

}  // namespace brrr::program
