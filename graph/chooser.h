#pragma once
// What of a step may be made anew, and what that costs.

#include <limits>
#include <set>

#include "graph/rematerialise.h"

namespace brrr::graph {

/// What is known of a step's values, for those who ask which to make anew.
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

  /// The instructions that write it, if all of them come before it is read and can run twice: one,
  /// and what changes its result in place. Else none.
  std::vector<uint32_t> makers(uint32_t st) const {
    std::vector<uint32_t> all;
    for (const Access& a : r_.accesses[st]) {
      const Instr& i = r_.instrs[a.instr];
      const bool last = !all.empty() && all.back() == a.instr;
      // Also what only reads it: what is under way does so until its end.
      if (i.op->reaches_out || (s_.fast && compares(i))) return {};
      if (!a.write || last) continue;
      if (i.op->check_values || is_host_data(i)) return {};
      if (i.into == all.empty()) return {};
      if (i.n_out > 1 && (i.into || !alone(i, st))) return {};
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
  /// Other storages that the makers of one read.
  std::vector<uint32_t> inputs(const std::vector<uint32_t>& makers, uint32_t made) const {
    std::vector<uint32_t> list;
    r_.each_access(makers, [&](const Access& a) {
      const uint32_t st = r_.value(a.value).storage;
      if (!a.write && st != made) list.push_back(st);
    });
    return distinct(list);
  }
  int64_t bytes(uint32_t st) const { return static_cast<int64_t>(r_.storages[st].bytes); }
  /// Of memory.
  int64_t room(uint32_t st) const { return bytes(st) / s_.strips.parts(st); }

 protected:
  const Recording& r_;
  const Schedule& s_;
  std::vector<std::pair<uint32_t, uint32_t>> life_;

 private:
  // Tensors of floats. Numerics::Fast may round what is made anew elsewhere than at first: no
  // element would be equal to the largest of them any more, nor a mask be the same twice.
  bool compares(const Instr& i) const {
    const auto floats = [&](uint32_t value) {
      return value != kNone && is_floating(r_.value(value).dtype);
    };
    return i.op->pointwise && i.n_in == 2 && r_.value(r_.out(i)[0]).dtype == kBool &&
           std::ranges::all_of(r_.in(i), floats);
  }
  // Whether nobody else writes what the instruction makes beside this one.
  bool alone(const Instr& i, uint32_t st) const {
    return std::ranges::all_of(r_.out(i), [&](uint32_t value) {
      const uint32_t other = r_.value(value).storage;
      const auto& uses = r_.accesses[other];
      return other == st || std::ranges::count_if(uses, [](auto& a) { return a.write; }) == 1;
    });
  }
  // By storage. One without effect has one if the value is read again later.
  std::vector<std::vector<uint32_t>> writes_;
};

/// Values that later kernels compute instead of loading them, because that moves fewer bytes.
Lists fewer_bytes(const Recording& r, const Schedule& s);

/// What less_memory() may drop: so many values of at least so many bytes, while what makes them
/// costs so much at most.
struct Allowance {
  size_t values = std::numeric_limits<size_t>::max();
  int64_t least = 0;
  double cost = std::numeric_limits<double>::infinity();
  bool only_whole = false;  ///< Nothing of which there is memory for one part.
};
/// Values that are dropped where most is alive, and made again, to take `excess` bytes off that; no
/// banned ones, to which they are added. What they cost is taken off the allowance.
Lists less_memory(const Recording& r, const Schedule& s, std::set<uint32_t>& banned, int64_t excess,
                  Allowance& may);
/// What all instructions with effect cost together.
double step_cost(const Recording& r, const Schedule& s);

}  // namespace brrr::graph
