// The text of a GPU's kernels for a program with rows.
#include "ops/program/cuda_row_values.h"

namespace brrr::program {

namespace {

class RowText : RowValues {
 public:
  RowText(const Program& p, const RowWalk& walk, const std::string& name, bool table)
      : RowValues(p, walk), name_(name), table_(table) {
    for (int id = 0; id < count(); ++id) {
      if (!of(id).live) continue;
      if (at(id).kind == Statement::FoldRows) columns_.push_back(id);
      if (is_total(id)) totals_.push_back(id);
    }
  }

  std::string run(Stage stage) {
    const int threads = stage == Stage::Elements ? walk_.threads() : 1024;
    out_ += kernel_head("BLOCK_KERNEL", name_, suffix(stage), threads, table_);
    lines(
        [&](int id) {
          return at(id).varies == Statement::Never && !of(id).after &&
                 at(id).kind != Statement::Store;
        },
        "  ");
    stage == Stage::Elements ? rows() : stage == Stage::Columns ? columns() : numbers();
    return out_ + (table_ ? "}\n}\n" : "}\n");
  }

 private:
  // --- a row -------------------------------------------------------------------------------------

  // Where it is, `o<w>` bytes into window w, and how many elements it has: none if no row is left,
  // as others may be writing to the one that stands for it.
  void find_row(const std::string& row, const std::string& matrix, const std::string& indent) {
    const char* const type = walk_.wide ? "long" : "unsigned";
    out_ += fmt::format("{}{} r = {};\n", indent, type, row);
    if (walk_.ragged()) {
      out_ += fmt::format(
          "{0}const long left = p.length - {2} % p.pieces * p.size{1};\n"
          "{0}const long n = !on ? 0 : left < p.size{1} ? left : p.size{1};\n",
          indent, last_, matrix);
    } else {
      out_ += fmt::format("{}const long n = on ? p.size{} : 0;\n", indent, last_);
    }
    out_ += take_apart({.ndim = last_, .wide = walk_.wide}, type, indent);
    for (int w = 0; w < static_cast<int>(p_.windows.size()); ++w) {
      if (!window(w).touched()) continue;
      out_ += fmt::format("{}const long o{} = {};\n", indent, w, offset_of(w, last_));
    }
  }
  // The positions that it names, and whether they count.
  void find_ids(const std::string& indent) {
    std::vector<std::string> ids, all;
    for (int id = 0; id < count(); ++id) {
      const Statement& s = at(id);
      const bool reads =
          s.kind == Statement::Counts || s.kind == Statement::IsAt || s.kind == Statement::Pick;
      if (!of(id).live || !reads) continue;
      if (std::find(ids.begin(), ids.end(), id_of(s)) == ids.end()) {
        ids.push_back(id_of(s));
        out_ += fmt::format("{}const long {} = on ? *(const long*)({}) : 0;\n", indent, ids.back(),
                            address(s.which));
      }
      if (std::find(all.begin(), all.end(), counts(s)) == all.end()) {
        all.push_back(counts(s));
        out_ += fmt::format(
            "{0}const bool {1} = on && {2} != {3} && in_range(p.fault, {2}, n, p.op);\n", indent,
            all.back(), ids.back(), number(static_cast<size_t>(p_.ignored(s))));
      }
    }
  }

