// The work of calls by their rows, limits of the machine, profiles of both modes, diagnoses.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <fstream>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/context.h"
#include "ops/kinds/work.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"
#include "tests/temp_dir.h"

using namespace brrr;
using nlohmann::json;

namespace {

std::map<std::string, Work> works_of(const std::function<void()>& f) {
  struct Look final : Observer {
    std::map<std::string, Work> all;
    void ran(const OpCall& c) override {
      if (c.op->is_view()) return;
      const Work w = work_of(c);
      all[c.op->name].flops += w.flops;
      all[c.op->name].bytes += w.bytes;
    }
  } look;
  context.observer = &look;
  f();
  context.observer = nullptr;
  return look.all;
}

struct Net : models::Module {
  models::Linear fc1{24, 48}, fc2{48, 10};
  Net() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

struct Training {
  explicit Training(Mode m) : mode(m) {}
  void step() { step_(x, y); }

  Mode mode;
  Net net;
  optim::SGD opt{net.parameters(), {.lr = 1e-2}};
  Tensor x = randn({16, 24}), y = randint(0, 10, {16});

 private:
  brrr::Step<std::function<Tensor(const Tensor&, const Tensor&)>> step_{
      [this](const Tensor& in, const Tensor& labels) {
        Tensor loss = cross_entropy(net(in), labels);
        opt.zero_grad();
        loss.backward();
        opt.step();
        return loss;
      },
      {.mode = mode}};
};

// One event of the trace event format: names, and times in microseconds.
void check_event(const json& e) {
  REQUIRE(e["name"].is_string());
  REQUIRE(e["pid"].is_number_integer());
  REQUIRE(e["tid"].is_number_integer());
  REQUIRE(e["args"].is_object());
  if (e["ph"] == "M") return;
  REQUIRE(e["ph"] == "X");
  CHECK(e["ts"].get<double>() >= 0);
  CHECK(e["dur"].get<double>() >= 0);
}

}  // namespace

// By hand: the operations of each formula per element, with an fma as two and a function of m:: as
// its float32 definition (exp 23, log 30, rsqrt 2).
TEST_CASE("work: operations and bytes of calls are those counted by hand") {
  NoGradGuard guard;
  const Tensor x = randn({32, 64}), w = randn({48, 64}), b = randn({48});
  const auto linear_work = works_of([&] { linear(x, w, b); });
  CHECK(linear_work.at("linear").flops == 2.0 * 32 * 64 * 48);
  CHECK(linear_work.at("linear").bytes == 4.0 * (32 * 64 + 48 * 64 + 32 * 48));
  CHECK(linear_work.at("add").flops == 32.0 * 48);
  CHECK(linear_work.at("add").bytes == 4.0 * (2 * 32 * 48 + 48));

  // Per element sum, difference, square, sum, times rstd, weight, bias; two means, eps and rsqrt.
  const Tensor scale = randn({64}), shift = randn({64});
  const Work norm = works_of([&] { layer_norm(x, {64}, scale, shift); }).at("layer_norm");
  CHECK(norm.flops == 32.0 * (64 * 7 + 5));
  CHECK(norm.bytes == 4.0 * (2 * 32 * 64 + 2 * 64 + 2 * 32));
  CHECK(works_of([&] { layer_norm(x, {64}, {}, {}); }).at("layer_norm").flops == 32 * (64 * 5 + 5));

  // Per element max, difference, exp, sum, product; the sum's reciprocal.
  CHECK(works_of([&] { softmax(x, -1); }).at("softmax").flops == 32.0 * (64 * 27 + 1));
  CHECK(works_of([&] { exp(x); }).at("exp").flops == 32.0 * 64 * 23);
  CHECK(works_of([&] { x * 2.0 + x; }).at("mul").flops == 32.0 * 64);
  CHECK(works_of([&] { x.sum(); }).at("sum").flops == 32.0 * 64);

  // Pairs under the causal mask: 16 * 17 / 2 a head. Two products, and 27 a pair for the softmax.
  const Tensor q = randn({2, 3, 16, 8}), k = randn({2, 3, 16, 8}), v = randn({2, 3, 16, 8});
  const Work attention = works_of([&] {
                           scaled_dot_product_attention(q, k, v, {.causal = true});
                         }).at("scaled_dot_product_attention");
  CHECK(attention.flops == 2 * 3 * 136.0 * (2 * 8 + 2 * 8 + 27));
  CHECK(attention.bytes == 4.0 * (4 * 2 * 3 * 16 * 8 + 2 * 2 * 3 * 16));

  // The selected rows, not the table.
  const Tensor table = randn({1000, 16}), ids = randint(0, 1000, {7});
  CHECK(works_of([&] { embedding(table, ids); }).at("embedding").bytes == 2.0 * 7 * 16 * 4 + 7 * 8);
  // A table smaller than the selected rows is read once, also for each batch of ids.
  const Tensor small = randn({5, 16}), shared = randint(0, 5, {7}).expand({8, 7});
  CHECK(works_of([&] { embedding(small, shared); }).at("embedding").bytes ==
        5.0 * 16 * 4 + 7 * 8 + 8 * 7 * 16 * 4);
  // In place only the selected rows: read, and written with the added terms.
  const Tensor place = full({2, 16}, 3), terms = ones({2, 16});
  CHECK(works_of([&] { table.scatter_add_(0, place, terms); }).at("scatter_add").bytes ==
        3.0 * 2 * 16 * 4 + 2 * 16 * 8);
  CHECK(works_of([&] { empty({100}); }).at("empty").bytes == 0);
}

TEST_CASE("work: AdamW's update of an element is seven streams and sixteen operations") {
  Net net;
  optim::AdamW opt(net.parameters(), {.lr = 1e-3, .weight_decay = 0.1});
  cross_entropy(net(randn({4, 24})), randint(0, 10, {4})).backward();
  const auto all = works_of([&] { opt.step(); });
  double n = 0;
  for (const Tensor& p : net.parameters()) n += static_cast<double>(p.numel());
  REQUIRE(all.count("adamw_step"));
  // Two of them are comparisons, which flush moments to zero.
  CHECK(all.at("adamw_step").flops / n == doctest::Approx(16).epsilon(0.02));
  CHECK(all.at("adamw_step").bytes / n == doctest::Approx(7 * 4).epsilon(0.02));
}

TEST_SUITE_BEGIN("host");

TEST_CASE("limits: measured once, the same for every later call, and between sizes in between") {
  const DeviceLimits l = device_limits(kCPU), again = device_limits(kCPU);
  CHECK(l.gflops() > 0);
  REQUIRE(l.copies.size() > 3);
  CHECK(again.gflops() == l.gflops());
  REQUIRE(l.peaks.size() == again.peaks.size());
  for (size_t k = 0; k < l.peaks.size(); ++k) {
    CHECK(l.peaks[k].gflops > 0);
    CHECK(l.peaks[k].product_gflops == again.peaks[k].product_gflops);
  }
  for (size_t k = 0; k < l.copies.size(); ++k) {
    CHECK(l.copies[k].gb_per_second > 0);
    CHECK(l.gb_per_second(l.copies[k].bytes) == doctest::Approx(l.copies[k].gb_per_second));
    if (k == 0) continue;
    CHECK(l.copies[k].bytes > l.copies[k - 1].bytes);
    const double a = l.copies[k - 1].gb_per_second, b = l.copies[k].gb_per_second;
    const double middle = l.gb_per_second(std::sqrt(l.copies[k].bytes * l.copies[k - 1].bytes));
    CHECK(middle == doctest::Approx((a + b) / 2));
  }
  // L1 of a core gives ten times that; a pool whose second thread waits for its core does not, and
  // then no small op would count as overhead.
  CHECK(l.copies.front().gb_per_second > (brrr::test::kThreadSanitizer ? 0.2 : 2));
  CHECK(l.gb_per_second(1) == l.copies.front().gb_per_second);
  CHECK(l.gb_per_second(1e15) == l.copies.back().gb_per_second);
}

TEST_CASE("limits: the cost of launches is measured once for all later processes, or on request") {
  const test::TempCache cache;
  const auto equal = [](const LaunchCosts& a, const LaunchCosts& b) {
    return a.eager_ns == b.eager_ns && a.step_ns == b.step_ns && a.graph_ns == b.graph_ns;
  };
  const LaunchCosts first = launch_costs(kCPU, true), second = launch_costs(kCPU);
  CHECK(first.eager_ns > 0);
  CHECK(equal(first, second));
  // 20 series of some thousand clock ticks: never twice the same to the last bit.
  CHECK(!equal(first, launch_costs(kCPU, true)));
}

TEST_SUITE_END();

TEST_CASE("profile: kernels of both modes carry their modules, and the parts add up to the whole") {
  for (Mode mode : {Mode::Eager, Mode::Graph}) {
    CAPTURE(static_cast<int>(mode));
    Training training(mode);
    for (int i = 0; i < 3; ++i) training.step();
    Profile profile;
    for (int i = 0; i < 4; ++i) training.step();
    const TimeSplit all = profile.total();
    double us = 0, compute = 0, memory = 0, products = 0;
    std::set<std::string> modules;
    std::map<std::string, double> in_module;  // FLOPs of products.
    for (const ProfileRow& r : profile.rows()) {
      CHECK(r.calls % 4 == 0);
      us += r.time.us;
      compute += r.time.compute_us;
      memory += r.time.memory_us;
      modules.insert(r.module);
      if (r.kind == "contraction") products += r.flops, in_module[r.module] += r.flops;
    }
    CHECK(us == doctest::Approx(profile.kernels_us()));
    CHECK(all.compute_us == doctest::Approx(compute));
    CHECK(all.memory_us == doctest::Approx(memory));
    if (default_device() == kCPU) CHECK(all.us > us);  // A GPU runs in parallel to the host.
    CHECK(all.compute_us + all.memory_us + all.overhead_us() == doctest::Approx(all.us));
    double in_modules = 0;
    for (const ProfileRow& r : profile.modules()) in_modules += r.time.us;
    CHECK(in_modules == doctest::Approx(us));
    CHECK(profile.modules().size() == modules.size());
    CHECK(modules.count("fc1") == 1);
    CHECK(modules.count("fc2") == 1);
    // Forward, gradients of weight and input, but none of the data: 2 M N K each.
    CHECK(in_module["fc1"] == doctest::Approx(4 * 2 * 2 * 16 * 24 * 48));
    CHECK(in_module["fc2"] == doctest::Approx(4 * 3 * 2 * 16 * 48 * 10));
    // Forward, and the gradients of both weights and of the second layer's input.
    CHECK(products == 4 * 2.0 * 16 * (2 * 24 * 48 + 3 * 48 * 10));
    const std::string text = profile.report();
    CHECK(text.find("overhead") != std::string::npos);
    CHECK(text.find(", fc1") != std::string::npos);
    const json j = json::parse(profile.json());
    CHECK(j["rows"].size() == profile.rows().size());
    for (const json& limits : j["limits"]) {
      CAPTURE(limits.dump());
      CHECK(limits["peaks"]["float32"]["gflops"].get<double>() > 0);
      CHECK(limits["launch_ns"]["eager"].is_number());
      CHECK(limits["versions"].is_string());
      CHECK(limits["threads"].is_number());
    }
  }
  CHECK(context.observer == nullptr);
}

TEST_CASE("profile: an op that throws leaves it intact, and none may begin within a step") {
  Profile profile;
  const Tensor x = randn({4, 4});
  if (default_device() == kCPU) CHECK_THROWS_AS(embedding(x, full({2}, 9)), Error);
  CHECK_THROWS_AS(matmul(x, randn({3, 3})), Error);
  exp(x);
  const auto rows = profile.rows();
  CHECK(std::any_of(rows.begin(), rows.end(), [](auto& r) { return r.op == "exp"; }));
  CHECK(profile.total().us >= profile.kernels_us());
  CHECK_THROWS_WITH_AS(Profile(), doctest::Contains("one already"), Error);
  auto inside = step([&](const Tensor& t) {
    const Profile inner;
    return t + 1.0;
  });
  CHECK_THROWS_WITH_AS(inside(x), doctest::Contains("outside of the step"), Error);
}

// The host function's time between two replays is part of the step's time, too.
TEST_CASE("profile: the host's time between replays counts, in both modes") {
  for (Mode mode : {Mode::Eager, Mode::Graph}) {
    auto s = step(
        [](const Tensor& x) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          return x * 2.0 + 1.0;
        },
        mode);
    const Tensor x = ones({4});
    for (int i = 0; i < 3; ++i) s(x);
    Profile profile;
    for (int i = 0; i < 10; ++i) s(x);
    const TimeSplit t = profile.total();
    CHECK(t.us >= 20e3);
    CHECK(t.bound() == std::string("overhead"));
  }
}

