// The CPU's kernel of a program whose rows are so short that a vector holds several, or exactly
// one: a walk over elements, in which a fold ends where a row does. A per-row scalar is in all
// lanes of its row. Programs without folds, but with per-row scalars or elements that rows share,
// are printed so as well; without per-row scalars their rows may be of any length below a vector's:
// the shared row is read from a copy that is followed by its beginning again.
#include "ops/program/cpu_text.h"
#include "ops/vocabulary/vec_fold.h"

namespace brrr::program {

namespace {

int64_t row_length(const Program& p) { return p.row ? p.row : p.space.size[p.space.ndim - 1]; }
// Whether vectors begin at different places of their rows.
bool straddles(int64_t row) { return vx::lanes % row != 0; }

// A window's layout in memory. SharedRow: one row for all rows; RowScalars: one scalar per row.
enum class Layout : uint8_t { None, Scalar, SharedRow, RowScalars, Elements, Other };
Layout layout_of(const Program& p, const Window& w) {
  if (!w.touched()) return Layout::None;
  const int last = p.space.ndim - 1;
  const int64_t inner = w.stride[last];
  const bool scalar = inner == 0 && !w.index;
  if (inner <= 1 && !w.index && !w.varies(last)) return scalar ? Layout::Scalar : Layout::SharedRow;
  bool dense = inner == 1 || scalar;
  int64_t next = scalar ? 1 : row_length(p);
  for (int d = last; d-- > 0; next *= p.space.size[d])
    dense &= w.stride[d] == next || p.space.size[d] == 1;
  return !dense ? Layout::Other : scalar ? Layout::RowScalars : Layout::Elements;
}

// Whether a row is exactly one vector in one register, and no per-row scalar is expensive: in all
// lanes it costs as much as a vector, while a loop over rows computes sixteen rows' at once.
bool row_is_vector(const Program& p) {
  return BRRR_VX_BYTES == 64 && p.row == vx::lanes &&
         std::ranges::none_of(p.statements, [](const Statement& s) {
           return s.varies == Statement::WithRow && s.cost > 1;
         });
}

// The program over a single dim; all values vary along it except those that all rows share.
Program flat(const Program& p) {
  Program f = p;
  f.space = {1, {p.space.numel()}};
  for (size_t w = 0; w < f.windows.size(); ++w) {
    std::fill_n(f.windows[w].stride, kSpaceDims, 0);
    f.windows[w].stride[0] = layout_of(p, p.windows[w]) == Layout::Elements;
  }
  for (Statement& s : f.statements) {
    const bool shared = !straddles(row_length(p)) && s.kind == Statement::Load &&
                        layout_of(p, p.window(s)) == Layout::SharedRow;
    if (s.varies != Statement::Never) s.varies = shared ? Statement::Never : Statement::InRow;
  }
  return f;
}

class PackedRows : public CpuText {
 public:
  PackedRows(const Program& p, const Program& flat)
      : CpuText(flat), source_(p), row_(row_length(p)) {}

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
    if (straddles(row_)) copy_rows();
    emit(all(Statement::Never), 1, false);
    const std::vector<int> elements = all(Statement::InRow);
    loops(elements, "begin", "end", choose_unroll(elements));
    end_body();
    return std::move(out_);
  }

 private:
  // Copies each shared row, repeated so that a whole vector can be loaded from any of its elements.
  void copy_rows() {
    for (int w = 0; w < windows(); ++w) {
      if (layout_of(source_, source_.window(w)) != Layout::SharedRow) continue;
      print("{0} b{1}[{2}];\nfor (long k = 0; k < {2}; ++k) b{1}[k] = p{1}[k % {3}];\n", memory(w),
            w, row_ + vx::lanes, row_);
    }
  }
  void at_body(int unroll) override {
    for (int u = 0; straddles(row_) && u < unroll; ++u)
      print("const long at{} = (i + {}) % {};\n", u, 16 * u, row_);
  }
  std::string line(int id, int u, bool tail) override {
    const Statement& s = at(id);
    const bool memory = s.kind == Statement::Load || s.kind == Statement::Store;
    const Layout where = memory ? layout_of(source_, source_.window(s)) : Layout::None;
    if (where == Layout::SharedRow && straddles(row_)) {
      const std::string at = tail ? fmt::format("i % {}", row_) : fmt::format("at{}", u);
      return fmt::format("const auto {} = {}", name(id, u),
                         from_memory(window(s).dtype, fmt::format("load(b{} + {})", s.which, at)));
    }
    if (where == Layout::SharedRow) {
      const std::string row = fmt::format("load_n(p{}, {})", s.which, row_);
      return fmt::format("const auto {} = shuffle<Place<{}>>({})", name(id, u), row_,
                         from_memory(window(s).dtype, row));
    }
    if (where == Layout::RowScalars) {
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
  // The function that folds each row of a vector.
  std::string fold(int id) {
    return function(
        fmt::format("BRRR_VX {0} $0({0} v, {0} init) {{\n"
                    "const auto op = [](auto x, auto y) {{ return {1}; }};\n"
                    "return shuffle<Begin<{2}>>(reduce_each<{2}>(op(init, v), op));\n}}\n",
                    vector(id), combined(id, "(x)", "(y)"), row_));
  }

  const Program& source_;  // The program before it was flattened.
  const int64_t row_;
};

}  // namespace

bool packs_rows(const Program& p) {
  const int64_t row = row_length(p), rows = p.space.numel() / row;
  const bool several = row > 1 && (vx::packs_rows(rows, row) || row_is_vector(p));
  // Copying a row pays only for several rows.
  const bool any_length = !p.row && row > 1 && row < vx::lanes && rows >= vx::lanes;
  if (!several && !any_length) return false;
  const bool rows_alone = std::ranges::none_of(p.statements, [](const Statement& s) {
    return s.kind == Statement::FoldRows || s.kind == Statement::Total || reads_id(s);
  });
  return rows_alone && std::ranges::none_of(p.windows, [&](const Window& w) {
           const Layout where = layout_of(p, w);
           return where == Layout::Other || (w.stored && where < Layout::RowScalars) ||
                  (where == Layout::RowScalars && !several);
         });
}

CpuKernel cpu_packed_rows(const Program& p) {
  const Program f = flat(p);
  return PackedRows(p, f).run();
}

}  // namespace brrr::program
