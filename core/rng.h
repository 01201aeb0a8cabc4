#pragma once
// Philox, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): element i of draw d under seed s is a pure function of (s, d, i), so eager and graph
// mode, any number of threads and every device draw the same numbers.

#include <cstdint>

#include "core/op.h"

namespace brrr {

/// Restarts the global stream. Throws inside a recorded step.
void manual_seed(uint64_t seed);

/// The global stream: a seed and the index of the next draw. One tensor takes one draw.
struct RngState {
  uint64_t seed = 0;
  uint64_t draw = 0;
};
RngState rng_state();
/// Continues a saved stream (checkpoints).
void set_rng_state(RngState s);
/// Appends the seed and the next draw number to a call's attributes, both marked dynamic.
void push_draw(OpCall& call);
/// Marks the call's next word as a draw's seed or index: a recorded step has another on every call.
void mark_draw(OpCall& call, ControlCell::Kind kind);
/// Takes n draws for the caller; returns the stream as it was.
RngState take_draws(uint64_t n);
/// Returns draws that an op took before it threw, unless others have followed: no thread may use a
/// draw twice.
void return_draws(uint64_t first, uint64_t n);
/// How many draws this thread has taken so far, without those of a step's own streams.
uint64_t draws_taken();

/// While it lives this thread draws from a stream of its own, which begins at the seed. A recorded
/// step that contains one cannot be frozen.
class RngScope : NotCopied {
 public:
  explicit RngScope(uint64_t seed);

 private:
  RngState stream_;
  Held<RngState*> own_;
  Held<int> in_step_;
};

}  // namespace brrr
