// Pads temporaries as library kernels ask for, which would otherwise copy them: rows of an odd
// length get a larger pitch, and spare rows follow at the end.
#include <algorithm>

#include "graph/rematerialise.h"

namespace brrr::graph {

namespace {

const Group& group_of(const Schedule& s, const Access& a) { return s.groups[s.group_of[a.instr]]; }

// The length of the contiguous rows in memory: of a transposed matrix the length of its columns.
int64_t row_length(const Value& v) {
  return v.strides[v.ndim - 1] == 1 ? v.sizes[v.ndim - 1] : v.sizes[v.ndim - 2];
}

// The room that a library kernel asks for this operand; empty if it asks for none.
MatrixPadding requested_room(const Recording& r, const Schedule& s, const Access& a) {
  const Instr& i = r.instrs[a.instr];
  if (group_of(s, a).fused || !i.op->room || r.value(a.value).ndim < 2) return {};
  const auto bound = make_call(r, i, {});
  MatrixPadding room;
  for (int k = 0; k < i.n_in + i.n_out; ++k) {
    if (r.all(i)[k] != a.value) continue;
    const MatrixPadding of_k = i.op->room(bound->call, k);
    if (room.pitch && room.pitch != of_k.pitch) return {};
    room = {std::max(room.rows, of_k.rows), of_k.pitch};
  }
  return room;
}

// Whether each dim either steps over whole rows or stays within a row.
bool fits_rows(const IntList& sizes, const IntList& strides, int64_t row) {
  for (int d = 0; d < sizes.size(); ++d) {
    const bool of_rows = strides[d] % row == 0, within = strides[d] * sizes[d] <= row;
    if (sizes[d] != 1 && !of_rows && !within) return false;
  }
  return true;
}

bool can_pad(const Recording& r, const Schedule& s, const Access& a, const StorageInfo& info) {
  if (info.row == info.pitch) return true;  // The pitch does not change.
  const Value& v = r.value(a.value);
  const Group& g = group_of(s, a);
  if (!g.fused) {
    return fits_rows(v.size_list(), v.stride_list(), info.row) &&
           (r.instrs[a.instr].op->pointwise || requested_room(r, s, a).pitch == info.pitch);
  }
  const Domain& w = g.part_of(a.instr).domain;
  return role(r, a, w) == Role::Each && fits_rows(w.space, contiguous_strides(w.space), info.row);
}

// The storage's layout as requested by the kernels that use it; dense unless all can use padding.
StorageInfo padded_layout(const Recording& r, const Schedule& s, uint32_t st) {
  const StorageInfo& dense = r.storages[st];
  StorageInfo info = dense;
  int64_t rows = 0;
  for (const Access& a : r.accesses[st]) {
    const MatrixPadding room = requested_room(r, s, a);
    if (!room.pitch) continue;
    if (!info.row) info.row = row_length(r.value(a.value)), info.pitch = room.pitch;
    rows = std::max(rows, room.rows);
  }
  if (!info.row) return dense;
  const bool fits = std::ranges::all_of(r.accesses[st], [&](const Access& a) {
    const Value& v = r.value(a.value);
    return v.offset == 0 && v.numel == dense.elements(v.item()) && can_pad(r, s, a, info);
  });
  if (!fits) return dense;
  const int64_t item = r.value(r.accesses[st][0].value).item();
  const int64_t there = dense.elements(item) / info.row;
  info.spare = std::max<int64_t>(0, rows - there) * info.pitch * item;
  info.bytes = static_cast<size_t>(there * info.pitch * item + info.spare);
  return info.bytes == dense.bytes ? dense : info;
}

}  // namespace

std::unique_ptr<Recording> pad_rows(const Recording& r, const Schedule& s) {
  std::unique_ptr<Recording> out;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (r.storages[st].origin != Origin::Internal || r.lasting[st] || !s.stored[st]) continue;
    const StorageInfo now = padded_layout(r, s, st);
    if (!now.row) continue;
    if (!out) out = std::make_unique<Recording>(r);
    out->storages[st] = now;
  }
  return out;
}

}  // namespace brrr::graph
