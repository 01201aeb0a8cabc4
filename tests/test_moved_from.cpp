// Moved-from objects report their use; objects that cannot be moved do not compile.
#include <brrr/brrr.h>

#include <functional>
#include <type_traits>

#include "pitfalls.h"
#include "temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

template <class T>
constexpr bool kStays = !std::is_move_constructible_v<T> && !std::is_move_assignable_v<T>;
static_assert(kStays<models::Module> && kStays<models::Linear> && kStays<models::Embedding> &&
              kStays<models::LayerNorm> && kStays<models::RMSNorm> && kStays<models::Dropout> &&
              kStays<models::CausalSelfAttention> && kStays<models::FeedForward> &&
              kStays<models::Block> && kStays<models::MLP> && kStays<models::GPT>);
static_assert(kStays<optim::SGD> && kStays<optim::Adam> && kStays<optim::AdamW> &&
              kStays<optim::GradScaler> && kStays<optim::CosineLR> &&
              kStays<optim::WarmupCosineLR> && kStays<optim::StepLR>);
static_assert(kStays<models::Generator> && kStays<NoGradGuard> && kStays<EnableGradGuard> &&
              kStays<AutocastGuard>);

// Each use of a moved-from object throws an error that names it.
void check_gone(const std::string& what, const std::vector<std::function<void()>>& uses) {
  for (size_t k = 0; k < uses.size(); ++k) {
    CAPTURE(k);
    const std::string text = error_of(uses[k]);
    CHECK_MESSAGE(text.starts_with(what + ": this object has been moved from"), text);
  }
}

template <class S> void check_gone_step(S& step) {
  check_gone("step", {[&] { step(ones({3})); }, [&] { step.freeze(); }, [&] { step.stats(); },
                      [&] { step.explain(); }, [&] { step.dot(); }, [&] { step.source(); },
                      [&] { step.input(0, {3}); }});
}

}  // namespace

TEST_CASE("moved from: a step, in every mode, frozen and within another step") {
  const std::function<Tensor(const Tensor&)> twice = [](const Tensor& x) { return x * 2.0; };
  for (const Mode mode : {Mode::Eager, Mode::Graph, Mode::Auto}) {
    for (const bool freeze : {false, true}) {
      if (freeze && mode == Mode::Eager) continue;
      auto step = brrr::step(twice, mode);
      for (int i = 0; i < 3; ++i) step(ones({3}));
      if (freeze) step.freeze();
      auto now = std::move(step);
      check_gone_step(step);
      CHECK(same_bits(now(ones({3})), full({3}, 2.0)));
      if (mode != Mode::Eager) CHECK(now.stats().calls == 4);
      auto outer = brrr::step([&](const Tensor& x) { return step(x); });
      CHECK(contains(error_of([&] { outer(ones({3})); }), "step: this object has been moved from"));
      // Assignment makes a moved-from object usable again.
      auto other = brrr::step(twice, mode);
      other = std::move(now);
      check_gone_step(now);
      CHECK(same_bits(other(ones({3})), full({3}, 2.0)));
      now = brrr::step(twice, mode);
      CHECK(same_bits(now(ones({3})), full({3}, 2.0)));
    }
  }
}

TEST_CASE("moved from: steps with capturing lambdas can be assigned and erased from lists") {
  int runs = 0;
  const auto scaled = [&runs](double by) {
    return brrr::step([&runs, by](const Tensor& x) { return ++runs, x * by; });
  };
  std::vector<decltype(scaled(1.0))> steps;
  for (int k = 1; k < 4; ++k) steps.push_back(scaled(k));
  for (auto& step : steps) step(ones({2}));
  steps.erase(steps.begin());
  std::swap(steps[0], steps[1]);
  CHECK(steps[0](ones({2})).to_vector<float>() == std::vector<float>{3, 3});
  CHECK(steps[1](ones({2})).to_vector<float>() == std::vector<float>{2, 2});
  CHECK(runs == 5);
  CHECK(steps[0].stats().recordings == 1);
  steps[0] = scaled(7.0);
  CHECK(steps[0](ones({1})).item<float>() == 7.0f);
}

