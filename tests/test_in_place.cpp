// In-place writes and the histories of their targets; windows at the limits of the integers.
#include <brrr/brrr.h>
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <climits>
#include <filesystem>
#include <string>

#include "tests/temp_dir.h"

using namespace brrr;
using test::error_of;

namespace {

// The gradient of w after `fn`, which builds a loss from it.
std::vector<float> gradient(const std::function<Tensor(const Tensor&)>& fn) {
  Tensor w = tensor({1.f, 2.f});
  w.set_requires_grad();
  fn(w).backward();
  return w.grad().defined() ? w.grad().to_vector<float>() : std::vector<float>();
}

}  // namespace

TEST_CASE("pitfall A19: overwriting a tensor cuts its history") {
  const std::vector<float> zero{0, 0}, one{1, 1};
  const Tensor c = ones({2});
  CHECK(gradient([&](const Tensor& w) {
          const Tensor y = w * 1.0;
          y.zero_();
          CHECK_FALSE(y.requires_grad());
          return (y + 0.0 * w).sum();
        }) == zero);
  CHECK(gradient([&](const Tensor& w) {
          const Tensor y = w * 1.0;
          y.fill_(3);
          return (y + w).sum();
        }) == one);
  CHECK(gradient([&](const Tensor& w) {
          const Tensor y = w * 1.0;
          y.copy_(c);
          return (y + w).sum();
        }) == one);
  CHECK(gradient([&](const Tensor& w) {
          const Tensor y = w * 5.0;
          y.copy_(w * 2.0);
          return y.sum();
        }) == std::vector<float>{2, 2});
  // Without grad mode the write is not part of the history, as in PyTorch.
  CHECK(gradient([&](const Tensor& w) {
          const Tensor y = w * 3.0;
          {
            NoGradGuard guard;
            y.zero_();
          }
          return y.sum();
        }) == std::vector<float>{3, 3});
}

TEST_CASE("pitfall A19: a write that would leave a view's history wrong is refused") {
  const Tensor w = ones({2});
  w.set_requires_grad();
  const Tensor y = w * 1.0, b = zeros({2, 2});
  CHECK(error_of([&] { y.slice(0, 0, 1).zero_(); }).find("fill_") == std::string::npos);
  CHECK(error_of([&] { y.slice(0, 0, 1).zero_(); }).find("view") != std::string::npos);
  CHECK(error_of([&] { b.select(0, 0).copy_(w); }).find("view") != std::string::npos);
  CHECK(b.to_vector<float>() == std::vector<float>(4, 0.f));
  CHECK(y.to_vector<float>() == std::vector<float>(2, 1.f));
  b.select(0, 0).copy_(w.detach());  // No gradient flows: fine.
  CHECK(b.to_vector<float>() == std::vector<float>{1, 1, 0, 0});

  // A view without history would miss the one that its base gets.
  const Tensor c = zeros({2});
  {
    const Tensor v = c.slice(0, 0, 1);
    CHECK(error_of([&] { c.copy_(w); }).find("view") != std::string::npos);
    CHECK(error_of([&] { c.add_(w); }).find("view") != std::string::npos);
    c.add_(1.0);  // No gradient flows.
    CHECK(v.item<float>() == 1);
  }
  c.add_(w);  // No view is left.
  CHECK(c.requires_grad());
  const Tensor z = w * 2.0;
  Tensor cut;
  {
    const NoGradGuard guard;
    cut = z.select(0, 0).unsqueeze(0);
    cut.mul_(1.0);
  }
  CHECK(error_of([&] { cut.mul_(5.0); }).find("NoGradGuard") != std::string::npos);
  cut.detach().mul_(5.0);  // An explicit detach is allowed.
}

TEST_CASE("pitfall A19: views that only a step's journal keeps do not block writes") {
  const auto run = [](Mode mode, bool old_tape, bool held) {
    Tensor w = ones({4}), buffer = zeros({4}), loss, kept;
    w.set_requires_grad();
    if (old_tape) {
      Tensor v = buffer.reshape({2, 2});
      v.set_requires_grad();
      loss = (v * v).sum();
      if (held) kept = v;
    }
    auto step = brrr::step(
        [&] {
          if (old_tape) {
            loss.backward();
            loss = {};
          } else {
            Tensor v = buffer.reshape({2, 2});
            v.set_requires_grad();
            if (held) kept = v;
          }
          buffer.add_(w);
          return buffer * 2.0;
        },
        mode);
    return error_of([&] { step(); });
  };
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    for (const bool old_tape : {false, true}) {
      CHECK(run(mode, old_tape, false) == "");
      CHECK(run(mode, old_tape, true).find("view") != std::string::npos);
    }
  }
}

