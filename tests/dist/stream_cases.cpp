// Random streams of data-parallel passes.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

using namespace brrr;

TEST_CASE("DataParallel: a step restarted after a pass within an RngScope draws as a new one") {
  manual_seed(5);
  models::MLP model({.sizes = {4, 8, 2}, .dropout = 0.5});
  dist::DataParallel ddp(model, {.accumulate = 2});
  optim::SGD opt(model.parameters(), {.lr = 0.1});
  const Tensor x = ones({3, 4});
  const auto stream = [] { return rng_state().draw >> 32; };
  ddp(x).sum().backward();
  {
    const RngScope own(5);
    ddp(x);
  }
  const uint64_t before = stream();
  opt.zero_grad();
  const Tensor y = ddp(x);
  CHECK(stream() > before);
  y.sum().backward();
  ddp(x).sum().backward();
  opt.step();
  manual_seed(5);
}
