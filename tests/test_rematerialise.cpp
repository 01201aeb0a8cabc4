// Values that are recomputed instead of kept: the same bits, fewer bytes moved or less memory.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <cmath>
#include <limits>
#include <random>

#include "backends/cpu/allocator.h"
#include "graph/min_cut.h"
#include "graph/rematerialise.h"
#include "tests/recorded.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

struct Ran {
  std::vector<Tensor> results;
  StepStats stats;
  std::string text;
};

template <class F> Ran run(const F& fn, const StepOptions& options, const Tensor& x) {
  auto s = step(fn, options);
  Ran ran;
  const RngState draws{5, 0};
  for (int k = 0; k < 3; ++k) {
    set_rng_state(draws);
    ran.results = s(x);
  }
  ran.stats = s.stats();
  ran.text = s.explain();
  CHECK(ran.stats.fallbacks == 0);
  return ran;
}

void check_same(const Ran& a, const Ran& b) {
  REQUIRE(a.results.size() == b.results.size());
  for (size_t k = 0; k < a.results.size(); ++k) CHECK(same_bits(a.results[k], b.results[k]));
}

double moved(const auto& fn, const StepOptions& options, const Tensor& x) {
  auto s = step(fn, options);
  for (int k = 0; k < 3; ++k) s(x);
  const Profile profile;
  s(x);
  double bytes = 0;
  for (const ProfileRow& r : profile.kinds()) bytes += r.bytes;
  return bytes;
}

// Products, rows, pointwise ops and draws over values of one shape, some written in place.
std::vector<Tensor> random_step(unsigned seed, int length, const Tensor& x, const Tensor& w) {
  std::mt19937 random(seed);
  std::vector<Tensor> all = {matmul(x, w), x * 2.0};
  const auto any = [&]() -> Tensor& { return all[random() % all.size()]; };
  for (int k = 0; k < length; ++k) {
    switch (random() % 10) {
      case 0:
        all.push_back(any() + any());
        break;
      case 1:
        all.push_back(any() * any() * 0.5);
        break;
      case 2:
        all.push_back(relu(any()) - 0.25);
        break;
      case 3:
        all.push_back(sigmoid(any()));
        break;
      case 4:
        all.push_back(any() - mean(any(), {1}, true));
        break;
      case 5:
        all.push_back(dropout(any(), 0.3, true));
        break;
      case 6:
        all.push_back(matmul(any(), w));
        break;
      case 7:
        all.push_back(softmax(any(), 1));
        break;
      case 8:
        all.push_back(any() * mean(any()));
        break;
      default: {
        const NoGradGuard guard;
        Tensor& t = any();
        t = t.detach();
        (random() % 2 ? t.mul_(0.5) : t.add_(any().detach()));
      }
    }
  }
  const Tensor loss = mean(matmul(all.back(), w)) + mean(matmul(any() * any(), w));
  std::vector<Tensor> out;
  try {
    out = grad({loss}, {w});
  } catch (const Error&) {  // A value that backward needs was written in place.
  }
  out.push_back(any() * 1.5);
  out.push_back(loss.detach());
  return out;
}

}  // namespace

TEST_CASE(
    "rematerialise: a chain that backward needs is recomputed, with fewer bytes, the same bits") {
  const Tensor w = randn({64, 64}), v = randn({64, 64});
  w.set_requires_grad();
  const auto fn = [&](const Tensor& x) {
    Tensor y = matmul(x, w);
    for (int k = 0; k < 3; ++k) y = y * y * 0.1 + y;
    const Tensor loss = mean(matmul(y, v));
    return std::vector<Tensor>{loss.detach(), grad({loss}, {w})[0]};
  };
  const Tensor x = randn({128, 64});
  const Ran eager = run(fn, {.mode = Mode::Eager}, x), kept = run(fn, {.rematerialise = false}, x),
            recomputed = run(fn, {}, x);
  check_same(eager, kept);
  check_same(eager, recomputed);
  CHECK(kept.stats.rematerialised == 0);
  CHECK(recomputed.stats.rematerialised > 0);
  CHECK(recomputed.stats.arena_bytes < kept.stats.arena_bytes);
  CHECK(recomputed.stats.kernels_per_replay <= kept.stats.kernels_per_replay);
  CHECK(recomputed.text.find("recompute values instead of keeping") != std::string::npos);
  CHECK(moved(fn, {}, x) < moved(fn, {.rematerialise = false}, x));
}

