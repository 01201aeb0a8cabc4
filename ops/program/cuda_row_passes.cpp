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
  passes_ = row_passes(p, states_, deepest_, [](int, int) { return false; });
  std::vector<int> reads(p.windows.size());
  for (const RowPass& pass : passes_) {
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
