// What a training loop may do with DataParallel besides the usual: the bits hold, or it is refused.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include "models/sharding.h"
#include "tests/dist/dist_cases.h"

using namespace brrr;
using namespace brrr::dist_cases;

namespace {

Tensor batch(int r, int i) { return of_rank(r + 10 * i, {8, 12}, kFloat32) * 0.01; }

bool on_all_ranks(const std::vector<char>& bytes) {
  const Tensor mine = from_blob(static_cast<const void*>(bytes.data()),
                                {static_cast<int64_t>(bytes.size())}, kUInt8);
  return same_bits(dist::broadcast(mine), mine);
}

// What each way of sharding makes of a loop is the same, on all ranks.
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

// Its gradient is of one parameter of two.
struct Two : models::Module {
  models::Linear a{2, 2}, b{2, 2};
  bool first = true;
  Two() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x) override { return first ? a(x) : b(x); }
};

}  // namespace

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

TEST_CASE("DataParallel: no step takes a gradient that was cleared, by whomever") {
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

TEST_CASE("DataParallel: what backward passes one after the other give is added up") {
  for (const int shard : {0, 1, 2}) {
    CAPTURE(shard);
    Two model;
    const Tensor before = model.a.weight.detach().clone();
    dist::DataParallel ddp(model, {.shard_optimizer = shard == 1, .shard_gradients = shard == 2});
    optim::SGD opt(model.parameters(), {.lr = 1.0});
    for (const double x : {1.0, 10.0}) ddp(full({1, 2}, x)).sum().backward();
    opt.step();
    CHECK((before - model.a.weight.detach() - 11.0).abs().max().item<double>() < 1e-4);
  }
}

TEST_CASE("DataParallel: a step that throws between its passes leaves nothing to the next one") {
  const auto train = [](Mode mode, int shard, bool disturbed) {
    manual_seed(5);
    Two model;
    dist::DataParallel ddp(model, {.accumulate = 2, .shard_gradients = shard == 1});
    optim::SGD opt(model.parameters(), {.lr = 0.1});
    bool throws = false;
    auto step = brrr::step(
        [&](const Tensor& x) {
          opt.zero_grad();
          for (int k = 0; k < 2; ++k) {
            if (throws && k == 1) throw std::runtime_error("a bad batch");
            ddp(x.narrow(0, 4 * k, 4)).square().mean().backward();
          }
          opt.step();
        },
        mode);
    for (int i = 0; i < 4; ++i) {
      const Tensor x = batch(dist::rank(), i).narrow(1, 0, 2).contiguous();
      throws = disturbed && i == 2;
      if (throws) CHECK_THROWS_AS(step(x * 3.0), std::runtime_error);
      throws = false;
      step(x);
    }
    return bytes_of(model);
  };
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    for (const int shard : {0, 1}) {
      CAPTURE(shard);
      CHECK(train(mode, shard, true) == train(mode, shard, false));
    }
  }
}

TEST_CASE("DataParallel: forward passes for one backward pass, and evaluations, keep the bits") {
  for (int way = 0; way < 4; ++way) {
    CAPTURE(way);
    const bool twice = way % 2 == 1, evaluates = way / 2 == 1;
    manual_seed(5);
    Net net, alone;
    dist::DataParallel ddp(net);
    if (ranks() == 1) continue;
    alone.load_state_dict(net.state_dict());
    const auto loss = [&](auto& f, const Tensor& x) {
      Tensor sum = (f(x) - x).square().mean();
      if (twice) sum = sum + (f(x * 0.5) - x).square().mean();
      return sum;
    };
    for (int i = 0; i < 3; ++i) {
      const uint64_t group = rng_state().draw >> 32;
      if (evaluates) {
        net.eval();
        ddp(batch(77, i));
        net.train();
      }
      net.zero_grad();
      loss(ddp, batch(dist::rank(), i)).backward();
      const RngState after = rng_state();
      CHECK((after.draw >> 32) == group + static_cast<uint64_t>(ranks()) + 1);
      alone.zero_grad();
      for (int r = 0; r < dist::size(); ++r) {
        set_rng_state({after.seed, (group + 1 + static_cast<uint64_t>(r)) << 32});
        loss(alone, batch(r, i)).backward();
      }
      set_rng_state(after);
      for (size_t k = 0; k < net.parameters().size(); ++k) {
        const Tensor sum = alone.parameters()[k].grad() * (1.0 / static_cast<double>(ranks()));
        CHECK(same_bits(net.parameters()[k].grad(), sum));
      }
    }
    ddp(batch(1, 1));  // It draws, and no backward pass comes.
    loss(ddp, batch(dist::rank(), 0)).backward();
    const Tensor place = full({1}, static_cast<int64_t>(rng_state().draw), kInt64);
    CHECK(same_bits(dist::broadcast(place), place));
  }
}

