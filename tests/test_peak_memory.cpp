// A step needs no more memory than eager mode: not in its first call, nor when it is built, nor
// later. Measures the allocator's peak of each call, and resident memory.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <brrr/brrr.h>

#include "tests/sanitizer.h"

using namespace brrr;
using brrr::test::kAddressSanitizer;
using brrr::test::kThreadSanitizer;

namespace {

constexpr int kCalls = 6;

struct Peaks {
  double by_call[kCalls] = {};  ///< Peak MB, above what was live before the model was created.
  double resident = 0;          ///< Resident MB of the process.
};

using Training = std::function<void(Mode, const std::function<void(int)>& call)>;

// In a separate process, so that no cache of an earlier run helps this one.
Peaks peaks_of(const Training& train, Mode mode) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Peaks p;
    try {
      empty_cache(kCPU);
      const size_t before = memory_stats(kCPU).live;
      train(mode, [&](int k) {
        if (k > 0) {
          p.by_call[k - 1] = static_cast<double>(memory_stats(kCPU).peak - before) / 1e6;
        }
        reset_peak_memory(kCPU);
      });
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      _exit(1);
    }
    rusage own{};  // Excludes the compiler's processes.
    getrusage(RUSAGE_SELF, &own);
    p.resident = static_cast<double>(own.ru_maxrss) / 1024;
    _exit(write(ends[1], &p, sizeof p) == sizeof p ? 0 : 1);
  }
  close(ends[1]);
  Peaks p;
  const ssize_t got = read(ends[0], &p, sizeof p);
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(got == sizeof p);
  REQUIRE(status == 0);
  return p;
}

void compare(const Training& train) {
  const Peaks eager = peaks_of(train, Mode::Eager), graph = peaks_of(train, Mode::Graph);
  std::string table;
  for (int k = 0; k < kCalls; ++k) {
    table += fmt::format("call {}: eager {:.2f} MB, graph {:.2f} MB\n", k, eager.by_call[k],
                         graph.by_call[k]);
  }
  table +=
      fmt::format("resident: eager {:.1f} MB, graph {:.1f} MB", eager.resident, graph.resident);
  INFO(table);
  // Scalars and tables of a few hundred bytes each. AddressSanitizer's blocks cannot be split, so
  // gradients are separate there, and no temporary larger than one is placed in them.
  for (int k = 0; k < kCalls; ++k) {
    const double more = kAddressSanitizer ? eager.by_call[k] / 10 : 0.02;
    CHECK(graph.by_call[k] <= eager.by_call[k] + more);
  }
  // The kernels built by then take up to 9.5 MB, and the system's use of 2 MB huge pages varies:
  // the larger of two eager runs counts, plus one such page and the kernels.
  const double resident = peaks_of(train, Mode::Graph).resident,
               of_eager = std::max(eager.resident, peaks_of(train, Mode::Eager).resident);
  if (!kAddressSanitizer && !kThreadSanitizer) CHECK(resident <= of_eager + 12);
}

enum class Zero { First, BeforeBackward, Never };

// The last call but one has a batch of a different size, as at the end of an epoch.
template <class Model, class Batch>
Training training(const std::function<std::unique_ptr<Model>()>& make, const Batch& batch,
                  Zero zero, int parts = 1) {
  return [=](Mode mode, const std::function<void(int)>& call) {
    manual_seed(1);
    const auto model = make();
    optim::AdamW opt(model->parameters(), {.lr = 1e-4});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          if (zero == Zero::First) opt.zero_grad();
          Tensor loss;
          for (int k = 0; k < parts; ++k) {
            const Tensor logits = (*model)(x);
            loss = cross_entropy(logits.view({y.numel(), logits.size(-1)}), y.view({y.numel()}));
            if (zero == Zero::BeforeBackward) opt.zero_grad();
            loss.backward();
          }
          optim::clip_grad_norm_(model->parameters(), 1.0);
          opt.step();
          return loss;
        },
        StepOptions{.mode = mode});
    for (int k = 0; k < kCalls; ++k) {
      const auto [x, y] = batch(k + 2 == kCalls ? 3 : 4);
      call(k);
      step(x, y).template item<float>();
    }
    call(kCalls);
  };
}

}  // namespace

TEST_CASE("memory: an MLP whose parameters outweigh its activations" *
          doctest::test_suite("host")) {
  const auto make = [] {
    return std::make_unique<models::MLP>(models::MLPOptions{.sizes = {1024, 1536, 1536, 1024}});
  };
  const auto batch = [](int64_t rows) {
    return std::pair(randn({rows, 1024}), randint(0, 1024, {rows}));
  };
  for (const Zero zero : {Zero::First, Zero::BeforeBackward, Zero::Never}) {
    CAPTURE(static_cast<int>(zero));
    compare(training<models::MLP>(make, batch, zero));
  }
  compare(training<models::MLP>(make, batch, Zero::First, 2));
}

TEST_CASE("memory: a GPT with a large vocabulary" * doctest::test_suite("host")) {
  const auto make = [] {
    return std::make_unique<models::GPT>(models::GPTOptions{
        .vocab = 8192, .block = 32, .layers = 4, .heads = 4, .width = 256, .dropout = 0.1});
  };
  const auto batch = [](int64_t rows) {
    return std::pair(randint(0, 8192, {rows, 32}), randint(0, 8192, {rows, 32}));
  };
  for (const Zero zero : {Zero::First, Zero::BeforeBackward, Zero::Never}) {
    CAPTURE(static_cast<int>(zero));
    if (zero == Zero::BeforeBackward && !test::long_tests()) continue;
    compare(training<models::GPT>(make, batch, zero));
  }
}