TEST_CASE("profile: a step that checks numerics is seen, and its checks are not counted") {
  auto s = step([](const Tensor& x) { return exp(x) * 2.0; }, {.check_numerics = true});
  const Tensor x = ones({64});
  s(x);
  Profile profile;
  s(x);
  double calls = 0;
  for (const ProfileRow& r : profile.rows()) calls += static_cast<double>(r.calls);
  CHECK(calls == 2);
}

TEST_CASE("profile: a tensor given twice is read once, and float64 has half the peak") {
  const Tensor x = ones({100}), y = ones({100});
  CHECK(works_of([&] { x* x; }).at("mul").bytes == 8.0 * 100);
  CHECK(works_of([&] { x* y; }).at("mul").bytes == 12.0 * 100);
  DeviceLimits l;
  l.peaks = {{kFloat32, 100, 90}, {kFloat64, 50, 40}};
  l.copies = {{1e6, 50}, {1e9, 10}};
  CHECK(split_time(100, 1e6, 0, l, kFloat64).compute_us == doctest::Approx(20));
  const Profile profile;
  exp(ones({100}, kFloat64));
  for (const ProfileRow& r : profile.rows()) CHECK(r.dtype == kFloat64);
}

// Rows: 1 is the host, which queues for a GPU, 2 has the kernels, 3 their modules.
TEST_CASE("profile: its trace is one of the trace event format, with modules on every span") {
  const test::TemporaryDirectory folder;
  const std::string path = std::string(folder.path) + "/trace.json";
  const std::set<std::string> modules = {"fc1", "fc2", "several modules"};
  for (Mode mode : {Mode::Eager, Mode::Graph}) {
    CAPTURE(static_cast<int>(mode));
    Training training(mode);
    for (int i = 0; i < 3; ++i) training.step();
    int64_t calls = 0;
    {
      Profile profile;
      training.step();
      profile.write_trace(path);
      CHECK(test::error_of([&] { profile.write_trace("/nonexistent/folder/trace.json"); }) ==
            "profile: /nonexistent/folder/trace.json cannot be written: No such file or directory");
      for (const ProfileRow& r : profile.rows()) calls += r.calls;
    }
    std::ifstream in(path);
    const json trace = json::parse(in);
    CHECK(!trace["otherData"]["limits"].empty());
    std::map<int, int64_t> spans;
    double end = 0;
    int seeds = 0;
    for (const json& e : trace["traceEvents"]) {
      check_event(e);
      if (e["ph"] == "M") continue;
      ++spans[e["tid"].get<int>()];
      INFO(e.dump());
      const auto name = e["name"].get<std::string>();
      const bool of_none =
          name == "full" || name == "ne" || name == "copy" || name.find("sum") != std::string::npos;
      if (e["args"]["module"] == "outside of modules" && (e["tid"] == 3 || of_none)) {
        ++seeds;  // The loss's gradient, 1, has no source, and its ids are the caller's.
      } else {
        CHECK(modules.count(e["args"]["module"].get<std::string>()) == 1);
      }
      if (e["tid"] != 2) continue;
      CHECK(e["args"]["bytes"].get<double>() > 0);
      CHECK(e["args"]["us_since_the_last"].get<double>() >= 0);
      CHECK(e["ts"].get<double>() >= end - 1e-3);  // They do not overlap.
      end = e["ts"].get<double>() + e["dur"].get<double>();
    }
    CHECK(spans[2] == calls);
    CHECK(spans[1] == (default_device() == kCPU ? 0 : calls));
    CHECK(spans[3] >= 2);
    CHECK(seeds <= (default_device() == kCPU ? 6 : 10));
  }
  Profile profile;
  ones({3}) + 1;
  profile.write_trace(path);
  std::ifstream in(path);
  CHECK(json::parse(in)["traceEvents"].back()["args"]["module"] == "outside of modules");
}

