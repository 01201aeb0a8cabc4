#pragma once
// Recordings without a step around them.

#include "graph/pass.h"

namespace brrr::test {

/// What `fn` records; nothing is run, and what it did to gradients and versions is undone.
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