TEST_CASE("rematerialise: no other cut between memory and a kernel costs less") {
  std::mt19937 random(3);
  for (int graph = 0; graph < 200; ++graph) {
    const uint32_t nodes = 4 + random() % 5;  // The first is the source, the last the sink.
    struct Edge {
      uint32_t from, to;
      int64_t cost;
    };
    std::vector<Edge> edges;
    for (uint32_t k = 0; k < 3 * nodes; ++k) {
      edges.push_back({static_cast<uint32_t>(random() % nodes),
                       static_cast<uint32_t>(random() % nodes),
                       static_cast<int64_t>(random() % 9)});
    }
    const auto cost = [&](const auto& on_sink_side) {
      int64_t sum = 0;
      for (const Edge& e : edges) {
        if (!on_sink_side(e.from) && on_sink_side(e.to)) sum += e.cost;
      }
      return sum;
    };
    graph::MinCut cut(nodes);
    for (const Edge& e : edges) cut.edge(e.from, e.to, e.cost);
    const std::vector<bool> sinks = cut.sink_side(0, nodes - 1);
    REQUIRE(!sinks[0]);
    REQUIRE(sinks[nodes - 1]);
    int64_t least = std::numeric_limits<int64_t>::max();
    for (uint32_t set = 0; set < 1u << (nodes - 2); ++set) {
      least = std::min(least, cost([&](uint32_t n) {
                         return n == nodes - 1 || (n > 0 && (set >> (n - 1) & 1));
                       }));
    }
    CHECK(cost([&](uint32_t n) { return sinks[n]; }) == least);
  }
}

TEST_CASE("rematerialise: values of the same operands are recomputed together") {
  const Tensor v = randn({64, 64}), w = randn({64, 64});
  const auto fn = [&](const Tensor& in) {
    const Tensor x = matmul(in, v), y = matmul(in, w);
    // Recomputing one alone would load x and y, as many bytes as its store and load.
    const Tensor a = x + y, b = x * y, c = x - y;
    const Tensor z = matmul(a * b * c, v);
    return std::vector<Tensor>{z * a + z * b + z * c};
  };
  const Tensor x = randn({128, 64});
  const Ran eager = run(fn, {.mode = Mode::Eager}, x), kept = run(fn, {.rematerialise = false}, x),
            recomputed = run(fn, {}, x);
  check_same(eager, kept);
  check_same(eager, recomputed);
  CHECK(recomputed.stats.rematerialised == 3);
  CHECK(recomputed.stats.arena_bytes < kept.stats.arena_bytes);
  const double value = 128 * 64 * sizeof(float);  // Three stores and loads saved, for two loads.
  CHECK(moved(fn, {.rematerialise = false}, x) - moved(fn, {}, x) == 4 * value);
}

TEST_CASE("rematerialise: the operands of a value may have changed since") {
  const Tensor w = randn({64, 64});
  const auto fn = [&](const Tensor& x) {
    Tensor a = matmul(x, w);
    const Tensor b = a * 2.0 + 1.0;  // Kept: a is overwritten before b is used again.
    const Tensor c = matmul(b, w);
    a.mul_(3.0);
    const Tensor d = matmul(a, c);
    return std::vector<Tensor>{b * d, matmul(b + d, w)};
  };
  const Tensor x = randn({64, 64});
  const Ran eager = run(fn, {.mode = Mode::Eager}, x);
  for (const bool fuse : {true, false}) {
    for (const double budget : {0, 1}) {
      check_same(eager, run(fn, {.fuse = fuse, .memory_budget = budget}, x));
    }
  }
}

TEST_CASE("rematerialise: a value recomputed for one user is not read before that") {
  const Tensor w = randn({64, 64});
  const auto fn = [&](const Tensor& x) {
    const Tensor s = x * 2.0, u = x * 7.0;
    const Tensor r = matmul(x * 3.0, w);
    const Tensor a = (s + r) * x;  // s is recomputed here, and so is q, which
    const Tensor later = x + 5.0;  // reads a value that comes after the first use of s.
    const Tensor q = u + later;
    return std::vector<Tensor>{later, a * q};
  };
  const Tensor x = randn({64, 64});
  const Ran eager = run(fn, {.mode = Mode::Eager}, x);
  check_same(eager, run(fn, {}, x));
  check_same(eager, run(fn, {.memory_budget = 1}, x));
}

