// Generation: the cache against the whole forward pass, both modes, sampling.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "core/autocast.h"
#include "models/generate.h"
#include "ops/library_ops.h"
#include "ops/reduction_ops.h"
#include "tests/op_cases.h"
#include "tests/sanitizer.h"

using namespace brrr;
using namespace brrr::test;
using models::generate;
using models::GenerateOptions;
using models::Generator;
using models::GPT;
using models::GPTOptions;
using models::sample;

namespace {

using Ids = std::vector<int64_t>;

const doctest::Contains kNotFinite("generate: the logits [1, 17] of row 0 are not finite");

std::vector<GPTOptions> kinds(int64_t block) {
  const GPTOptions learned = {
      .vocab = 17, .block = block, .layers = 2, .heads = 4, .width = 32, .dropout = 0.1};
  GPTOptions rotary = learned;
  rotary.positions = "rotary";
  rotary.activation = "swiglu";
  rotary.norm = "rms";
  rotary.tie_weights = false;
  return {learned, rotary};
}

// Makes predictions far from uniform, so that choices depend on the context.
void sharpen(const GPT& gpt) {
  NoGradGuard guard;
  manual_seed(21);
  for (const Tensor& p : gpt.parameters()) p.add_(randn(p.sizes()) * 0.2);
}

// Generation by definition, without a cache: the whole context every time.
Ids greedy(GPT& gpt, Ids context, int64_t tokens) {
  NoGradGuard guard;
  gpt.eval();
  const auto block = static_cast<size_t>(gpt.options().block);
  if (context.size() > block) context.erase(context.begin(), context.end() - gpt.options().block);
  Ids made;
  for (int64_t i = 0; i < tokens; ++i) {
    if (context.size() > block) {
      context.erase(context.begin(), context.end() - std::max<int64_t>(1, gpt.options().block / 2));
    }
    const Tensor logits = gpt(tensor(context).unsqueeze(0)).select(0, 0).select(0, -1);
    made.push_back(logits.argmax(0).item<int64_t>());
    context.push_back(made.back());
  }
  gpt.train();
  return made;
}

}  // namespace

TEST_CASE("generate: a position for which the cache has no slot is refused") {
  for (const GPTOptions& o : kinds(4)) {
    GPT gpt(o);
    const auto cache = gpt.make_cache();
    const Tensor id = zeros({1, 1}, kInt64);
    for (const int64_t at : {int64_t{-1}, int64_t{4}}) {
      CHECK_THROWS_AS(gpt.forward(id, full({1}, at, kInt64), cache), Error);
    }
    CHECK(cache.layers[0].keys.abs().sum().item<float>() == 0);
    gpt.forward(id, full({1}, 3, kInt64), cache);
  }
}

TEST_CASE("generate: logits with a cache are those without") {
  for (const GPTOptions& o : kinds(12)) {
    GPT gpt(o);
    sharpen(gpt);
    gpt.eval();
    const Tensor ids = randint(0, o.vocab, {3, 12});
    const Tensor whole = gpt(ids).detach();
    const auto cache = gpt.make_cache(3);
    for (int round = 0; round < 2; ++round) {  // A used cache serves a new sequence.
      for (int64_t t = 0; t < 12; ++t) {
        const Tensor one = gpt.forward(ids.narrow(1, t, 1), tensor(Ids{t}), cache);
        CHECK(one.sizes() == IntList{3, o.vocab});
        check_close(one, whole.select(1, t), 1e-5);
        CHECK_FALSE(one.requires_grad());
      }
    }
    CHECK_FALSE(cache.layers[0].keys.requires_grad());
  }
}

