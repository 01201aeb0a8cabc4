// Steps on a device that fail; results, gradients and state that a replay must not overwrite.
#include <atomic>
#include <condition_variable>
#include <queue>
#include <thread>

#include "backends/cuda/device.h"
#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/heap.h"
#include "tests/sanitizer.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// Takes all memory of the device but `leave` bytes, down to blocks of 1 KiB.
class Hog {
 public:
  explicit Hog(int64_t leave) {
    empty_cache();
    const Tensor left = leave ? zeros({leave}, kUInt8, kCUDA) : Tensor();
    for (int64_t n = int64_t{1} << 28; n >= 1 << 10; n /= 2) {
      while (error_of([&] { all_.push_back(empty({n}, kUInt8, kCUDA)); }).empty()) {}
    }
  }

 private:
  Tensors all_;
};

}  // namespace

TEST_CASE("cuda step: returned host data is not the temporary that used its slot before") {
  if (!have_device()) return;
  for (const bool add : {false, true}) {
    int call = 0;
    auto body = [&](const Tensor& x) {
      Tensor t = x.matmul(x);  // Dies before the host data's slot is written, and is as large.
      t = t.matmul(x);
      const Tensor sum = t.matmul(t).sum();
      const std::vector<float> numbers(4096, static_cast<float>(call));
      Tensor d = from_blob(numbers.data(), {64, 64}, kFloat32).to(kCUDA);
      if (add) d.add_(1.0);
      return std::tuple(sum, d, d.matmul(x).sum());
    };
    auto step = brrr::step(body, StepOptions{.require_graph = true});
    const Tensor x = full({64, 64}, 0.01, kFloat32, kCUDA);
    for (; call < 4; ++call) {
      const auto got = step(x), want = body(x);
      check_same(on_cpu(std::get<0>(got)), on_cpu(std::get<0>(want)));
      check_same(on_cpu(std::get<1>(got)), on_cpu(std::get<1>(want)));
      check_same(on_cpu(std::get<2>(got)), on_cpu(std::get<2>(want)));
    }
  }
}

TEST_CASE("cuda step: pitfall C8: a step that runs out of memory has no effect, and works later") {
  if (!have_device()) return;
  const EmulatorSetting small("BRRR_EMULATOR_MEMORY", std::to_string(64 << 20));
  for (int64_t leave : {0, 1 << 18, 2 << 18, 3 << 18}) {
    CAPTURE(leave);
    Tensor w = ones({4}, kCUDA).set_requires_grad(true), p = zeros({8}, kCUDA);
    auto step = brrr::step([&](const Tensor& x) {
      w.set_grad({});
      (w * x.mean()).sum().backward();
      const NoGradGuard guard;
      p.add_(1.0);
      p.add_(x.sort(0).first.mean() * 0.0 + 1.0);  // Needs scratch memory after a write.
      return x.sum();
    });
    const Tensor x = rand({1 << 16}, kCUDA);
    step(x);
    for (int calls = 1; calls < 4; ++calls) {
      const Tensor before = w.grad(), value = on_cpu(before).clone(), old_p = on_cpu(p).clone();
      std::string why;
      {
        const Hog hog(leave);
        why = error_of([&] { step(x); });
      }
      if (why.empty()) break;
      CHECK(why.find("memory") != why.npos);
      check_same(on_cpu(p), old_p);
      CHECK(w.grad().is_same(before));
      check_same(on_cpu(before), value);
      step(x * 2.0);
      check_same(on_cpu(before), value);  // The held tensor keeps its value.
      check_same(on_cpu(p), old_p + 2.0);
    }
    for (int i = 0; i < 20; ++i) step(x);
    CHECK(step.stats().launches_per_replay == 1);  // The fallback is temporary.
  }
}

