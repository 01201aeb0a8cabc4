// Memory that a step's function writes behind brrr's back, through a pointer.
#include <brrr/brrr.h>

#include <atomic>
#include <thread>

#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

const char* const kBehind = "was written by something other than an operation";

StepOptions verified(int every, bool early = true) {
  return {.verify_every = every, .build_at_first_call = early};
}

}  // namespace

TEST_CASE("host writes: a buffer written between two operations is reported" *
          doctest::test_suite("host")) {
  for (const bool early : {true, false}) {
    std::vector<float> buffer(4, 1);
    const Tensor shown = from_blob(buffer.data(), {4}, kFloat32, false);
    Tensor state = zeros({4});
    int calls = 0, write_from = 3;
    auto step = brrr::step(
        [&](const Tensor& x) {
          state.add_(shown);
          if (++calls >= write_from) buffer[2] += 1;
          return shown * x;
        },
        verified(1, early));
    for (int i = 1; i < write_from; ++i) CHECK(same_bits(step(ones({4})), ones({4})));
    const Tensor before = state.clone();
    const std::string text = error_of([&] { step(ones({4})); });
    CHECK(contains(text, "step: verify_every: "));
    CHECK(contains(text, "element 2 of"));
    CHECK(contains(text, "float32[4]"));
    CHECK(contains(text, kBehind));
    CHECK(same_bits(state, before));  // The step has had no effect.
    write_from = 100;
    CHECK(same_bits(step(ones({4})), tensor({1.f, 1.f, 2.f, 1.f})));
  }
}

TEST_CASE("host writes: the first call, which the walker serves, is checked too" *
          doctest::test_suite("host")) {
  std::vector<float> buffer(4, 1);
  const Tensor shown = from_blob(buffer.data(), {4}, kFloat32, false);
  auto step = brrr::step(
      [&](const Tensor& x) {
        const Tensor y = shown * x;
        buffer[0] = 7;  // After its last use: eager mode would not have seen it.
        return y;
      },
      verified(1, false));
  CHECK(contains(error_of([&] { step(ones({4})); }), kBehind));
  CHECK(step.stats().replays == 0);
}

TEST_CASE("host writes: another thread's operation on what the step has used is reported" *
          doctest::test_suite("host")) {
  auto step = brrr::step(
      [](const Tensor& x) {
        const Tensor y = x * 2.0;
        std::thread([&] { x.add_(1.0); }).join();
        return y;
      },
      verified(1));
  const std::string text = error_of([&] { step(ones({4})); });
  CHECK(contains(text, kBehind));
  CHECK(contains(text, "by another thread"));
}

TEST_CASE("host writes: writes next to memory that a step writes are no error" *
          doctest::test_suite("host")) {
  const Tensor ring = zeros({3, 4});
  float* const p = ring.data<float>();
  float n = 0;
  auto step = brrr::step(
      [&](const Tensor& x) {
        Tensor half = ring.select(0, 1);
        half.add_(x);
        for (const int i : {0, 3, 8, 11}) p[i] = ++n;  // As a thread that writes the next batch.
        return half * 2.0;
      },
      verified(1));
  for (int i = 1; i <= 3; ++i) CHECK(same_bits(step(ones({4})), full({4}, 2.0 * i)));
  CHECK(p[11] == n);
  CHECK(step.stats().verified == 3);
}

TEST_CASE("host writes: a raw pointer to a tensor of brrr's own is reported" *
          doctest::test_suite("host")) {
  Tensor w = ones({3}), data = zeros({5, 3});
  float* const p = w.data<float>();
  auto* const q = static_cast<float*>(data.data_ptr());
  int which = 0;
  auto step = brrr::step(
      [&](const Tensor& x) {
        const Tensor y = w * x + data.select(0, 2);
        if (which == 1) p[1] = 4;
        if (which == 2) q[2 * 3 + 1] = 4;
        return y + w;
      },
      verified(1));
  const Tensor x = ones({3});
  CHECK(same_bits(step(x), full({3}, 2.0)));
  for (which = 1; which <= 2; ++which) CHECK(contains(error_of([&] { step(x); }), kBehind));
  // The same holds for the slot of an input.
  Tensor slot = step.input(0, {3});
  slot.fill_(1.0);
  float* const at = slot.data<float>();
  auto filling = brrr::step(
      [&](const Tensor& t) {
        const Tensor y = t * 2.0;
        at[0] += 1;  // The next batch, too early.
        return y;
      },
      verified(2));
  filling(slot);
  CHECK(contains(error_of([&] { filling(slot); }), kBehind));
}