TEST_CASE("generate: 256 tokens are the same in both modes, from one recording") {
  for (int64_t block : {16, 272}) {  // The context is cut repeatedly, or never.
    for (const GPTOptions& o : kinds(block)) {
      GPT gpt(o);
      sharpen(gpt);
      GenerateOptions options = {.temperature = 0.9, .top_k = 12, .top_p = 0.95, .seed = 5};
      const Ids prompt = {3, 1, 4, 1, 5};
      const Ids eager = generate(gpt, prompt, options);
      CHECK(eager.size() == 256);
      CHECK(std::set<int64_t>(eager.begin(), eager.end()).size() > 5);
      options.mode = Mode::Graph;
      Generator graph(gpt, options);
      CHECK(graph(prompt) == eager);
      CHECK(graph.stats().recordings == 1);
      CHECK(graph.stats().fallbacks <= 1);
      // Prompts of other lengths use the same recording; the same prompt gives the same text again.
      CHECK(graph({2}).size() == 256);
      CHECK(graph(prompt) == eager);
      CHECK(graph.stats().recordings == 1);
    }
  }
}

TEST_CASE("generate: at temperature 0 each token is the likeliest one after its context") {
  for (int64_t block : {1, 2, 7, 16}) {
    for (const GPTOptions& o : kinds(block)) {
      CAPTURE(block);
      GPT gpt(o);
      sharpen(gpt);
      for (const Ids& prompt : {Ids{4}, Ids{9, 8, 7, 6, 5, 4, 3, 2, 1}}) {
        CHECK(generate(gpt, prompt, {.tokens = 40, .temperature = 0}) == greedy(gpt, prompt, 40));
      }
    }
  }
}

TEST_CASE("generate: works in other dtypes") {
  int turn = 0;
  for (DType t : {kFloat64, kBFloat16, kFloat16}) {
    for (const GPTOptions& o : kinds(8)) {
      if (turn++ % 2 && !long_tests()) continue;
      GPT gpt(o);
      sharpen(gpt);
      gpt.to(t);
      const GenerateOptions options = {.tokens = 20, .top_p = 0.9, .seed = 3};
      const Ids eager = generate(gpt, {1, 2}, options);
      GenerateOptions graph = options;
      graph.mode = Mode::Graph;
      CHECK(generate(gpt, {1, 2}, graph) == eager);
      gpt.loss(zeros({2, 8}, kInt64), ones({2, 8}, kInt64)).backward();
      CHECK(gpt.parameters()[0].grad().dtype() == t);
    }
  }
}

TEST_CASE("generate: the random stream, the module's mode and gradients stay the caller's") {
  GPT gpt(kinds(16)[0]);
  sharpen(gpt);
  manual_seed(40);
  const Ids own = generate(gpt, {1}, {.tokens = 30, .seed = 6});
  CHECK(rng_state().seed == 40);
  CHECK(rng_state().draw == 0);
  CHECK(gpt.is_training());
  CHECK(grad_enabled());
  CHECK(generate(gpt, {1}, {.tokens = 30, .seed = 6}) == own);
  const Ids more = generate(gpt, {1}, {.tokens = 400, .seed = 6});
  {
    const AutocastGuard autocast(kBFloat16);
    CHECK(generate(gpt, {1}, {.tokens = 400, .seed = 6}) == more);
  }
  CHECK(generate(gpt, {1}, {.tokens = 30, .seed = 7}) != own);
  const Ids global = generate(gpt, {1}, {.tokens = 30});
  CHECK(rng_state().draw > 0);
  CHECK(generate(gpt, {1}, {.tokens = 30}) != global);
  manual_seed(40);
  CHECK(generate(gpt, {1}, {.tokens = 30}) == global);
  gpt.eval();
  CHECK(generate(gpt, {1}, {.tokens = 0}).empty());
  CHECK_FALSE(gpt.is_training());
  // An error restores everything too.
  gpt.train();
  {
    const NoGradGuard guard;
    gpt.parameters()[0].fill_(std::nan(""));
  }
  CHECK(error_of([&] { generate(gpt, {1}, {.seed = 6}); }) != "");
  CHECK(gpt.is_training());
  CHECK(rng_state().seed == 40);
}