  void rows() {
    out_ += fmt::format(
        "  const int lane = threadIdx.x % {0};\n"
        "  const long walker = (long)block * {1} + threadIdx.x / {0};\n",
        walk_.lanes(), walk_.side());
    if (columns_.empty()) {
      out_ += "  const long row = walker;\n  const bool on = row < p.rows;\n";
      one_row("  ");
    } else {
      out_ +=
          "  const long walkers = (p.matrix + p.steps - 1) / p.steps, m = walker / walkers;\n"
          "  const long first = m * p.matrix + walker % walkers * p.steps;\n"
          "  const long end = m < p.matrices ? (m + 1) * p.matrix : 0;\n";
      for (int id : columns_) accumulators(id);
      out_ +=
          "  for (long step = 0; step < p.steps; ++step) {\n"
          "    const long row = first + step;\n    const bool on = row < end;\n";
      one_row("    ");
      out_ += "  }\n";
      if (walk_.slots) leave_accumulators();
    }
    if (totals_.empty()) store_numbers("  if (walker == 0 && lane == 0) ");
  }
  // Those that depend on no row; where there are totals, once nobody reads what may lie there.
  void store_numbers(const char* before) {
    for (int id = 0; id < count(); ++id) {
      if (is_number_store(id) && at(at(id).args[0]).varies == Statement::Never && is_for_all(id)) {
        out_ += before + stored(id) + ";\n";
      }
    }
  }
  bool is_number_store(int id) const {
    return of(id).live && at(id).kind == Statement::Store && !of(id).after && !is_element_store(id);
  }
  bool is_for_all(int id) const {
    const int64_t* const stride = window(at(id).which).stride;
    return std::all_of(stride, stride + last_, [](int64_t s) { return s == 0; });
  }
  std::string stored(int id, const std::string& place = "") const {
    const int w = at(id).which;
    return fmt::format("store(({}*)({}), {})", memory(w), address(w, place),
                       fill(spelling(window(w).dtype).store, {name(at(id).args[0])}));
  }

  void one_row(const std::string& indent) {
    find_row("on ? row : 0", "r / p.matrix", indent);
    find_ids(indent);
    for (int w : reused_) {
      if (is_kept(w)) {
        out_ += fmt::format("{}{} h{}[{}][{}] = {{}};\n", indent, memory(w), w, walk_.slots,
                            walk_.group());
      }
    }
    kept_.clear();
    for (int d = 0; d <= deepest_; ++d) {
      for (int id = 0; id < count(); ++id) {
        const Statement& s = at(id);
        if (of(id).live && of(id).depth == d && s.varies == Statement::WithRow && !ends_pass(s) &&
            !of(id).after && s.kind != Statement::Store && !is_total(id)) {
          line_of_row(id, indent);
        }
      }
      pass(passes_[static_cast<size_t>(d)], d == deepest_, indent);
    }
    numbers_of_row(indent);
  }

  // Groups that a lane asks for before it takes the first. A thread of a large block has but 64
  // registers, for the addresses too.
  int ahead(const RowPass& pass) const {
    const int groups = walk_.group() == 1 ? 8 : 2;
    if (walk_.threads() <= kDeviceThreads) return groups;
    if (walk_.traits.item > 4) return 1;
    const auto windows = std::count_if(pass.list.begin(), pass.list.end(), [&](int id) {
      const Statement::Kind kind = at(id).kind;
      return (kind == Statement::Load || kind == Statement::Store) &&
             window(at(id).which).in_memory();
    });
    return std::max(1, groups / std::max(1, static_cast<int>(windows)));
  }
  // Until all of them have what they want of the row's memory.
  void wait_for_lanes(const std::string& indent) {
    if (walk_.lanes() > 1) {
      out_ += indent + (walk_.lanes() > 32 ? "__syncthreads();\n" : "__syncwarp();\n");
    }
  }

  // The elements of a pass, one group after the other.
  void pass(const RowPass& pass, bool is_last, const std::string& indent) {
    for (int id : pass.picks) line(id, indent);
    for (int f : pass.folds) {
      out_ += fmt::format("{}{} v{} = {};\n", indent, vector(f), f, init(f));
      names_[static_cast<size_t>(f)] = fmt::format("v{}", f);
    }
    if (pass.list.empty() && pass.folds.empty()) return;
    // A lane may overwrite what another one still wants of this row.
    const bool stores = std::any_of(pass.list.begin(), pass.list.end(),
                                    [&](int id) { return is_element_store(id); });
    if (is_last && stores) wait_for_lanes(indent);
    const int step = walk_.lanes() * walk_.group();
    if (walk_.slots) {
      out_ += fmt::format(
          "#pragma unroll\n{0}for (int k = 0; k < {1}; ++k) {{\n"
          "{0}  const int i = (k * {2} + lane) * {3};\n{0}  if (i >= n) continue;\n",
          indent, walk_.slots, walk_.lanes(), walk_.group());
    } else {
      out_ += fmt::format("#pragma unroll {0}\n{1}for (long i = lane * {2}; i < n; i += {3}) {{\n",
                          ahead(pass), indent, walk_.group(), step);
    }
    group(pass, indent + "  ");
    out_ += indent + "}\n";
    for (int f : pass.folds) {
      out_ +=
          fmt::format("{0}v{1} = across<{2}>(v{1}, {3});\n", indent, f, walk_.lanes(), combine(f));
    }
  }

