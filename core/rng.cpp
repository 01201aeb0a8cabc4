#include "core/rng.h"

#include <atomic>

#include "core/context.h"

namespace brrr {

namespace {
// Each on its own: reseeding while another thread draws has no order to keep.
std::atomic<uint64_t> seed{0}, draw{0};
}  // namespace

void manual_seed(uint64_t seed) {
  check_host_access("manual_seed", nullptr);
  set_rng_state({seed, 0});
}

RngState rng_state() {
  return {seed.load(std::memory_order_relaxed), draw.load(std::memory_order_relaxed)};
}

void set_rng_state(RngState s) {
  seed.store(s.seed, std::memory_order_relaxed);
  draw.store(s.draw, std::memory_order_relaxed);
}

void return_draw(uint64_t number) {
  uint64_t next = number + 1;
  draw.compare_exchange_strong(next, number, std::memory_order_relaxed);
}

void mark_draw(OpCall& call, ControlCell::Kind kind) {
  static ControlCell* const seed_cell = new ControlCell{.refs = {}, .kind = ControlCell::RngSeed};
  static ControlCell* const draw_cell = new ControlCell{.refs = {}, .kind = ControlCell::RngDraw};
  Attrs& a = call.attrs;
  a.dynamic |= static_cast<uint16_t>(1u << a.n);
  call.cells[a.n] = kind == ControlCell::RngSeed ? seed_cell : draw_cell;
}

void push_draw(OpCall& call) {
  const RngState now{seed.load(std::memory_order_relaxed),
                     draw.fetch_add(1, std::memory_order_relaxed)};
  mark_draw(call, ControlCell::RngSeed);
  call.attrs.push(static_cast<int64_t>(now.seed));
  mark_draw(call, ControlCell::RngDraw);
  call.attrs.push(static_cast<int64_t>(now.draw));
}

}  // namespace brrr