TEST_CASE("memory budget: more bytes than an integer holds are no limit") {
  const Tensor w = randn({64, 64}).set_requires_grad();
  auto s = brrr::step(
      [&](const Tensor& x) {
        Tensor h = x;
        for (int layer = 0; layer < 4; ++layer) h = tanh(matmul(h, w));
        return grad({h.sum()}, {w})[0];
      },
      {.build_at_first_call = true, .memory_budget = 1e30});
  s(randn({64, 64}));
  CHECK(s.stats().rematerialised == 0);
}

TEST_CASE("memory budget: of an op's results one is changed in place, another recomputed") {
  const Tensor w = randn({64, 64}), v = randn({16, 4});
  v.set_requires_grad();
  const auto fn = [&](const Tensor& x) {
    const Tensor in = x * v;
    Tensor y = layer_norm(in, {4});
    {
      const NoGradGuard guard;
      y.mul_(2.0);
    }
    const Tensor z = y.detach() + 1.0;
    Tensor big = matmul(w, w);
    for (int k = 0; k < 3; ++k) big = matmul(big, w);
    const Tensor loss = mean(layer_norm(in, {4}) * z) + mean(big);
    return std::vector<Tensor>{loss.detach(), grad({loss}, {v})[0], z * y.detach()};
  };
  const Tensor x = randn({16, 4});
  const Ran eager = run(fn, {.mode = Mode::Eager}, x);
  for (const bool fuse : {true, false}) {
    check_same(eager, run(fn, {.fuse = fuse, .memory_budget = 1}, x));
  }
}

// Nothing is built: rewrite() checks every operand that it changed, and throws.
TEST_CASE("rematerialise: in random steps every op sees the values that it saw before") {
  const Tensor w = randn({32, 32}) * 0.2, x = randn({128, 32});
  w.set_requires_grad();
  size_t recomputed = 0, less = 0;
  const int programs = test::random_cases(300, 20000);
  for (int seed = 0; seed < programs; ++seed) {
    CAPTURE(seed);
    const graph::Recording r = test::record(
        [&] { return random_step(static_cast<unsigned>(seed), 10 + seed % 60, x, w); });
    for (const bool fuse : {true, false}) {
      for (const double budget : {0.0, 0.5, 1.0, 1e5}) {
        const StepOptions options{.fuse = fuse, .memory_budget = budget};
        graph::Rematerialised made;
        REQUIRE_NOTHROW(made = graph::rematerialise(r, options, {.kernel_bytes = 1}));
        REQUIRE_NOTHROW(
            graph::verify_schedule(made.recording ? *made.recording : r, made.schedule));
        CHECK(made.arena <= made.arena_before);
        recomputed += made.bytes > 0;
        less += made.arena < made.arena_before;
      }
    }
  }
  CHECK(recomputed * 10 > static_cast<size_t>(programs));
  CHECK(less > static_cast<size_t>(programs));
}

