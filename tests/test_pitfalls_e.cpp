// Use and debugging: what users can see of a step and query.
#include <memory>

#include "pitfalls.h"
#include "temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// A named two-layer net, its optimiser and a step over both.
struct Net : models::Module {
  models::Linear fc1{6, 8}, fc2{8, 3};
  Net() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

/// A compiler wrapper that changes each source by a sed command before it compiles it.
std::string lying_compiler(const TempCache& cache, const std::string& change) {
  const std::string liar = cache.dir + "/liar";
  const char* real = std::getenv("BRRR_CXX") ? std::getenv("BRRR_CXX") : "c++";
  write_text(liar, "#!/bin/sh\nfor f in \"$@\"; do case \"$f\" in *.cpp|*.cc) sed -i '" + change +
                       "' \"$f\";; esac; done\nexec " + real + " \"$@\"\n");
  fs::permissions(liar, fs::perms::owner_all);
  return liar;
}

}  // namespace

TEST_CASE("pitfall E1: why it recompiled: the closest entry, the field, the module path") {
  Net net;
  models::Module root;
  root.register_module("net", net);
  double slope = 0.5;
  bool doubled = false;
  auto step = brrr::step([&](const Tensor& x) {
    Tensor h = net(x);
    if (doubled) h = h.to(kFloat64);
    return (h * slope).sum();
  });
  const auto why = [&] { return step.stats().last_difference; };
  step(randn({4, 6}));
  CHECK(why().empty());
  step(randn({5, 6}));
  CHECK(contains(why(), "net.fc1"));
  CHECK(contains(why(), "operand"));
  CHECK(contains(why(), "float32[4, 6], found float32[5, 6]"));
  slope = 0.25;
  step(randn({5, 6}));
  CHECK(contains(why(), "scalar was 0.5, now 0.25"));
  doubled = true;
  step(randn({5, 6}));
  CHECK(contains(why(), "op differs"));
  doubled = false;
  step(randn({6, 4}).t());
  CHECK(contains(why(), "strides"));
  for (const char* part : {"new recording", "net.fc1", "now 0.25", "strides"}) {
    CHECK(contains(step.explain(), part));
  }
  Tensor kept;
  bool keep = false;
  auto lives = brrr::step([&](const Tensor& x) {
    Tensor h = x.exp();
    if (keep) kept = h;
    return h * 2.0;
  });
  lives(ones({2}));
  keep = true;
  lives(ones({2}));
  CHECK(contains(lives.stats().last_difference, "outlive"));
  int64_t n = 8;
  auto draws = brrr::step([&] { return randn({3, n}) * 2.0; });
  draws();
  n = 5;
  draws();
  CHECK(contains(draws.stats().last_difference, "(randn): size 1 was 8, now 5"));
}

TEST_CASE("pitfall E1: parameters that are swapped, and one that replaces another") {
  models::Linear a(6, 6), b(6, 6);
  models::Module root;
  root.register_module("a", a);
  root.register_module("b", b);
  models::Linear *first = &a, *second = &b;
  const auto body = [&](const Tensor& x) { return (*second)((*first)(x)); };
  auto named = brrr::step(body);
  const Tensor x = randn({4, 6});
  for (int i = 0; i < 3; ++i) CHECK(same_bits(named(x), body(x)));
  // One recording serves both, because recordings contain no addresses.
  std::swap(first, second);
  CHECK(same_bits(named(x), body(x)));
  CHECK(named.stats().recordings == 1);
  CHECK(named.stats().last_difference.empty());
  CHECK(!contains(named.explain(), "new recording"));
  // Two tensors became one: the second module's weight is the first one's.
  second = first;
  CHECK(same_bits(named(x), body(x)));
  CHECK(named.stats().recordings == 2);
  const std::string why = named.stats().last_difference;
  CHECK_MESSAGE(contains(why, "found another tensor of that shape"), why);
  CHECK_MESSAGE(contains(why, "operand 1"), why);
  CHECK_MESSAGE(contains(why, "(b: linear)"), why);
  CHECK(contains(named.explain(), "new recording: " + why));
}