// A gradient that the user keeps, ids that the step converts, accumulation over calls: each of
// these once made a step hold all gradients twice.
TEST_CASE("memory: held gradients, computed ids, accumulation" * doctest::test_suite("host")) {
  enum class Habit { HoldsOne, ComputesIds, Accumulates };
  for (const Habit habit : {Habit::HoldsOne, Habit::ComputesIds, Habit::Accumulates}) {
    CAPTURE(static_cast<int>(habit));
    compare([=](Mode mode, const std::function<void(int)>& call) {
      manual_seed(1);
      models::Embedding table(2048, 512);
      models::MLP mlp({.sizes = {512, 1024, 1024, 512}});
      std::vector<Tensor> all = mlp.parameters();
      all.push_back(table.parameters()[0]);
      optim::SGD opt(all, {.lr = 1e-3});
      int n = 0;
      Tensor held;
      auto step = brrr::step(
          [&](const Tensor& ids, const Tensor& y) {
            if (habit != Habit::Accumulates || n % 2 == 0) opt.zero_grad();
            const Tensor x = table(habit == Habit::ComputesIds ? ids.to(kInt64) : ids);
            const Tensor loss = cross_entropy(mlp(x), y);
            loss.backward();
            if (habit != Habit::Accumulates) opt.step();
            return loss;
          },
          StepOptions{.mode = mode});
      for (; n < kCalls; ++n) {
        const Tensor y = randint(0, 512, {4}), ids = randint(0, 2048, {4});
        call(n);
        step(habit == Habit::ComputesIds ? ids.to(kInt32) : ids, y).item<float>();
        if (habit == Habit::HoldsOne) held = all[0].grad();
      }
      call(kCalls);
    });
  }
}

// Its copy is placed in the result's memory, of the same size, which is no multiple of a line.
TEST_CASE("memory: a softmax over a middle dim, a sort" * doctest::test_suite("host")) {
  compare([](Mode mode, const std::function<void(int)>& call) {
    const Tensor x = randn({61, 47, 83});
    auto step = brrr::step([](const Tensor& t) { return t.softmax(1); }, StepOptions{.mode = mode});
    auto order =
        brrr::step([](const Tensor& t) { return t.argsort(-1); }, StepOptions{.mode = mode});
    for (int k = 0; k < kCalls; ++k) {
      call(k);
      k % 2 ? step(x) : order(x);
    }
    call(kCalls);
  });
}

TEST_CASE("memory: results that follow a tensor larger than each of them" *
          doctest::test_suite("host")) {
  if (kAddressSanitizer) return;  // The larger one's block would have to be split.
  compare([](Mode mode, const std::function<void(int)>& call) {
    const Tensor x = randn({1 << 18});
    auto step = brrr::step(
        [](const Tensor& t) {
          Tensor number;
          {
            const Tensor sums = cumsum(cat({t, t}), 0);
            number = sums.select(0, 77).clone();
          }
          return std::pair(t * number, t + number);
        },
        StepOptions{.mode = mode});
    for (int k = 0; k < kCalls; ++k) {
      call(k);
      step(x);
    }
    call(kCalls);
  });
}

TEST_CASE("memory: planning takes memory in proportion to the number of parameters" *
          doctest::test_suite("host")) {
  const auto resident = [](int64_t n) {
    return peaks_of(
               [n](Mode mode, const std::function<void(int)>&) {
                 std::vector<Tensor> all;
                 for (int64_t k = 0; k < n; ++k) all.push_back(ones({4}).set_requires_grad());
                 optim::SGD opt(all, {.lr = 0.1});
                 auto step = brrr::step(
                     [&](const Tensor& x) {
                       opt.zero_grad();
                       Tensor sum = zeros({});
                       for (const Tensor& t : all) sum = sum + (t * x).sum();
                       sum.backward();
                       opt.step();
                     },
                     StepOptions{.mode = mode});
                 for (int k = 0; k < 3; ++k) step(ones({4}));
               },
               Mode::Graph)
        .resident;
  };
  const double few = resident(100), more = resident(400), most = resident(1600);
  INFO(fmt::format("resident: {:.1f}, {:.1f}, {:.1f} MB", few, more, most));
  if (!kAddressSanitizer && !kThreadSanitizer) CHECK(most - more < 6 * (more - few) + 10);
}

TEST_CASE("memory: a GPT whose activations outweigh its parameters" * doctest::test_suite("host")) {
  const auto make = [] {
    return std::make_unique<models::GPT>(
        models::GPTOptions{.vocab = 65, .block = 64, .layers = 4, .heads = 4, .width = 128});
  };
  const auto batch = [](int64_t rows) {
    return std::pair(randint(0, 65, {rows * 3, 64}), randint(0, 65, {rows * 3, 64}));
  };
  compare(training<models::GPT>(make, batch, Zero::First));
}

// Operands are converted to a wider dtype first, which takes no more memory than in eager mode.
TEST_CASE("memory: argmax, argmin and topk of every width of dtype" * doctest::test_suite("host")) {
  for (const DType t : {kBool, kUInt8, kInt32, kBFloat16, kFloat32}) {
    CAPTURE(std::string(name(t)));
    compare([=](Mode mode, const std::function<void(int)>& call) {
      const Tensor x = (rand({512, 512}) * 2.0).to(t);
      auto step = brrr::step(
          [&](const Tensor& in) {
            const Tensor a = argmax(in, 1), b = argmin(in, 0);
            return std::tuple(a, b, topk(in, 3, 1).second);
          },
          StepOptions{.mode = mode});
      for (int k = 0; k < kCalls; ++k) {
        call(k);
        step(x);
      }
      call(kCalls);
    });
  }
}
