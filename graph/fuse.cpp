// Makes the schedule: one group per instruction, merged as merge.cpp decides. Fusible are pointwise
// ops, and reductions and row ops over the same rows.
#include <algorithm>
#include <map>
#include <string>

#include "graph/cost.h"
#include "ops/kinds/strided_matrix.h"

namespace brrr::graph {

std::vector<uint32_t>& distinct(std::vector<uint32_t>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

namespace {

// Whether an in-place instruction may overwrite bytes of an input for which `same(input, output)`
// is false: the eager driver copies such an input first.
template <class Same> bool clobbers(const Recording& r, const Instr& i, const Same& same) {
  return i.into && std::ranges::any_of(r.out(i), [&](uint32_t out) {
           return std::ranges::any_of(r.in(i), [&](uint32_t in) {
             if (in == kNone || r.value(in).storage != r.value(out).storage) return false;
             return !same(r.value(in), r.value(out)) && !apart(r.value(in), r.value(out));
           });
         });
}

// Whether the instruction can be part of a generated kernel.
bool fusible(const Recording& r, const Instr& i) {
  if (r.value(r.out(i)[0]).numel == 0) return false;
  if (!i.op->pointwise) return !i.into && (i.op->row || i.op->reduction);
  for (int k = 0; i.into && k < i.n_out; ++k) {
    for (int n = 0; n < k; ++n) {
      if (r.value(r.out(i)[n]).storage == r.value(r.out(i)[k]).storage) return false;
    }
  }
  return !clobbers(r, i, [](const Value& in, const Value& out) { return in.same_elements(out); });
}

// By instruction: whether several do the same to different tensors with the same scalar tensor,
// as in scaling gradients. They become one kernel over a table of operands unless fused elsewhere.
std::vector<uint8_t> find_alike(const Recording& r) {
  constexpr int several = 4;
  std::map<std::string, std::vector<uint32_t>> all;
  for (uint32_t at = 0; at < r.instrs.size(); ++at) {
    const Instr& i = r.instrs[at];
    if (!r.live[at] || !i.op->pointwise) continue;
    std::string key = part_key(r, {{at}, {.space = r.value(r.out(i)[0]).size_list()}});
    bool has_scalar = false;
    for (uint32_t id : r.in(i)) {
      if (id == kNone || r.value(id).numel > 1) continue;
      const uint32_t st = r.value(id).storage;
      const auto own = [&](uint32_t out) { return r.value(out).storage == st; };
      if (std::ranges::any_of(r.out(i), own)) continue;
      key += '|' + std::to_string(st);
      has_scalar = true;
    }
    if (has_scalar) all[key].push_back(at);
  }
  std::vector<uint8_t> alike(r.instrs.size());
  for (const auto& [key, list] : all) {
    for (uint32_t at : list) alike[at] = list.size() >= several;
  }
  return alike;
}

}  // namespace

bool writes_external(const Recording& r, const Instr& i) {
  return std::ranges::any_of(r.out(i), [&](uint32_t value) {
    return r.storages[r.value(value).storage].origin == Origin::External;
  });
}

bool reads_transposed(const Recording& r, const Instr& i) {
  const Value& out = r.value(r.out(i)[0]);
  if (r.storages[out.storage].device != kCPU || i.op->pointwise->n_made > 0) return false;
  int inner = -1;
  for (int d = 0; d < out.ndim; ++d) {
    if (out.sizes[d] != 1 && (inner < 0 || out.strides[d] <= out.strides[inner])) inner = d;
  }
  return inner >= 0 && std::ranges::any_of(r.in(i), [&](uint32_t in) {
           if (in == kNone) return false;
           const auto stride = [&](int d) { return r.value(in).stride_along(d, out.ndim); };
           bool side_by_side = false;
           for (int d = 0; d < out.ndim; ++d)
             side_by_side |= out.sizes[d] >= kTransposedRows && stride(d) == 1;
           return side_by_side && stride(inner) >= kTransposedStride;
         });
}

bool allocates(const Recording& r, const Instr& i) {
  if (i.op->kind != OpKind::Pointwise) return true;
  return clobbers(r, i, [](const Value& in, const Value& out) {
    return in.offset == out.offset && in.size_list() == out.size_list() &&
           in.stride_list() == out.stride_list();
  });
}

std::vector<uint32_t> checked_values(const Recording& r, const Instr& i) {
  std::vector<uint32_t> all, ids;
  for (uint32_t id : r.in(i)) {
    if (id == kNone) continue;
    all.push_back(id);
    if (!is_floating(r.value(id).dtype)) ids.push_back(id);
  }
  return ids.empty() ? all : ids;
}

bool can_fail(const Recording& r, const Instr& i) {
  const bool on_cpu = r.storages[r.value(r.out(i)[0]).storage].device == kCPU;
  return on_cpu ? i.op->check_values != nullptr : allocates(r, i);
}

Schedule make_schedule(const Recording& r, bool fuse, const Target& target) {
  Schedule s;
  s.alike = find_alike(r);
  for (uint32_t at = 0; at < r.instrs.size(); ++at) {
    const Instr& i = r.instrs[at];
    s.removed += !r.live[at] && !i.op->is_view();
    if (!r.live[at]) continue;
    const bool must = i.attrs.dynamic && !target.calls_read_control;
    Domain own{.space = r.value(r.out(i)[0]).size_list()};
    const bool fused = (fuse || must) && fusible(r, i) && join(r, target, {}, own, at);
    s.groups.push_back({fused, {at}, own, {}});
  }
  merge_groups(r, s, fuse, target);
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    const auto [first, last] = s.life(r, st);
    // A temporary of a single fused group lives in its registers.
    const bool passed = first == kNone || (first == last && s.groups[first].fused);
    s.stored.push_back(r.lasting[st] || !passed);
  }
  if (fuse && target.part_bytes) find_strips(r, s, target.part_bytes);
  return s;
}

}  // namespace brrr::graph
