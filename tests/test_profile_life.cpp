// When a profile records: pauses, ends, other threads, steps that check numerics.
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/context.h"

using namespace brrr;

TEST_CASE("profile: work done while it is paused is in none of its figures") {
  Profile profile;
  const Tensor x = ones({64});
  exp(x);
  profile.pause();
  const double before = profile.total().us;
  CHECK_THROWS_AS(profile.pause(), Error);
  sin(x);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(profile.total().us == before);
  CHECK(!profile.report().empty());
  bool elsewhere = false;
  std::thread([&] {
    try {
      profile.resume();
    } catch (const Error&) {
      elsewhere = true;
    }
  }).join();
  CHECK(elsewhere);
  profile.resume();
  CHECK_THROWS_AS(profile.resume(), Error);
  cos(x);
  std::set<std::string> ops;
  for (const ProfileRow& r : profile.rows()) ops.insert(r.op);
  CHECK(ops.count("sin") == 0);
  CHECK(ops.count("exp") + ops.count("cos") == 2);
}

TEST_CASE("profile: one that another thread ends, and one that outlives its thread") {
  const Tensor x = ones({64});
  auto profile = std::make_unique<Profile>();
  exp(x);
  std::thread([&] { profile.reset(); }).join();
  SUBCASE("the next op sees that it is gone") { sin(x); }
  SUBCASE("so does the next profile") {}
  Profile next;
  cos(x);
  REQUIRE(next.rows().size() == 1);
  CHECK(next.rows()[0].op == "cos");
  std::thread([&] {
    profile = std::make_unique<Profile>();
    exp(x);
  }).join();
  profile.reset();
  cos(x);
  CHECK(next.rows()[0].calls == 2);
}

TEST_CASE("profile: the time to compute figures is not in them") {
  const Tensor x = ones({64});
  Profile profile;
  exp(x);
  using clock = std::chrono::steady_clock;
  const auto us = [](clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  const auto begin = clock::now();
  const double before = profile.total().us;
  double making = 0, last = before;
  for (int i = 0; i < 10; ++i) {
    const auto from = clock::now();
    const std::string text = profile.json(), table = profile.report();
    making += us(clock::now() - from);
    CHECK(nlohmann::json::parse(text)["total"]["us"] >= last);
    last = profile.total().us;
  }
  CHECK(last - before < us(clock::now() - begin) - making / 2);
}

TEST_SUITE_BEGIN("host");

TEST_CASE("profile: an op in a replay and by itself is one row") {
  auto step = brrr::step([](const Tensor& x) { return x.sum(); });
  const Tensor x = randn({1000});
  for (int i = 0; i < 3; ++i) step(x);
  Profile p;
  step(x);
  (void)x.sum();
  const auto rows = p.rows();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].op == "sum");
  CHECK(rows[0].calls == 2);
}

TEST_CASE("profile: reset() starts over") {
  const Tensor x = ones({3});
  Profile profile;
  exp(x), exp(x);
  REQUIRE(profile.rows().size() == 1);
  CHECK(profile.rows()[0].calls == 2);
  profile.reset();
  CHECK(profile.rows().empty());
  log(x);
  REQUIRE(profile.rows().size() == 1);
  CHECK(profile.rows()[0].op == "log");
}

TEST_CASE("profile: it cannot be paused while a step is recorded, which runs later") {
  Profile profile;
  auto s = step([&](const Tensor& x) {
    profile.pause();
    return exp(x);
  });
  CHECK_THROWS_WITH_AS(s(ones({3})), doctest::Contains("call it outside"), Error);
  exp(ones({3}));
  CHECK(!profile.rows().empty());
}

TEST_CASE("profile: one that ends or pauses within a step that checks numerics leaves it intact") {
  auto profile = std::make_unique<Profile>();
  auto s = step(
      [&](const Tensor& x) {
        CHECK_THROWS_WITH_AS(profile->pause(), doctest::Contains("call it outside"), Error);
        profile.reset();
        return exp(x);
      },
      StepOptions{.mode = Mode::Eager, .check_numerics = true});
  s(ones({3}));
  CHECK(context.observer == nullptr);
  CHECK(exp(zeros({1})).item<float>() == 1);
}

TEST_SUITE_END();
