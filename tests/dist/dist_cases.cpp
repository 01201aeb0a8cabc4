#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <signal.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <string>

#include "core/context.h"
#include "ops/kinds/exchange.h"
#include "tests/dist/dist_cases.h"
#include "tests/sanitizer.h"
#include "tests/threads.h"

// Heap calls of all threads. Sanitizers have their own malloc.
#if !BRRR_ASAN && !BRRR_TSAN
static std::atomic<uint64_t> heap_calls{0};

void* operator new(size_t bytes) {
  ++heap_calls;
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

using namespace brrr;
using namespace brrr::dist_cases;

TEST_CASE("all_reduce: the sum in rank order, to the bit, in every dtype and size, both modes") {
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8}) {
    for (const IntList& sizes :
         {IntList{1}, IntList{2}, IntList{3, 5}, IntList{0}, IntList{100003}, IntList{}}) {
      CAPTURE(name(t));
      CAPTURE(to_string(sizes));
      const Tensor x = of_rank(dist::rank(), sizes, t);
      CHECK(same_bits(dist::all_reduce(x), sum_of_all(sizes, t)));
    }
  }
  const Tensor x = of_rank(dist::rank(), {64, 33}, kFloat32);
  auto step = brrr::step([](const Tensor& y) { return dist::all_reduce(y * 2.0) + 1.0; });
  for (int i = 0; i < 3; ++i) CHECK(same_bits(step(x), dist::all_reduce(x * 2.0) + 1.0));
  CHECK(step.stats().fallbacks == 0);
  CHECK(same_bits(dist::all_reduce(x.t()), dist::all_reduce(x).t().contiguous()));
}

TEST_CASE("exchanges: signals are left to the user's threads") {
  if (!test::kThreadSanitizer) CHECK(test::threads_taking(SIGTERM) == threads_before_init);
}

TEST_CASE("all_gather, reduce_scatter, broadcast: values, views, errors") {
  const int me = dist::rank();
  const Tensor x = of_rank(me, {3, 4}, kFloat32), all = dist::all_gather(x);
  CHECK(all.sizes() == IntList{3 * ranks(), 4});
  for (int r = 0; r < dist::size(); ++r) {
    CHECK(same_bits(all.narrow(0, 3 * r, 3).contiguous(), of_rank(r, {3, 4}, kFloat32)));
  }
  CHECK(same_bits(dist::all_gather(x.t()).narrow(0, 4 * me, 4).contiguous(), x.t().contiguous()));
  const IntList wide{2 * ranks(), 5};
  const Tensor part = dist::reduce_scatter(of_rank(me, wide, kFloat32));
  CHECK(same_bits(part, sum_of_all(wide, kFloat32).narrow(0, 2 * me, 2).contiguous()));
  for (int root = 0; root < dist::size(); ++root) {
    CHECK(same_bits(dist::broadcast(x, root), of_rank(root, {3, 4}, kFloat32)));
  }
  CHECK(error_of([&] { dist::broadcast(x, dist::size()); }).find("there is no rank") !=
        std::string::npos);
  if (ranks() > 1) {
    CHECK(error_of([&] {
            dist::reduce_scatter(zeros({ranks() + 1, 2}));
          }).find("does not divide among") != std::string::npos);
  }
  CHECK(error_of([&] { dist::all_gather(tensor(1.0)); }).find("without dims") != std::string::npos);
  dist::barrier();
}

TEST_CASE("collectives: gradients are those of one function of all ranks' values") {
  const int me = dist::rank();
  const auto leaf = [&] {
    Tensor x = of_rank(me, {2 * ranks(), 3}, kFloat64);
    x.set_requires_grad(true);
    return x;
  };
  const auto weights = [](int r, const IntList& sizes) { return of_rank(r + 7, sizes, kFloat64); };
  const auto gradient = [&](const std::function<Tensor(const Tensor&)>& f) {
    const Tensor x = leaf(), y = f(x);
    (y * weights(me, y.sizes())).sum().backward();
    return x.grad();
  };
  const IntList sizes = leaf().sizes();
  const auto weight_sum = [&](const IntList& of) {
    Tensor sum = weights(0, of).clone();
    for (int r = 1; r < dist::size(); ++r) sum.add_(weights(r, of));
    return sum;
  };
  CHECK(
      same_bits(gradient([](const Tensor& x) { return dist::all_reduce(x); }), weight_sum(sizes)));
  const Tensor own = weight_sum({sizes[0] * ranks(), 3}).narrow(0, me * sizes[0], sizes[0]);
  CHECK(same_bits(gradient([](const Tensor& x) { return dist::all_gather(x); }), own.contiguous()));
  Tensor all = weights(0, {2, 3});
  for (int r = 1; r < dist::size(); ++r) all = cat({all, weights(r, {2, 3})});
  CHECK(same_bits(gradient([](const Tensor& x) { return dist::reduce_scatter(x); }), all));
  const Tensor root = gradient([](const Tensor& x) { return dist::broadcast(x, 0); });
  CHECK(same_bits(root, me == 0 ? weight_sum(sizes) : zeros_like(root)));
}

