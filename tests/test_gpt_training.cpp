// A GPT's whole training step, in both modes: dropout, clipping, accumulation, a schedule.
#include <cmath>

#include "tests/pitfalls.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr int64_t kParts = 4, kBatch = 2, kBlock = 8, kVocab = 19, kSteps = 200;

struct Training {
  models::GPT gpt{
      {.vocab = kVocab, .block = kBlock, .layers = 2, .heads = 2, .width = 16, .dropout = 0.1}};
  optim::AdamW opt{gpt.parameters(),
                   {.lr = 1e-2, .decay = [](const Tensor& p) { return p.dim() >= 2; }}};
  optim::WarmupCosineLR schedule{opt, 20, kSteps, 1e-3};
  data::TokenDataset data{tokens(),
                          {.vocab = kVocab, .block = kBlock, .batch = kParts * kBatch, .seed = 3}};
  DType dtype;
  Step<std::function<Tensor(const Tensor&, const Tensor&)>> step;

  explicit Training(const StepOptions& options, DType d = kFloat32)
      : dtype(d), step([this](const Tensor& x, const Tensor& y) { return run(x, y); }, options) {}

  // Data with structure to learn: mostly consecutive ids, with jumps.
  static data::Tokens tokens() {
    std::vector<int64_t> ids;
    uint32_t state = 5;
    int64_t id = 0;
    for (int i = 0; i < 2000; ++i) {
      state = state * 1664525u + 1013904223u;
      id = state >> 29 == 0 ? (state >> 8) % kVocab : (id + 1) % kVocab;
      ids.push_back(id);
    }
    return data::Tokens(ids);
  }

  Tensor run(const Tensor& x, const Tensor& y) {
    opt.zero_grad();
    Tensor sum = zeros({});
    for (int64_t i = 0; i < kParts; ++i) {
      const AutocastGuard guard(dtype);
      const Tensor loss =
          gpt.loss(x.narrow(0, i * kBatch, kBatch), y.narrow(0, i * kBatch, kBatch)) /
          static_cast<double>(kParts);
      loss.backward();
      sum = sum + loss.detach();
    }
    optim::clip_grad_norm_(gpt.parameters(), 0.5);
    opt.step();
    return sum;
  }

  Tensor next() {
    const data::Batch b = data.next();
    const Tensor loss = step(b.x, b.y);
    schedule.step();
    return loss;
  }
};

// One 200-step run: its state as bits, and the losses as doubles.
struct Record {
  Trace trace;
  std::vector<double> losses;
  StepStats stats;
};
Record train(const StepOptions& options, DType dtype = kFloat32) {
  manual_seed(7);
  Training t(options, dtype);
  Record r;
  for (int64_t i = 0; i < kSteps; ++i) {
    const Tensor loss = t.next();
    r.losses.push_back(loss.item<double>());
    r.trace.add(loss);
    // Checksums would hide a permutation: add the leaves themselves, now and then and at the end.
    for (const Tensor& p : t.gpt.parameters()) r.trace.add(p.grad());
    if (i % 20 == 19 || i < 3) r.trace.add_leaves(t.gpt.parameters());
  }
  r.trace.add_state(t.opt.state_dict());
  r.trace.add_rng();
  r.stats = t.step.stats();
  return r;
}

void check_one_recording(const Record& r) {
  CHECK(r.stats.recordings == 1);
  CHECK(r.stats.replays >= kSteps - 1);
  CHECK(r.stats.fallbacks == 0);
}

// |a - b| / |b| of the gradients; both runs have the same parameters and random draws.
double gradient_error(const Training& a, const Training& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.gpt.parameters().size(); ++i) {
    const Tensor x = a.gpt.parameters()[i].grad().to(kFloat64);
    const Tensor y = b.gpt.parameters()[i].grad().to(kFloat64);
    difference += std::pow((x - y).norm().item<double>(), 2);
    size += std::pow(y.norm().item<double>(), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("gpt training: 200 steps in float32 are the same to the bit in both modes") {
  const TempCache cache;
  const Record eager = train({.mode = Mode::Eager});
  const Record graph = train({.mode = Mode::Graph});
  CHECK(first_difference(eager.trace, graph.trace) == -1);
  check_one_recording(graph);
  CHECK(graph.losses.front() > 2.7);
  CHECK(graph.losses.back() < 1.5);
  // Fast skips roundings only in 16-bit chains: float32 has none.
  const Record fast = train({.mode = Mode::Graph, .numerics = Numerics::Fast});
  CHECK(first_difference(eager.trace, fast.trace) == -1);
}

TEST_CASE("gpt training: 200 steps in bfloat16 are the same to the bit in both modes, strict") {
  const TempCache cache;
  for (const DType dtype : {kBFloat16, kFloat16}) {
    const Record eager = train({.mode = Mode::Eager}, dtype);
    const Record graph = train({.mode = Mode::Graph}, dtype);
    CHECK(first_difference(eager.trace, graph.trace) == -1);
    check_one_recording(graph);
    CHECK(graph.losses.back() < 1.5);
  }
}

TEST_CASE("gpt training: fast bfloat16 stays within its tolerance") {
  const TempCache cache;
  const StepOptions strict{.mode = Mode::Graph},
      fast{.mode = Mode::Graph, .numerics = Numerics::Fast};
  // One step from the same state: a rounding of 2^-8 per op, a few dozen of them in a gradient; the
  // errors add up like a random walk's.
  constexpr double rounding = 0x1p-8;
  manual_seed(7);
  Training a(strict, kBFloat16);
  manual_seed(7);
  Training b(fast, kBFloat16);
  double worst_loss = 0, worst_gradient = 0;
  for (int i = 0; i < 20; ++i) {
    b.gpt.load_state_dict(a.gpt.state_dict());
    const RngState before = rng_state();
    const double x = a.next().item<double>();
    set_rng_state(before);
    const double y = b.next().item<double>();
    worst_loss = std::max(worst_loss, std::abs(x - y) / x);
    worst_gradient = std::max(worst_gradient, gradient_error(b, a));
  }
  MESSAGE("fast bfloat16, worst of 20 steps: loss " << worst_loss << ", gradients "
                                                    << worst_gradient);
  CHECK(worst_loss < rounding);
  CHECK(worst_gradient < 8 * rounding);
  // 200 steps in fast alone learn as well as in strict.
  const Record own = train(fast, kBFloat16), other = train(strict, kBFloat16);
  double tail = 0, other_tail = 0;
  for (size_t i = kSteps - 20; i < kSteps; ++i)
    tail += own.losses[i], other_tail += other.losses[i];
  CHECK(std::abs(tail - other_tail) / other_tail < 0.05);
}

TEST_CASE("gpt training: a step is at most 64 kernels, and 24 more for a further layer" *
          doctest::test_suite("host")) {
  const TempCache cache;
  const auto kernels = [](int64_t layers) {
    models::GPT model({.vocab = 65, .block = 32, .layers = layers, .heads = 4, .width = 64});
    optim::AdamW opt(model.parameters(), {});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          opt.zero_grad();
          const Tensor loss = model.loss(x, y);
          loss.backward();
          const Tensor norm = optim::clip_grad_norm_(model.parameters(), 1.0);
          opt.step(isnan((loss + norm) * 0.0));
          return loss.detach();
        },
        StepOptions{.build_at_first_call = true});
    step(randint(0, 65, {8, 32}), randint(0, 65, {8, 32}));
    return step.stats().kernels_per_replay;
  };
  const uint64_t two = kernels(2);
  CHECK(two > 0);
  CHECK(two <= 64);
  CHECK(kernels(3) <= two + 24);
}