TEST_CASE("DataParallel: what one rank draws between steps changes none of them") {
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

TEST_CASE("DataParallel: an optimiser's step before the last pass is refused") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    for (const int shard : {0, 1, 2}) {
      CAPTURE(shard);
      Two model;
      const std::vector<char> before = bytes_of(model);
      dist::DataParallel ddp(
          model, {.accumulate = 2, .shard_optimizer = shard == 1, .shard_gradients = shard == 2});
      optim::SGD opt(model.parameters(), {.lr = 0.1});
      bool whole = false;
      auto step = brrr::step(
          [&](const Tensor& x) {
            opt.zero_grad();
            for (int k = 0; k < 1 + whole; ++k) ddp(x).sum().backward();
            opt.step();
          },
          mode);
      const auto train = [&] { return error_of([&] { step(ones({1, 2})); }); };
      const std::string said = train();
      CHECK_MESSAGE(said.find("after 1 of 2 backward passes") != std::string::npos, said);
      if (ranks() == 1) CHECK(bytes_of(model) == before);
      whole = true;
      CHECK(train() == "");
      CHECK(bytes_of(model) != before);
    }
  }
}

// Two optimisers of one model, of which some parameters are frozen; another DataParallel between.
TEST_CASE("DataParallel: a short group is dropped by its optimisers, in whatever turns") {
  for (const bool other_between : {false, true}) {
    CAPTURE(other_between);
    manual_seed(5);
    Net net;
    Two other;
    net.rare.weight.set_requires_grad(false);
    net.use_rare = false;
    dist::DataParallel ddp(net, {.accumulate = 2}), turns(other, {.accumulate = 2});
    std::vector<Tensor> weights, biases;
    for (const auto& [name, p] : net.named_parameters()) {
      if (p.requires_grad()) (name.ends_with("bias") ? biases : weights).push_back(p);
    }
    optim::SGD first(weights, {.lr = 0.1}), second(biases, {.lr = 0.1});
    const auto pass = [&](int i) {
      (ddp(batch(dist::rank(), i)) - 1.0).square().mean().backward();
      if (other_between) turns(ones({1, 2})).sum().backward();
    };
    const auto refused = [](optim::Optimizer& o) { return !error_of([&] { o.step(); }).empty(); };
    pass(0);
    CHECK(refused(first));
    CHECK(refused(second));
    for (int group = 0; group < 2; ++group) {
      first.zero_grad();
      second.zero_grad();
      pass(1), pass(2);
      CHECK(!refused(first));
      CHECK(!refused(second));
    }
  }
}

TEST_CASE("DataParallel: a pass that throws is repeated with other draws, in every mode alike") {
  const auto train = [](Mode mode) {
    manual_seed(5);
    Net net;
    dist::DataParallel ddp(net, {.accumulate = 2});
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    bool throws = false;
    auto pass = brrr::step(
        [&](const Tensor& x) {
          const Tensor y = ddp(x);
          if (throws) throw std::runtime_error("a bad batch");
          (y - 1.0).square().mean().backward();
        },
        mode);
    for (int i = 0; i < 4; ++i) {
      const Tensor x = batch(dist::rank(), i);
      if (i == 2) {
        opt.zero_grad();
        pass(x);
        throws = true;
        CHECK_THROWS_AS(pass(x), std::runtime_error);
        throws = false;
      }
      opt.zero_grad();
      for (int k = 0; k < 2; ++k) pass(x);
      opt.step();
    }
    return bytes_of(net);
  };
  CHECK(train(Mode::Eager) == train(Mode::Graph));
}

// On one rank a batch of another shape is recorded while the others replay, and are to verify.
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
  // Linked GPUs then compare what they record, which a replay beside that does not.
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
  for (const auto& [name, t] : all) {
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

TEST_CASE("DataParallel: backward passes of model(x) are refused, other models' are not") {
  if (ranks() == 1) return;
  Two model, other;
  dist::DataParallel ddp(model);
  CHECK(error_of([&] {
          model(ones({1, 2})).sum().backward();
        }).find("ddp(x)") != std::string::npos);
  model.zero_grad();
  const Tensor x = of_rank(dist::rank(), {1, 2}, kFloat32), loss = ddp(x).sum();
  other(x).sum().backward();
  loss.backward();
  const Tensor g = model.a.weight.grad().clone();
  other(x).sum().backward();
  CHECK(same_bits(model.a.weight.grad(), g));
}

TEST_CASE("DataParallel: the norm of parts has the bits of the whole one's") {
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

// In a run of its own: what has gone wrong once stays so.
TEST_CASE("zz: parameters that only some ranks use are named") {
  if (ranks() == 1) return;
  Two model;
  model.first = dist::rank() == 0;
  dist::DataParallel ddp(model, {.bucket_bytes = 1});
  const std::string said = error_of([&] { ddp(ones({1, 2})).sum().backward(); });
  CHECK_MESSAGE(said.find("a.weight on rank 0, not on 1") != std::string::npos, said);
  CHECK_MESSAGE(said.find("b.bias on rank 1") != std::string::npos, said);
}

// Sets that were the same where they were recorded, and another one on each rank later.
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