TEST_CASE("collectives: none is recomputed, whatever the memory budget") {
  const auto function = [](const Tensor& x) {
    const Tensor sum = dist::all_reduce(x * 2.0);
    Tensor h = matmul(sum, x);
    for (int i = 0; i < 3; ++i) h = matmul(h.sin(), x.cos() + static_cast<double>(i));
    return (h * sum).sum();
  };
  const Tensor x = (of_rank(dist::rank(), {128, 128}, kFloat32) * 1e-3).to(kCPU);
  const Tensor expected = function(x);
  auto step = brrr::step(function, {.memory_budget = 1});
  for (int i = 0; i < 4; ++i) {
    const uint64_t before = dist::stats().exchanges;
    CHECK(same_bits(step(x), expected));
    CHECK(dist::stats().exchanges - before == (ranks() > 1 ? 1 : 0));
  }
}

TEST_CASE("DataParallel: a model, a seed or an option that differs is named on every rank") {
  if (ranks() == 1) return;
  const int64_t odd = dist::rank() == 1;
  models::Linear a(4, 3 + odd), b(4, 3);
  std::string said = error_of([&] { dist::DataParallel ddp(a); });
  CHECK_MESSAGE(said.find("rank 0 has parameter weight, float32[3, 4], rank 1 has parameter "
                          "weight, float32[4, 4]") != std::string::npos,
                said);
  const RngState before = rng_state();
  set_rng_state({before.seed + static_cast<uint64_t>(odd), before.draw});
  said = error_of([&] { dist::DataParallel ddp(b); });
  CHECK_MESSAGE(said.find("has seed") != std::string::npos, said);
  set_rng_state(before);
  said = error_of([&] { dist::DataParallel ddp(b, {.accumulate = 1 + odd}); });
  CHECK_MESSAGE(said.find("accumulate 2") != std::string::npos, said);
  for (const int64_t passes : {int64_t{0}, int64_t{1} << 32}) {
    said = error_of([&] { dist::DataParallel ddp(b, {.accumulate = passes}); });
    CHECK_MESSAGE(said.find("accumulate must be from 1") != std::string::npos, said);
  }
}

TEST_CASE("check_alike: a line may have an end of line in it") {
  dist::check_alike("the lines", {"a\nb", "c"});
  const std::string said = error_of([] {
    dist::check_alike("the lines", {dist::rank() == 1 ? "a\nx" : "a\nb", "c"});
  });
  if (ranks() > 1) CHECK(said == "the lines differ: rank 0 has a\nb, rank 1 has a\nx");
}

TEST_CASE(
    "DataParallel: all ranks' steps are the same, eager and recorded, with buckets of any size") {
  for (const bool rare : {true, false}) {
    std::vector<char> expected;
    for (const int64_t bucket : {0, 1, 700, 1 << 20}) {
      for (const Mode mode : {Mode::Eager, Mode::Graph}) {
        CAPTURE(bucket);
        CAPTURE(static_cast<int>(mode));
        manual_seed(5);
        Run run(1, rare, bucket);
        auto step = brrr::step([&](const Tensor& x) { return run.train(x); }, mode);
        for (int i = 0; i < 6; ++i) step(of_rank(dist::rank() + 10 * i, {8, 12}, kFloat32) * 0.01);
        CHECK(step.stats().fallbacks == 0);
        const std::vector<char> bytes = bytes_of(run.net);
        if (expected.empty()) expected = bytes;
        CHECK(bytes == expected);
        const Tensor mine = from_blob(static_cast<const void*>(bytes.data()),
                                      {static_cast<int64_t>(bytes.size())}, kUInt8);
        CHECK(same_bits(dist::broadcast(mine), mine));
      }
    }
  }
}

