// Steps on a GPU: calls to the device during a capture, and the work that waits in its queue.
#include <memory>

#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// The capture finds only what the step's own first call, op by op, has made: programs and products.
// The pool's memory is given back between the two calls.
template <class F> void check_capture(const F& body, const Tensors& in) {
  auto step = brrr::step(body, StepOptions{.require_graph = true});
  step(in[0], in[1]);
  empty_cache(kCUDA);
  const emulator::Counters before = *counters();
  step(in[0], in[1]);
  const emulator::Counters after = *counters();
  CHECK(after.refused == before.refused);
  CHECK(after.graphs - before.graphs == 1);
  const std::string said = step.explain();
  CHECK_MESSAGE(said.find("captured 1 times") != said.npos, said);
  CHECK_MESSAGE(said.find("without a capture") == said.npos, said);
  CHECK(step.stats().launches_per_replay == 1);
}

}  // namespace

TEST_CASE("cuda step: pitfall B2: nothing allocates between the begin and the end of a capture") {
  if (!have_device() || !counters()) return;
  const auto training = [](models::Module& net, const auto& loss_of) {
    net.to(kCUDA);
    auto opt = std::make_shared<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 1e-2});
    return [opt, &loss_of](const Tensor& x, const Tensor& y) {
      Tensor loss = loss_of(x, y);
      opt->zero_grad();
      loss.backward();
      opt->step();
      return loss;
    };
  };
  models::MLP mlp({.sizes = {13, 37, 7}, .activation = "gelu"});
  const auto mlp_loss = [&](const Tensor& x, const Tensor& y) { return cross_entropy(mlp(x), y); };
  check_capture(training(mlp, mlp_loss), {randn({5, 13}, kCUDA), randint(0, 7, {5}, kCUDA)});
  models::GPT gpt({.vocab = 13, .block = 8, .layers = 1, .heads = 2, .width = 48, .dropout = 0.1});
  const auto gpt_loss = [&](const Tensor& x, const Tensor& y) { return gpt.loss(x, y); };
  check_capture(training(gpt, gpt_loss),
                {randint(0, 13, {2, 8}, kCUDA), randint(0, 13, {2, 8}, kCUDA)});
  // Sums in several launches, large products, kernels that take scratch memory.
  check_capture(
      [](const Tensor& x, const Tensor& y) {
        return matmul(x, y).sum({0}) + x.t().matmul(x).tanh().sum() + softmax(y, 0).max({0});
      },
      {randn({300, 333}, kCUDA), randn({333, 111}, kCUDA)});
}

TEST_CASE("cuda step: pitfall E10: reading a loss late leaves later work in the queue") {
  if (!have_device() || !counters()) return;
  const Tensor w = randn({6}, kCUDA);
  auto body = [&](const Tensor& x) { return (x * w).sum(); };
  Tensors inputs, losses;
  std::vector<float> expected;
  for (int i = 0; i < 12; ++i) {
    inputs.push_back(randn({6}, kCUDA));
    expected.push_back(body(inputs.back()).item<float>());
  }
  auto step = brrr::step(body);
  for (int i = 0; i < 3; ++i) step(inputs[0]);
  constexpr size_t kLate = 4;
  const EmulatorSetting lazy("BRRR_EMULATOR_LAZY", "1");  // Runs only work that is waited for.
  const auto waiting = [] { return counters()->waiting; };
  const auto launches = counters()->graph_launches;
  unsigned long of_a_step = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto before = waiting();
    losses.push_back(step(inputs[i]));
    if (i <= 1) of_a_step = waiting() - before;  // From i = 1 on a loss is held.
    CHECK(waiting() - before == of_a_step);
    if (i < kLate) continue;
    CHECK(losses[i - kLate].item<float>() == expected[i - kLate]);
    CHECK(waiting() == kLate * of_a_step);
  }
  CHECK(of_a_step > 0);
  CHECK(counters()->graph_launches - launches == inputs.size());
  CHECK(losses.back().item<float>() == expected.back());
  CHECK(waiting() == 0);
}
