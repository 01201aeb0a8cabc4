#include "tests/emulator/block.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/check.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/mma.h"

// The state of a launch is global: launches run one at a time, under the emulator's mutex.
namespace brrr::emulator {

using brrr_emulator::Index;
using brrr_emulator::Slot;

namespace {

constexpr unsigned lanes = 32, most_threads = 1024, most_warps = most_threads / lanes;

// Generates orders that visit 0 .. n - 1 once each: first, first + step, ... modulo n, with step
// and n coprime. Seed 0 is the ascending order. Not all permutations occur, but these are cheap.
class Order {
 public:
  explicit Order(unsigned long seed) : state_(seed) {}
  struct Walk {
    unsigned long first, step;
  };
  Walk walk(unsigned long n) {
    if (state_ == 0 || n == 1) return {0, 1 % n};
    Walk w{next() % n, 1 + next() % (n - 1)};
    while (std::gcd(w.step, n) != 1) ++w.step;
    return w;
  }

 private:
  unsigned long next() {  // splitmix64
    unsigned long z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) >> 1;
  }
  unsigned long state_;
};

template <class F> void visit(Order::Walk walk, unsigned long n, F f) {
  for (unsigned long i = 0, k = walk.first; i < n; ++i) {
    f(k);
    k += walk.step;
    if (k >= n) k -= n;
  }
}

enum class Place : unsigned char { Ready, BlockBarrier, WarpBarrier, Exchange, Done };

struct Thread {
  Fiber fiber;
  Place place = Place::Done;
  int line = 0;
  Index index{};
};

struct Warp {
  unsigned turn = 0;
  // Two sets: a lane that runs ahead writes its next value before others have read this one.
  std::array<std::array<Slot, lanes>, 2> slots;
};

struct Launch {
  const Work* work = nullptr;
  unsigned count = 0;    // threads of a block
  unsigned current = 0;  // the thread that runs
  std::array<Thread, most_threads> threads;
  std::array<Warp, most_warps> warps;
  alignas(128) char shared[most_shared_bytes + red_zone_bytes];
};
Launch& now = *new Launch;

// --- Called by the threads -----------------------------------------------------------------------

void wait_at(Place place, int line) {
  Thread& t = now.threads[now.current];
  t.place = place;
  t.line = line;
  t.fiber.yield();
}

const Slot* exchange(const void* value, unsigned bytes, int line) {
  const unsigned lane = now.current % lanes;
  Warp& warp = now.warps[now.current / lanes];
  Slot* slots = warp.slots[warp.turn % 2].data();
  std::memcpy(slots[lane].bytes, value, bytes);
  wait_at(Place::Exchange, line);
  return slots;
}

template <float (*widen)(unsigned short)>
void multiply_tile(float* c, const unsigned* a, const unsigned* b, int line) {
  unsigned both[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const Slot* slots = exchange(both, sizeof both, line);
  multiply_fragments<widen>(c, slots, now.current % lanes);
}

void run_thread() {
  const Work& work = *now.work;
  work.kernel->thread(work.params);
  wait_at(Place::Done, 0);
}

// --- The scheduler -------------------------------------------------------------------------------

std::string describe(unsigned thread) {
  const Thread& t = now.threads[thread];
  const Index i = t.index;
  const std::string name = fmt::format("thread ({}, {}, {})", i.x, i.y, i.z);
  switch (t.place) {
    case Place::BlockBarrier:
      return fmt::format("{} waits at __syncthreads() in line {}", name, t.line);
    case Place::WarpBarrier:
      return fmt::format("{} waits at __syncwarp() in line {}", name, t.line);
    case Place::Exchange:
      return fmt::format("{} waits for its warp in line {}", name, t.line);
    default:
      return name + " has returned";
  }
}

[[noreturn]] void fail_launch(const std::string& what) {
  const Index b = now.work->program->state->block;
  fail("kernel {}, block ({}, {}, {}): {}", now.work->kernel->name, b.x, b.y, b.z, what);
}

[[noreturn]] void fail_divergence(unsigned one, unsigned other) {
  fail_launch(describe(one) + ", but " + describe(other));
}

void resume(unsigned k) {
  now.current = k;
  now.work->program->state->thread = now.threads[k].index;
  now.threads[k].fiber.resume();
}

// Runs the lanes of a warp until all wait at a block barrier or have returned.
void run_warp(unsigned w, Order::Walk walk) {
  const unsigned first = w * lanes, count = std::min(lanes, now.count - first);
  Thread* threads = &now.threads[first];
  for (;;) {
    bool ready = false;
    visit(walk, lanes, [&](unsigned long lane) {
      if (lane >= count || threads[lane].place != Place::Ready) return;
      resume(first + static_cast<unsigned>(lane));
      ready = true;
    });
    const auto meeting = std::find_if(threads, threads + count, [](const Thread& t) {
      return t.place == Place::WarpBarrier || t.place == Place::Exchange;
    });
    if (!ready || meeting == threads + count) return;
    const bool exchange = meeting->place == Place::Exchange;
    const unsigned at = first + static_cast<unsigned>(meeting - threads);
    if (exchange && count < lanes) {
      fail_launch(fmt::format("{}, which has only {} lanes", describe(at), count));
    }
    for (unsigned lane = 0; lane < count; ++lane) {
      Thread& t = threads[lane];
      if (t.place == Place::Done && !exchange) continue;
      if (t.place != meeting->place || t.line != meeting->line) fail_divergence(at, first + lane);
    }
    for (unsigned lane = 0; lane < count; ++lane) {
      if (threads[lane].place != Place::Done) threads[lane].place = Place::Ready;
    }
    ++now.warps[w].turn;
  }
}

// Runs the threads of a block on fibers, from barrier to barrier.
void run_threads(Order& order) {
  const unsigned warps = (now.count + lanes - 1) / lanes;
  for (unsigned k = 0; k < now.count; ++k) {
    now.threads[k].fiber.reset(run_thread, k);
    now.threads[k].place = Place::Ready;
  }
  const Order::Walk warp_walk = order.walk(warps), lane_walk = order.walk(lanes);
  for (;;) {
    visit(warp_walk, warps,
          [&](unsigned long w) { run_warp(static_cast<unsigned>(w), lane_walk); });
    // All threads that have not returned are now at a block barrier.
    unsigned waiting = now.count;
    for (unsigned k = 0; k < now.count; ++k) {
      if (now.threads[k].place == Place::Done) continue;
      if (waiting == now.count) waiting = k;
      if (now.threads[k].line != now.threads[waiting].line) fail_divergence(waiting, k);
    }
    for (unsigned k = waiting; k < now.count; ++k) {
      if (now.threads[k].place != Place::Done) now.threads[k].place = Place::Ready;
    }
    if (waiting == now.count) return;
  }
}

// A KERNEL, whose threads do not wait for each other, is a loop. It still runs on a fiber, so that
// it can be abandoned if it calls a barrier, which is an error.
brrr_emulator::Kernel const* looping = nullptr;
Order::Walk loop_walk;

void run_loop() {
  looping->loop(now.work->params, static_cast<unsigned>(loop_walk.first),
                static_cast<unsigned>(loop_walk.step));
  wait_at(Place::Done, 0);
}

void run_block(Order& order) {
  const Work& work = *now.work;
  if (work.kernel->thread) {
    char* statics = work.program->shared;
    std::memset(statics, poison, static_cast<size_t>(work.program->shared_end - statics));
    std::memset(now.shared, poison, work.shared_bytes);
    run_threads(order);
    if (check_red_zone(now.shared + work.shared_bytes).to > 0) {
      fail_launch(fmt::format("writes behind its {} bytes of shared memory", work.shared_bytes));
    }
    return;
  }
  loop_walk = order.walk(now.count);
  Thread& t = now.threads[0];
  now.current = 0;
  t.fiber.reset(run_loop, 0);
  t.fiber.resume();
  if (t.place != Place::Done) {
    t.index = work.program->state->thread;
    fail_launch(describe(0) + "; threads that wait for each other need BLOCK_KERNEL");
  }
}

}  // namespace

void run_blocks(const Work& work, unsigned long seed) {
  const Index grid = work.grid, block = work.block;
  now.work = &work;
  now.count = block.x * block.y * block.z;
  brrr_emulator::State& state = *work.program->state;
  state = {{}, {}, block, grid, now.shared, &runtime};
  looping = work.kernel;
  if (work.kernel->thread) {
    draw_red_zone(now.shared + work.shared_bytes);
    for (unsigned k = 0; k < now.count; ++k) {
      now.threads[k].index = {k % block.x, k / block.x % block.y, k / block.x / block.y};
    }
  }
  Order order(seed);
  const unsigned long row = grid.x, slice = row * grid.y, all = slice * grid.z;
  visit(order.walk(all), all, [&](unsigned long k) {
    state.block = {static_cast<unsigned>(k % row), static_cast<unsigned>(k % slice / row),
                   static_cast<unsigned>(k / slice)};
    run_block(order);
  });
}

const brrr_emulator::Runtime runtime = {
    [](int line) { wait_at(Place::BlockBarrier, line); },
    [](int line) { wait_at(Place::WarpBarrier, line); },
    exchange,
    multiply_tile<widen_bf16>,
    multiply_tile<widen_f16>,
};

}  // namespace brrr::emulator
