// Unusual training loops with DataParallel: results have the same bits, or the loop is rejected.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "core/call.h"
#include "models/sharding.h"
#include "ops/kinds/composite.h"
#include "tests/dist/dist_cases.h"

using namespace brrr;
using namespace brrr::dist_cases;

namespace {

// Every way of sharding gives a loop the same result on all ranks.
template <class F> void check_shards(const F& loop) {
  std::vector<char> expected;
  for (const int shard : {0, 1, 2}) {
    CAPTURE(shard);
    manual_seed(5);
    Run run(1, true, 0, shard);
    loop(run);
    const std::vector<char> bytes = bytes_of(run.net);
    if (expected.empty()) expected = bytes;
    CHECK(bytes == expected);
    CHECK(on_all_ranks(bytes));
  }
}

struct One : models::Module {
  Tensor p;
  One(int64_t n, DType t) { p = register_parameter("p", of_rank(3, {n}, t)); }
  Tensor forward(const Tensor& x) override { return (p * x).sum(); }
};

// x, with another row's result as its gradient, whose kernel throws on request.
bool trips = false;
void same_sizes(OpCall& c) { set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list()); }
void copy_or_trip(OpCall& c) {
  if (trips && std::string(c.op->name) == "trip") throw Error("tripped");
  std::memcpy(c.out[0].data_ptr(), c.in[0]->data(), static_cast<size_t>(c.in[0]->numel) * 4);
}
const OpDef trip_row{"trip", "x, or an error", {.infer = same_sizes, .kernel = {{copy_or_trip}}}};
const OpDef snare_row{"snare",
                      "x, whose gradient may be an error",
                      {.infer = same_sizes, .kernel = {{copy_or_trip}}, .vjp = [](VjpCall& v) {
                         v.gin[0] = call(trip_row, {v.gout[0].contiguous()});
                       }}};

struct Snared : models::Module {
  models::Linear a{12, 12}, b{12, 12};
  Snared() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x) override { return b(call(snare_row, {a(x)})); }
};

}  // namespace

TEST_CASE(
    "DataParallel: a replay that fails in its backward pass leaves nothing to the next step") {
  if (default_device() != kCPU) return;
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    manual_seed(5);
    Snared net;
    dist::DataParallel ddp(net, {.bucket_bytes = 16});  // b's sums begin before a's are ready.
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    auto step = brrr::step(
        [&](const Tensor& x) {
          opt.zero_grad();
          ddp(x).square().mean().backward();
          opt.step();
        },
        mode);
    for (int i = 0; i < 8; ++i) {
      trips = i % 4 == 3;
      const std::string said = error_of([&] { step(batch(dist::rank(), i)); });
      CHECK((said.find("tripped") != std::string::npos) == trips);
      CHECK((said.empty() || trips));
    }
    trips = false;
    CHECK(on_all_ranks(bytes_of(net)));
  }
}

TEST_CASE("DataParallel: destroyed by another thread, it is removed from the training one too") {
  Two net, other;
  auto ddp = std::make_unique<dist::DataParallel>(
      net, dist::DataParallelOptions{.accumulate = 2, .in_order = false});
  const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
  (*ddp)(x).sum().backward();
  std::thread([&] { ddp.reset(); }).join();
  other(x).sum().backward();
  CHECK(other.parameters()[0].grad().defined());
  manual_seed(5);  // The missing pass has left each rank a random stream of its own.
}

TEST_CASE("DataParallel: another model's zero_grad() restarts no step, whatever is frozen then") {
  manual_seed(5);
  Two net, other;
  dist::DataParallel ddp(net, {.accumulate = 2});
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
  ddp(x).sum().backward();
  for (const Tensor& p : net.parameters()) p.set_requires_grad(false);
  other.zero_grad();
  for (const Tensor& p : net.parameters()) p.set_requires_grad(true);
  ddp(x).sum().backward();
  CHECK(error_of([&] { opt.step(); }).empty());
}

TEST_CASE("DataParallel: more passes than can be distinguished are refused") {
  Two net;
  const auto make = [&](bool in_order) {
    return error_of([&] { dist::DataParallel(net, {.accumulate = 129, .in_order = in_order}); });
  };
  CHECK(make(false).empty());
  CHECK((make(true).find("129 passes apart, 128 at most") != std::string::npos) == (ranks() > 1));
}

