#pragma once
// Recordings without a surrounding step.

#include "graph/pass.h"

namespace brrr::test {

/// The recording of `fn`; no kernel runs, and its changes to gradients and versions are undone.
template <class F> graph::Recording record(const F& fn) {
  graph::Recording r;
  graph::Pass pass;
  pass.begin({});
  context.recorder = &pass;
  const std::vector<Tensor> results = fn();
  context.recorder = nullptr;
  pass.finish();
  r = std::move(pass.recording());
  pass.moved_to(r);
  pass.abort();
  return r;
}

}  // namespace brrr::test