// A single process runs all ranks' passes one after the other, with the same random streams.
TEST_CASE("DataParallel: N ranks of P passes give the bits of N P passes of one process") {
  for (int way = 0; way < 12; ++way) {
    const int passes = way % 4 < 2 ? 1 : 3, shard = way / 4;
    const Mode mode = way % 2 == 0 ? Mode::Eager : Mode::Graph;
    if (ranks() * passes == 1) continue;
    CAPTURE(way);
    manual_seed(5);
    Net alone;
    Run run(passes, true, shard == 2 ? 700 : 0, shard);  // Also with buckets that end early.
    alone.load_state_dict(run.net.state_dict());
    optim::AdamW opt(alone.parameters(), {.lr = 1e-2});
    uint64_t group = rng_state().draw >> 32;
    auto step = brrr::step([&](const Tensor& x) { return run.train(x); }, mode);
    for (int i = 0; i < 5; ++i) {
      const auto batch = [&](int r) { return of_rank(r + 10 * i, {8, 12}, kFloat32) * 0.01; };
      Tensor own = batch(dist::rank() * passes);
      for (int p = 1; p < passes; ++p) own = cat({own, batch(dist::rank() * passes + p)});
      step(own);
      const RngState after = rng_state();
      std::vector<Tensor> sums;
      for (int r = 0; r < dist::size() * passes; ++r) {
        set_rng_state({after.seed, (group + 1 + static_cast<uint64_t>(r)) << 32});
        const Tensor x = batch(r);
        const auto g = grad({(alone(x) - x).square().mean()}, alone.parameters());
        for (size_t k = 0; k < g.size(); ++k) {
          r == 0 ? sums.push_back(g[k].clone()) : static_cast<void>(sums[k].add_(g[k]));
        }
      }
      set_rng_state(after);
      group = after.draw >> 32;
      opt.zero_grad();
      const auto parameters = alone.parameters();
      for (size_t k = 0; k < sums.size(); ++k) {
        sums[k].mul_(1.0 / static_cast<double>(ranks() * passes));
        parameters[k].set_grad(sums[k]);
      }
      optim::clip_grad_norm_(parameters, 0.5);
      opt.step();
      const auto theirs = run.net.parameters();
      for (size_t k = 0; k < parameters.size(); ++k) CHECK(same_bits(parameters[k], theirs[k]));
    }
  }
}

TEST_CASE("DataParallel: each rank keeps its part of the state, and rank 0 saves the whole") {
  const Tensor x = of_rank(dist::rank(), {8, 12}, kFloat32) * 0.01;
  const auto make = [](int shard) {
    manual_seed(5);
    return std::make_unique<Run>(1, true, 0, shard);
  };
  const auto whole = make(0);
  whole->train(x);
  const StateDict expected = whole->opt.state_dict();
  std::vector<std::vector<char>> after;
  for (const int shard : {0, 1, 2}) {
    CAPTURE(shard);
    const auto run = make(shard);
    run->train(x);
    const StateDict state = run->opt.state_dict();
    if (dist::rank() == 0) {
      CHECK(state.size() == expected.size());
      for (const auto& e : expected) CHECK_MESSAGE(same_bits(state.at(e.first), e.second), e.first);
    }
    // An even share, but for the imbalance of one small parameter.
    const double part =
        static_cast<double>(run->opt.state_bytes()) / static_cast<double>(whole->opt.state_bytes());
    if (shard > 0) CHECK(part < 1.3 / ranks() + 0.05);
    int64_t kept = 0, all = 0;
    for (const Tensor& g : optim::distinct_gradients(run->net.parameters())) kept += g.numel();
    for (const Tensor& p : run->net.parameters()) all += p.numel();
    if (shard < 2) CHECK(kept == all);
    if (shard == 2) CHECK(static_cast<double>(kept) < 1.3 * static_cast<double>(all) / ranks());

    // Resumes from the whole state, whichever sharding wrote it.
    const auto next = make(shard);
    next->net.load_state_dict(whole->net.state_dict());
    next->opt.load_state_dict(expected);
    next->train(x);
    after.push_back(bytes_of(next->net));
    CHECK(after.back() == after.front());
  }
}

TEST_CASE("DataParallel: a parameter without elements has its state in the checkpoint") {
  struct Hollow : models::Module {
    Tensor none = register_parameter("none", zeros({0, 3}));
    models::Linear l{3, 2};
    Hollow() { register_module("l", l); }
    Tensor forward(const Tensor& x) override { return l(x).mean() + none.sum(); }
  };
  for (const int shard : {0, 1, 2}) {
    CAPTURE(shard);
    Hollow net;
    dist::DataParallel ddp(net, {.shard_optimizer = shard == 1, .shard_gradients = shard == 2});
    optim::AdamW opt(net.parameters(), {});
    for (int i = 0; i < 2; ++i) {
      opt.zero_grad();
      ddp(ones({2, 3})).backward();
      optim::clip_grad_norm_(net.parameters(), 0.5);
      opt.step();
    }
    const StateDict state = opt.state_dict();
    if (dist::rank() == 0) {
      CHECK(state.at("0.exp_avg").sizes() == IntList{0, 3});
      CHECK(state.at("0.beta1_power").item<double>() == state.at("1.beta1_power").item<double>());
    }
    if (dist::size() == 1) opt.load_state_dict(state);
  }
}

