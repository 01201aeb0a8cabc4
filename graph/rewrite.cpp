// Repeats instructions as lists of Recomputed say, and checks that nothing else changes.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/check.h"
#include "graph/rematerialise.h"

namespace brrr::graph {

namespace {

class Rewriter {
 public:
  explicit Rewriter(const Recording& r) : r_(r), out_(std::make_unique<Recording>(r)) {
    out_->instrs.clear();
    out_->again.clear();
  }

  std::unique_ptr<Recording> run(const Lists& lists) {
    std::vector<Copies> copies(lists.size());
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      for (size_t k = 0; k < lists.size(); ++k) {
        for (const Recomputed& a : lists[k]) {
          if (a.before != at) continue;
          for (uint32_t again : a.instrs) repeat(again, copies[k]);
        }
      }
      add(r_.instrs[at], at, !r_.again.empty() && r_.again[at]);
      for (size_t k = 0; k < lists.size(); ++k) {
        for (const Recomputed& a : lists[k]) {
          if (!std::ranges::binary_search(a.users, at)) continue;
          replace_operands(out_->instrs.back(), [&](uint32_t value, bool made) {
            const bool anew = !made && out_->values[value].storage == a.storage;
            return anew ? copy_of(value, copies[k]) : value;
          });
        }
      }
    }
    out_->complete();
    check();
    return std::move(out_);
  }

 private:
  struct Copies {
    std::map<uint32_t, uint32_t> storages;  // From each storage to its copy.
    std::set<uint32_t> instrs;              // Those that have been repeated.
  };

  void add(const Instr& i, uint32_t from, bool again) {
    out_->instrs.push_back(i);
    out_->again.push_back(again);
    from_.push_back(from);
  }

  // The value on the copy of its storage.
  uint32_t copy_of(uint32_t value, const Copies& copies) {
    Value v = out_->values[value];
    v.storage = copies.storages.at(v.storage);
    out_->values.push_back(v);
    return static_cast<uint32_t>(out_->values.size() - 1);
  }

  template <class F> void replace_operands(Instr& i, const F& f) {
    std::vector<uint32_t> all;
    for (uint32_t value : out_->all(i)) {
      all.push_back(value == kNone ? kNone : f(value, all.size() >= i.n_in));
    }
    out_->put_operands(i, i.n_in, all);
  }

  void repeat(uint32_t at, Copies& copies) {
    if (!copies.instrs.insert(at).second) return;
    Instr i = r_.instrs[at];
    replace_operands(i, [&](uint32_t value, bool made) {
      const uint32_t st = out_->values[value].storage;
      const auto next = static_cast<uint32_t>(out_->storages.size());
      if (made && copies.storages.try_emplace(st, next).second) {
        out_->storages.push_back(out_->storages[st]);
      }
      return copies.storages.count(st) ? copy_of(value, copies) : value;
    });
    add(i, at, true);
  }

  // Executes an instruction symbolically: returns the ids of the contents that it reads, in-place
  // destinations included. `contents` has an id by storage; each write sets a new one, derived from
  // `original`, the instruction's number before rewriting.
  static std::vector<uint64_t> execute(const Recording& r, uint32_t at, uint32_t original,
                                       std::vector<uint64_t>& contents) {
    std::vector<uint64_t> seen;
    if (!r.live[at]) return seen;
    const Instr& i = r.instrs[at];
    r.each_operand(i, [&](uint32_t value, bool write) {
      if (!write || i.into) seen.push_back(contents[r.value(value).storage]);
    });
    uint64_t name = (uint64_t{original} + 1) << 32;
    r.each_operand(i, [&](uint32_t value, bool write) {
      if (write) contents[r.value(value).storage] = name++;
    });
    return seen;
  }

  // Every instruction must read the contents that it read before, a repeated one those that the
  // original read, and lasting storages must end with the same contents.
  void check() const {
    std::vector<uint64_t> now(out_->storages.size());
    std::iota(now.begin(), now.end(), uint64_t{0});
    std::vector<uint64_t> before = now;
    std::vector<std::vector<uint64_t>> saw;
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) saw.push_back(execute(r_, at, at, before));
    for (uint32_t at = 0; at < out_->instrs.size(); ++at) {
      const uint32_t from = from_[at];
      BRRR_CHECK(!out_->live[at] || execute(*out_, at, from, now) == saw[from],
                 "graph: {}, recomputed, would read other values", r_.describe(r_.instrs[from]));
    }
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      BRRR_CHECK(!r_.lasting[st] || before[st] == now[st],
                 "graph: storage {} would end with other contents", st);
    }
  }

  const Recording& r_;
  std::unique_ptr<Recording> out_;
  std::vector<uint32_t> from_;  // By instruction: the one of the old recording.
};

}  // namespace

std::unique_ptr<Recording> rewrite(const Recording& r, const Lists& lists) {
  return Rewriter(r).run(lists);
}

}  // namespace brrr::graph
