#include "ops/program/cpu_row_text.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "ops/kinds/reduction.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

namespace {

// Of values that a pass leaves for later ones.
constexpr int64_t kKeptBytes = 64 << 10;
// Elements of the rows that are taken together: short rows' steps wait for each other, long ones
// have to stay in the first level, where rows on their way from memory and back need room as well.
constexpr int64_t kTogether = 4096, kTogetherStreaming = 1024;

}  // namespace

RowText::RowText(const Program& p)
    : CpuText(p),
      n_(p.row),
      rows_(p.space.numel() / p.row),
      block_(std::bit_floor<uint64_t>(
          std::clamp<int64_t>((streaming_ ? kTogetherStreaming : kTogether) / n_, 1, 16))),
      padded_((n_ + 15) / 16 * 16),
      states_(row_states(p)) {
  for (int id = static_cast<int>(states_.size()); id-- > 0;) {
    if (!of(id).live) continue;
    deepest_ = std::max(deepest_, of(id).depth);
    if (at(id).kind == Statement::FoldRows) columns_.push_back(id);
    if (at(id).kind == Statement::Total) totals_.push_back(id);
  }
  // Where a vector takes several registers the sums of two passes would not fit in all of them.
  constexpr bool whole = BRRR_VX_BYTES == 64;
  pipelined_ = whole && streaming_ && deepest_ > 0 && n_ >= 64 && n_ <= kReduceChunk;
  passes_ = row_passes(p, states_, deepest_, [&](int id, int d) { return loads(id, d); });
}

std::vector<int> RowText::live() const {
  std::vector<int> ids;
  for (int id = 0; id < static_cast<int>(states_.size()); ++id) {
    if (of(id).live) ids.push_back(id);
  }
  return ids;
}

// Loads and polynomials that a value of elements is made of.
void RowText::weigh(int id, std::vector<bool>& seen, int& loads, int& cost) const {
  if (!in_row(id) || seen[static_cast<size_t>(id)]) return;
  seen[static_cast<size_t>(id)] = true;
  loads += at(id).kind == Statement::Load;
  cost += at(id).cost;
  for (int a : at(id).args) weigh(a, seen, loads, cost);
}
// Whether a later pass would rather load it than compute it again.
bool RowText::is_worth_keeping(int id) {
  const DType t = at(id).type;
  if (at(id).kind != Statement::Formula || !is_floating(t)) return false;
  std::vector<bool> seen(p_.statements.size());
  int loads = 0, cost = 0;
  weigh(id, seen, loads, cost);
  return (loads > 2 || cost > 1) && kept_bytes_ + bytes_kept(id) <= kKeptBytes;
}
bool RowText::loads(int id, int d) {
  RowState& state = of(id);
  if (state.pass < 0) state.pass = d;
  if (state.pass == d) return false;
  if (!state.kept && is_worth_keeping(id)) {
    kept_bytes_ += bytes_kept(id);
    state.kept = true;
  }
  return state.kept;
}

// --- the text of a pass --------------------------------------------------------------------------

std::string RowText::from_memory(int id, const std::string& x) const {
  return fill(spelling(at(id).type).load, {x});
}
std::string RowText::to_memory(int id, const std::string& x) const {
  return fill(spelling(at(id).type).store, {x});
}

std::string RowText::line(int id, int u, bool tail) {
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

void RowText::row_names(const RowPass& pass) {
  std::vector<int> used = pass.list;
  for (int id : pass.picks) picked(at(id).args[0], used);
  std::vector<size_t> windows, ids;
  std::vector<int> given, statements = used;
  statements.insert(statements.end(), pass.folds.begin(), pass.folds.end());
  statements.insert(statements.end(), pass.picks.begin(), pass.picks.end());
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
  text_ += "const long q = r0 + r;\n";
  row_pointers("q", windows);
  // Before the first row and behind the last a pipelined pass has none.
  const std::string guard = pipelined_ ? "r >= rows ? 0 : " : "";
  for (size_t w : ids) print("const long id{0} = {1}o{0}[q];\n", w, guard);
  for (int id : given) {
    if (is_fold(id) && of(id).depth > current_) continue;
    print("const auto v{} = {};\n", id, from_memory(id, fmt::format("splat(w{}[r])", id)));
  }
  for (int id : used) {
    if (of(id).kept) print("{0}* const q{1} = k{1} + r * {2};\n", element(id), id, padded_);
    if (at(id).kind == Statement::FoldRows) {
      print("{0}* const c{1} = s{1} + k * {2};\n", element(id), id, padded_);
    }
  }
}
void RowText::picked(int id, std::vector<int>& list) const {
  if (!in_row(id)) return;
  list.push_back(id);
  for (int a : at(id).args) picked(a, list);
}

// Element `id` of the row, computed where it is.
void RowText::pick(int id) {
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
  print("w{}[r] = id{} == {} ? 0 : ({})[0];\n", id, s.which, ignored(s), value(s.args[0]));
}

void RowText::fold_body(const std::vector<int>& list, const std::vector<int>& folds) {
  at_body(4);
  emit(list, 4, false);
  for (int u = 0; u < 4; ++u) take(folds, u, fmt::format("a$0_{}", u), false);
}
// What is left of a row, or of its last chunk, behind whole bodies.
void RowText::rest(const std::vector<int>& list, const std::vector<int>& folds, int64_t chunks) {
  if (n_ % 64 == 0) return;
  const int whole = static_cast<int>(n_ % 64 / 16), left = static_cast<int>(n_ % 16);
  text_ += chunks > 1 ? fmt::format("if (c + 1 == {}) {{\n", chunks) : "{\n";
  emit(list, whole, false);
  for (int u = 0; u < whole; ++u) take(folds, u, fmt::format("a$0_{}", u), false);
  if (left) {
    print("i += {};\nconst int n = {};\n{{\n", 16 * whole, left);
    emit(list, 1, true);
    take(folds, 0, fmt::format("a$0_{}", whole), true);
    text_ += "}\n";
  }
  text_ += "}\n";
}
void RowText::reduced(const std::vector<int>& folds, const std::string& to) {
  for (int f : folds) {
    print("{} = {};\n", fmt::format(fmt::runtime(to), f), fold_four(f, fmt::format("a{}_$0", f)));
  }
}

}  // namespace brrr::program