  void group(const RowPass& pass, const std::string& indent) {
    for (int id : pass.list) {
      const Statement& s = at(id);
      const bool load = s.kind == Statement::Load && window(s.which).in_memory();
      if (load) load_group(s.which, indent);
      if (s.kind == Statement::Store) {
        out_ += fmt::format("{}{} y{}[{}];\n", indent, memory(s.which), s.which, walk_.group());
      }
    }
    out_ +=
        fmt::format("#pragma unroll\n{}for (int u = 0; u < {}; ++u) {{\n", indent, walk_.group());
    for (int id : pass.list) {
      const Statement& s = at(id);
      if (s.kind == Statement::Store) {
        out_ += fmt::format("{}  store(&y{}[u], {});\n", indent, s.which,
                            fill(spelling(window(s.which).dtype).store, {name(s.args[0])}));
      } else if (s.kind == Statement::FoldRows) {
        add_to_column(id, indent + "  ");
      } else {
        line(id, indent + "  ", "i + u", s.kind == Statement::Load ? own(s.which) : "");
      }
    }
    for (int f : pass.folds) {
      out_ += fmt::format("{}  v{} = {};\n", indent, f, combined(f, fmt::format("v{}", f)));
    }
    out_ += indent + "}\n";
    for (int id : pass.list) {
      const Statement& s = at(id);
      if (s.kind != Statement::Store) continue;
      const bool whole = window(s.which).reach == Window::Row;
      const std::string to = address(s.which, "i");
      out_ += whole ? fmt::format("{}if (on) give({}, y{});\n", indent, to, s.which)
                    : fmt::format("{}if (on) give_each({}, p.s{}_{}, y{});\n", indent, to, s.which,
                                  last_, s.which);
    }
  }
  std::string own(int w) const {
    if (!window(w).in_memory()) return "";
    return is_kept(w) ? fmt::format("h{}[k][u]", w) : fmt::format("x{}[u]", w);
  }
  void load_group(int w, const std::string& indent) {
    std::string to = fmt::format("h{}[k]", w);
    if (is_kept(w)) {
      if (std::find(kept_.begin(), kept_.end(), w) != kept_.end()) return;
      kept_.push_back(w);
    } else {
      to = fmt::format("x{}", w);
      out_ += fmt::format("{}{} x{}[{}];\n", indent, memory(w), w, walk_.group());
    }
    out_ += window(w).reach == Window::Row
                ? fmt::format("{}take({}, {});\n", indent, to, address(w, "i"))
                : fmt::format("{}take_each({}, {}, p.s{}_{});\n", indent, to, address(w, "i"), w,
                              last_);
  }

  void numbers_of_row(const std::string& indent) {
    std::string each;
    for (int id = 0; id < count(); ++id) {
      if (is_number_store(id) &&
          !(at(at(id).args[0]).varies == Statement::Never && is_for_all(id))) {
        each += fmt::format("{}  {};\n", indent, stored(id));
      }
    }
    for (size_t k = 0; k < totals_.size(); ++k) {
      each += fmt::format("{}  store(({}*)p.t{} + row, {});\n", indent, element(totals_[k]),
                          columns_.size() + k, name(split() ? totals_[k] : at(totals_[k]).args[0]));
    }
    if (each.empty()) return;
    wait_for_lanes(indent);
    out_ += fmt::format("{0}if (lane == 0 && on) {{\n{1}{0}}}\n", indent, each);
  }