TEST_CASE("pitfall A19: nor do views of a history or gradient that only the journal keeps") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    Tensor b = tensor({1.f, 2.f, 3.f, 4.f});
    const Tensor all = ones({4}).set_requires_grad();
    Tensor w = tensor({1.f, 2.f}).set_requires_grad(), c = tensor({1.f, 2.f}).set_requires_grad();
    Tensor state = w * b.slice(0, 0, 2);
    auto overwrites = brrr::step(
        [&](const Tensor& x) {
          state.copy_(x);
          b.mul_(all);
          b = b.detach();
          state.add_(w * b.slice(0, 0, 2));
          return x * 1.0;
        },
        mode);
    for (int call = 0; call < 3; ++call) CHECK(error_of([&] { overwrites(ones({2})); }) == "");
    {
      const Tensor v = b.slice(0, 0, 2);
      backward({(w * w * (v * c)).sum()}, {}, {.create_graph = true});
    }
    state = {};
    auto forgets = brrr::step(
        [&](const Tensor& x) {
          w.set_grad({}), c.set_grad({});
          b.mul_(all);
          return x * 1.0;
        },
        mode);
    CHECK(error_of([&] { forgets(ones({2})); }) == "");
    b = b.detach();
    Tensor held = b.slice(0, 0, 2);
    state = w * held;
    CHECK(error_of([&] { overwrites(ones({2})); }).find("view") != std::string::npos);
  }
}

TEST_CASE("set_grad: a tensor is not its own gradient") {
  const Tensor w = ones({2}).set_requires_grad();
  CHECK(error_of([&] { w.set_grad(w); }).find("its own gradient") != std::string::npos);
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("views: reshaping to the same shape gives a view, not the tensor itself") {
  const Tensor x = ones({2, 3}), w = ones({3}).set_requires_grad();
  for (const Tensor& y : {x.reshape({2, 3}), x.view({2, 3}), x.squeeze(0)}) {
    y.set_requires_grad();
    CHECK_FALSE((x.requires_grad() || y.is_same(x)));
  }
  x.reshape({2, -1}).add_(1.0);  // Its memory is shared.
  CHECK(x.to_vector<float>() == std::vector<float>(6, 2.f));
  (w.reshape({3}) * 2.0).sum().backward();
  CHECK(w.grad().to_vector<float>() == std::vector<float>{2, 2, 2});
  const NoGradGuard guard;
  CHECK_FALSE(w.reshape({3}).requires_grad());
  w.reshape({3}).sub_(w.grad());
  CHECK(w.to_vector<float>() == std::vector<float>{-1, -1, -1});
}

TEST_CASE("set_grad: an expanded gradient can be written like any other") {
  const Tensor v = ones({2}).set_requires_grad(), w = ones({2}).set_requires_grad();
  v.set_grad(ones({2}));
  w.set_grad(ones({1}).expand({2}));
  (v * w).sum().backward();
  for (const Tensor& t : {v, w}) CHECK(t.grad().to_vector<float>() == std::vector<float>{2, 2});
  w.set_grad(ones({1}).expand({2}));
  w.grad().mul_(3.0);
  CHECK(w.grad().to_vector<float>() == std::vector<float>{3, 3});
}

TEST_CASE("pitfall A19: views that ops make internally do not block writes") {
  const std::vector<std::function<Tensor(const Tensor&)>> ops = {
      [](const Tensor& h) {
        return stack({h, h});
      },
      [](const Tensor& h) { return softmax(h, 0); },
      [](const Tensor& h) { return log_softmax(h, 0); },
      [](const Tensor& h) { return sort(h, 0).first; },
      [](const Tensor& h) {
        return einsum("ij,kj->ik", {h, ones({2, 2})});
      }};
  for (const auto& op : ops) {
    for (const Mode mode : {Mode::Eager, Mode::Graph}) {
      Tensor w = tensor({{1.f, 2.f}, {3.f, 5.f}});
      w.set_requires_grad();
      auto step = brrr::step(
          [&] {
            w.set_grad({});
            const Tensor h = w * 1.0, y = op(h).sum();
            h.add_(1.0);
            (y + h.sum()).backward();
            return w.grad().clone();
          },
          mode);
      for (int call = 0; call < 3; ++call) CHECK(step().sizes() == IntList{2, 2});
    }
  }
}

TEST_CASE("pitfall A19: a gradient that reads an overwritten tensor") {
  const auto of = [](const std::function<Tensor(const Tensor&, const Tensor&)>& fn, Mode mode) {
    Tensor x = tensor({1.f, -2.f}), w = tensor({3.f, 0.5f});
    x.set_requires_grad();
    w.set_requires_grad();
    auto step = brrr::step(
        [&] {
          x.set_grad({});
          w.set_grad({});
          fn(x, w).sum().backward();
          return std::pair(x.grad().clone(), w.grad().clone());
        },
        mode);
    for (int call = 0; call < 2; ++call) step();
    const auto [gx, gw] = step();
    std::vector<float> all = gx.to_vector<float>();
    for (const float g : gw.to_vector<float>()) all.push_back(g);
    return all;
  };
  using All = std::vector<float>;
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    CHECK(of([](auto& x, auto& w) { return (x + 1.0).mul_(w); }, mode) == All{3, 0.5, 2, -1});
    CHECK(of([](auto& x, auto& w) { return ones({2}).mul_(w) + x; }, mode) == All{1, 1, 1, 1});
    CHECK(of(
              [](auto& x, auto& w) {
                Tensor h = x + 1.0;
                h *= w;
                return h * w;
              },
              mode) == All{9, 0.25, 12, -1});
    CHECK(of(
              [](auto& x, auto& w) {
                Tensor h = x + w;
                return h.mul_(h);
              },
              mode) == All{8, -3, 8, -3});
    CHECK(of([](auto& x, auto& w) { return (x * x).clamp_(0.0, 2.0) + w; }, mode) ==
          All{2, 0, 1, 1});
    CHECK(of([](auto& x, auto& w) { return (x + 1.0).div_(w); }, mode) ==
          All{1.f / 3, 2, -(2.f / 3) / 3, 4});
    CHECK(of([](auto& x, auto& w) { return (x / w).mul_(w); }, mode) == All{1, 1, 0, 0});
    CHECK(of(
              [](auto& x, auto& w) {
                Tensor h = x + w;
                return h.div_(h) + x;
              },
              mode) == All{1, 1, 0, 0});
  }
}