TEST_CASE("cuda step: recordings, and steps of one model, share the memory of gradients") {
  if (!have_device()) return;
  enum Calls { One, InTurns, OneAfterTheOther };
  const auto train = [](Mode mode, Calls calls, Tensors& values) {
    manual_seed(1);
    models::MLP model({.sizes = {256, 256, 256, 10}, .activation = "relu"});
    model.to(kCUDA);
    optim::AdamW opt(model.parameters(), {.lr = 1e-3});
    const auto body = [&](const Tensor& x, const Tensor& y) {
      const Tensor loss = cross_entropy(model(x), y);
      opt.zero_grad();
      loss.backward();
      opt.step();
      return loss;
    };
    auto one = brrr::step(body, mode), other = brrr::step(body, mode);
    const Tensor x = randn({16, 256}, kCUDA), y = randint(0, 10, {16}, kCUDA);
    Tensor held;
    for (int call = 0; call < 16; ++call) {
      const bool second = calls == InTurns ? call % 2 == 1 : calls != One && call >= 5;
      const int64_t rows = calls != One || call % 5 < 2 ? 16 : 8 + call % 3;
      if (call == 12) reset_peak_memory(kCUDA);  // All are built by then.
      values.push_back((second ? other : one)(x.narrow(0, 0, rows), y.narrow(0, 0, rows)));
      if (call == 9) held = model.parameters()[0].grad();
      if (call == 11) values.push_back(std::exchange(held, {}).clone());
    }
    synchronize(kCUDA);
    const size_t peak = memory_stats(kCUDA).peak + one.stats().arena_bytes;
    for (const Tensor& p : model.parameters()) {
      values.push_back(p.detach());
      values.push_back(p.grad());
    }
    for (Tensor& t : values) t = on_cpu(t);
    empty_cache(kCUDA);
    return peak;
  };
  for (const Calls calls : {One, InTurns, OneAfterTheOther}) {
    CAPTURE(static_cast<int>(calls));
    Tensors eager, graph;
    const size_t a = train(Mode::Eager, calls, eager), b = train(Mode::Graph, calls, graph);
    CHECK(b <= a + (64 << 10));  // Small results and the scalars of a replay, per entry.
    check_same(graph, eager);
  }
}

TEST_CASE("cuda step: no call needs more memory than eager mode, the first ones included") {
  if (!have_device()) return;
  const auto peaks = [](Mode mode, bool clears_first, Tensors& values) {
    manual_seed(1);
    models::MLP model({.sizes = {256, 256, 256, 10}, .activation = "relu"});
    model.to(kCUDA);
    optim::AdamW opt(model.parameters(), {.lr = 1e-3});
    const Tensor y = randint(0, 10, {16}, kCUDA), average = zeros({500, 256}, kCUDA);
    auto step = brrr::step(
        [&](const Tensor& x) {
          if (clears_first) opt.zero_grad();
          const Tensor loss = cross_entropy(model(x), y);
          if (!clears_first) opt.zero_grad();
          loss.backward();
          opt.step();
          const NoGradGuard guard;
          average.mul_(0.5);
          return loss.detach() * 2.0;  // Allocates after all writes.
        },
        mode);
    const Tensor x = randn({16, 256}, kCUDA);
    std::vector<size_t> all;
    for (int call = 0; call < 5; ++call) {
      reset_peak_memory(kCUDA);
      values.push_back(step(x));
      synchronize(kCUDA);
      all.push_back(memory_stats(kCUDA).peak +
                    (mode == Mode::Graph ? step.stats().arena_bytes : 0));
    }
    for (const Tensor& p : model.parameters()) {
      values.push_back(p.detach());
      values.push_back(p.grad());
    }
    for (Tensor& t : values) t = on_cpu(t);
    empty_cache(kCUDA);
    return all;
  };
  for (const bool clears_first : {true, false}) {
    Tensors eager, graph;
    const auto a = peaks(Mode::Eager, clears_first, eager);
    const auto b = peaks(Mode::Graph, clears_first, graph);
    check_same(graph, eager);
    for (size_t call = 0; call < a.size(); ++call) {
      CAPTURE(call);
      CHECK(b[call] <= a[call] + (64 << 10));  // Tables and scalars.
    }
  }
}