TEST_CASE("moved from: a nested list") {
  NestedList rows{{1, 2}, {3, 4}};
  const NestedList taken = std::move(rows);
  CHECK(tensor({taken}).numel() == 4);
  CHECK_THROWS_WITH_AS(tensor({rows, taken}), doctest::Contains("has been moved from"), Error);
}

TEST_CASE("moved from: data sets") {
  data::Loader loader(data::digits(32), {.batch = 8});
  data::Loader now = std::move(loader);
  const StateDict state = now.state_dict();
  check_gone("Loader",
             {[&] { loader.next(); }, [&] { loader.epoch(); }, [&] { loader.batches_per_epoch(); },
              [&] { loader.state_dict(); }, [&] { loader.check_state_dict(state); },
              [&] { loader.load_state_dict(state); }});
  CHECK(now.next().x.size(0) == 8);
  loader = std::move(now);
  CHECK(loader.next().x.size(0) == 8);
  CHECK(contains(error_of([&] { now.next(); }), "moved from"));

  std::vector<int64_t> ids(200);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 7);
  data::Tokens tokens(ids);
  const data::Tokens kept = std::move(tokens);
  int64_t room[4];
  check_gone("Tokens",
             {[&] { tokens.size(); }, [&] { tokens.slice(0, 1); }, [&] { tokens.copy(0, 4, room); },
              [&] { tokens.to_vector(); }, [&] { tokens.check(); }, [&] { tokens.what(); },
              [&] { data::unigram_entropy(tokens); }, [&] { data::check_tokens(tokens, 7); },
              [&] { data::TokenDataset(tokens, {.vocab = 7, .block = 4}); }});
  CHECK(kept.to_vector() == ids);

  data::TokenDataset set(kept, {.vocab = 7, .block = 4, .batch = 2});
  data::TokenDataset set_now = std::move(set);
  const StateDict position = set_now.state_dict();
  const Tensor x = zeros({2, 4}, kInt64, kCPU), y = zeros({2, 4}, kInt64, kCPU);
  check_gone("TokenDataset",
             {[&] { set.train(); }, [&] { set.validation(); }, [&] { set.batch(0); },
              [&] { set.batch(0, x, y); }, [&] { set.next(); }, [&] { set.next(x, y); },
              [&] { set.position(); }, [&] { set.validation_batches(); },
              [&] { set.validation_rows(0); }, [&] { set.validation_batch(0); },
              [&] { set.validation_batch(0, x, y); }, [&] { set.state_dict(); },
              [&] { set.check_state_dict(position); }, [&] { set.load_state_dict(position); }});
  CHECK(set_now.next().x.size(0) == 2);
}

TEST_CASE("moved from: tokenizers") {
  data::CharTokenizer characters("abc");
  const data::CharTokenizer now = std::move(characters);
  check_gone("CharTokenizer", {[&] { characters.vocab_size(); }, [&] { characters.encode(""); },
                               [&] { characters.decode({}); }, [&] { characters.state(); }});
  CHECK(now.decode(now.encode("cab")) == "cab");

  data::ByteTokenizer bytes;  // A byte tokenizer has no state.
  const data::ByteTokenizer also = std::move(bytes);
  CHECK(bytes.decode(also.encode("x")) == "x");
}

TEST_CASE("moved from: a key-value cache") {
  models::GPT gpt({.vocab = 7, .block = 4, .layers = 1, .heads = 1, .width = 8});
  models::KeyValueCache cache = gpt.make_cache();
  const models::KeyValueCache now = std::move(cache);
  const Tensor id = zeros({1, 1}, kInt64), at = zeros({1}, kInt64);
  CHECK(contains(error_of([&] { gpt.forward(id, at, cache); }), "make_cache"));
  CHECK(gpt.forward(id, at, now).size(1) == 7);
}