TEST_CASE("pitfall A19: an op's result is not a view of a tensor that it keeps internally") {
  using Op = std::function<Tensor(const Tensor&)>;
  const Tensor b = tensor({{1.f, 2.f}, {3.f, 4.f}});
  const Op ops[] = {[](const Tensor& x) { return x.logsumexp({-1}); },
                    [](const Tensor& x) { return x.logsumexp({0}); },
                    [](const Tensor& x) { return x.var({-1}); },
                    [](const Tensor& x) { return x.var({}); },
                    [](const Tensor& x) { return max_with_indices(x, 0).first; },
                    [&](const Tensor& x) {
                      return einsum("ij,jk->ki", {x, b});
                    },
                    [](const Tensor& x) {
                      return sum_to(x.unsqueeze(0), {1, 2});
                    },
                    [](const Tensor& x) { return x.t().reshape({-1}); }};
  for (const Op& op : ops) {
    for (const Mode mode : {Mode::Eager, Mode::Graph}) {
      Tensor x = tensor({{1.f, 5.f}, {2.f, -3.f}});
      x.set_requires_grad();
      const auto of = [&](bool in_place) {
        return brrr::step(
            [&x, &op, in_place](const Tensor& by) {
              const Tensor y = op(x);
              x.set_grad({});
              (in_place ? y.mul_(by).add_(1.0) : y * by + 1.0).square().sum().backward();
              return x.grad().clone();
            },
            mode);
      };
      auto plain = of(false), in_place = of(true);
      for (const float by : {2.f, 3.f, 4.f}) {
        const std::vector<float> expected = plain(tensor(by)).to_vector<float>();
        CHECK(in_place(tensor(by)).to_vector<float>() == expected);
      }
    }
  }
  Tensor x = ones({2, 2});
  x.set_requires_grad();
  const Tensor y = x * 1.0;
  CHECK_THROWS_AS(y.reshape({4}).mul_(2.0), Error);
  CHECK_THROWS_AS(einsum("ij->ji", {y}).mul_(2.0), Error);
}