TEST_CASE("DataParallel: clipping is the same however gradients are kept, in one process too") {
  check_shards([](Run& run) {
    for (int i = 0; i < 3; ++i) {
      run.opt.zero_grad();
      (run.ddp(batch(dist::rank(), i) * 50.0) - 1.0).square().mean().backward();
      CHECK(optim::clip_grad_norm_(run.net.parameters(), 1e-3).item<double>() > 1e-2);
      run.opt.step();
    }
  });
}

TEST_CASE("DataParallel: no step uses a gradient that was cleared, by any caller") {
  for (const int way : {0, 1, 2}) {
    check_shards([&](Run& run) {
      for (int i = 0; i < 6; ++i) {
        run.net.use_rare = i % 3 != 1;
        way == 0 ? run.net.zero_grad() : run.opt.zero_grad(way == 1);
        const Tensor x = batch(dist::rank(), i);
        (run.ddp(x) - x).square().mean().backward();
        run.opt.step();
      }
    });
  }
}

TEST_CASE("DataParallel: parameters frozen for a step keep the zeros of zero_grad(false)") {
  check_shards([](Run& run) {
    for (int i = 0; i < 8; ++i) {
      for (const Tensor& p : run.net.out.parameters()) p.set_requires_grad(i % 4 < 2);
      run.opt.zero_grad(false);
      const Tensor x = batch(dist::rank(), i);
      (run.ddp(x) - x).square().mean().backward();
      run.opt.step();
    }
  });
}

TEST_CASE("DataParallel: draws of one rank between steps do not change the steps") {
  const auto train = [](bool draws) {
    manual_seed(5);
    Net net;
    dist::DataParallel ddp(net);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    for (int i = 0; i < 6; ++i) {
      if (draws && dist::rank() == i % 2) rand({i % 3 == 2 ? 5000 : 1});
      opt.zero_grad();
      (ddp(batch(dist::rank(), i)) - 1.0).square().mean().backward();
      opt.step();
    }
    return bytes_of(net);
  };
  if (ranks() > 1) CHECK(train(true) == train(false));
}

// On one rank a batch of another shape is recorded while the other ranks replay, and must verify.
TEST_CASE("DataParallel: ranks verify a step together, however often each has replayed it") {
  const auto train = [](int verify_every) {
    manual_seed(5);
    Net net;
    dist::DataParallel ddp(net);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    auto step = brrr::step(
        [&](const Tensor& x) {
          opt.zero_grad();
          (ddp(x) - x).square().mean().backward();
          opt.step();
        },
        StepOptions{.verify_every = verify_every});
    for (int i = 0; i < 12; ++i) {
      const Tensor x = batch(dist::rank(), i);
      step(i == 3 && dist::rank() == 1 ? x.narrow(0, 0, 2).contiguous() : x);
    }
    if (verify_every) CHECK(step.stats().verified >= 2);
    return bytes_of(net);
  };
  // Linked GPUs then compare their recordings, which a concurrent replay does not.
  if (checks() && default_device() != kCPU) return;
  const std::vector<char> plain = train(0);
  for (const int every : {1, 2, 3}) CHECK(train(every) == plain);
}

TEST_CASE("DataParallel: a diagnosis makes the same calls on every rank") {
  Net net;
  dist::DataParallel ddp(net);
  optim::SGD opt(net.parameters(), {.lr = 0.0});
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    int64_t calls = 0;
    auto step = brrr::step(
        [&](const Tensor& x) {
          ++calls;
          opt.zero_grad();
          (ddp(x) - x).square().mean().backward();
          opt.step();
        },
        mode);
    diagnose(step, batch(dist::rank(), 0));
    const Tensor all = dist::all_gather(full({1}, calls, kInt64));
    CHECK((all == calls).all().item<bool>());
  }
}

