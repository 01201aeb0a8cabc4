// Strips: kernels that run part by part with their neighbours, with the bits of whole ones.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <random>
#include <string>

#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

struct Trained {
  std::vector<Tensor> losses, parameters;
  StepStats stats;
  std::string text;
  bool cut() const { return text.find("parts, one after the other") != std::string::npos; }
};

struct TrainSetup {
  int64_t batch = 16;
  double dropout = 0;
  DType dtype = kFloat32;
  int micro_batches = 1;
};

Trained train_gpt(const TrainSetup& setup, const StepOptions& options) {
  manual_seed(3);
  models::GPT model(
      {.vocab = 29, .block = 16, .layers = 2, .heads = 2, .width = 32, .dropout = setup.dropout});
  if (setup.dtype != kFloat32) model.to(setup.dtype);
  optim::AdamW opt(model.parameters(), {.lr = 1e-2});
  auto s = step(
      [&](const Tensor& x, const Tensor& y) {
        opt.zero_grad();
        Tensor all;
        for (int k = 0; k < setup.micro_batches; ++k) {
          const Tensor loss = model.loss(x, y);
          loss.backward();
          all = all.defined() ? all + loss.detach() : loss.detach();
        }
        optim::clip_grad_norm_(model.parameters(), 1.0);
        opt.step();
        return all;
      },
      options);
  Trained t;
  for (int k = 0; k < 4; ++k) {
    const Tensor x = randint(0, 29, {setup.batch, 16}), y = randint(0, 29, {setup.batch, 16});
    t.losses.push_back(s(x, y));
  }
  t.parameters = model.parameters();
  if (options.mode == Mode::Graph) {
    t.stats = s.stats();
    t.text = s.explain();
    CHECK(t.stats.fallbacks == 0);
  }
  return t;
}

void check_same(const Trained& a, const Trained& b) {
  for (size_t k = 0; k < a.losses.size(); ++k) CHECK(same_bits(a.losses[k], b.losses[k]));
  for (size_t k = 0; k < a.parameters.size(); ++k) {
    CHECK(same_bits(a.parameters[k], b.parameters[k]));
  }
}

constexpr int64_t kNever = -1;

// A net of random layers over [rows, 32], its loss and all gradients.
std::vector<Tensor> random_net(unsigned seed, const Tensor& x, const std::vector<Tensor>& weights) {
  std::mt19937 random(seed);
  const auto weight = [&]() -> const Tensor& { return weights[random() % 4]; };
  const Tensor &scale = weights[4], &shift = weights[5];
  std::vector<Tensor> all = {x, linear(x, weight(), shift)};
  const auto any = [&]() -> const Tensor& { return all[all.size() - 1 - random() % 2]; };
  for (int k = 0; k < 12; ++k) {
    switch (random() % 11) {
      case 0:
        all.push_back(linear(any(), weight(), shift));
        break;
      case 1:
        all.push_back(matmul(gelu(any()), weight()));
        break;
      case 2:
        all.push_back(any() + any() * scale);
        break;
      case 3:
        all.push_back(layer_norm(any(), {32}, scale, shift, 1e-5));
        break;
      case 4:
        all.push_back(softmax(any(), 1) * any());
        break;
      case 5:
        all.push_back(dropout(any(), 0.3, true));
        break;
      case 6: {
        const Tensor& t = any();
        all.push_back(cat({t.slice(1, 16, 32), t.slice(1, 0, 16) * 0.5}, 1));
        break;
      }
      case 7:
        all.push_back(any() - mean(any(), {1}, true));
        break;
      case 8:  // Eight rows at a time, transposed.
        all.push_back(reshape(
            matmul(reshape(any(), {-1, 8, 32}), weight()).transpose(1, 2).contiguous(), {-1, 32}));
        break;
      case 9: {
        const Tensor h = reshape(any(), {-1, 8, 2, 16}).transpose(1, 2);
        const Tensor q = random() % 2 ? h : rotary_embedding(h, arange(8));
        AttentionOptions how{.causal = random() % 2 == 0};
        if (random() % 2) how.mask = ones({8, 8}, kBool);
        const Tensor y = scaled_dot_product_attention(q, h, h, how);
        all.push_back(reshape(y.transpose(1, 2), {-1, 32}));
        break;
      }
      default: {
        Tensor y = any() * 0.5;
        all.push_back(y.add_(1.0));
      }
    }
  }
  const Tensor wanted = full({x.size(0)}, 3.0, kInt64);
  Tensor loss = cross_entropy(all.back() + tanh(any()), wanted);
  for (const Tensor& w : weights) loss = loss + sum(w) * 0.125;  // Uses all of them.
  std::vector<Tensor> out = grad({loss}, weights);
  out.push_back(loss.detach());
  if (random() % 2) out.push_back(any().detach());  // A result that survives.
  return out;
}

}  // namespace

