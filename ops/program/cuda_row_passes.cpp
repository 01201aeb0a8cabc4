#include "ops/program/cuda_row_passes.h"

#include <algorithm>

namespace brrr::program {

DeviceRowPasses::DeviceRowPasses(const Program& p, bool split) : p_(p), states_(row_states(p)) {
  for (int id = 0; id < count(); ++id) {
    RowState& s = states_[static_cast<size_t>(id)];
    const auto after = [&](int a) { return at(a).kind == Statement::Fold || of(a).after; };
    if (split) s.after = std::any_of(at(id).args.begin(), at(id).args.end(), after);
    if (s.live && !split) deepest_ = std::max(deepest_, s.depth);
  }
  passes_.resize(static_cast<size_t>(deepest_) + 1);
  std::vector<int> reads(p.windows.size());
  for (int d = 0; d <= deepest_; ++d) {
    Pass& pass = passes_[static_cast<size_t>(d)];
    std::vector<int> wanted;
    for (int id = 0; id < count(); ++id) {
      if (!of(id).live) continue;
      const Statement& s = at(id);
      if (ends_pass(s) && of(id).depth == d + 1) pass.ends.push_back(id);
      if (s.kind == Statement::Fold && of(id).depth == d + 1) wanted.push_back(s.args[0]);
      // Elements are stored last: what is read again may lie where they go.
      if (d == deepest_ && (is_element_store(id) || s.kind == Statement::FoldRows)) {
        wanted.push_back(id);
      }
    }
    pass.list = in_row(wanted);
    for (int id : pass.list) {
      if (at(id).kind == Statement::Load) ++reads[static_cast<size_t>(at(id).which)];
    }
  }
  for (size_t w = 0; w < reads.size(); ++w) {  // What all rows share is near anyway.
    const int64_t* const stride = p.windows[w].stride;
    const bool shared = std::all_of(stride, stride + p.space.ndim - 1, [](auto s) { return !s; });
    if (reads[w] > 1 && p.windows[w].in_memory() && !shared) reused_.push_back(static_cast<int>(w));
  }
}

// The statements of elements that these are made of, themselves included.
std::vector<int> DeviceRowPasses::in_row(const std::vector<int>& wanted) const {
  std::vector<bool> in(static_cast<size_t>(count()));
  std::vector<int> list;
  for (int id : wanted) in[static_cast<size_t>(id)] = true;
  for (int id = count() - 1; id >= 0; --id) {
    if (!in[static_cast<size_t>(id)]) continue;
    const bool ends = is_element_store(id) || at(id).kind == Statement::FoldRows;
    if (at(id).varies != Statement::InRow && !ends) continue;
    list.push_back(id);
    for (int a : at(id).args) in[static_cast<size_t>(a)] = true;
  }
  std::reverse(list.begin(), list.end());
  return list;
}

RowTraits row_traits(const Program& p, bool split) {
  RowTraits t;
  t.split = split;
  const DeviceRowPasses passes(p, t.split);
  t.reused = static_cast<int>(passes.reused().size());
  for (int id = 0; id < passes.count(); ++id) {
    const Statement& s = p.statements[static_cast<size_t>(id)];
    if (!passes.of(id).live) continue;
    // Of a piece of a row nothing of these can be told.
    t.folds |= ends_pass(s) || s.kind == Statement::Counts || s.kind == Statement::IsAt ||
               s.kind == Statement::Total;
    const bool column = s.kind == Statement::FoldRows;
    const bool total = s.kind == Statement::Total || (t.split && s.kind == Statement::Fold);
    t.columns += column;
    t.totals += total;
    if (column || total || ends_pass(s)) {
      t.item = std::max(t.item, static_cast<int>(itemsize(s.type)));
    }
  }
  return t;
}

}  // namespace brrr::program
