// Cat elision: the parts of a concatenation are written directly into its output.
#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/cost.h"
#include "graph/rematerialise.h"

namespace brrr::graph {

namespace {

// A part of a concatenation: its maker's operand, an index into Recording::operands; its storage;
// and the window on the output that it will be written to.
struct Placed {
  uint32_t operand, storage;
  Value window;
};

// The place of a storage that becomes a contiguous part of another one.
struct Move {
  uint32_t to = kNone;
  int64_t offset = 0;
};

class CatElider {
 public:
  explicit CatElider(const Recording& r)
      : r_(r), moves_(r.storages.size()), live_bytes_(r.instrs.size() + 1) {
    for (uint32_t st = 0; st < r.storages.size(); ++st) {
      const std::vector<Access>& all = r.accesses[st];
      if (r.storages[st].origin != Origin::Internal || all.empty()) continue;
      live_bytes_[all[0].instr] += bytes(st);
      if (!r.lasting[st]) live_bytes_[all.back().instr + 1] -= bytes(st);
    }
    std::partial_sum(live_bytes_.begin(), live_bytes_.end(), live_bytes_.begin());
    peak_bytes_ = *std::ranges::max_element(live_bytes_);
  }

  std::unique_ptr<Recording> run() {
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      if (!r_.live[at] || !r_.instrs[at].op->joins) continue;
      const std::vector<Placed> all = placements(at);
      if (!all.empty() && keeps_peak(at, all)) elide(at, all);
    }
    if (!out_) return nullptr;
    // Long lists are concatenated in groups, and then their results: follow chains of moves.
    for (Value& v : out_->values) {
      for (Move m = moves_[v.storage]; m.to != kNone; m = moves_[v.storage]) {
        v.storage = m.to;
        v.offset += m.offset;
      }
    }
    out_->complete();
    return std::move(out_);
  }

 private:
  int64_t bytes(uint32_t st) const { return static_cast<int64_t>(r_.storages[st].bytes); }

  // Whether live bytes stay within the peak if the output of a concatenation, unless small, is live
  // from its first part on; updates `live_bytes_`. Lasting storages are live from the start anyway.
  bool keeps_peak(uint32_t cat, const std::vector<Placed>& all) {
    const uint32_t to = all[0].window.storage;
    if (r_.lasting[to]) return true;
    std::vector<std::pair<uint32_t, int64_t>> parts;  // The instruction that makes each; its bytes.
    for (const Placed& p : all) {
      parts.emplace_back((out_ ? *out_ : r_).storages[p.storage].maker, bytes(p.storage));
    }
    std::ranges::sort(parts);
    std::vector<int64_t> now;
    int64_t more = bytes(to);
    for (uint32_t at = parts[0].first, k = 0; at < cat; ++at) {
      while (k < parts.size() && parts[k].first <= at) more -= parts[k++].second;
      now.push_back(live_bytes_[at] + more);
    }
    if (bytes(to) > kNegligibleBytes && *std::ranges::max_element(now) > peak_bytes_) return false;
    std::ranges::copy(now, live_bytes_.begin() + parts[0].first);
    live_bytes_[cat] -= bytes(to);
    return true;
  }

  bool whole(const Value& v) const {
    return !v.strided && v.offset == 0 &&
           static_cast<size_t>(v.numel) * itemsize(v.dtype) == r_.storages[v.storage].bytes;
  }

  // Whether the maker of a value can write it into a larger one, in contiguous runs of `run`
  // elements: scalars can be stored anywhere, pointwise kernels store vectors to any row pitch.
  bool can_write_within(const Instr& maker, const Value& made, int64_t run) const {
    constexpr int64_t worth_it = 16;
    const OpDef& op = *maker.op;
    if (op.joins) return out_ && out_->instrs[&maker - r_.instrs.data()].n_out == 0;
    return op.apart || (op.pointwise && run >= worth_it) ||
           (made.numel == 1 && (op.pointwise || op.reduction || op.row));
  }

  // Gives `v` strides such that runs of `run` elements begin `step` elements apart; false unless a
  // run is the product of inner dims, at least of the last.
  static bool split_runs(Value& v, int64_t run, int64_t step) {
    if (run == step || run == v.numel) return true;
    int64_t inner = 1;
    int d = v.ndim;
    while (d > 0 && inner < run) inner *= v.sizes[--d];
    if (inner != run || d == v.ndim) return false;
    while (d-- > 0) v.strides[d] = v.strides[d] / run * step;
    v.strided = true;
    return true;
  }

  std::optional<Placed> place(uint32_t cat, uint32_t operand, int64_t begin, int64_t run,
                              int64_t step) const {
    const Value& v = r_.value(operand);
    const StorageInfo& info = r_.storages[v.storage];
    const std::vector<Access>& all = r_.accesses[v.storage];
    if (info.origin != Origin::Internal || r_.lasting[v.storage] || all.size() != 2) return {};
    const Instr& maker = r_.instrs[all[0].instr];
    const Value& made = r_.value(all[0].value);
    const bool own = all[0].write && !maker.into;
    if (!own || !can_write_within(maker, made, run) || !whole(v) || !whole(made) ||
        made.dtype != v.dtype) {
      return {};
    }
    Placed p{maker.first_out, v.storage, made};
    while (r_.operands[p.operand] != all[0].value) ++p.operand;
    p.window.storage = r_.value(r_.out(r_.instrs[cat])[0]).storage;
    p.window.offset = begin;
    if (!split_runs(p.window, run, step) || (p.window.strided && maker.op->joins)) return {};
    return p;
  }

  // Where the parts of a concatenation will be written; empty if one of them has to be copied.
  std::vector<Placed> placements(uint32_t cat) const {
    const Instr& i = r_.instrs[cat];
    const Value& out = r_.value(r_.out(i)[0]);
    if (i.into || !whole(out) || out.numel == 0) return {};
    const Value& first = r_.value(r_.in(i)[0]);
    int64_t outer = 1, begin = 0;
    for (int d = 0; d + 1 < out.ndim && first.sizes[d] == out.sizes[d]; ++d) outer *= out.sizes[d];
    std::vector<Placed> all;
    for (int k = 0; k < i.n_in; ++k) {
      const uint32_t id = r_.in(i)[k];
      const int64_t run = r_.value(id).numel / outer;
      auto p = run && r_.value(id).dtype == out.dtype
                   ? place(cat, id, begin, run, out.numel / outer)
                   : std::nullopt;
      if (!p) return {};
      all.push_back(*p);
      begin += run;
    }
    return all;
  }

  void elide(uint32_t cat, const std::vector<Placed>& all) {
    if (!out_) out_ = std::make_unique<Recording>(r_);
    uint32_t& first = out_->storages[all[0].window.storage].maker;
    first = cat;
    for (const Placed& p : all) {
      first = std::min(first, out_->storages[p.storage].maker);
      if (p.window.strided) {
        out_->operands[p.operand] = static_cast<uint32_t>(out_->values.size());
        out_->values.push_back(p.window);
      } else {
        moves_[p.storage] = {p.window.storage, p.window.offset};
      }
    }
    out_->instrs[cat].n_in = 0;
    out_->instrs[cat].n_out = 0;
  }

  const Recording& r_;
  std::unique_ptr<Recording> out_;
  std::vector<Move> moves_;          // By storage.
  std::vector<int64_t> live_bytes_;  // Live bytes, by instruction.
  int64_t peak_bytes_ = 0;           // Their peak without any elision.
};

}  // namespace

std::unique_ptr<Recording> elide_cats(const Recording& r) { return CatElider(r).run(); }

}  // namespace brrr::graph