  // --- folds over rows ---------------------------------------------------------------------------

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
    out_ += fmt::format(
        "  {0} c{1}[{2}][{3}];\n#pragma unroll\n  for (int k = 0; k < {2}; ++k) {{\n"
        "#pragma unroll\n    for (int u = 0; u < {3}; ++u) c{1}[k][u] = {4};\n  }}\n",
        vector(id), id, walk_.slots, walk_.group(), init(id));
  }
  void add_to_column(int id, const std::string& indent) {
    if (walk_.slots) {
      const std::string sum = fmt::format("c{}[k][u]", id);
      out_ += fmt::format("{}if (on) {} = {};\n", indent, sum, combined(id, sum));
      return;
    }
    out_ += fmt::format(
        "{0}if (on) {{\n{0}  auto* const to = {1};\n"
        "{0}  const {2} so_far = step ? load(to) : {3};\n{0}  store(to, {4});\n{0}}}\n",
        indent, part(id, "walker", "i + u"), vector(id), init(id), combined(id, "so_far"));
  }
  void leave_accumulators() {
    out_ += "  if (first >= end) return;\n";
    // Of all pieces but the last one n is the same; what lies behind that one's end nobody reads.
    out_ += fmt::format(
        "#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n"
        "    const int i = (k * {1} + lane) * {2};\n    if (i >= p.size{3}) continue;\n"
        "#pragma unroll\n    for (int u = 0; u < {2}; ++u) {{\n",
        walk_.slots, walk_.lanes(), walk_.group(), last_);
    for (int id : columns_) {
      out_ += fmt::format("      store({}, c{}[k][u]);\n", part(id, "walker", "i + u"), id);
    }
    out_ += "    }\n  }\n";
  }

  // A block has 32 columns of a matrix and 32 slots for walkers.
  void columns() {
    out_ += fmt::format(
        "  const int slot = threadIdx.x / 32;\n"
        "  const long across = (p.size{0} + 31) / 32, m = block / across;\n"
        "  const long i = block % across * 32 + threadIdx.x % 32;\n"
        "  const long walkers = (p.matrix + p.steps - 1) / p.steps, row = m * p.matrix;\n"
        "  const bool on = true;\n",
        last_);
    find_row("row", "m", "  ");
    for (int id : columns_) {
      out_ += fmt::format(
          "  {0} v{1} = {2};\n  if (i < n) {{\n#pragma unroll 8\n"
          "    for (long w = slot; w < walkers; w += 32) {{\n"
          "      const auto next = load({3});\n      v{1} = {4};\n    }}\n  }}\n"
          "  v{1} = down(v{1}, {5});\n",
          vector(id), id, init(id), part(id, "m * walkers + w", "i"),
          fill(at(id).text, {fmt::format("v{}", id), "next"}), combine(id));
      names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
    }
    out_ += "  if (slot != 0 || i >= n) return;\n";
    after_folds([&](int id) { return of_column(id); }, "i");
  }
  template <class Which> void after_folds(const Which& which, const std::string& place) {
    for (int id = 0; id < count(); ++id) {
      const Statement& s = at(id);
      if (!of(id).live || s.kind == Statement::FoldRows || !which(id)) continue;
      if (s.kind == Statement::Store)
        out_ += fmt::format("  {};\n", stored(id, place));
      else
        line(id, "  ", place);
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
      out_ += fmt::format(
          "  {0} v{1} = {2};\n#pragma unroll 4\n"
          "  for (long r = threadIdx.x; r < p.rows; r += 1024) {{\n"
          "    const auto next = load((const {3}*)p.t{4} + r);\n    v{1} = {5};\n  }}\n"
          "  v{1} = across<1024>(v{1}, {6});\n",
          vector(id), id, init(id), element(id), columns_.size() + k,
          fill(at(id).text, {fmt::format("v{}", id), "next"}), combine(id));
      names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
    }
    out_ += "  if (threadIdx.x != 0) return;\n";
    store_numbers("  ");
    after_folds([&](int id) { return of(id).after && !of_column(id) && !is_total(id); }, "");
  }

  const std::string& name_;
  const bool table_;
  std::vector<int> columns_, totals_;
  std::vector<int> kept_;  // Windows whose elements are in registers by now.
};

}  // namespace

std::string cuda_text(const Program& p, const RowWalk& walk, const std::string& name, Stage stage,
                      bool table) {
  return RowText(p, walk, name, table).run(stage);
}

}  // namespace brrr::program