TEST_CASE("DataParallel: a backward pass that would not be exchanged is refused") {
  Run run(1, true, 0);
  const Tensor x = of_rank(dist::rank(), {8, 12}, kFloat32);
  run.train(x);
  const Tensor loss = run.ddp(x).square().mean();
  loss.backward({}, true);
  if (ranks() == 1) return loss.backward();
  CHECK(error_of([&] { loss.backward(); }).find("call backward() once") != std::string::npos);
  run.train(x);
  Net other;  // Another model is not affected.
  other(x).mean().backward();
  Run next(1, true, 0);
  next.train(x);
}

TEST_CASE("DataParallel: an optimiser created before it is refused") {
  Net net;
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  dist::DataParallel ddp(net, {.shard_optimizer = true});
  CHECK(error_of([&] { opt.step(); }).find("after the DataParallel") != std::string::npos);
  models::Linear other{2, 2};
  std::vector<Tensor> both = net.parameters();
  both.push_back(other.weight);
  CHECK(error_of([&] { optim::SGD(both, {.lr = 0.1}); }).find("make an optimiser for each") !=
        std::string::npos);
}

TEST_CASE("DataParallel: a step moves 2 (N - 1) / N of the gradients' bytes, and no more") {
  if (ranks() == 1 || checks()) return;  // With checks, the calls' names are sent, too.
  manual_seed(5);
  Run run(1, true, 0);
  auto step = brrr::step([&](const Tensor& x) { return run.train(x); });
  double bytes = 0;
  for (const Tensor& p : run.net.parameters()) bytes += 4.0 * static_cast<double>(p.numel());
  for (int i = 0; i < 4; ++i) {
    const dist::Stats before = dist::stats();
    step(of_rank(dist::rank(), {8, 12}, kFloat32) * 0.01);
    const auto sent = static_cast<double>(dist::stats().bytes_sent - before.bytes_sent);
    const auto n = static_cast<double>(ranks());
    // Shards of odd lengths differ by an element a peer and bucket.
    CHECK(sent <= 2 * (n - 1) / n * bytes + 4 * n * n * 8);
    CHECK(sent >= 2 * (n - 1) / n * bytes - 4 * n * n * 8);
  }
}

TEST_CASE("DataParallel: a recorded step that throws between its passes has changed nothing") {
  manual_seed(5);
  Run run(2, true, 0);
  bool fails = false;
  auto step = brrr::step([&](const Tensor& x) {
    run.opt.zero_grad();
    for (const Tensor& part : x.split(8, 0)) {
      (run.ddp(part) - part).square().mean().backward();
      if (fails) throw Error("on purpose");
    }
    run.opt.step();
  });
  const Tensor x = of_rank(dist::rank(), {16, 12}, kFloat32) * 0.01;
  step(x);
  step(x);
  const StateDict before = run.net.state_dict();
  const Tensor first = before.begin()->second.clone();
  fails = true;
  CHECK(error_of([&] { step(x); }) == "on purpose");
  CHECK(same_bits(before.begin()->second, first));
  fails = false;
  for (int i = 0; i < 3; ++i) step(x);
  const Tensor mine = run.net.parameters()[0].detach();
  CHECK(same_bits(dist::broadcast(mine), mine));
  CHECK(!same_bits(mine, first));
}

#if !BRRR_ASAN && !BRRR_TSAN
TEST_CASE("DataParallel: a replay with its exchange allocates nothing from the heap") {
  if (checks()) return;  // With checks, the calls' names are separate messages.
  for (const int shard : {0, 1, 2}) {
    CAPTURE(shard);
    manual_seed(5);
    Run run(1, true, 700, shard);
    run.clips = false;  // The norm of sharded gradients is a call with a job of its own.
    auto step = brrr::step([&](const Tensor& x) { return run.train(x); }, {.require_graph = true});
    const Tensor x = of_rank(dist::rank(), {8, 12}, kFloat32) * 0.01;
    step(x);
    step.freeze();
    for (int k = 0; k < 20; ++k) step(x);
    const uint64_t before = heap_calls;
    for (int k = 0; k < 20; ++k) step(x);
    CHECK(heap_calls.load() == before);
  }
}
#endif

// The last ones, each in a run of its own, because a failed run stays failed.
TEST_CASE("zz: BRRR_DIST_CHECK: calls that differ are both named on every rank") {
  if (ranks() == 1 || !checks()) return;
  const Tensor x = ones({4}), y = ones({2, 3});
  const std::string said =
      error_of([&] { dist::rank() == 0 ? dist::all_reduce(x) : dist::all_gather(y); });
  CHECK_MESSAGE(said.find("all_reduce of float32[4]") != std::string::npos, said);
  CHECK_MESSAGE(said.find("all_gather of float32[2, 3]") != std::string::npos, said);
  const std::string again = error_of([&] { dist::all_reduce(x); });
  CHECK_MESSAGE(again.find("an earlier collective failed") != std::string::npos, again);
}
