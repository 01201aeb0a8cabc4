// Runs the blocks of a launch one warp at a time. Of a warp the lanes with the smallest program
// counter run, so that diverged lanes reconverge. With a random order any group of lanes runs next,
// and lanes reconverge only where they wait for each other.

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/emulator/ptx_warp.h"

namespace brrr::emulator::ptx {

namespace {

constexpr uint64_t most_steps = 2'000'000'000;  // of a block; beyond, it counts as an endless loop

std::string thread_name(const Work& work, unsigned t) {
  const auto b = work.block;
  return fmt::format("thread ({}, {}, {})", t % b.x, t / b.x % b.y, t / b.x / b.y);
}

std::string line_of(const std::string& text, uint32_t line) {
  size_t from = 0;
  for (uint32_t k = 1; k < line && from != text.npos; ++k) from = text.find('\n', from) + 1;
  const size_t begin = text.find_first_not_of(" \t", from);
  return text.substr(begin, text.find('\n', begin) - begin);
}

class Runner {
 public:
  /// `random`: null for the order of program counters.
  Runner(Block& block, Warp& warp, const std::vector<Insn>& code, std::mt19937_64* random)
      : b_(block), w_(warp), code_(code), random_(random) {}

  /// Runs until all lanes have exited or wait at a block barrier; returns whether any waits.
  bool run(uint64_t& steps) {
    while (const Mask ready = w_.live & ~w_.waiting) {
      uint32_t at = random_ ? any_of(ready) : ~0u, next = ~0u;
      Mask m = 0;
      each(ready, [&](int l) {
        if (!random_ && w_.at[l] < at) {
          next = at;
          at = w_.at[l];
          m = 0;
        } else if (!random_ && w_.at[l] > at) {
          next = std::min(next, w_.at[l]);
        }
        if (w_.at[l] == at) m |= Mask{1} << l;
      });
      steps += run_group(m, at, next);
      if (steps > most_steps) fail_at(w_, code_[w_.at[first_of(m)]], first_of(m), "does not end");
    }
    if (!w_.live) return false;
    check_waiting();
    return true;
  }

  void release() {
    each(w_.waiting, [&](int l) { ++w_.at[l]; });
    w_.waiting = 0;
    ++w_.epoch;
  }

 private:
  uint32_t any_of(Mask lanes) {
    for (uint64_t k = (*random_)() % static_cast<uint64_t>(std::popcount(lanes)); k > 0; --k) {
      lanes &= lanes - 1;
    }
    return w_.at[first_of(lanes)];
  }
  void leave(Mask m, uint32_t at) {
    each(m, [&](int l) { w_.at[l] = at; });
  }

  // Runs a group of lanes until they diverge, wait or reach the other lanes at `limit`.
  uint64_t run_group(Mask group, uint32_t at, uint32_t limit) {
    uint64_t steps = 0;
    do {
      const Insn& i = code_[at];
      ++steps;
      Mask m = group;
      if (i.guarded) {
        const Mask known = w_.known_of(i.guard) | ~group, truth = w_.truth_of(i.guard);
        if (known != all_lanes) {
          fail_at(w_, i, first_of(~known), "depends on a predicate that was never written");
        }
        m &= i.negated ? ~truth : truth;
      }
      switch (i.kind) {
        case Kind::Plain:
          if (m) i.run(w_, i, m);
          ++at;
          break;
        case Kind::Branch:
          if (m && m != group) {
            leave(m, i.target);
            leave(group & ~m, at + 1);
            return steps;
          }
          at = m ? i.target : at + 1;
          break;
        case Kind::Collective:
        case Kind::BlockBarrier:
          leave(group & ~m, at + 1);
          leave(m, at);
          if (m) i.kind == Kind::Collective ? meet(i, m, at) : wait_for_block(i, m);
          return steps;
        default:
          leave(group & ~m, at + 1);
          leave(m, at);
          if (m) jump(i, m, at);
          return steps;
      }
    } while (at < limit && steps < most_steps);
    leave(group, at);
    return steps;
  }

  void jump(const Insn& i, Mask m, uint32_t at) {
    each(m, [&](int l) {
      if (i.kind == Kind::Call) {
        w_.calls[l].push_back(at + 1);
        w_.at[l] = i.target;
      } else if (i.kind == Kind::Return && !w_.calls[l].empty()) {
        w_.at[l] = w_.calls[l].back();
        w_.calls[l].pop_back();
      } else {
        for (const Copy& c : w_.copies) {
          if (c.lane == l) fail_at(w_, i, l, "ends before its copies were waited for");
        }
        w_.live &= ~(Mask{1} << l);
      }
    });
  }