TEST_CASE("cuda step: an old gradient that is still held does not become the new one") {
  if (!have_device()) return;
  const auto run = [](Mode mode) {
    const Tensor w = ones({64}, kCUDA).set_requires_grad(true);
    Tensors all;
    auto step = brrr::step(
        [&](const Tensor& x) {
          const Tensor was = w.grad();
          w.set_grad({});
          (w * x).sum().backward();
          return was.defined() ? (was + w.grad()).sum() : w.grad().sum();  // Reads it in the step.
        },
        mode);
    Tensor held, view;
    for (int call = 0; call < 6; ++call) {
      if (call != 2) all.push_back(step(full({64}, call + 1.0, kFloat32, kCUDA)));
      if (call == 1) held = w.grad(), view = w.grad().narrow(0, 8, 8).detach();
      all.push_back(held.defined() ? held.clone() : zeros({64}, kCUDA));
      all.push_back(view.defined() ? view.clone() : zeros({8}, kCUDA));
      all.push_back(w.grad().clone());
      if (call == 3) held = {}, view = {};
    }
    for (Tensor& t : all) t = on_cpu(t);
    return all;
  };
  check_same(run(Mode::Graph), run(Mode::Eager));
}

TEST_CASE("cuda: a draw that runs out of memory does not advance the random stream") {
  if (!have_device()) return;
  const EmulatorSetting small("BRRR_EMULATOR_MEMORY", std::to_string(64 << 20));
  manual_seed(1);
  CHECK(error_of([] { randn({int64_t{1} << 40}, kCUDA); }).find("out of memory") == 0);
  if (!kAddressSanitizer) {  // It ends the process at such a size.
    CHECK(error_of([] { rand({int64_t{1} << 40}); }).find("out of memory") == 0);
  }
  CHECK(error_of([] { randint(0, 9, {int64_t{1} << 40}, kCUDA); }).find("out of memory") == 0);
  CHECK(rng_state().draw == 0);
}

TEST_CASE("cuda step: values written through data_ptr() are read") {
  if (!have_device()) return;
  auto step = brrr::step([](const Tensor& x) { return x * 2.0; });
  const cuda::OpenDevice& d = cuda::device();
  Tensor before;
  for (int i = 0; i < 4; ++i) {
    const Tensor r = step(full({2}, 1.0 + i, kFloat32, kCUDA));
    if (before.defined()) {  // Moved to other memory by now.
      CHECK(!d.driver->fill(before.data_ptr(), 0, 4, d.compute));
      CHECK(before.to_vector<float>()[0] == 0);
    }
    CHECK(!d.driver->fill(r.data_ptr(), 0, 4, d.compute));
    CHECK(r.to_vector<float>() == std::vector<float>{0, 2.0f + 2.0f * static_cast<float>(i)});
    before = step(full({2}, 7.0, kFloat32, kCUDA));
  }
}

TEST_CASE("cuda step: pitfall B11: results are used in one thread while another goes on") {
  if (!have_device()) return;
  auto step = brrr::step([](const Tensor& x) { return x * 2.0 + 1.0; });
  std::mutex mutex;
  std::condition_variable changed;
  std::queue<std::pair<int, Tensor>> handed;
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !handed.empty(); });
      const auto [i, r] = handed.front();
      handed.pop();
      lock.unlock();
      changed.notify_one();
      if (i < 0) return;
      const std::vector<float> want(512, 2.0f * static_cast<float>(i) + 1);
      wrong += (i % 2 ? r.to_vector<float>() : (r + 0.0).to_vector<float>()) != want;
    }
  });
  for (int i = 0; i <= 2000; ++i) {
    Tensor r = step(full({512}, static_cast<double>(i), kFloat32, kCUDA));
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return handed.size() < 8; });
    handed.emplace(i < 2000 ? i : -1, std::move(r));
    lock.unlock();
    changed.notify_one();
  }
  reader.join();
  CHECK(wrong == 0);
}