TEST_SUITE_BEGIN("host");

TEST_CASE("profile: the trace has each call's own work, and gaps that add up to the time between") {
  const test::TemporaryDirectory folder;
  const std::string path = std::string(folder.path) + "/trace.json";
  const Tensor small = randn({8, 8}), large = randn({256, 256});
  NoGradGuard guard;
  bool alike = false;  // Stays false where this thread waits for a CPU after the last kernel.
  for (int turn = 0; turn < 10 && !alike; ++turn) {
    Profile profile;
    for (int i = 0; i < 20; ++i) (void)small.matmul(small), (void)large.matmul(large);
    const double between = profile.total().us - profile.kernels_us();
    profile.write_trace(path);
    std::ifstream in(path);
    std::set<double> flops;
    double gaps = 0;
    const json trace = json::parse(in);
    for (const json& e : trace["traceEvents"]) {
      if (e["ph"] != "X" || e["tid"] != 2) continue;
      flops.insert(e["args"]["flops"].get<double>());
      gaps += e["args"]["us_since_the_last"].get<double>();
    }
    CHECK(flops == std::set<double>{2.0 * 8 * 8 * 8, 2.0 * 256 * 256 * 256});
    alike = default_device() != kCPU || gaps == doctest::Approx(between).epsilon(0.2);
  }
  CHECK(alike);
}