TEST_CASE("host writes: every n-th replay is checked, not the others" *
          doctest::test_suite("host")) {
  std::vector<float> buffer(4, 1);
  const Tensor shown = from_blob(buffer.data(), {4}, kFloat32, false);
  auto step = brrr::step(
      [&](const Tensor& x) {
        const Tensor y = shown * x;
        buffer[0] += 1;
        return y;
      },
      verified(3));
  const Tensor x = ones({4});
  for (int i = 0; i < 2; ++i) CHECK_NOTHROW(step(x));
  for (int i = 0; i < 2; ++i) CHECK(contains(error_of([&] { step(x); }), kBehind));
  // Unchecked, the memory is read once, after the function.
  auto plain = brrr::step(
      [&](const Tensor& t) {
        const Tensor y = shown * t;
        buffer[0] = 9;
        return y + shown;
      },
      kEarly);
  buffer[0] = 1;
  CHECK(plain(x).to_vector<float>()[0] == 18);
}

TEST_CASE("host writes: ordinary use raises no alarm" * doctest::test_suite("host")) {
  constexpr int64_t kRows = 8;
  std::vector<float> ring(4 * kRows * 6);
  Tensor shown = from_blob(ring.data(), {4, kRows, 6}, kFloat32, false);
  models::MLP model(small_mlp(0.2));
  optim::AdamW opt(model.parameters(), {.lr = 1e-2});
  const float* const read = model.parameters()[0].data<float>();
  Tensor batch = zeros({kRows, 6}), scale = ones({6});
  float* const write = batch.data<float>();
  float* const scales = scale.data<float>();
  std::vector<float> host(6);
  float seen = 0;
  std::atomic<int> filled = 0;
  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& y, const Tensor& ring_slot) {
        seen += read[0];                   // The value before the step.
        host.assign(6, seen);              // Memory that no tensor aliases ...
        const Tensor late = tensor(host);  // ... and data that is copied here.
        host.assign(6, 0);
        scales[3] += 1;  // Before its first use: both modes see it.
        filled = -1;     // The neighbour fills another slot of the ring.
        while (filled < 0) std::this_thread::yield();
        const Tensor loss = cross_entropy(model(x * scale + late * 0.0 + ring_slot), y);
        filled = -1;
        while (filled < 0) std::this_thread::yield();
        opt.zero_grad();
        loss.backward();
        opt.step();
        return loss;
      },
      verified(1));
  std::atomic<bool> stop = false;
  std::atomic<int64_t> free_slot = 1;
  std::thread neighbour([&] {
    while (!stop) {
      if (filled >= 0) {
        std::this_thread::yield();
        continue;
      }
      float* const slot = ring.data() + free_slot * kRows * 6;
      for (int64_t i = 0; i < kRows * 6; ++i) slot[i] += 1;
      filled = 1;
    }
  });
  const Tensor y = zeros({kRows}, kInt64);
  for (int i = 0; i < 8; ++i) {
    for (int64_t k = 0; k < kRows * 6; ++k) write[k] = static_cast<float>(k + i);
    free_slot = (i + 1) % 4;
    CHECK(error_of([&] { step(batch, y, shown.select(0, i % 4)); }).empty());
  }
  stop = true;
  neighbour.join();
  CHECK(step.stats().verified == 8);
  CHECK(step.stats().recordings == 1);
}

TEST_CASE("step.input: the same tensor in every mode, before the first call and after it") {
  for (const Mode mode : {Mode::Eager, Mode::Graph, Mode::Auto}) {
    auto s = step([](const Tensor& x) { return (x * 2.0).sum(); }, mode);
    const Tensor x = s.input(0, {2, 3});
    x.fill_(1.0);
    CHECK(s(x).item<float>() == 12.0f);
    CHECK(s.input(0, {2, 3}).impl() == x.impl());
    CHECK_THROWS_AS(s.input(1, {2, 3}), Error);
    CHECK(s.stats().calls == 1);
  }
}
