// Actions of a fuzzed step program with indices: remainders, which are known to be in range, and
// ids that only their check knows to be.
#include "tests/fuzz_steps.h"

namespace brrr::fuzz {

void index(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  if (t.dim() == 0) return;
  const int64_t d = i.c % t.dim();
  if (t.size(d) == 0) return;
  switch (i.n % 6) {
    case 0:
      return m.push(index_select(t, d, m.indices(i.b, t.size(d)).reshape({-1})));
    case 1:
      return m.push(embedding(m.state.leaves[2], m.indices(i.b, 5)));
    case 2:
      return m.push(one_hot(m.indices(i.b, 4), 4));
    case 3:
      return m.push(gather(t, d, argmax(t, d, true)));
    case 4: {
      const Tensor at = remainder(zeros(t.sizes(), kInt64) + 7, t.size(d));
      return m.push(scatter_add(
          t, d, at, Machine::fit(m.pick(i.b), t.sizes(), true).to(t.dtype()).expand(t.sizes())));
    }
    default:
      t.scatter_add_(d, remainder(zeros(t.sizes(), kInt64) + 3, t.size(d)), t * 0.5);
  }
}

// Ids that a step computes; only their check knows that each is one of five.
void computed_index(Machine& m, const Ins& i) {
  const Tensor t = m.floating(i.a), table = m.state.leaves[2];
  Tensor ids = where(t > i.s, full({}, 3), full({}, 1));
  if (i.c % 2) ids = ids + (m.pick(i.b) != 0.0).any().to(kInt64);
  if (i.c % 3 == 0)
    ids = max_with_indices(stack({t, -t, t * 0.5}), 0).second + (ids > 2).to(kInt64);
  const Tensor row = ids.reshape({-1});
  switch (i.n % 7) {
    case 0:
      return m.push(one_hot(ids, 5) * 2);
    case 6:  // As many elements as ids.
      return m.push(one_hot(where(ids > 9, ids, 0), 1) * 2);
    case 1:
      return m.push(embedding(table, ids));
    case 2:
      return m.push(index_select(table, 0, row));
    case 3:
      return m.push(cross_entropy(embedding(table, row), row));
    case 4:
      return m.push(scatter_add(zeros({5}, t.dtype()), 0, row, t.reshape({-1})));
    default:
      return m.push(gather(table, 1, row.slice(0, 0, 5).unsqueeze(1)));
  }
}

}  // namespace brrr::fuzz