TEST_CASE(
    "pitfall E1: a scalar of any op is printed as a number; endless recordings are reported") {
  double smoothing = 0.125;
  const Tensor buffer = zeros({64, 4}), ids = arange(4);
  int64_t at = 0;
  auto loss = brrr::step(
      [&](const Tensor& x) { return cross_entropy(x, ids, {.label_smoothing = smoothing}); });
  loss(randn({4, 4}));
  smoothing = 0.25;
  loss(randn({4, 4}));
  CHECK(contains(loss.stats().last_difference, "was 0.875, now 0.75"));
  // All digits of an integer, however large.
  int64_t far = -1;
  auto whole = brrr::step([&](const Tensor& x) { return x + far; });
  whole(arange(3));
  far = -(int64_t{1} << 60) - 1;
  whole(arange(3));
  CHECK(contains(whole.stats().last_difference, "scalar was -1, now -1152921504606846977"));
  auto ring = brrr::step(
      [&](const Tensor& x) {
        buffer.select(0, at++ % 64).copy_(x);
        return buffer.sum(0);
      },
      StepOptions{.max_entries = 4});
  for (int call = 0; call < 7; ++call) ring(randn({4}));
  CHECK(!contains(ring.explain(), "ninth call"));
  ring(randn({4}));
  CHECK(contains(ring.explain(), "more than every ninth call made a recording"));
  // Also if many calls find a recording: six sizes in irregular order.
  auto sizes = brrr::step([](const Tensor& x) { return x.sum(); },
                          StepOptions{.max_entries = 4, .fuse = false});
  for (int call = 0; call < 60; ++call) sizes(zeros({1 + call * call % 11}));
  CHECK(sizes.stats().replays > 20);
  CHECK(contains(sizes.explain(), "more than every ninth call made a recording"));
  // Frozen calls count, too.
  auto lengths = brrr::step([](const Tensor& x) { return x.sum(); },
                            StepOptions{.max_entries = 2, .fuse = false});
  for (int call = 0; call < 100; ++call) {
    lengths(zeros({1 + call / 20}));
    if (call == 0) lengths.freeze();
  }
  CHECK(!contains(lengths.explain(), "ninth call"));
  // A fallback is reported, however many differences were reported before.
  auto many = brrr::step([](const Tensor& x, const Tensor& y) { return x + y; });
  for (int n = 1; n < 80; ++n) many(zeros({n}), zeros({n}));
  const float one = 1;
  many(from_blob(&one, {1}, kFloat32, false), from_blob(&one, {1}, kFloat32, false));
  CHECK(contains(many.explain(), "fallback to the reference walker"));
}

TEST_CASE("pitfall E3: a debug run names the first op that is not finite") {
  Net net;
  models::Module root;
  root.register_module("net", net);
  auto step = brrr::step([&](const Tensor& x) { return (net(x) * 2.0).log().sum() + 1.0; },
                         StepOptions{.check_numerics = true});
  const std::string text = error_of([&] { step(randn({4, 6})); });
  CHECK(contains(text, "not finite"));
  CHECK(contains(text, "log("));
  auto deep = brrr::step([&](const Tensor& x) { return net(x).sum(); },
                         StepOptions{.check_numerics = true});
  Tensor x = randn({4, 6});
  CHECK(deep(x).numel() == 1);
  x.select(0, 2).fill_(std::numeric_limits<double>::infinity());
  const std::string where = error_of([&] { deep(x); });
  CHECK(contains(where, "net.fc1"));
  // State is unchanged: the update of a bad step has no effect.
  Tensor w = ones({3});
  auto update = brrr::step(
      [&](const Tensor& g) {
        w.sub_(g);
        return (w / 0.0).sum();
      },
      StepOptions{.check_numerics = true});
  CHECK(contains(error_of([&] { update(ones({3})); }), "div"));
  CHECK(same_bits(w, ones({3})));
  CHECK(w.version() == 0);
}

TEST_CASE("pitfall E5: verify_every runs a shadow") {
  auto scenario = [](const StepOptions& options, Trace& t) {
    StepOptions o = options;
    o.verify_every = o.mode == Mode::Graph ? 2 : 0;
    models::MLP model(small_mlp(0.4));
    optim::AdamW opt(model.parameters(), {.lr = 1e-2});
    Tensor average = zeros({6});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          average.mul_(0.5).add_(x.mean({0}));
          Tensor loss = cross_entropy(model(x), y);
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        o);
    for (int i = 0; i < 9; ++i) t.add(step(randn({4, 6}), randint(0, 3, {4})));
    t.add_leaves(model.parameters());
    t.add_state(opt.state_dict());
    t.add(average);
    if (o.mode == Mode::Graph) {
      CHECK(step.stats().verified == 4);
      CHECK(contains(step.explain(), "verified"));
    }
  };
  same_in_all_modes(scenario);
}