  void wait_for_block(const Insn&, Mask m) { w_.waiting |= m; }

  // Whether the instruction has a member mask: all but mma and ldmatrix do.
  static bool named(const Insn& i) { return i.count < 14 && i.targets < 4; }
  Mask needed_by(const Insn& i, int lane) const {
    return named(i) ? static_cast<Mask>(w_.row(w_.operand(i, i.count - 1))[lane]) : all_lanes;
  }
  void expect_live(const Insn& i, int lane, Mask needed) const {
    const Mask gone = needed & ~w_.live;
    if (!gone) return;
    const bool existed = w_.existing >> first_of(gone) & 1;
    fail_at(w_, i, lane,
            fmt::format("needs lane {}, which {}", first_of(gone),
                        existed ? "has exited" : "does not exist"));
  }

  // Lets the lanes `m` wait until all lanes of their member mask are at the same instruction.
  void meet(const Insn& i, Mask m, uint32_t at) {
    const Mask needed = needed_by(i, first_of(m));
    if (named(i)) {
      const Operand& o = w_.operand(i, i.count - 1);
      each(m, [&](int l) {
        if (!(w_.known_of(o) >> l & 1)) fail_at(w_, i, l, "has a member mask never written");
        const auto own = static_cast<Mask>(w_.row(o)[l]);
        if (!(own >> l & 1)) fail_at(w_, i, l, "is not in its own member mask");
        if (own != needed) fail_at(w_, i, l, "has another member mask than other lanes");
      });
    } else if (w_.existing != all_lanes) {
      fail_at(w_, i, first_of(m), "needs 32 lanes, which its warp does not have");
    }
    expect_live(i, first_of(m), needed);
    Mask here = m;
    each(w_.waiting, [&](int l) { here |= Mask{w_.at[l] == at} << l; });
    if ((here & needed) != needed) {
      w_.waiting |= m;
      return;
    }
    w_.waiting &= ~needed;
    i.run(w_, i, needed);
    leave(needed, at + 1);
  }

  // All live lanes wait: an error unless all of them are at the same block barrier.
  void check_waiting() {
    const int one = first_of(w_.live);
    const Insn& i = code_[w_.at[one]];
    each(w_.live, [&](int l) {
      const Insn& other = code_[w_.at[l]];
      if (other.kind == Kind::Collective) expect_live(other, l, needed_by(other, l));
    });
    each(w_.live, [&](int l) {
      const Insn& other = code_[w_.at[l]];
      const bool barrier = i.kind == Kind::BlockBarrier;
      if (w_.at[l] == w_.at[one] && barrier) return;
      const int lane = barrier ? l : one;
      const Insn& stuck = barrier ? other : i;
      const int rest = lane == one ? last_other(one) : one;
      fail_at(
          w_, stuck, lane,
          fmt::format("waits in vain: lane {} is at line {}, `{}`", rest, code_[w_.at[rest]].line,
                      line_of(b_.kernel->program->text, code_[w_.at[rest]].line)));
    });
  }
  int last_other(int one) const {
    for (int l = lanes; l-- > 0;) {
      if (w_.live >> l & 1 && w_.at[l] != w_.at[one]) return l;
    }
    return one;
  }