TEST_CASE("DataParallel: a model that is converted after it is refused, with the order to use") {
  if (ranks() == 1) return;
  for (const int shard : {0, 1, 2}) {
    CAPTURE(shard);
    Two model;
    dist::DataParallel ddp(model, {.shard_optimizer = shard == 1, .shard_gradients = shard == 2});
    optim::SGD opt(model.parameters(), {.lr = 1.0});
    ddp(ones({1, 2})).sum().backward();
    model.to(kFloat64);
    const auto refused = [&](const std::function<void()>& f) {
      const std::string said = error_of(f);
      CHECK_MESSAGE(said.find(".weight") + said.find(".bias") != 2 * std::string::npos, said);
      CHECK_MESSAGE(said.find("before DataParallel") != std::string::npos, said);
    };
    refused([&] { ddp(ones({1, 2}, kFloat64)); });
    if (shard > 0) refused([&] { opt.step(); });
  }
}

TEST_CASE("DataParallel: a state that does not fit some rank is loaded by none") {
  manual_seed(5);
  Run run(1, true, 0, 1);
  run.train(batch(dist::rank(), 0));
  Run whole(1, true, 0);
  const StateDict own = run.opt.state_dict(), all = whole.opt.state_dict();
  run.opt.load_state_dict(own);
  run.opt.load_state_dict(all);
  for (const auto& entry : all) {
    const std::string& name = entry.first;
    CAPTURE(name);
    for (const bool misses : {true, false}) {
      StateDict bad = all;
      bad.at("lr") = full({}, 0.5, kFloat64);
      misses ? static_cast<void>(bad.erase(name)) : static_cast<void>(bad.at(name) = ones({7}));
      CHECK(error_of([&] { run.opt.load_state_dict(bad); }).find(name) != std::string::npos);
      CHECK(run.opt.lr() == 1e-2);
    }
  }
}

TEST_CASE("DataParallel: the norm of sharded gradients has the bits of that of whole ones") {
  if (ranks() == 1) return;
  constexpr int64_t chunk = 4096;
  const auto check = [](int64_t n, DType t) {
    CAPTURE(n);
    CAPTURE(name(t));
    One whole(n, t), parts(n, t);
    dist::DataParallel ddp(whole), sharded(parts, {.shard_gradients = true});
    const Tensor x = of_rank(dist::rank(), {n}, t) * 0.001;
    ddp(x).backward();
    sharded(x).backward();
    const auto sharding = dist::Sharding::of({parts.p});
    const Tensor own = sharding->own_gradient(parts.p), expected = dist::norm_of(whole.p.grad());
    CHECK(!parts.p.grad().defined());
    if (n > chunk) CHECK((!own.defined() || own.numel() < n));
    CHECK(same_bits(sharding->norms_of_parts({parts.p})[0], expected));
  };
  for (const DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    for (const int64_t n : {int64_t{1}, int64_t{100}, chunk - 1, chunk, chunk + 1, 3 * chunk,
                            5 * chunk - 1, 40 * chunk + 17}) {
      check(n, t);
    }
  }
  if (ranks() == 2 && default_device() == kCPU) check(chunk * chunk + 1, kFloat32);
}

TEST_CASE("first_nonfinite: sharded gradients are reported by their owners") {
  Two model;
  dist::DataParallel ddp(model, {.shard_gradients = true});
  CHECK(models::first_nonfinite(model).empty());
  ddp(full({1, 2}, std::numeric_limits<double>::infinity())).sum().backward();
  const std::string bad = models::first_nonfinite(model);
  CHECK((bad.empty() || bad.starts_with("a.weight.grad, float32[")));
  CHECK(dist::all_reduce(tensor(bad.empty() ? 0.0 : 1.0)).item<double>() > 0);
}

TEST_CASE("DataParallel: a step with sharded gradients and clipping moves 2 (N - 1) / N of them") {
  if (ranks() == 1 || checks()) return;
  models::MLP model({.sizes = {256, 256, 256, 10}});
  dist::DataParallel ddp(model, {.shard_gradients = true});
  optim::AdamW opt(model.parameters(), {.lr = 1e-3});
  double bytes = 0, sent = 0;
  for (const Tensor& p : model.parameters()) bytes += 4.0 * static_cast<double>(p.numel());
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = dist::stats().bytes_sent;
    opt.zero_grad();
    ddp(of_rank(dist::rank(), {2, 256}, kFloat32)).square().mean().backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    opt.step();
    sent += static_cast<double>(dist::stats().bytes_sent - before) / 3;
  }
  const Tensor most = dist::all_gather(full({1}, sent, kFloat64));
  const double share = (static_cast<double>(ranks()) - 1) / static_cast<double>(ranks());
  const int halves = default_device() == kCPU ? 2 : 3;  // GPUs gather for the norm.
  CHECK(most.mean().item<double>() <= 1.005 * halves * share * bytes);
}

