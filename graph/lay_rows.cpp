// Temporaries have the room that a library's kernels ask for, which would copy them otherwise: rows
// of an odd length lie apart, and there are some more of them.
#include <algorithm>

#include "graph/rematerialise.h"

namespace brrr::graph {

namespace {

const Group& group_of(const Schedule& s, const Access& a) { return s.groups[s.group_of[a.instr]]; }

// The length of the rows that lie in memory: of a transposed matrix its columns.
int64_t row_of(const Value& v) {
  return v.strides[v.ndim - 1] == 1 ? v.sizes[v.ndim - 1] : v.sizes[v.ndim - 2];
}

// By a library's kernel; nothing by others.
MatrixRoom asked(const Recording& r, const Schedule& s, const Access& a) {
  const Instr& i = r.instrs[a.instr];
  if (group_of(s, a).fused || !i.op->room || r.value(a.value).ndim < 2) return {};
  const auto bound = make_call(r, i, {});
  MatrixRoom room;
  for (int k = 0; k < i.n_in + i.n_out; ++k) {
    if (r.all(i)[k] != a.value) continue;
    const MatrixRoom of_k = i.op->room(bound->call, k);
    if (room.pitch && room.pitch != of_k.pitch) return {};
    room = {std::max(room.rows, of_k.rows), of_k.pitch};
  }
  return room;
}

// Whether each dim is one of rows or one within a row.
bool in_rows(const IntList& sizes, const IntList& strides, int64_t row) {
  for (int d = 0; d < sizes.size(); ++d) {
    const bool of_rows = strides[d] % row == 0, within = strides[d] * sizes[d] <= row;
    if (sizes[d] != 1 && !of_rows && !within) return false;
  }
  return true;
}

bool is_found(const Recording& r, const Schedule& s, const Access& a, const StorageInfo& info) {
  if (info.row == info.pitch) return true;  // They lie as they did.
  const Value& v = r.value(a.value);
  const Group& g = group_of(s, a);
  if (!g.fused) {
    return in_rows(v.size_list(), v.stride_list(), info.row) &&
           (r.instrs[a.instr].op->pointwise || asked(r, s, a).pitch == info.pitch);
  }
  const Domain& w = g.part_of(a.instr).domain;
  return role(r, a, w) == Role::Each && in_rows(w.space, contiguous_strides(w.space), info.row);
}

// As those ask for who use it; rows lie apart if all who use it find them there.
StorageInfo laid(const Recording& r, const Schedule& s, uint32_t st) {
  const StorageInfo& dense = r.storages[st];
  StorageInfo info = dense;
  int64_t rows = 0;
  for (const Access& a : r.accesses[st]) {
    const MatrixRoom room = asked(r, s, a);
    if (!room.pitch) continue;
    if (!info.row) info.row = row_of(r.value(a.value)), info.pitch = room.pitch;
    rows = std::max(rows, room.rows);
  }
  if (!info.row) return dense;
  const bool fits = std::ranges::all_of(r.accesses[st], [&](const Access& a) {
    const Value& v = r.value(a.value);
    return v.offset == 0 && v.numel == dense.elements(v.item()) && is_found(r, s, a, info);
  });
  if (!fits) return dense;
  const int64_t item = r.value(r.accesses[st][0].value).item();
  const int64_t there = dense.elements(item) / info.row;
  info.spare = std::max<int64_t>(0, rows - there) * info.pitch * item;
  info.bytes = static_cast<size_t>(there * info.pitch * item + info.spare);
  return info.bytes == dense.bytes ? dense : info;
}

}  // namespace

std::unique_ptr<Recording> lay_rows(const Recording& r, const Schedule& s) {
  std::unique_ptr<Recording> out;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (r.storages[st].origin != Origin::Internal || r.lasting[st] || !s.stored[st]) continue;
    const StorageInfo now = laid(r, s, st);
    if (!now.row) continue;
    if (!out) out = std::make_unique<Recording>(r);
    out->storages[st] = now;
  }
  return out;
}

}  // namespace brrr::graph