TEST_CASE("memory budget: a GPT with dropout trains to the same bits in less memory") {
  const models::GPTOptions options{
      .vocab = 17, .block = 16, .layers = 2, .heads = 2, .width = 32, .dropout = 0.1};
  const auto train = [&](const StepOptions& how, StepStats& stats, std::string& text) {
    manual_seed(3);
    models::GPT model(options);
    optim::AdamW opt(model.parameters(), {.lr = 1e-3});
    auto s = step(
        [&](const Tensor& x, const Tensor& y) {
          const Tensor loss = model.loss(x, y);
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        how);
    for (int k = 0; k < 4; ++k) s(randint(0, 17, {8, 16}), randint(0, 17, {8, 16}));
    stats = s.stats();
    text = s.explain();
    CHECK(stats.fallbacks == 0);
    return model.parameters();
  };
  StepStats all, stats;
  std::string text;
  const std::vector<Tensor> kept = train({}, all, text);
  CHECK(text.find("memory budget") == std::string::npos);
  for (const bool fuse : {true, false}) {
    for (const double budget : {0.6, 0.3, 1e-9}) {
      CAPTURE(fuse);
      CAPTURE(budget);
      const std::vector<Tensor> p = train({.fuse = fuse, .memory_budget = budget}, stats, text);
      for (size_t k = 0; k < p.size(); ++k) CHECK(same_bits(p[k], kept[k]));
      CHECK(text.find("memory budget") != std::string::npos);
      CHECK(stats.rematerialised > 0);
      if (!fuse) continue;
      CHECK(stats.arena_bytes < all.arena_bytes);
      if (budget < 0.1) CHECK(text.find("nothing more can be recomputed") != std::string::npos);
    }
  }
}

TEST_CASE("memory budget: a fraction of the step's need, or bytes") {
  const Tensor w = randn({64, 64});
  const auto fn = [&](const Tensor& x) {
    Tensor y = matmul(x, w);
    std::vector<Tensor> all;
    for (int i = 0; i < 6; ++i) all.push_back(y = matmul((y * 0.5).tanh(), w));
    for (int i = 5; i >= 0; --i) y = matmul(y + all[static_cast<size_t>(i)], w);
    return std::vector<Tensor>{y};
  };
  const Tensor x = randn({64, 64});
  const Ran full = run(fn, {}, x);
  size_t before = full.stats.arena_bytes;
  for (const double part : {0.75, 0.5}) {
    const Ran less = run(fn, {.memory_budget = part}, x);
    check_same(full, less);
    CHECK(less.stats.arena_bytes < before);
    CHECK(static_cast<double>(less.stats.arena_bytes) <=
          part * static_cast<double>(full.stats.arena_bytes));
    before = less.stats.arena_bytes;
  }
  const Ran bytes = run(fn, {.memory_budget = 64 << 10}, x);
  check_same(full, bytes);
  CHECK(bytes.stats.arena_bytes <= 64 << 10);
  CHECK(bytes.text.find("memory budget 64.0 KiB") != std::string::npos);
  for (const double wrong : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH_AS(run(fn, {.memory_budget = wrong}, x), doctest::Contains("memory_budget"),
                         Error);
  }
}

TEST_CASE(
    "rematerialise: large values that cost next to nothing are not kept, first call included") {
  const auto peaks = [](const StepOptions& how, std::vector<Tensor>& parameters) {
    const auto others = static_cast<double>(cpu::memory_stats().live);
    manual_seed(3);
    models::GPT model({.vocab = 65, .block = 32, .layers = 2, .heads = 4, .width = 64});
    optim::AdamW opt(model.parameters(), {.lr = 1e-3});
    auto s = step(
        [&](const Tensor& x, const Tensor& y) {
          opt.zero_grad();
          const Tensor loss = model.loss(x, y);
          loss.backward();
          optim::clip_grad_norm_(model.parameters(), 1.0);
          opt.step();
          return loss;
        },
        how);
    std::vector<double> megabytes;
    for (int k = 0; k < 4; ++k) {
      const Tensor x = randint(0, 65, {64, 32}), y = randint(0, 65, {64, 32});
      cpu::reset_peak();
      s(x, y);
      megabytes.push_back((static_cast<double>(cpu::memory_stats().peak) - others) * 1e-6);
    }
    CHECK(s.stats().fallbacks == 0);
    parameters = model.parameters();
    return megabytes;
  };
  std::vector<Tensor> of_eager, of_graph, of_kept;
  const auto eager = peaks({.mode = Mode::Eager}, of_eager), graph = peaks({}, of_graph),
             kept = peaks({.rematerialise = false, .part_bytes = -1}, of_kept);
  for (size_t k = 0; k < of_eager.size(); ++k) {
    CHECK(same_bits(of_graph[k], of_eager[k]));
    CHECK(same_bits(of_kept[k], of_eager[k]));
  }
  for (size_t k = 0; k < graph.size(); ++k) {
    CAPTURE(k);
    if (!test::kAddressSanitizer) CHECK(graph[k] <= 0.85 * eager[k]);
    CHECK(graph[k] < 0.9 * kept[k]);
  }
}

TEST_CASE("rematerialise: random chains equal eager to the bit") {
  test::TempCache cache;
  const int cases = test::random_cases(4, 200);
  for (int k = 0; k < cases; ++k) {
    const auto seed = static_cast<unsigned>(k + 1);
    CAPTURE(seed);
    manual_seed(seed);
    const Tensor w = randn({32, 32}) * 0.2;
    w.set_requires_grad();
    const auto fn = [&](const Tensor& t) { return random_step(seed, 12, t, w); };
    const Tensor x = randn({128, 32});
    const Ran eager = run(fn, {.mode = Mode::Eager}, x);
    check_same(eager, run(fn, {}, x));
    check_same(eager, run(fn, {.memory_budget = 1}, x));
    check_same(eager, run(fn, {.fuse = false, .memory_budget = 1}, x));
    check_same(eager, run(fn, {.part_bytes = 8 << 10}, x));
    check_same(eager, run(fn, {.memory_budget = 0.5, .part_bytes = 1 << 10}, x));
  }
}
