// Temporaries have the room that a library's kernels ask for, which would copy them otherwise: rows
// of an odd length lie apart, and there are some more of them.
#include <algorithm>

#include "graph/rematerialise.h"

namespace brrr::graph {

namespace {

class Layer {
 public:
  Layer(const Recording& r, const Schedule& s) : r_(r), s_(s) {}

  std::unique_ptr<Recording> run() {
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      if (r_.storages[st].origin != Origin::Internal || r_.lasting[st] || !s_.stored[st]) continue;
      const StorageInfo now = laid(st);
      if (!now.row) continue;
      if (!out_) out_ = std::make_unique<Recording>(r_);
      out_->storages[st] = now;
    }
    return std::move(out_);
  }

 private:
  // As those ask for who use it; rows lie apart if all who use it find them there.
  StorageInfo laid(uint32_t st) const {
    StorageInfo info = r_.storages[st];
    int64_t rows = 0;
    for (const Access& a : r_.accesses[st]) {
      const MatrixRoom room = asked(a);
      if (!room.pitch) continue;
      if (!info.row) info.row = row_of(r_.value(a.value)), info.pitch = room.pitch;
      rows = std::max(rows, room.rows);
    }
    if (!info.row) return info;
    const Value& v = r_.value(r_.accesses[st][0].value);
    const bool fits = std::ranges::all_of(r_.accesses[st], [&](const Access& a) {
      return covers(r_.value(a.value), r_.storages[st]) && is_found(a, info);
    });
    if (!fits) return r_.storages[st];
    const int64_t there = r_.storages[st].elements(v.item()) / info.row;
    info.spare = std::max<int64_t>(0, rows - there) * info.pitch * v.item();
    info.bytes = static_cast<size_t>(there * info.pitch * v.item() + info.spare);
    if (info.bytes == r_.storages[st].bytes) return r_.storages[st];
    return info;
  }

  const Group& group_of(const Access& a) const { return s_.groups[s_.group_of[a.instr]]; }
  // The length of the rows that lie in memory: of a transposed matrix its columns.
  static int64_t row_of(const Value& v) {
    return v.strides[v.ndim - 1] == 1 ? v.sizes[v.ndim - 1] : v.sizes[v.ndim - 2];
  }

  // By a library's kernel; nothing by others.
  MatrixRoom asked(const Access& a) const {
    const Instr& i = r_.instrs[a.instr];
    if (group_of(a).fused || !i.op->room || r_.value(a.value).ndim < 2) return {};
    const auto bound = make_call(r_, i, {});
    MatrixRoom room;
    for (int k = 0; k < i.n_in + i.n_out; ++k) {
      if (r_.operands[i.first_in + static_cast<uint32_t>(k)] != a.value) continue;
      const MatrixRoom of_k = i.op->room(bound->call, k);
      if (room.pitch && room.pitch != of_k.pitch) return {};
      room = {std::max(room.rows, of_k.rows), of_k.pitch};
    }
    return room;
  }

  static bool covers(const Value& v, const StorageInfo& info) {
    return v.offset == 0 && v.numel == info.elements(v.item());
  }

  bool is_found(const Access& a, const StorageInfo& info) const {
    if (info.row == info.pitch) return true;  // They lie as they did.
    const Value& v = r_.value(a.value);
    const Group& g = group_of(a);
    if (!g.fused) {
      const OpDef& op = *r_.instrs[a.instr].op;
      return in_rows(v.size_list(), v.stride_list(), info.row) &&
             (op.pointwise || asked(a).pitch == info.pitch);
    }
    const Domain& w = g.part_of(a.instr).domain;
    return role(r_, a, w) == Role::Each && in_rows(w.space, contiguous_strides(w.space), info.row);
  }

  // Whether each dim is one of rows or one within a row.
  static bool in_rows(const IntList& sizes, const IntList& strides, int64_t row) {
    for (int d = 0; d < sizes.size(); ++d) {
      const bool of_rows = strides[d] % row == 0, within = strides[d] * sizes[d] <= row;
      if (sizes[d] != 1 && !of_rows && !within) return false;
    }
    return true;
  }

  const Recording& r_;
  const Schedule& s_;
  std::unique_ptr<Recording> out_;
};

}  // namespace

std::unique_ptr<Recording> lay_rows(const Recording& r, const Schedule& s) {
  return Layer(r, s).run();
}

}  // namespace brrr::graph
