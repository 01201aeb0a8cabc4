// Several passes a step, forward and backward, in any order and with any end.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include "tests/dist/dist_cases.h"

using namespace brrr;
using namespace brrr::dist_cases;

TEST_CASE("DataParallel: gradients of consecutive backward passes are added up") {
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

TEST_CASE("DataParallel: a step that throws gives back the gradients that their owners keep") {
  const auto train = [](bool disturbed) {
    manual_seed(5);
    Two model;
    dist::DataParallel ddp(model, {.shard_gradients = true});
    optim::SGD opt(model.parameters(), {.lr = 0.1});
    const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
    const std::vector<char> before = bytes_of(model);
    bool throws = false;
    auto step = brrr::step(
        [&] {
          opt.zero_grad();
          if (throws) throw std::runtime_error("a bad batch");
          ddp(x).square().mean().backward();
        },
        Mode::Graph);
    step();
    throws = true;
    if (disturbed) CHECK_THROWS_AS(step(), std::runtime_error);
    opt.step();
    CHECK(bytes_of(model) != before);
    return bytes_of(model);
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("DataParallel: gradients in flight are not recomputed under a memory budget") {
  const auto train = [](double budget) {
    manual_seed(5);
    models::MLP net({.sizes = {12, 16, 12, 12}});
    net.to(kBFloat16);
    dist::DataParallel ddp(net, {.accumulate = 2});
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    auto step = brrr::step(
        [&](const Tensor& x) {
          opt.zero_grad();
          for (int k = 0; k < 2; ++k) {
            const Tensor part = x.narrow(0, 4 * k, 4);
            (ddp(part.to(kBFloat16)).to(kFloat32) - part).square().mean().backward();
          }
          opt.step();
        },
        StepOptions{.memory_budget = budget});
    for (int i = 0; i < 3; ++i) {
      step(of_rank(dist::rank() + 10 * i, {8, 12}, kFloat32) * 0.01);
    }
    return bytes_of(net);
  };
  CHECK(train(0.3) == train(0));
}

TEST_CASE("DataParallel: a frozen step draws the same, whatever is drawn between its calls") {
  const auto train = [](bool freeze) {
    manual_seed(5);
    models::Sequential net;
    net.add<models::Linear>(4, 4);
    net.add<models::Dropout>(0.5);
    dist::DataParallel ddp(net);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    auto step = brrr::step([&](const Tensor& x) {
      opt.zero_grad();
      ddp(x).square().mean().backward();
      opt.step();
    });
    for (int i = 0; i < 8; ++i) {
      if (i == 4 && dist::rank() == 0) rand({1});
      if (i == 6) manual_seed(7);
      step(ones({2, 4}));
      if (i == 2 && freeze) step.freeze();
    }
    return bytes_of(net);
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("DataParallel: a frozen step sees whether owners keep gradients from before it") {
  const auto train = [](Mode mode) {
    manual_seed(5);
    Two model;
    dist::DataParallel ddp(model, {.shard_gradients = true});
    optim::SGD opt(model.parameters(), {.lr = 0.1});
    const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
    auto step = brrr::step(
        [&] {
          opt.zero_grad();
          ddp(x).square().mean().backward();
        },
        mode);
    for (int i = 0; i < 8; ++i) {
      if (i == 3) step.freeze();
      step();
      if (i > 3) opt.step();
      if (i == 5 || i == 6) opt.zero_grad();
    }
    auto pass = brrr::step([&] { ddp(x).square().mean().backward(); }, mode);
    for (int i = 0; i < 6; ++i) {
      if (i != 5) opt.zero_grad();
      pass();
      if (i == 1) pass.freeze();
      opt.step();
    }
    return bytes_of(model);
  };
  CHECK(train(Mode::Graph) == train(Mode::Eager));
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
    ddp(batch(1, 1));  // It draws, and its backward pass never comes.
    loss(ddp, batch(dist::rank(), 0)).backward();
    const Tensor place = full({1}, static_cast<int64_t>(rng_state().draw), kInt64);
    CHECK(same_bits(dist::broadcast(place), place));
  }
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
      const auto refuses = [](const std::string& said) {
        CHECK_MESSAGE(said.find("after 1 of 2 backward passes") != std::string::npos, said);
      };
      refuses(train());
      if (ranks() == 1) CHECK(bytes_of(model) == before);
      if (mode == Mode::Eager) {  // So do other uses of gradients.
        opt.zero_grad();
        ddp(ones({1, 2})).sum().backward();
        refuses(error_of([&] { optim::clip_grad_norm_(model.parameters(), 1.0); }));
        refuses(error_of([&] { (void)optim::GradScaler().unscale_(model.parameters()); }));
      }
      whole = true;
      CHECK(train() == "");
      CHECK(bytes_of(model) != before);
    }
  }
}

// Two optimisers of one model with some frozen parameters; another DataParallel in between.
TEST_CASE("DataParallel: a short group is dropped by its optimisers, in any order") {
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

TEST_CASE("DataParallel: a pass that throws is repeated with other draws, in every mode") {
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

TEST_CASE("DataParallel: a recorded pass that throws after its backward pass is repeated") {
  const auto train = [](bool disturbed) {
    manual_seed(5);
    Net net;
    dist::DataParallel ddp(net, {.accumulate = 3});
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    bool throws = false;
    auto pass = brrr::step(
        [&](const Tensor& x) {
          (ddp(x) - 1.0).square().mean().backward();
          if (throws) throw std::runtime_error("a bad batch");
        },
        Mode::Graph);
    for (int i = 0; i < 4; ++i) {
      opt.zero_grad();
      for (int k = 0; k < 3; ++k) {
        const Tensor x = batch(dist::rank(), 3 * i + k);
        throws = disturbed && i == 2 && k > 0;
        if (throws) CHECK_THROWS_AS(pass(x * 3.0), std::runtime_error);
        throws = false;
        pass(x);
      }
      opt.step();
    }
    return bytes_of(net);
  };
  CHECK(train(true) == train(false));
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

TEST_CASE("DataParallel: a pass that is given up, or an evaluation, keeps no other from training") {
  if (ranks() == 1) return;
  manual_seed(5);
  Two judged, model;
  dist::DataParallel evaluated(judged, {.accumulate = 4}), ddp(model);
  optim::SGD opt(model.parameters(), {.lr = 0.1});
  const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
  for (const bool evaluates : {true, false}) {
    judged.train(!evaluates);
    evaluated(x);
    opt.zero_grad();
    ddp(x).sum().backward();
    opt.step();
    const Tensor drawn = rand({3});
    CHECK(same_bits(dist::broadcast(drawn), drawn));
  }
  evaluated(x);  // Given up; the evaluation of the other one restores the random stream.
  model.train(false);
  ddp(x);
  model.train();
  opt.zero_grad();
  ddp(x).sum().backward();
  opt.step();
  const Tensor drawn = rand({3});
  CHECK(same_bits(dist::broadcast(drawn), drawn));
  const Tensor first = evaluated(x).sum(), second = ddp(x).sum();
  CHECK(error_of([&] { first.backward(); }).find("under NoGradGuard") != std::string::npos);
  judged.zero_grad();
  opt.zero_grad();
  second.backward();
  opt.step();
  CHECK(on_all_ranks(bytes_of(model)));
  manual_seed(5);
}

// Its next gradients would be added to those of a step that other ranks have not ended. In runs of
// their own, because a failed run stays failed.
static void leave_out(Mode mode, bool shard, int passes) {
  if (ranks() == 1) return;
  Two model;
  dist::DataParallel ddp(model, {.shard_gradients = shard});
  optim::SGD opt(model.parameters(), {.lr = 0.1});
  bool reaches = true;
  auto step = brrr::step(
      [&](const Tensor& x) {
        Tensor other = ones({1, 2});
        other.set_requires_grad(true);
        opt.zero_grad();
        for (int pass = 0; pass < passes; ++pass) {
          const Tensor y = ddp(x);
          (reaches || pass + 1 < passes ? y : x * other).sum().backward();
        }
        opt.step();
      },
      mode);
  const Tensor x = batch(dist::rank(), 0).narrow(1, 0, 2).contiguous();
  const int found = dist::rank() == 0 ? 4 : 3;  // The others wait in their exchange.
  for (int i = 0; i <= found; ++i) {
    reaches = dist::rank() != 0 || i != 3;
    if (i == 3 && mode == Mode::Graph) CHECK(step.stats().recordings == 1);
    const std::string said = error_of([&] { step(x); });
    CAPTURE(said);
    CHECK((said.find("has taken a step without its gradients") != said.npos) == (i == found));
  }
}
TEST_CASE("zz: a rank whose loss reached no parameter is detected") {
  leave_out(Mode::Eager, false, 1);
}
TEST_CASE("zz: a rank whose loss reached no parameter is detected in a replay") {
  leave_out(Mode::Graph, true, 1);
}
TEST_CASE("zz: a rank whose loss reached no parameter is detected among several passes") {
  leave_out(Mode::Eager, false, 2);
}

// Nothing in it is rejected.
TEST_CASE("DataParallel: an evaluation on one rank among the steps of two optimisers") {
  Two model;
  dist::DataParallel ddp(model);
  optim::SGD first(model.a.parameters(), {.lr = 0.1}), second(model.a.parameters(), {.lr = 0.1});
  for (int i = 0; i < 3; ++i) {
    first.zero_grad();
    ddp(ones({1, 2})).sum().backward();
    if (dist::rank() == 0) {
      model.eval();
      ddp(ones({1, 2}));
      model.train();
    }
    first.step();
    second.step();
  }
}