TEST_CASE("profile: building kernels is done once, and is reported next to the figures") {
  auto s = step([](const Tensor& x) { return (x + 1.25) * x - 0.125; });
  const Tensor x = ones({1 << 10});
  const Profile profile;
  for (int i = 0; i < 4; ++i) s(x);
  const StepStats stats = s.stats();
  CHECK(profile.total().us < 1e6 * stats.build_seconds + 1e3);
  CHECK(profile.report().find("excluded, as it is done once") != std::string::npos);
}

TEST_CASE("profile: a kernel's time is what its operations or its bytes take, and overhead") {
  DeviceLimits l;
  l.peaks = {{kFloat32, 100, 90}};
  l.copies = {{1e6, 50}, {1e9, 10}};
  // 20 us of compute, 1 us of memory in 25; 10 us of memory, 1 of compute in 11; 1 of either in 50.
  CHECK(split_time(25, 2e6, 5e4, l).bound() == std::string("compute"));
  CHECK(split_time(25, 2e6, 5e4, l).compute_us == doctest::Approx(20));
  CHECK(split_time(11, 1e5, 5e5, l).bound() == std::string("memory"));
  CHECK(split_time(11, 1e5, 5e5, l).memory_us == doctest::Approx(10));
  CHECK(split_time(50, 1e5, 5e4, l).bound() == std::string("overhead"));
  CHECK(split_time(50, 1e5, 4e4, l).overhead_us() == doctest::Approx(49));
  // Faster than the limits allow, because of a cache: no overhead, and no more than the total.
  CHECK(split_time(5, 1e5, 5e5, l).memory_us == 5);
  CHECK(split_time(5, 0, 0, l).overhead_us() == 5);
}

TEST_SUITE_END();
