// Dead code: what neither a survivor nor an external ever sees, and what cannot fail for its
// values.
#include "graph/schedule.h"

namespace brrr::graph {

std::vector<bool> live_instructions(const Recording& r) {
  std::vector<bool> live(r.instrs.size()), needed(r.storages.size());
  for (uint32_t s : r.survivors) needed[s] = true;
  for (uint32_t s : r.externals) needed[s] = true;
  for (size_t at = r.instrs.size(); at-- > 0;) {
    const Instr& i = r.instrs[at];
    if (i.op->is_view()) continue;             // Views: their window is part of every operand.
    live[at] = i.op->check_values != nullptr;  // Its error is an effect, in eager mode too.
    for (int k = 0; k < i.n_out; ++k) live[at] = live[at] || needed[r.value(r.out(i)[k]).storage];
    if (!live[at]) continue;
    for (int k = 0; k < i.n_in; ++k) {
      if (r.in(i)[k] != kNone) needed[r.value(r.in(i)[k]).storage] = true;
    }
    // A destination keeps what the call does not overwrite, so its earlier writers stay.
    for (int k = 0; i.into && k < i.n_out; ++k) needed[r.value(r.out(i)[k]).storage] = true;
  }
  return live;
}

}  // namespace brrr::graph
