#include "core/rng.h"

#include <mutex>

#include "core/context.h"

namespace brrr {

namespace {
std::mutex mutex;
RngState state;
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
  std::lock_guard lock(mutex);
  return state;
}

void set_rng_state(RngState s) {
  std::lock_guard lock(mutex);
  state = s;
}

void push_draw(OpCall& call) {
  static ControlCell* const seed_cell = make_cell(ControlCell::RngSeed);
  static ControlCell* const draw_cell = make_cell(ControlCell::RngDraw);
  RngState now;
  {
    std::lock_guard lock(mutex);
    now = state;
    ++state.draw;
  }
  Attrs& a = call.attrs;
  a.dynamic |= static_cast<uint16_t>(3u << a.n);
  call.cells[a.n] = seed_cell;
  a.push(static_cast<int64_t>(now.seed));
  call.cells[a.n] = draw_cell;
  a.push(static_cast<int64_t>(now.draw));
}

}  // namespace brrr