TEST_CASE("pitfall E5: verify_every finds a wrong kernel" * doctest::test_suite("host")) {
  // A compiler that builds wrong kernels: x * 3 where the source says x * 2.
  TempCache cache;
  const std::string liar = lying_compiler(cache, "s/0x1\\.8p[+]*0/0x1.9p+0/g");
  const Env compiler("BRRR_CXX", liar.c_str());
  Tensor state = ones({5});
  auto wrong = brrr::step(
      [&](const Tensor& x) {
        state.add_(x * 1.5);
        return x * 1.5 + 1.0;
      },
      StepOptions{.verify_every = 1, .build_at_first_call = true});
  const std::string text = error_of([&] { wrong(ones({5})); });
  CHECK(contains(text, "verify_every"));
  CHECK(contains(text, "differ"));
  CHECK(same_bits(state, ones({5})));
  CHECK(wrong.stats().verified == 0);
}

TEST_CASE("pitfall E5: verify_every poisons outputs before the replay" *
          doctest::test_suite("host")) {
  // A compiler that omits the writes of the last elements, which memory that already holds the
  // right ones would hide.
  TempCache cache;
  const std::string liar = lying_compiler(cache, "s/^ *store_n[(]p[0-9].*$//");
  const Env compiler("BRRR_CXX", liar.c_str());
  const auto body = [](const Tensor& x) { return x * 1.5; };
  const Tensor x = ones({69});
  auto wrong = brrr::step(body, StepOptions{.verify_every = 1, .build_at_first_call = true});
  { const std::vector<Tensor> right = {body(x), body(x), body(x), body(x)}; }
  const std::string text = error_of([&] { wrong(x); });
  CHECK_MESSAGE(contains(text, "verify_every: replay and eager differ"), text);
  CHECK_MESSAGE(contains(text, "element 64"), text);
  CHECK(wrong.stats().verified == 0);
}

TEST_CASE("pitfall E6: nothing has to be declared") {
  // State of every kind, captured and never listed.
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Tensor counter = zeros({}, kInt64), mean = zeros({3}), last;
    std::vector<Tensor> ring(3);
    Tensor w = ones({3});
    w.set_requires_grad(true);
    optim::SGD opt({w}, {.lr = 0.1, .momentum = 0.5});
    int calls = 0;
    auto step = brrr::step(
        [&](const Tensor& x) {
          counter.add_(1);
          mean = mean + (x - mean) * 0.1;
          const size_t at = static_cast<size_t>(calls++ % 3);
          if (ring[at].defined()) last = ring[at] + x;
          ring[at] = x * w.detach();
          opt.zero_grad();
          ((w - x) * (w - x)).sum().backward();
          opt.step();
        },
        options);
    for (int i = 0; i < 12; ++i) {
      step(randn({3}));
      t.add({counter, mean, last});
      t.add(ring);
      t.add_leaves({w});
    }
  });
}

TEST_CASE("pitfall E7: require_graph throws with the reason; everything is counted" *
          doctest::test_suite("host")) {
  TempCache cache;
  auto body = [](const Tensor& x) { return (x * 2.0 + 1.0).tanh(); };
  {
    Env off("BRRR_JIT", "off");
    auto step = brrr::step(body, StepOptions{.require_graph = true, .build_at_first_call = true});
    for (int i = 0; i < 2; ++i) {
      const std::string text = error_of([&] { step(ones({3})); });
      CHECK(contains(text, "require_graph"));
      CHECK(contains(text, "BRRR_JIT"));
    }
    auto soft = brrr::step(body, kEarly);
    for (int i = 0; i < 3; ++i) CHECK(same_bits(soft(ones({3})), body(ones({3}))));
    CHECK(soft.stats().fallbacks == 3);
    CHECK(soft.stats().replays == 0);
    CHECK(contains(soft.stats().last_fallback, "BRRR_JIT"));
    CHECK(contains(soft.explain(), "3 fallbacks"));
    soft.freeze();
    soft(ones({3}));
    CHECK(soft.stats().fallbacks == 4);
  }
  auto step = brrr::step(
      body, StepOptions{
                .require_graph = true, .on_new_entry = Policy::Eager, .build_at_first_call = true});
  CHECK(step(ones({3})).defined());
  CHECK(contains(error_of([&] { step(ones({4})); }), "require_graph"));
  CHECK(step(ones({3})).defined());
  const StepStats s = step.stats();
  CHECK(s.calls == 3);
  CHECK(s.replays == 2);
  CHECK(contains(step.explain(), "2 replays"));
}