TEST_CASE("pitfall A19: eager and graph agree on overwritten history") {
  auto run = [](Mode mode) {
    Tensor w = tensor({1.f, 2.f});
    w.set_requires_grad();
    auto step = brrr::step(
        [&](const Tensor& x) {
          w.set_grad({});
          const Tensor y = w * x;
          y.copy_(x);
          const Tensor loss = (y * w).sum();
          loss.backward();
          return loss.detach();
        },
        StepOptions{.mode = mode, .build_at_first_call = true});
    std::vector<float> all;
    for (int k = 0; k < 3; ++k) {
      step(tensor({3.f, 4.f + static_cast<float>(k)}));
      for (float g : w.grad().to_vector<float>()) all.push_back(g);
    }
    return all;
  };
  CHECK(run(Mode::Eager) == run(Mode::Graph));
  CHECK(run(Mode::Graph) == std::vector<float>{3, 4, 3, 5, 3, 6});
}

TEST_CASE("pitfall A22: a batch cut from a captured data set inside the step") {
  const Tensor data = arange(60.0), w = ones({5});
  int at = 0;
  auto step =
      brrr::step([&](const Tensor& x) { return (data.slice(0, at * 5, at * 5 + 5) * w + x).sum(); },
                 StepOptions{.build_at_first_call = true});
  for (; at < 12; ++at) {
    CHECK(step(zeros({1})).item<float>() == doctest::Approx(25 * at + 10));
  }
  CHECK(step.stats().recordings <= 2);
}

TEST_CASE("views: sizes, strides and steps at the limits of the integers") {
  const Tensor a = arange(4.0);
  for (const auto& at :
       std::vector<std::pair<IntList, IntList>>{{{2, 2}, {INT64_MAX, 1}},
                                                {{int64_t{1} << 33, 1}, {int64_t{1} << 31, 1}},
                                                {{3}, {int64_t{1} << 62}},
                                                {{2}, {4}}}) {
    CHECK(error_of([&] { as_strided(a, at.first, at.second, 0); }).find("as_strided") == 0);
  }
  const IntList ones(std::vector<int64_t>(7, 1));
  CHECK(error_of([&] { as_strided(a, ones, ones, 0); }).find("at most 6") != std::string::npos);
  CHECK(error_of([&] { as_strided(a, {1}, {1}, INT64_MAX); }).find("as_strided") == 0);
  CHECK(a.slice(0, INT64_MIN, INT64_MAX, INT64_MAX).to_vector<float>() == std::vector<float>{0});
  CHECK(a.slice(0, 1, 4, INT64_MAX).to_vector<float>() == std::vector<float>{1});
  CHECK(a.slice(0, 0, 4, 3).to_vector<float>() == std::vector<float>{0, 3});
}

TEST_CASE("save: keeps a file's mode and replaces nothing but regular files") {
  const test::TemporaryDirectory dir;
  const std::string file = dir.file("a.safetensors"), pipe = dir.file("pipe");
  const StateDict dict{{"x", ones({2})}};
  save(file, dict);
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  save(file, dict);
  CHECK(std::filesystem::status(file).permissions() == std::filesystem::perms(0600));
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error_of([&] { save(pipe, dict); }).find("not a regular file") != std::string::npos);
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("requires_grad_ is set_requires_grad") {
  const Tensor x = ones({2});
  CHECK(x.requires_grad_().is_same(x));
  CHECK(x.requires_grad());
  (x * 3.0).sum().backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{3, 3});
  CHECK(!x.requires_grad_(false).requires_grad());
  CHECK(!(x * 3.0).requires_grad());
  CHECK(x.set_requires_grad(true).requires_grad());
  CHECK(error_of([] { arange(3).requires_grad_(); }).find("only floating tensors") !=
        std::string::npos);
  CHECK(error_of([&] { (x * 2.0).requires_grad_(false); }).find("detach()") != std::string::npos);
  // A change inside a step that throws is undone, by either name.
  auto s = step([&] {
    x.requires_grad_(false);
    ones({2}) + ones({3});
  });
  CHECK_THROWS_AS(s(), Error);
  CHECK(x.requires_grad());
}
