// What is joined is written where it is joined.
#include <optional>

#include "graph/rematerialise.h"

namespace brrr::graph {

namespace {

// An operand of a join, made by output `out` of an instruction, and where it will be written.
struct Placed {
  uint32_t maker, out;
  Value window;
};

bool whole(const Recording& r, const Value& v) {
  return !v.strided && v.offset == 0 &&
         static_cast<size_t>(v.numel) * itemsize(v.dtype) == r.storages[v.storage].bytes;
}

// The elements of `v` in runs of `run`, each of which begins `step` after the one before it; the
// last dim stays in one piece.
bool spread(Value& v, int64_t run, int64_t step) {
  int64_t inner = 1;
  int d = v.ndim;
  while (d > 0 && inner < run) inner *= v.sizes[--d];
  if (inner != run || d == v.ndim) return false;
  while (d-- > 0) v.strides[d] = v.strides[d] / run * step;
  v.strided = true;
  return true;
}

std::optional<Placed> place(const Recording& r, uint32_t join, uint32_t operand, int64_t begin,
                            int64_t run, int64_t step) {
  const Value& v = r.value(operand);
  const StorageInfo& info = r.storages[v.storage];
  const std::vector<Access>& all = r.accesses[v.storage];
  if (info.origin != Origin::Internal || r.lasting[v.storage] || all.size() != 2) return {};
  const Instr& maker = r.instrs[all[0].instr];
  const Value& made = r.value(all[0].value);
  const bool own = all[0].write && all[1].instr == join && !maker.into && maker.op->apart;
  if (!own || !whole(r, v) || !whole(r, made) || made.dtype != v.dtype) return {};
  Placed p{all[0].instr, 0, made};
  while (r.out(maker)[p.out] != all[0].value) ++p.out;
  p.window.storage = r.value(r.out(r.instrs[join])[0]).storage;
  p.window.offset = begin;
  if (!spread(p.window, run, step)) return {};
  return p;
}

// Where the operands of a join will be written; empty if one has to be copied.
std::vector<Placed> places(const Recording& r, uint32_t join) {
  const Instr& i = r.instrs[join];
  const Value& out = r.value(r.out(i)[0]);
  if (i.into || !whole(r, out) || out.numel == 0) return {};
  const Value& first = r.value(r.in(i)[0]);
  int dim = 0;
  while (dim + 1 < out.ndim && first.sizes[dim] == out.sizes[dim]) ++dim;
  int64_t outer = 1, begin = 0;
  for (int d = 0; d < dim; ++d) outer *= out.sizes[d];
  std::vector<Placed> all;
  for (int k = 0; k < i.n_in; ++k) {
    const uint32_t id = r.in(i)[k];
    const int64_t run = r.value(id).numel / outer;
    auto p = run && r.value(id).dtype == out.dtype
                 ? place(r, join, id, begin, run, out.numel / outer)
                 : std::nullopt;
    if (!p) return {};
    all.push_back(*p);
    begin += run;
  }
  return all;
}

}  // namespace

std::unique_ptr<Recording> write_joined(const Recording& r) {
  std::unique_ptr<Recording> out;
  for (uint32_t at = 0; at < r.instrs.size(); ++at) {
    if (!r.live[at] || !r.instrs[at].op->joins) continue;
    const std::vector<Placed> all = places(r, at);
    if (all.empty()) continue;
    if (!out) out = std::make_unique<Recording>(r);
    StorageInfo& joined = out->storages[all[0].window.storage];
    for (const Placed& p : all) {
      const auto window = static_cast<uint32_t>(out->values.size());
      out->operands[r.instrs[p.maker].first_out + p.out] = window;
      out->values.push_back(p.window);
      joined.maker = std::min(joined.maker, p.maker);
    }
    out->instrs[at].n_in = 0;
    out->instrs[at].n_out = 0;
  }
  if (out) out->complete();
  return out;
}

}  // namespace brrr::graph
