#include "core/rng.h"

#include <atomic>

#include "core/context.h"

namespace brrr {

namespace {
// Each on its own: reseeding while another thread draws has no order to keep.
std::atomic<uint64_t> seed{0}, draw{0};
ControlCell* make_cell(ControlCell::Kind kind) {
  auto* c = new ControlCell;
  c->kind = kind;
  return c;
}
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

void push_draw(OpCall& call) {
  static ControlCell* const seed_cell = make_cell(ControlCell::RngSeed);
  static ControlCell* const draw_cell = make_cell(ControlCell::RngDraw);
  const RngState now{seed.load(std::memory_order_relaxed),
                     draw.fetch_add(1, std::memory_order_relaxed)};
  Attrs& a = call.attrs;
  a.dynamic |= static_cast<uint16_t>(3u << a.n);
  call.cells[a.n] = seed_cell;
  a.push(static_cast<int64_t>(now.seed));
  call.cells[a.n] = draw_cell;
  a.push(static_cast<int64_t>(now.draw));
}

}  // namespace brrr