TEST_CASE("generate: on_token gets each id in order, and an exception from it ends the call") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    GPT gpt(kinds(16)[0]);
    sharpen(gpt);
    manual_seed(40);
    Ids received;
    size_t most = 1000;
    Generator g(gpt, {.tokens = 30, .seed = 6, .mode = mode, .on_token = [&](int64_t id) {
                        if (received.size() == most) throw std::runtime_error("enough");
                        received.push_back(id);
                      }});
    const Ids made = g({1, 2});
    CHECK(received == made);
    CHECK(generate(gpt, {1, 2}, {.tokens = 30, .seed = 6}) == made);
    received.clear();
    most = 20;  // The context has been cut before that.
    CHECK_THROWS_WITH_AS(g({1, 2}), "enough", std::runtime_error);
    CHECK(received == Ids(made.begin(), made.begin() + 20));
    CHECK(gpt.is_training());
    CHECK(rng_state().draw == 0);
    received.clear();
    most = 1000;
    CHECK(g({1, 2}) == made);
    CHECK(received == made);
  }
}

TEST_CASE("generate: after weights of NaN a Generator works as a new one") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    for (const GPTOptions& o : kinds(8)) {
      GPT gpt(o);
      sharpen(gpt);
      Generator used(gpt, {.tokens = 20, .temperature = 0, .mode = mode});
      const Ids made = used({1, 2, 3});
      StateDict good;
      for (const auto& [name, t] : gpt.state_dict()) good[name] = t.clone();
      {
        const NoGradGuard guard;
        for (const Tensor& p : gpt.parameters()) p.fill_(std::nan(""));
      }
      CHECK_THROWS_WITH_AS(used({1, 2, 3}), kNotFinite, Error);
      gpt.load_state_dict(good);
      CHECK(used({1, 2, 3}) == made);
      if (mode == Mode::Graph) CHECK(used.stats().recordings == 1);
    }
  }
}

TEST_CASE("sample: draws by the remaining weights") {
  manual_seed(8);
  const Tensor logits = tensor(std::vector<float>{0.5f, 0.2f, 0.15f, 0.1f, 0.05f}).log();
  const int64_t n = 40000;
  const auto frequencies = [&](const models::SampleOptions& o) {
    const Tensor ids = sample(logits.expand({n, 5}), o);
    CHECK(ids.dtype() == kInt64);
    CHECK(ids.sizes() == IntList{n});
    return (one_hot(ids, 5).to(kFloat64).sum({0}) / static_cast<double>(n)).to_vector<double>();
  };
  const auto near = [&](const std::vector<double>& got, const std::vector<double>& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      CHECK(std::fabs(got[i] - want[i]) < 0.012);  // Five standard deviations.
      if (want[i] == 0) CHECK(got[i] == 0);
    }
  };
  near(frequencies({}), {0.5, 0.2, 0.15, 0.1, 0.05});
  near(frequencies({.top_k = 2}), {5.0 / 7, 2.0 / 7, 0, 0, 0});
  near(frequencies({.top_k = 99}), {0.5, 0.2, 0.15, 0.1, 0.05});
  // 0.5 + 0.2 is not yet 0.8, so the third stays.
  near(frequencies({.top_p = 0.8}), {0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0});
  for (const double p : {1e-9, 1e-40, 1e-46}) near(frequencies({.top_p = p}), {1, 0, 0, 0, 0});
  near(frequencies({.top_k = 2, .top_p = 0.7}), {1, 0, 0, 0, 0});
  const double z = 0.25 + 0.04 + 0.0225 + 0.01 + 0.0025;
  near(frequencies({.temperature = 0.5}), {0.25 / z, 0.04 / z, 0.0225 / z, 0.01 / z, 0.0025 / z});
  near(frequencies({.temperature = 1e-300}), {1, 0, 0, 0, 0});
  near(frequencies({.temperature = 0}), {1, 0, 0, 0, 0});
  for (const double t : {1e39, 1e300}) near(frequencies({.temperature = t}), {.2, .2, .2, .2, .2});
  const Tensor barred = tensor({1.0f, -INFINITY});  // Never drawn.
  CHECK(sample(barred.expand({20, 2}), {.temperature = 1e39}).max().item<int64_t>() == 0);
  // Each row is drawn by its own logits.
  CHECK(sample(eye(4) * 100.0, {.top_k = 3}).to_vector<int64_t>() == Ids{0, 1, 2, 3});
}