TEST_CASE("strips: a GPT trains to eager's bits at any batch and size of parts") {
  test::TempCache cache;
  const std::pair<int64_t, std::vector<int64_t>> setups[] = {
      {64, {1 << 16, 1 << 13, 1}}, {48, {1 << 13}}, {15, {1 << 16, 1}}, {1, {1}}};
  for (const auto& [sequences, sizes] : setups) {
    const int64_t batch = sequences;
    CAPTURE(batch);
    const Trained eager = train_gpt({.batch = batch}, {.mode = Mode::Eager});
    for (const int64_t bytes : sizes) {
      CAPTURE(bytes);
      const Trained cut = train_gpt({.batch = batch}, {.part_bytes = bytes});
      check_same(cut, eager);
      if (batch == 64 || batch == 48) CHECK(cut.cut());
    }
  }
}

TEST_CASE("strips: one covers forward and backward, and never holds its values in full") {
  test::TempCache cache;
  const Trained whole = train_gpt({.batch = 64}, {.rematerialise = false, .part_bytes = kNever});
  const Trained cut = train_gpt({.batch = 64}, {.rematerialise = false, .part_bytes = 1 << 15});
  CHECK_FALSE(whole.cut());
  REQUIRE(cut.cut());
  check_same(whole, cut);
  CHECK(cut.stats.arena_bytes < whole.stats.arena_bytes / 4);
  size_t strips = 0;
  for (size_t at = 0; (at = cut.text.find("parts, one after", at)) != std::string::npos; ++at) {
    ++strips;
  }
  CHECK(strips == 1);
  // The first part makes the packed copies of weights that products read.
  CHECK(cut.text.find("of weights are packed once for all") != std::string::npos);
}

TEST_CASE("strips: dropout, 16-bit floats, several batches a step") {
  test::TempCache cache;
  const TrainSetup setups[] = {{.batch = 64, .dropout = 0.2},
                               {.batch = 64, .dtype = kBFloat16},
                               {.batch = 64, .dtype = kFloat16},
                               {.batch = 64, .dtype = kFloat64},
                               {.batch = 64, .micro_batches = 3}};
  for (const TrainSetup& setup : setups) {
    CAPTURE(setup.dropout);
    CAPTURE(setup.dtype);
    CAPTURE(setup.micro_batches);
    const Trained eager = train_gpt(setup, {.mode = Mode::Eager});
    const Trained cut = train_gpt(setup, {.part_bytes = 1 << 16});
    // Other dtypes' products go through a library, whose order of summation differs.
    CHECK(cut.cut() == (setup.dtype == kFloat32));
    check_same(cut, eager);
    const bool all = test::long_tests(), verified = setup.dropout > 0 || setup.dtype == kFloat16;
    if (all || verified) {
      check_same(train_gpt(setup, {.verify_every = 1, .part_bytes = 1 << 12}), eager);
    }
    if (all || !verified) {
      check_same(train_gpt(setup, {.memory_budget = 0.5, .part_bytes = 1 << 14}), eager);
    }
  }
}

TEST_CASE("strips: random nets equal eager to the bit") {
  test::TempCache cache;
  const int cases = test::random_cases(4, 300);
  int in_parts = 0;
  for (int k = 0; k < cases; ++k) {
    const auto seed = static_cast<unsigned>(k + 1);
    CAPTURE(seed);
    manual_seed(seed);
    std::vector<Tensor> weights;
    for (int n = 0; n < 4; ++n) weights.push_back(randn({32, 32}) * 0.2);
    for (int n = 0; n < 2; ++n) weights.push_back(randn({32}));
    for (Tensor& w : weights) w.set_requires_grad(true);
    const Tensor x = randn({k % 3 ? 512 : 384, 32});
    const auto results = [&](const StepOptions& options, std::string* text = nullptr) {
      auto s = step([&](const Tensor& t) { return random_net(seed, t, weights); }, options);
      std::vector<Tensor> out;
      for (int call = 0; call < 3; ++call) {
        set_rng_state({seed, 0});
        out = s(x);
      }
      if (text) *text = s.explain();
      return out;
    };
    const std::vector<Tensor> eager = results({.mode = Mode::Eager});
    std::string text;
    const auto check = [&](const std::vector<Tensor>& got) {
      for (size_t n = 0; n < eager.size(); ++n) CHECK(same_bits(got[n], eager[n]));
    };
    check(results({.part_bytes = 16 << 10}, &text));
    in_parts += text.find("parts, one after the other") != std::string::npos;
    check(results({.part_bytes = 1}));
    check(results({.memory_budget = 0.5, .part_bytes = 16 << 10}));
  }
  MESSAGE(in_parts << " of " << cases << " nets ran in parts");
  CHECK(in_parts >= cases / 2);
}
