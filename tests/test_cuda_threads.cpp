// Captures and replays while other threads use the device.

#include <signal.h>

#include <atomic>
#include <memory>
#include <thread>

#include "backends/cuda/device.h"
#include "brrr.h"
#include "core/signals.h"
#include "tests/cuda_cases.h"
#include "tests/pitfalls.h"
#include "tests/sanitizer.h"
#include "tests/sink.h"
#include "tests/temp_cache.h"
#include "tests/threads.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// A thread that makes tensors on the device, copies them both ways and runs kernels until finish().
class Busy {
 public:
  explicit Busy(int seed)
      : thread_([this, seed] {
          for (int i = 0; !stop_; ++i) {
            const int64_t n = 1 + (seed * 7919 + i * 131) % 5000;
            const std::vector<float> numbers(static_cast<size_t>(n), 0.5f * static_cast<float>(i));
            const Tensor there = tensor(numbers).to(kCUDA);
            const auto back = (there + 1.0).to_vector<float>();
            wrong_ += back[static_cast<size_t>(n - 1)] != 0.5f * static_cast<float>(i) + 1;
            if (i % 16 == 0) empty_cache();
            ++rounds_;
          }
        }) {}
  // The number of rounds with wrong results.
  int finish() {
    while (rounds_ < 3) std::this_thread::yield();
    stop_ = true;
    thread_.join();
    return wrong_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0}, wrong_{0};
  std::thread thread_;
};

}  // namespace

TEST_CASE("cuda step: pitfall B3: a hundred captures while other threads use the device") {
  if (!have_device()) return;
  const Tensor w = randn({8, 8}, kCUDA);
  auto body = [&](const Tensor& x) { return (x.matmul(w) * 0.5).tanh().sum(); };
  body(randn({2, 8}, kCUDA));  // Builds the kernels first.
  Busy first(1), second(2);
  for (int i = 0; i < 100; ++i) {
    auto step = brrr::step(
        body, StepOptions{.require_graph = true, .build_at_first_call = true, .fuse = false});
    const Tensor x = randn({2, 8}, kCUDA);
    for (int k = 0; k < 2; ++k) check_same(on_cpu(step(x)), on_cpu(body(x)));
    CHECK(step.stats().launches_per_replay == 1);
    CHECK(step.stats().fallbacks == 0);
  }
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
}

TEST_CASE("cuda step: threads that compile kernels leave signals to the user's threads") {
  if (!have_device() || kThreadSanitizer) return;
  // Where there is a GPU, its driver and compiler may start threads themselves.
  if (std::string(cuda::device().driver->name) != "emulator") return;
  const TempCache cache;
  const Tensor x = randn({8, 64}, kCUDA), y = randn({999}, kCUDA), z = randn({7, 5}, kCUDA);
  (void)x.sum().item<float>();
  const int own = threads_taking(SIGTERM);
  std::atomic<bool> built{false};
  int most = 0;
  auto look = std::make_unique<SignalsBlocked>();
  std::thread looks([&] {
    do most = std::max(most, threads_taking(SIGTERM));
    while (!built);
  });
  look.reset();
  auto step = brrr::step(  // Kernels that do not fuse, so that one is compiled by another thread.
      [](const Tensor& t, const Tensor& u, const Tensor& v) {
        return std::tuple(softmax(t, 1), (u * 2.0).exp(), v.sum({0}) + 1.0);
      },
      kEarly);
  step(x, y, z);
  built = true;
  looks.join();
  CHECK(most == own);
}

TEST_CASE("cuda step: two threads, a step each and one arena") {
  if (!have_device()) return;
  const Tensor w = randn({16, 16}, kCUDA);
  std::atomic<int> wrong{0};
  auto work = [&](int seed) {
    auto body = [&](const Tensor& x) { return ((x * 2.0).matmul(w).exp() + x).matmul(w).sum({1}); };
    auto step = brrr::step(body, StepOptions{.require_graph = true});
    for (int i = 0; i < 30; ++i) {
      const Tensor x = full({4 + seed, 16}, 0.01 * (i + seed), kFloat32, kCUDA);
      const Tensor y = step(x);
      wrong += !difference(on_cpu(y), on_cpu(body(x))).empty();
    }
  };
  std::thread other([&] { work(3); });
  work(1);
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("cuda step: other threads release tensors that it made") {
  if (!have_device()) return;
  const size_t held = memory_stats(kCUDA).live;
  {
    Sink sink;
    auto step = brrr::step(
        [&](const Tensor& x) {
          const Tensor y = x + 1.0;
          for (int k = 0; k < 8; ++k) sink.give(y * static_cast<double>(k));
          return y * 2.0;
        },
        StepOptions{.max_entries = 64, .fuse = false});
    for (int call = 0; call < 40; ++call) {
      const Tensor y = step(full({4}, 1.0 * call, kFloat32, kCUDA));
      check_same(on_cpu(y), full({4}, 2.0 * (call + 1)));
    }
  }
  CHECK(memory_stats(kCUDA).live == held);
}

TEST_CASE("pitfall B4: nothing is queued on the legacy stream") {
  if (!have_device()) return;
  // The legacy stream is the null pointer, for which the driver boundary takes no work.
  const cuda::Driver& d = *cuda::device().driver;
  char byte = 0;
  const Tensor there = zeros({4}, kCUDA);
  CHECK(d.fill(there.data_ptr(), 1, 4, nullptr) != nullptr);
  CHECK(d.copy(&byte, there.data_ptr(), 1, cuda::Way::ToHost, nullptr) != nullptr);
  CHECK(d.synchronize(nullptr) != nullptr);
  CHECK(d.begin_capture(nullptr) != nullptr);
  check_same(on_cpu(there), zeros({4}));
}

TEST_CASE("cuda: a replay does not write between the elements of an argument that has moved") {
  if (!have_device()) return;
  constexpr int kCalls = 3000;
  const Tensor a = zeros({4, 2}, kCUDA), b = zeros({4, 2}, kCUDA);
  auto step = brrr::step(
      [](const Tensor& column) {
        column.add_(1.0);
        return column.sum();
      },
      StepOptions{.build_at_first_call = true});
  const auto call = [&](int k) { step((k % 2 ? a : b).select(1, 0)); };
  const auto add = [&] { a.select(1, 1).add_(1.0); };
  for (int k = 0; k < 4; ++k) call(k);
  add();
  std::thread other([&] {
    for (int k = 1; k < kCalls; ++k) add();
  });
  for (int k = 0; k < kCalls; ++k) call(k);
  other.join();
  CHECK(same_bits(on_cpu(a.select(1, 0)), full({4}, 2.0 + kCalls / 2)));
  CHECK(same_bits(on_cpu(a.select(1, 1)), full({4}, 1.0 * kCalls)));
  CHECK(same_bits(on_cpu(b.select(1, 1)), zeros({4})));
}