TEST_CASE("cuda step: pitfall B11: two threads call one step") {
  if (!have_device()) return;
  auto step = brrr::step([](const Tensor& x) { return x * 2.0 + 1.0; });
  std::atomic<int> wrong{0};
  auto work = [&](int first) {
    for (int i = first; i < 3000; i += 2) {
      const Tensor r = step(full({512}, static_cast<double>(i), kFloat32, kCUDA));
      wrong += (r + 0.0).to_vector<float>() != std::vector<float>(512, 2.0f * float(i) + 1);
    }
  };
  std::thread other(work, 0);
  work(1);
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("cuda step: pitfall B5: a program that does not compile") {
  if (!have_device()) return;
  const TempCache cache;
  const Tensor x = randn({9}, kCUDA);
  auto body = [](const Tensor& t) { return (t * 1.5 + 0.25).tanh(); };
  const Tensor want = body(x);
  auto step = brrr::step(body, StepOptions{.build_at_first_call = true});
  {
    const Env none("BRRR_CXX", "/bin/false");  // Only the emulator compiles with it.
    check_same(on_cpu(step(x)), on_cpu(want));
  }
  for (int i = 0; i < 8; ++i) check_same(on_cpu(step(x)), on_cpu(want));
  const StepStats s = step.stats();
  CHECK(s.fallbacks + s.replays == s.calls);
  CHECK(s.launches_per_replay == 1);
}

#if !BRRR_ASAN && !BRRR_TSAN
TEST_CASE("cuda step: pitfall B5: a capture that runs out of host memory leaves nothing behind") {
  if (!have_device()) return;
  const Tensor x = ones({3}, kCUDA), other = ones({3}, kCUDA), want = x * 2.0;
  bool failed = true;
  for (uint64_t k = 1; failed; ++k) {
    auto step = brrr::step([](const Tensor& t) { return t * 2.0; },
                           StepOptions{.build_at_first_call = true});
    step(x);  // Captured for x; captured again for others.
    heap_fails_at = heap_calls + k;
    try {
      step(other);
    } catch (const std::exception&) {
      // The failure may be reported.
    }
    failed = heap_calls >= heap_fails_at;
    heap_fails_at = 0;
    check_same(on_cpu(step(x)), on_cpu(want));
  }
}
#endif

TEST_CASE("cuda step: pitfall A25: a step with verify_every does not freeze") {
  if (!have_device()) return;
  auto step = brrr::step([](const Tensor& x) { return x * 2.0; }, StepOptions{.verify_every = 2});
  for (int i = 0; i < 3; ++i) step(ones({3}, kCUDA));
  CHECK(error_of([&] { step.freeze(); }).find("step.freeze: verify_every is 2") == 0);
  step(ones({3}, kCUDA));
}

TEST_CASE("cuda step: a copy that the device refuses leaves a step done or not, never half") {
  if (!have_device()) return;
  static const cuda::Driver* const real = cuda::device().driver;
  static int left;  // Copies on the device until one is refused.
  cuda::Driver driver = *real;
  driver.copy = [](void* to, const void* from, size_t n, cuda::Way way, cuda::Stream* s) {
    const bool refused = way == cuda::Way::OnDevice && n > 4 && left-- == 0;
    return refused ? "refused" : real->copy(to, from, n, way, s);
  };
  const Tensor w = zeros({8}, kCUDA), a = zeros({8}, kCUDA), b = zeros({8}, kCUDA);
  auto step = brrr::step([&](const Tensor& x) {
    x.add_(1.0);
    return w.add_(1.0).sum() + rand({1}, kCUDA);
  });
  for (int i = 0; i < 6; ++i) step(i % 2 ? a : b);
  std::string why = "none yet";
  int done = 0;
  for (int k = 0; !why.empty(); ++k) {
    CAPTURE(k);
    const float before = w.to_vector<float>()[0];
    const uint64_t draw = rng_state().draw, version = w.version();
    cuda::device().driver = &driver;
    left = k;
    why = error_of([&] { step(k % 2 ? a : b); });
    cuda::device().driver = real;
    const bool happened = w.to_vector<float>()[0] == before + 1;
    CHECK(happened == (rng_state().draw > draw));
    CHECK(happened == (w.version() > version));
    if (!why.empty()) done += happened;
    CHECK((why.empty() || why.find("refused") != why.npos));
  }
  CHECK(done == 1);  // Only the copy back fails after the step's work.
}
