#include "core/rng.h"

#include <atomic>
#include <utility>

#include "core/check.h"
#include "core/context.h"

namespace brrr {

// Independent atomics: reseeding while another thread draws has no order to keep.
static std::atomic<uint64_t> seed{0}, draw{0};
static constinit thread_local RngState* own = nullptr;
static constinit thread_local uint64_t taken = 0;
static constinit thread_local int in_step = 0;  // Nested streams that a recorded step began itself.

RngScope::RngScope(uint64_t seed)
    : stream_{seed, 0},
      own_(own, &stream_),
      in_step_(in_step, in_step + (context.recorder != nullptr)) {}

void manual_seed(uint64_t seed) {
  BRRR_CHECK(!context.recorder, "manual_seed: call it before a graph-mode step, not inside of it");
  set_rng_state({seed, 0});
}

RngState rng_state() {
  if (own) return *own;
  return {seed.load(std::memory_order_relaxed), draw.load(std::memory_order_relaxed)};
}

void set_rng_state(RngState s) {
  if (context.recorder) context.recorder->sets_rng = true;
  if (own) {
    *own = s;
    return;
  }
  seed.store(s.seed, std::memory_order_relaxed);
  draw.store(s.draw, std::memory_order_relaxed);
}

RngState take_draws(uint64_t n) {
  if (!in_step) taken += n;
  if (own) return {own->seed, std::exchange(own->draw, own->draw + n)};
  return {seed.load(std::memory_order_relaxed), draw.fetch_add(n, std::memory_order_relaxed)};
}

void return_draws(uint64_t first, uint64_t n) {
  taken -= n;
  uint64_t next = first + n;
  if (!own) {
    draw.compare_exchange_strong(next, first, std::memory_order_relaxed);
  } else if (own->draw == next) {
    own->draw = first;
  }
}

uint64_t draws_taken() { return taken; }

void mark_draw(OpCall& call, ControlCell::Kind kind) {
  static ControlCell* const seed_cell = new ControlCell{.refs = {}, .kind = ControlCell::RngSeed};
  static ControlCell* const draw_cell = new ControlCell{.refs = {}, .kind = ControlCell::RngDraw};
  static ControlCell* const own_cell = new ControlCell{.refs = {}, .kind = ControlCell::OwnDraw};
  Attrs& a = call.attrs;
  a.dynamic |= static_cast<uint16_t>(1u << a.n);
  call.cells[a.n] = in_step ? own_cell : kind == ControlCell::RngSeed ? seed_cell : draw_cell;
}

void push_draw(OpCall& call) {
  const RngState now = take_draws(1);
  mark_draw(call, ControlCell::RngSeed);
  call.attrs.push(static_cast<int64_t>(now.seed));
  mark_draw(call, ControlCell::RngDraw);
  call.attrs.push(static_cast<int64_t>(now.draw));
}

}  // namespace brrr