TEST_CASE("sample, generate: logits that are not finite are named, however ids are chosen") {
  const float inf = INFINITY;
  const models::SampleOptions ways[] = {{}, {.top_k = 2}, {.top_p = 0.5}, {.temperature = 0}};
  for (const auto& o : ways) {
    for (const float bad : {std::nanf(""), inf}) {
      const Tensor logits = tensor({{0.0f, 1.0f, 2.0f}, {0.0f, bad, 1.0f}});
      CHECK(error_of([&] { sample(logits, o); }) ==
            "sample: the logits [2, 3] of row 1 are not finite; "
            "models::first_nonfinite(model) names the parameter");
    }
    CHECK(error_of([&] { sample(full({1, 3}, -inf), o); }).find("row 0") != std::string::npos);
    CHECK(sample(tensor({{-inf, 1.0f, -inf}}), o).item<int64_t>() == 1);
    CHECK(sample(ones({0, 3}), o).numel() == 0);
    for (const Mode mode : {Mode::Eager, Mode::Graph}) {
      GPT gpt(kinds(8)[0]);
      Ids received;
      Generator g(gpt, {.tokens = 12,
                        .temperature = o.temperature,
                        .top_k = o.top_k,
                        .top_p = o.top_p,
                        .mode = mode});
      Generator with_callback(gpt, {.temperature = o.temperature,
                                    .mode = mode,
                                    .on_token = [&](int64_t id) { received.push_back(id); }});
      g({1, 2});
      const NoGradGuard guard;
      for (const Tensor& p : gpt.parameters()) p.fill_(std::nan(""));
      CHECK_THROWS_WITH_AS(g({1, 2}), kNotFinite, Error);
      CHECK_THROWS_WITH_AS(with_callback({1, 2}), kNotFinite, Error);
      CHECK(received.empty());
    }
  }
}

TEST_CASE("generate: with a seed each thread has its own stream, and the global one goes on") {
  GPT gpt(kinds(16)[0]);
  sharpen(gpt);
  gpt.eval();
  const auto of = [&](uint64_t seed) { return generate(gpt, {1}, {.tokens = 12, .seed = seed}); };
  const Ids alone[] = {of(7), of(8)};
  manual_seed(3);
  const float next = rand({1}).item<float>();
  manual_seed(3);
  int differ = 0;
  std::thread other([&] {
    for (int k = 0; k < 20; ++k) differ += of(8) != alone[1];
  });
  int mine = 0;
  for (int k = 0; k < 20; ++k) mine += of(7) != alone[0];
  other.join();
  CHECK(differ + mine == 0);
  CHECK(rand({1}).item<float>() == next);
}

TEST_CASE("generate: wrong requests say what was expected") {
  GPT gpt(kinds(16)[0]);
  const auto with = [&](const GenerateOptions& o) {
    return error_of([&] { generate(gpt, {1}, o); });
  };
  CHECK(error_of([&] { generate(gpt, {}); }) ==
        "generate: the prompt is empty; give at least one token");
  CHECK(error_of([&] {
          generate(gpt, {3, 17});
        }) == "generate: token 17 of the prompt is not in [0, 17)");
  CHECK(error_of([&] { generate(gpt, {-1}); }).find("token -1") != std::string::npos);
  CHECK(with({.tokens = -1}).find("0 or more") != std::string::npos);
  CHECK(with({.temperature = -1}).find("temperature must be") != std::string::npos);
  CHECK(with({.temperature = std::nan("")}).find("got nan") != std::string::npos);
  CHECK(with({.top_k = -2}).find("top_k must be") != std::string::npos);
  CHECK(with({.top_p = 0}).find("top_p must be in (0, 1], got 0") != std::string::npos);
  CHECK(with({.top_p = 1.5}).find("got 1.5") != std::string::npos);
  CHECK(error_of([&] { sample(ones({3})); }).find("[rows, vocab]") != std::string::npos);
  const auto cache = gpt.make_cache();
  CHECK(error_of([&] { gpt.forward(zeros({1, 2}, kInt64), zeros({1}, kInt64), cache); }) != "");
  CHECK(error_of([&] { gpt.forward(zeros({1, 1}, kInt64), zeros({}, kInt64), cache); }) != "");
  CHECK(error_of([&] { gpt.forward(zeros({1, 1}, kInt64), zeros({1}, kInt64), {}); }) != "");
}
