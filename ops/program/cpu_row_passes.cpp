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

}  // namespace brrr::program