  Block& b_;
  Warp& w_;
  const std::vector<Insn>& code_;
  std::mt19937_64* random_;
};

void fill_row(Warp& w, uint32_t at, uint64_t value) {
  for (int l = 0; l < lanes; ++l) w.file[size_t{at} * lanes + static_cast<size_t>(l)] = value;
  w.known[at] = all_lanes;
}

void prepare(Warp& w, Block& b, unsigned number) {
  const Kernel& k = *b.kernel;
  const Program& p = *k.program;
  w.block = &b;
  w.number = number;
  w.operands = p.operands.data();
  w.constants = p.constants.data();
  if (w.file.size() < size_t{k.registers} * lanes) w.file.resize(size_t{k.registers} * lanes);
  w.known.assign(k.registers, 0);
  w.truth.assign(k.predicates, 0);
  w.truth_known.assign(k.predicates, 0);
  w.local.resize(k.local_bytes * lanes);
  w.local_known.assign(k.local_bytes * lanes, 0);
  w.copies.clear();
  w.waiting = w.live = 0;
  w.epoch = b.epoch;
  const auto size = b.work->block, grid = b.work->grid;
  const unsigned threads = size.x * size.y * size.z;
  const unsigned uniform[] = {size.x,    size.y, size.z, b.index.x, b.index.y,
                              b.index.z, grid.x, grid.y, grid.z};
  for (uint32_t u = 0; u < 9; ++u) fill_row(w, ntid + u, uniform[u]);
  for (uint32_t u : {0u, 1u, 2u, static_cast<uint32_t>(laneid)}) fill_row(w, u, 0);
  for (unsigned l = 0; l < lanes; ++l) {
    const unsigned t = number * lanes + l;
    w.file[l] = t % size.x;
    w.file[lanes + l] = t / size.x % size.y;
    w.file[2 * lanes + l] = t / size.x / size.y;
    w.file[laneid * lanes + l] = l;
    w.at[l] = k.routine.entry;
    w.calls[l].clear();
    if (t < threads) w.live |= Mask{1} << l;
  }
  w.existing = w.live;
}

// Runs a block: each warp to the next block barrier, then all of them on from there.
void run_block(Block& b, std::vector<Warp>& warps, const std::vector<unsigned>& order,
               std::mt19937_64* random) {
  const auto size = b.work->block;
  const unsigned count = (size.x * size.y * size.z + lanes - 1) / lanes;
  const std::vector<Insn>& code = b.kernel->program->code;
  uint64_t steps = 0;
  if (!b.kernel->waits) {
    for (unsigned k = 0; k < count; ++k) {
      prepare(warps[0], b, order[k]);
      Runner(b, warps[0], code, random).run(steps);
    }
    return;
  }
  for (unsigned k = 0; k < count; ++k) prepare(warps[k], b, k);
  for (;;) {
    Warp* waits = nullptr;
    for (unsigned k = 0; k < count; ++k) {
      Warp& w = warps[order[k]];
      if (!w.live || !Runner(b, w, code, random).run(steps)) continue;
      const auto at = [&](const Warp& v) -> const Insn& { return code[v.at[first_of(v.live)]]; };
      if (waits && at(*waits).offset != at(w).offset) {
        fail_at(w, at(w), first_of(w.live), "waits at another barrier than other warps");
      }
      waits = &w;
    }
    if (!waits) return;
    ++b.epoch;
    for (unsigned k = 0; k < count; ++k) {
      if (warps[k].live) Runner(b, warps[k], code, random).release();
    }
  }
}

struct State {
  Block block;
  std::vector<Warp> warps = std::vector<Warp>(32);
  Shadow global{4};
  uint32_t serial = 0;
};

void expect_shared(const Kernel& kernel, const Work& work) {
  constexpr uint64_t most_static = 48 << 10;
  BRRR_CHECK(kernel.shared_bytes <= most_static,
             "launch of {}: {} bytes of static shared memory; {} at most", kernel.name,
             kernel.shared_bytes, most_static);
  BRRR_CHECK(kernel.shared_bytes + work.shared_bytes <= work.shared_limit,
             "launch of {}: {} bytes of shared memory, static and dynamic; {} at most", kernel.name,
             kernel.shared_bytes + work.shared_bytes, work.shared_limit);
}

}  // namespace

void fail_at(const Warp& w, const Insn& i, int lane, const std::string& what) {
  const Block& b = *w.block;
  fail("kernel {}, block ({}, {}, {}), {}, PTX line {}, `{}`: {}", b.kernel->name, b.index.x,
       b.index.y, b.index.z, thread_name(*b.work, w.number * lanes + static_cast<unsigned>(lane)),
       i.line, line_of(b.kernel->program->text, i.line), what);
}

void run(const Kernel& kernel, const Work& work, Memory& memory, unsigned long order) {
  static State& s = *new State;
  Block& b = s.block;
  expect_shared(kernel, work);
  b.kernel = &kernel;
  b.work = &work;
  b.memory = &memory;
  b.global_shadow = &s.global;
  b.begin = b.end = 0;
  b.is_variable = false;
  b.first_serial = s.serial + 1;
  s.global.trim();
  const uint64_t row = work.grid.x, slice = row * work.grid.y, all = slice * work.grid.z;
  std::vector<uint64_t> blocks(all);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<unsigned> warps(32);
  const unsigned threads = work.block.x * work.block.y * work.block.z;
  warps.resize((threads + lanes - 1) / lanes);
  std::iota(warps.begin(), warps.end(), 0u);
  std::mt19937_64 generator(order);
  if (order) {
    std::shuffle(blocks.begin(), blocks.end(), generator);
    std::shuffle(warps.begin(), warps.end(), generator);
  }
  for (const uint64_t k : blocks) {
    b.index = {static_cast<unsigned>(k % row), static_cast<unsigned>(k % slice / row),
               static_cast<unsigned>(k / slice)};
    b.serial = ++s.serial;
    b.epoch = 0;
    b.shared.assign(kernel.shared_bytes + work.shared_bytes, poison);
    run_block(b, s.warps, warps, order ? &generator : nullptr);
  }
}

}  // namespace brrr::emulator::ptx