TEST_CASE("pitfall E8: an error for a placeholder read after its step names its origin") {
  Tensor leaked, alias, grown = ones({2});
  bool fail = true;
  auto step = brrr::step(
      [&](const Tensor& x) {
        leaked = x.exp() * 2.0;
        alias = leaked.slice(0, 0, 2);
        if (fail) throw std::runtime_error("user");
        return leaked.sum();
      },
      kEarly);
  for (int round = 0; round < 2; ++round) {
    fail = true;
    CHECK_THROWS_AS(step(ones({3})), std::runtime_error);
    const std::function<void()> uses[] = {[&] { leaked.item<float>(); },
                                          [&] { leaked.to_vector<float>(); },
                                          [&] { leaked.data_ptr(); },
                                          [&] { leaked.to_string(); },
                                          [&] { leaked + 1.0; },
                                          [&] { ones({3}) + leaked; },
                                          [&] { alias.exp(); },
                                          [&] { alias.to_vector<float>(); },
                                          [&] { leaked.zero_(); },
                                          [&] { leaked.fill_(1.0); },
                                          [&] { leaked.copy_(ones({3})); },
                                          [&] { ones({3}).copy_(leaked); },
                                          [&] { leaked.add_(1.0); },
                                          [&] { alias.mul_(2.0); },
                                          [&] { ones({3}).add_(leaked); },
                                          [&] { leaked.clone(); },
                                          [&] { leaked.slice(0, 0, 1); },
                                          [&] { step(leaked); },
                                          [&] {
                                            cat({leaked, alias});
                                          },
                                          [&] { leaked.matmul(leaked); }};
    int n = 0;
    for (const auto& use : uses) {
      CAPTURE(n++);
      const std::string text = error_of(use);
      CHECK(contains(text, "temporary of a recorded step (made by"));
      CHECK(contains(text, "that threw"));
      CHECK(contains(text, "made by mul"));
    }
    CHECK(leaked.numel() == 3);  // Metadata is still readable.
    fail = false;
    CHECK(step(ones({3})).numel() == 1);
    CHECK(leaked.to_vector<float>().size() == 3);
    CHECK(same_bits(alias, leaked.slice(0, 0, 2)));
  }
  // Also after the step itself is destroyed, and from an inner step.
  {
    auto gone = std::make_unique<Step<std::function<Tensor(const Tensor&)>>>(
        [&](const Tensor& x) -> Tensor {
          leaked = x + 1.0;
          throw std::runtime_error("user");
        },
        kEarly);
    CHECK_THROWS_AS((*gone)(ones({3})), std::runtime_error);
  }
  CHECK(contains(error_of([&] { leaked.item<float>(); }), "made by add"));
}

TEST_CASE("pitfall E7: steps that do nothing, or return their arguments") {
  auto none = brrr::step([] {}, kEarly);
  auto same = brrr::step([](const Tensor& x) { return x; }, kEarly);
  auto undefined = brrr::step([](const Tensor&) { return Tensor(); }, kEarly);
  const Tensor x = ones({2});
  for (int i = 0; i < 3; ++i) {
    none();
    CHECK(same(x).is_same(x));
    CHECK_FALSE(undefined(x).defined());
  }
  none.freeze();
  none();
  CHECK(none.stats().replays == 4);
  CHECK(contains(error_of([&] { same.freeze(); }), "not made by the step"));
  CHECK(contains(none.dot(), "digraph"));
  auto eager = brrr::step([] {}, Mode::Eager);
  eager();
  CHECK(contains(error_of([&] { eager.dot(); }), "an eager step has no graph"));
  CHECK(contains(error_of([&] { eager.source(); }), "step.source: an eager step has no graph"));
}
