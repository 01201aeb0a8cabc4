#include "ops/program/cpu_row_passes.h"

#include <algorithm>
#include <bit>

namespace brrr::program {

// Of values that a pass leaves for later ones.
constexpr int64_t kKeptBytes = 64 << 10;

RowPasses::RowPasses(const Program& p)
    : CpuText(p),
      n_(p.row),
      rows_(p.space.numel() / p.row),
      block_(std::bit_floor<uint64_t>(std::clamp<int64_t>(4096 / n_, 1, 16))),
      padded_((n_ + 15) / 16 * 16),
      states_(p.statements.size()) {
  sort_out();
}

// Depths, and which statements are worth anything.
void RowPasses::sort_out() {
  const int count = static_cast<int>(p_.statements.size());
  for (int id = 0; id < count; ++id) {
    auto& depth = of(id).depth;
    bool after = is_over_rows(id);
    for (int a : at(id).args) {
      depth = std::max(depth, of(a).depth);
      after |= of(a).after;
    }
    depth += is_fold(id);
    of(id).after = after;
  }
  for (int id = count - 1; id >= 0; --id) {
    const Statement::Kind kind = at(id).kind;
    if (kind == Statement::Store) of(id).live = true;
    if (!of(id).live) continue;
    deepest_ = std::max(deepest_, of(id).depth);
    for (int a : at(id).args) of(a).live = true;
    if (kind == Statement::FoldRows) columns_.push_back(id);
    if (kind == Statement::Total) totals_.push_back(id);
  }
}

// Loads and polynomials that a value of elements is made of.
void RowPasses::weigh(int id, std::vector<bool>& seen, int& loads, int& cost) const {
  if (!in_row(id) || seen[static_cast<size_t>(id)]) return;
  seen[static_cast<size_t>(id)] = true;
  loads += at(id).kind == Statement::Load;
  cost += at(id).cost;
  for (int a : at(id).args) weigh(a, seen, loads, cost);
}
// Whether a later pass would rather load it than compute it again.
bool RowPasses::is_worth_keeping(int id) {
  const DType t = at(id).type;
  if (at(id).kind != Statement::Formula || !is_floating(t)) return false;
  std::vector<bool> seen(p_.statements.size());
  int loads = 0, cost = 0;
  weigh(id, seen, loads, cost);
  const int64_t bytes = block_ * padded_ * static_cast<int64_t>(itemsize(t));
  return (loads > 2 || cost > 1) && kept_bytes_ + bytes <= kKeptBytes;
}
void RowPasses::need(int id, int d, std::vector<bool>& in) {
  if (!in_row(id) || in[static_cast<size_t>(id)]) return;
  in[static_cast<size_t>(id)] = true;
  int& first = of(id).pass;
  const bool before = first >= 0 && first < d;
  if (before && (of(id).kept || is_worth_keeping(id))) {
    if (!of(id).kept) {
      kept_bytes_ += block_ * padded_ * static_cast<int64_t>(itemsize(at(id).type));
    }
    of(id).kept = true;
    return;
  }
  for (int a : at(id).args) need(a, d, in);
  if (first < 0) first = d;
}
void RowPasses::plan_passes() {
  passes_.resize(static_cast<size_t>(deepest_) + 1);
  for (int d = 0; d <= deepest_; ++d) {
    Pass& pass = passes_[static_cast<size_t>(d)];
    std::vector<bool> in(p_.statements.size());
    for (int id = 0; id < static_cast<int>(p_.statements.size()); ++id) {
      if (!of(id).live) continue;
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