TEST_CASE("DataParallel: sharded gradients that were not exchanged are refused") {
  Two net;
  auto ddp =
      std::make_unique<dist::DataParallel>(net, dist::DataParallelOptions{.shard_gradients = true});
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
  (*ddp)(x).sum().backward();
  opt.step();
  opt.zero_grad();
  ddp.reset();
  net(x).sum().backward();
  const std::vector<char> before = bytes_of(net);
  const auto refused = [](const auto& f) {
    return error_of(f).find("that no rank has exchanged") != std::string::npos;
  };
  if (ranks() > 1) {
    CHECK(refused([&] { optim::clip_grad_norm_(net.parameters(), 1.0); }));
    CHECK(refused([&] { (void)optim::GradScaler().unscale_(net.parameters()); }));
    CHECK(refused([&] { opt.step(); }));
    CHECK(bytes_of(net) == before);
  } else {
    opt.step();
  }
  opt.zero_grad();
  CHECK(error_of([&] { opt.step(); }).empty());
  manual_seed(5);
}

TEST_CASE("DataParallel: a destroyed one does not change another's optimiser, or the streams") {
  manual_seed(5);
  Two net;
  dist::DataParallel ddp(net, {.shard_optimizer = true});
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
  { dist::DataParallel other(net, {.accumulate = 2, .shard_optimizer = true}); }
  ddp(x).sum().backward();
  CHECK(error_of([&] { opt.step(); }).empty());
  models::Linear lone(2, 2);
  {
    dist::DataParallel given_up(lone);
    given_up(x);  // Its backward pass never comes.
  }
  const Tensor drawn = rand({3});
  CHECK(same_bits(dist::broadcast(drawn), drawn));
  manual_seed(5);
}

TEST_CASE("DataParallel: a pass within an RngScope leaves the stream around it alone") {
  manual_seed(5);
  Two net;
  dist::DataParallel ddp(net);
  Tensor last = rand({4});
  for (int i = 0; i < 3; ++i) {
    const Tensor x = rand({1, 2});
    Tensor y;
    {
      const RngScope own(7);
      y = ddp(x);
    }
    y.sum().backward();
    const Tensor next = rand({4});
    CHECK(!same_bits(next, last));
    last = next;
  }
  manual_seed(5);
}

// In a run of its own, because a failed run stays failed.
TEST_CASE("zz: parameters that only some ranks use are named") {
  if (ranks() == 1) return;
  Two model;
  model.first = dist::rank() == 0;
  dist::DataParallel ddp(model, {.bucket_bytes = 1});
  const std::string said = error_of([&] { ddp(ones({1, 2})).sum().backward(); });
  CHECK_MESSAGE(said.find("a.weight on rank 0, not on 1") != std::string::npos, said);
  CHECK_MESSAGE(said.find("b.bias on rank 1") != std::string::npos, said);
}

// Sets that were equal when recorded, and differ between the ranks later.
TEST_CASE("zz: parameters that only some ranks use are named in a replay") {
  if (ranks() == 1) return;
  Two model;
  dist::DataParallel ddp(model);
  auto step = brrr::step(
      [&](const Tensor& x) {
        model.zero_grad();
        ddp(x).sum().backward();
      },
      Mode::Graph);
  const auto use = [&](bool first, int64_t rows) {
    model.first = first;
    return error_of([&] { step(ones({rows, 2})); });
  };
  for (int i = 0; i < 2; ++i) {
    CHECK(use(true, 1).empty());
    CHECK(use(false, 2).empty());
  }
  const std::string said = use(dist::rank() == 0, dist::rank() == 0 ? 1 : 2);
  CHECK(step.stats().replays > 0);
  CHECK_MESSAGE(said.find("a.weight on rank 0, not on 1") != std::string::npos, said);
}
