// Exchanges between GPUs: emulated devices, which communicate by a stand-in for NCCL or, without
// it, through pinned memory.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "ops/kinds/device_exchange.h"
#include "tests/emulator_calls.h"
#include "tests/error_text.h"

using namespace brrr;
using test::error_of;

namespace {

Tensor numbers(int64_t n, int series) {
  return ((arange(static_cast<double>(n)) * 0.37 + series * 1.7).sin() * 100.0).to(kFloat32);
}

// The gradient of each parameter is its input times its own square, which a device computes with
// the same bits as the CPU. No number of ranks divides every size.
struct Squares : models::Module {
  std::vector<Tensor> all;
  explicit Squares(Device device) {
    int k = 0;
    for (const int64_t n : {7, 1, 130, 33, 2}) {
      all.push_back(register_parameter("p" + std::to_string(k), numbers(n, k).to(device)));
      ++k;
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor sum = (all[0] * all[0] * x.narrow(0, 0, 7)).sum();
    for (size_t k = 1; k < all.size(); ++k) {
      sum = sum + (all[k] * all[k] * x.narrow(0, static_cast<int64_t>(k), all[k].size(0))).sum();
    }
    return sum;
  }
};

struct Trained {
  std::vector<Tensor> gradients, parameters;
  StepStats stats;
  std::string explained;
};

Trained train(Device device, Mode mode, int64_t bucket, int passes, int steps) {
  manual_seed(3);
  Squares model(device);
  dist::DataParallel ddp(model, {.accumulate = passes, .bucket_bytes = bucket});
  optim::SGD opt(model.parameters(), {.lr = 1e-9});
  auto step = brrr::step(
      [&](const Tensor& x) {
        opt.zero_grad();
        for (int p = 0; p < passes; ++p) ddp(x * (p + 1.0)).backward();
        opt.step();
      },
      mode);
  for (int i = 0; i < steps; ++i) step(numbers(140, dist::rank() + 10 * i).to(device));
  Trained t;
  for (const Tensor& p : model.parameters()) {
    t.gradients.push_back(p.grad().to(kCPU));
    t.parameters.push_back(p.detach().to(kCPU));
  }
  t.stats = step.stats();
  t.explained = step.explain();
  return t;
}

bool linked() { return dist::size() > 1 && dist::gpus_linked(); }

}  // namespace

TEST_SUITE("device") {
  TEST_CASE("device: gradients have the bits of an exchange on the CPU; linked, it is captured") {
    if (dist::size() == 1) return;
    for (const auto& setting : {std::pair{0, 1}, {40, 1}, {0, 2}}) {
      const int bucket = setting.first, passes = setting.second;
      CAPTURE(bucket);
      CAPTURE(passes);
      const Trained cpu = train(kCPU, Mode::Eager, bucket, passes, 6);
      for (const Mode mode : {Mode::Eager, Mode::Graph}) {
        CAPTURE(static_cast<int>(mode));
        const Trained gpu = train(kCUDA, mode, bucket, passes, 6);
        for (size_t k = 0; k < cpu.gradients.size(); ++k) {
          CAPTURE(k);
          CHECK(same_bits(gpu.gradients[k], cpu.gradients[k]));
          CHECK(same_bits(gpu.parameters[k], cpu.parameters[k]));
        }
        CHECK(gpu.stats.fallbacks == 0);
        if (mode == Mode::Eager) continue;
        CAPTURE(gpu.explained);
        CHECK(gpu.stats.launches_per_replay == (linked() ? 1 : 0));
      }
    }
  }

  TEST_CASE("device: a replay is one launch, messages included, and takes no memory") {
    if (!linked()) return;
    Squares model(kCUDA);
    dist::DataParallel ddp(model, {.bucket_bytes = 200});
    auto step = brrr::step([&](const Tensor& x) {
      for (const Tensor& p : model.parameters()) p.set_grad({});
      ddp(dist::all_reduce(x)).backward();
      return dist::all_gather(model.all[4].grad());
    });
    const Tensor x = numbers(140, dist::rank()).to(kCUDA);
    for (int i = 0; i < 4; ++i) step(x);
    const auto before = test::counters();
    const Tensor last = step(x);
    const auto after = test::counters();
    if (!after) return;  // A real GPU has no counters.
    CHECK(after->graph_launches - before->graph_launches == 1);
    CHECK(after->groups == before->groups);
    CHECK(after->kernels == before->kernels);
    CHECK(after->waits == before->waits);
    CHECK(after->allocations == before->allocations);
    CHECK(same_bits(last.narrow(0, 0, 2).clone(), last.narrow(0, 2, 2).clone()));
  }

  TEST_CASE("device: an eager pass reuses the memory of the last one, and copies nothing") {
    if (!linked()) return;
    Squares model(kCUDA);
    dist::DataParallel ddp(model, {.bucket_bytes = 200});
    const auto pass = [&] {
      for (const Tensor& p : model.parameters()) p.set_grad({});
      ddp(numbers(140, dist::rank()).to(kCUDA)).backward();
      dist::barrier();
      synchronize(kCUDA);
    };
    for (int i = 0; i < 3; ++i) pass();
    const auto before = test::counters();
    pass();
    const auto after = test::counters();
    if (!after) return;
    CHECK(after->groups - before->groups == 3 * 2);  // Three buckets; their shares, their sums.
    CHECK(after->allocations == before->allocations);
    CHECK(after->copies - before->copies == 1);  // The word that synchronize() reads.
  }

  TEST_CASE("device: a captured step's messages keep their memory when another needs more of it") {
    if (!linked()) return;
    // Steps use different parameters of one bucket; the first one receives less.
    struct Two : models::Module {
      Tensor small = register_parameter("small", ones({15000}).to(kCUDA));
      Tensor other = register_parameter("other", ones({5000}).to(kCUDA));
      Tensor large = register_parameter("large", ones({90000}).to(kCUDA));
      bool all = false;
      Tensor forward(const Tensor& x) override {
        const Tensor y =
            (small * x.narrow(0, 0, 15000)).sum() + (other * x.narrow(0, 0, 5000)).sum();
        return all ? y + (large * x).sum() : y;
      }
    } model;
    dist::DataParallel ddp(model, {});
    const auto make = [&](bool all) {
      return brrr::step([&, all](const Tensor& x) {
        model.all = all;
        for (const Tensor& p : model.parameters()) p.set_grad({});
        ddp(x).backward();
        return model.small.grad() * 1.0;
      });
    };
    auto some = make(false), everything = make(true);
    const Tensor x = full({90000}, 1.0 + dist::rank()).to(kCUDA);
    for (int i = 0; i < 4; ++i) some(x);
    for (int i = 0; i < 4; ++i) everything(x);
    std::vector<Tensor> own;  // In returned memory, if any was returned.
    for (int i = 0; i < 24; ++i) own.push_back(full({20000}, 7.0).to(kCUDA));
    const auto recordings = some.stats().recordings;
    some(x);
    CHECK(some.stats().recordings == recordings);
    for (const Tensor& t : own) CHECK(all(t == 7.0).item<bool>());
  }

  TEST_CASE("device: one rank's capture fails in its middle, another queues kernel by kernel") {
    const auto fail_at = test::emulated<void(int)>("brrr_emulator_fail");
    if (!linked() || !fail_at) return;
    const Trained whole = train(kCUDA, Mode::Eager, 40, 1, 8);
    for (const int at : {6, 14, 20}) {
      manual_seed(3);
      Squares model(kCUDA);
      dist::DataParallel ddp(model, {.bucket_bytes = 40});
      optim::SGD opt(model.parameters(), {.lr = 1e-9});
      auto step = brrr::step([&](const Tensor& x) {
        opt.zero_grad();
        ddp(x * 1.0).backward();
        opt.step();
      });
      for (int i = 0; i < 8; ++i) {
        // The second call captures.
        if (dist::rank() == 0) fail_at(i == 1 ? at : 0);
        if (i == 5 && dist::rank() == 1) {
          const Profile watched;
          step(numbers(140, dist::rank() + 10 * i).to(kCUDA));
        } else {
          step(numbers(140, dist::rank() + 10 * i).to(kCUDA));
        }
      }
      const auto parameters = model.parameters();
      for (size_t k = 0; k < parameters.size(); ++k) {
        CHECK(same_bits(parameters[k].detach().to(kCPU), whole.parameters[k]));
      }
      CHECK(step.stats().launches_per_replay == 1);
      const std::string explained = step.explain();
      CHECK_MESSAGE((explained.find("asked for it") != std::string::npos) == (dist::rank() == 0),
                    explained);
    }
  }

  // Ends the run: a rank waits for the GPU, which the stand-in would allow for longer.
  TEST_CASE("zz stuck: a rank that never arrives ends the run of those whose GPU waits") {
    if (!linked()) return;
    const Tensor x = ones({4}, kFloat32, kCUDA);
    dist::all_reduce(x).to(kCPU);
    dist::set_limit(1);
    if (dist::rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
    dist::all_reduce(x).to(kCPU);
  }

  // Must be last: once messages have failed, all later ones fail.
  TEST_CASE("zz device: a peer that sends another size is an error with a message on every rank") {
    if (!linked() || !test::counters()) return;
    const int64_t n = dist::rank() == 0 ? 4 : 6;
    const std::string said = error_of([&] { dist::all_reduce(zeros({n}, kFloat32, kCUDA)); });
    CHECK_MESSAGE(said.find(dist::rank() == 0 ? "rank 1 sends 12 bytes, 8 are received from it"
                                              : "rank 0 sends 8 bytes, 12 are received from it") !=
                      std::string::npos,
                  said);
    CHECK(error_of([&] {
            dist::all_gather(zeros({4}, kFloat32, kCUDA));
          }).find("an earlier group failed") != std::string::npos);
  }
}
