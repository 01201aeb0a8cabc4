// The CPU's kernel of a program whose rows are so short that a vector holds several, or one: a walk
// over elements, in which a fold ends where a row does. Numbers of a row are in all of its lanes.
// What folds nothing, but has numbers or elements that rows share, may have such rows as well;
// without numbers they may be of any length below a vector's: what rows share is read from a copy
// that has its begin behind it once more.
#include "ops/program/cpu_text.h"
#include "ops/vocabulary/vec_fold.h"

namespace brrr::program {

namespace {

int64_t row_of(const Program& p) { return p.row ? p.row : p.space.size[p.space.ndim - 1]; }
// Whether vectors begin at different places of their rows.
bool turns(int64_t row) { return vx::lanes % row != 0; }

// What a window has in memory: a number for all, a row that all share, a number of each row,
// elements; or these lie apart.
enum class Lies : uint8_t { Nowhere, One, Row, Numbers, Elements, Apart };
Lies lies(const Program& p, const Window& w) {
  if (!w.touched()) return Lies::Nowhere;
  const int last = p.space.ndim - 1;
  const int64_t inner = w.stride[last];
  const bool numbers = inner == 0 && !w.index;
  if (inner <= 1 && !w.index && !w.varies(last)) return numbers ? Lies::One : Lies::Row;
  bool dense = inner == 1 || numbers;
  int64_t next = numbers ? 1 : row_of(p);
  for (int d = last; d-- > 0; next *= p.space.size[d])
    dense &= w.stride[d] == next || p.space.size[d] == 1;
  return !dense ? Lies::Apart : numbers ? Lies::Numbers : Lies::Elements;
}

// Whether a row is a vector, in one register, and no number of a row takes as long as a vector of
// them would: of rows in a loop of their own sixteen rows' numbers are computed at once.
bool is_vector(const Program& p) {
  return BRRR_VX_BYTES == 64 && p.row == vx::lanes &&
         std::ranges::none_of(p.statements, [](const Statement& s) {
           return s.varies == Statement::WithRow && s.cost > 1;
         });
}

// The same over one dim, where all varies in the row but what all rows share.
Program flat(const Program& p) {
  Program f = p;
  f.space = {1, {p.space.numel()}};
  for (size_t w = 0; w < f.windows.size(); ++w) {
    std::fill_n(f.windows[w].stride, kSpaceDims, 0);
    f.windows[w].stride[0] = lies(p, p.windows[w]) == Lies::Elements;
  }
  for (Statement& s : f.statements) {
    const bool shared =
        !turns(row_of(p)) && s.kind == Statement::Load && lies(p, p.window(s)) == Lies::Row;
    if (s.varies != Statement::Never) s.varies = shared ? Statement::Never : Statement::InRow;
  }
  return f;
}

class Together : public CpuText {
 public:
  Together(const Program& p, const Program& flat) : CpuText(flat), rows_(p), row_(row_of(p)) {}

  CpuKernel run() {
    const int64_t numel = size_[0];
    out_.extent = (numel + 15) / 16;
    out_.unit = 16;
    out_.grain = kGrain / 16;
    print(
        "(char* const* a, long first, long last) {{\n"
        "const long begin = 16 * first, end = 16 * last < {0} ? 16 * last : {0};\n",
        numel);
    pointers();
    if (turns(row_)) copy_rows();
    emit(all(Statement::Never), 1, false);
    const std::vector<int> elements = all(Statement::InRow);
    loops(elements, "begin", "end", choose_unroll(elements));
    end_body();
    return std::move(out_);
  }

 private:
  // What rows share, once and as far again as a vector that begins at its last element reaches.
  void copy_rows() {
    for (int w = 0; w < windows(); ++w) {
      if (lies(rows_, rows_.window(w)) != Lies::Row) continue;
      print("{0} b{1}[{2}];\nfor (long k = 0; k < {2}; ++k) b{1}[k] = p{1}[k % {3}];\n", memory(w),
            w, row_ + vx::lanes, row_);
    }
  }
  void at_body(int unroll) override {
    for (int u = 0; turns(row_) && u < unroll; ++u)
      print("const long at{} = (i + {}) % {};\n", u, 16 * u, row_);
  }
  std::string line(int id, int u, bool tail) override {
    const Statement& s = at(id);
    const bool memory = s.kind == Statement::Load || s.kind == Statement::Store;
    const Lies where = memory ? lies(rows_, rows_.window(s)) : Lies::Nowhere;
    if (where == Lies::Row && turns(row_)) {
      const std::string at = tail ? fmt::format("i % {}", row_) : fmt::format("at{}", u);
      return fmt::format("const auto {} = {}", name(id, u),
                         from_memory(window(s).dtype, fmt::format("load(b{} + {})", s.which, at)));
    }
    if (where == Lies::Row) {
      const std::string row = fmt::format("load_n(p{}, {})", s.which, row_);
      return fmt::format("const auto {} = shuffle<Place<{}>>({})", name(id, u), row_,
                         from_memory(window(s).dtype, row));
    }
    if (where == Lies::Numbers) {
      const std::string count = tail ? "n" : "16";
      const std::string at =
          fmt::format("p{} + (i{}) / {}", s.which, tail ? "" : fmt::format(" + {}", 16 * u), row_);
      if (s.kind == Statement::Store) {
        const std::string first = fmt::format("first_of_each<{}>({})", row_, name(s.args[0], u));
        return fmt::format("store_each<{}>({}, {}, {})", row_, at,
                           to_memory(window(s).dtype, first), count);
      }
      const std::string some = fmt::format("load_n({}, {} / {})", at, count, row_);
      return fmt::format("const auto {} = for_each<{}>({})", name(id, u), row_,
                         from_memory(window(s).dtype, some));
    }
    if (s.kind == Statement::Fold) {
      return fmt::format("const auto {} = {}({}, {})", name(id, u), fold(id), name(s.args[0], u),
                         name(s.args[1], u));
    }
    return CpuText::line(id, u, tail);
  }
  // The function that folds the rows of a vector.
  std::string fold(int id) {
    return function(
        fmt::format("BRRR_VX {0} $0({0} v, {0} init) {{\n"
                    "const auto op = [](auto x, auto y) {{ return {1}; }};\n"
                    "return shuffle<Begin<{2}>>(reduce_each<{2}>(op(init, v), op));\n}}\n",
                    vector(id), combined(id, "(x)", "(y)"), row_));
  }

  const Program& rows_;  // As it was.
  const int64_t row_;
};

}  // namespace

bool lie_together(const Program& p) {
  const int64_t row = row_of(p), rows = p.space.numel() / row;
  const bool several = row > 1 && (vx::lie_together(rows, row) || is_vector(p));
  // A copy of a row is worth it for some rows at least.
  const bool any_length = !p.row && row > 1 && row < vx::lanes && rows >= vx::lanes;
  if (!several && !any_length) return false;
  const bool rows_alone = std::ranges::none_of(p.statements, [](const Statement& s) {
    return s.kind == Statement::FoldRows || s.kind == Statement::Total || reads_id(s);
  });
  return rows_alone && std::ranges::none_of(p.windows, [&](const Window& w) {
           const Lies where = lies(p, w);
           return where == Lies::Apart || (w.stored && where < Lies::Numbers) ||
                  (where == Lies::Numbers && !several);
         });
}

CpuKernel cpu_together(const Program& p) {
  const Program f = flat(p);
  return Together(p, f).run();
}

}  // namespace brrr::program
