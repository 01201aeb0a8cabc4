#pragma once
// Which values of a step can be recomputed instead of kept, and at what cost.

#include <limits>
#include <set>

#include "graph/rematerialise.h"

namespace brrr::graph {

/// Facts about a step's values, for passes that choose which to recompute.
class Values {
 public:
  Values(const Recording& r, const Schedule& s) : r_(r), s_(s) {
    for (uint32_t st = 0; st < r.storages.size(); ++st) life_.push_back(s.life(r, st));
    writes_.resize(r.storages.size());
    for (uint32_t at = 0; at < r.instrs.size(); ++at) {
      if (r.instrs[at].op->is_view()) continue;
      r.each_operand(r.instrs[at], [&](uint32_t value, bool write) {
        if (write) writes_[r.value(value).storage].push_back(at);
      });
    }
  }

  /// The instructions that write the storage, if all can run twice and precede its other readers:
  /// the one that creates it, and those that update it in place. Else none.
  std::vector<uint32_t> makers(uint32_t st) const {
    std::vector<uint32_t> all;
    for (const Access& a : r_.accesses[st]) {
      const Instr& i = r_.instrs[a.instr];
      const bool last = !all.empty() && all.back() == a.instr;
      // Also for reads: an exchange between processes reads the storage until it completes.
      if (i.op->communicates || (s_.fast && compares_floats(i))) return {};
      if (!a.write || last) continue;
      if (i.op->check_values || is_host_data(i)) return {};
      if (i.into == all.empty()) return {};
      if (i.n_out > 1 && (i.into || !is_sole_writer(i, st))) return {};
      all.push_back(a.instr);
    }
    for (const Access& a : r_.accesses[st]) {
      if (!all.empty() && a.instr < all.back() && !std::ranges::count(all, a.instr)) return {};
    }
    return all;
  }
  bool temporary(uint32_t st) const { return !r_.lasting[st] && !r_.accesses[st].empty(); }
  bool unchanged(uint32_t st, uint32_t from, uint32_t to) const {
    return std::ranges::none_of(writes_[st], [&](uint32_t at) { return at > from && at < to; });
  }
  /// The other storages that the makers of `made` read.
  std::vector<uint32_t> inputs(const std::vector<uint32_t>& makers, uint32_t made) const {
    std::vector<uint32_t> list;
    r_.each_access(makers, [&](const Access& a) {
      const uint32_t st = r_.value(a.value).storage;
      if (!a.write && st != made) list.push_back(st);
    });
    return distinct(list);
  }
  int64_t bytes(uint32_t st) const { return static_cast<int64_t>(r_.storages[st].bytes); }
  /// Bytes of memory: those of one part if a strip computes it in parts.
  int64_t room(uint32_t st) const { return bytes(st) / s_.strips.parts(st); }

 protected:
  const Recording& r_;
  const Schedule& s_;
  std::vector<std::pair<uint32_t, uint32_t>> life_;

 private:
  // Whether it compares float tensors. Numerics::Fast may round a recomputed value at other places:
  // no element might equal the maximum any more, and a recomputed mask could differ.
  bool compares_floats(const Instr& i) const {
    const auto floats = [&](uint32_t value) {
      return value != kNone && is_floating(r_.value(value).dtype);
    };
    return i.op->pointwise && i.n_in == 2 && r_.value(r_.out(i)[0]).dtype == kBool &&
           std::ranges::all_of(r_.in(i), floats);
  }
  // Whether the instruction is the only writer of its outputs other than `st`.
  bool is_sole_writer(const Instr& i, uint32_t st) const {
    return std::ranges::all_of(r_.out(i), [&](uint32_t value) {
      const uint32_t other = r_.value(value).storage;
      const auto& uses = r_.accesses[other];
      return other == st || std::ranges::count_if(uses, [](auto& a) { return a.write; }) == 1;
    });
  }
  // By storage, dead writes included: they take effect once a recomputation reads after them.
  std::vector<std::vector<uint32_t>> writes_;
};

/// Values that later kernels recompute instead of loading, because that moves fewer bytes.
Lists fewer_bytes(const Recording& r, const Schedule& s);

/// Limits of what less_memory() drops: the number of values, the bytes of each, and the cost of
/// recomputing all of them (in units of step_cost()).
struct Allowance {
  size_t values = std::numeric_limits<size_t>::max();
  int64_t min_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();
  bool only_whole = false;  ///< No values that a strip computes in parts.
};
/// Values to drop where most bytes are alive, and to recompute, so that `excess` bytes fewer are
/// alive there. Not those of `banned`, to which they are added; their cost reduces the allowance.
Lists less_memory(const Recording& r, const Schedule& s, std::set<uint32_t>& banned, int64_t excess,
                  Allowance& allowance);
/// The cost of all live instructions, in bytes moved.
double step_cost(const Recording& r, const Schedule& s);

}  // namespace brrr::graph
