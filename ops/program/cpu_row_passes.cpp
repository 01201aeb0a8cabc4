#include "ops/program/cpu_row_text.h"

#include <algorithm>
#include <bit>

#include "ops/kinds/reduction.h"

namespace brrr::program {

// Of values that a pass leaves for later ones.
constexpr int64_t kKeptBytes = 64 << 10;
// Elements of the rows that are taken together: short rows' steps wait for each other, long ones
// have to stay in the first level, where rows on their way from memory and back need room as well.
constexpr int64_t kTogether = 4096, kTogetherStreaming = 1024;

RowText::RowText(const Program& p)
    : CpuText(p),
      n_(p.row),
      rows_(p.space.numel() / p.row),
      block_(std::bit_floor<uint64_t>(
          std::clamp<int64_t>((streaming_ ? kTogetherStreaming : kTogether) / n_, 1, 16))),
      padded_((n_ + 15) / 16 * 16),
      states_(p.statements.size()) {
  sort_out();
}

void RowText::sort_out() {
  const std::vector<RowState> states = row_states(p_);
  for (size_t id = states.size(); id-- > 0;) {
    static_cast<RowState&>(states_[id]) = states[id];
    if (!states[id].live) continue;
    deepest_ = std::max(deepest_, states[id].depth);
    const Statement::Kind kind = p_.statements[id].kind;
    if (kind == Statement::FoldRows) columns_.push_back(static_cast<int>(id));
    if (kind == Statement::Total) totals_.push_back(static_cast<int>(id));
  }
  // Where a vector takes several registers the sums of two passes would not fit in all of them.
  constexpr bool whole = BRRR_VX_BYTES == 64;
  pipelined_ = whole && streaming_ && deepest_ > 0 && n_ >= 64 && n_ <= kReduceChunk;
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
void RowText::need(int id, int d, std::vector<bool>& in) {
  if (!in_row(id) || in[static_cast<size_t>(id)]) return;
  in[static_cast<size_t>(id)] = true;
  int& first = of(id).pass;
  const bool before = first >= 0 && first < d;
  if (before && (of(id).kept || is_worth_keeping(id))) {
    if (!of(id).kept) kept_bytes_ += bytes_kept(id);
    of(id).kept = true;
    return;
  }
  for (int a : at(id).args) need(a, d, in);
  if (first < 0) first = d;
}
void RowText::plan_passes() {
  passes_.resize(static_cast<size_t>(deepest_) + 1);
  for (int d = 0; d <= deepest_; ++d) {
    Pass& pass = passes_[static_cast<size_t>(d)];
    std::vector<bool> in(p_.statements.size());
    for (int id : live()) {
      if (is_fold(id) && of(id).depth == d + 1) {
        pass.folds.push_back(id);
        if (at(id).kind == Statement::Fold) need(at(id).args[0], d, in);
      }
      // All stores come last: what is read again may lie where they go.
      if (d == deepest_ && (is_element_store(id) || at(id).kind == Statement::FoldRows)) {
        need(at(id).args[0], d, in);
        in[static_cast<size_t>(id)] = true;
      }
    }
    for (int id = 0; id < static_cast<int>(in.size()); ++id) {
      if (in[static_cast<size_t>(id)]) pass.list.push_back(id);
    }
  }
}

}  // namespace brrr::program
