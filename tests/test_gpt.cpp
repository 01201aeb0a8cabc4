// The GPT: shapes, names, options, PyTorch's numbers, gradients, both modes.
#include <doctest/doctest.h>

#include <cmath>

#include "models/gpt.h"
#include "models/optim.h"
#include "models/safetensors.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/reduction_ops.h"
#include "tests/op_cases.h"
#include "tests/pitfalls.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;
using models::GPT;
using models::GPTOptions;

namespace {

const GPTOptions kTinyGpt = {.vocab = 17, .block = 8, .layers = 2, .heads = 4, .width = 32};

GPTOptions modern() {
  GPTOptions o = kTinyGpt;
  o.positions = "rotary";
  o.activation = "swiglu";
  o.norm = "rms";
  o.bias = false;
  o.tie_weights = false;
  return o;
}

// The numbers that tests/golden/make_gpt_golden.py uses for parameters and ids.
float golden_number(uint32_t salt, uint32_t i, double base) {
  uint32_t h = i * 2654435761u + salt * 40503u + 12345u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return static_cast<float>(base + ((h >> 8) / 16777216.0 - 0.5) * 0.5);
}

void set_golden_parameters(const GPT& gpt) {
  NoGradGuard guard;
  uint32_t salt = 0;
  for (const auto& [name, p] : gpt.named_parameters()) {
    const bool scale = name.find("ln_") != std::string::npos && name.ends_with(".weight");
    std::vector<float> v(static_cast<size_t>(p.numel()));
    for (size_t i = 0; i < v.size(); ++i) {
      v[i] = golden_number(salt, static_cast<uint32_t>(i), scale ? 1.0 : 0.0);
    }
    p.copy_(tensor(v).view(p.sizes()));
    ++salt;
  }
}

// ||a - b|| / ||b||
double relative_error(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const Tensor x = a.detach().to(kFloat64), y = b.detach().to(kFloat64);
  return (x - y).norm().item<double>() / y.norm().item<double>();
}

Tensor ids_of(int64_t batch, int64_t time, int64_t factor, int64_t vocab) {
  const Tensor i = arange(batch * time);
  return remainder(i * i * factor + i * 3, vocab).view({batch, time});
}

}  // namespace

TEST_CASE("gpt: logits, loss and all gradients are PyTorch's") {
  GPT gpt(kTinyGpt);
  set_golden_parameters(gpt);
  const StateDict golden = load(BRRR_SOURCE_DIR "/tests/golden/gpt.safetensors");
  const Tensor i = arange(16);
  const Tensor ids = remainder(i * i * 7 + i * 3, 17).view({2, 8});
  const Tensor targets = remainder(i * i * 5 + i + 2, 17).view({2, 8});
  const Tensor logits = gpt(ids), loss = gpt.loss(ids, targets);
  loss.backward();
  CHECK(relative_error(logits, golden.at("logits")) < 1e-5);
  CHECK(relative_error(loss, golden.at("loss")) < 1e-5);
  CHECK(golden.size() == gpt.named_parameters().size() + 2);
  double worst = relative_error(logits, golden.at("logits"));
  for (const NamedTensor& entry : gpt.named_parameters()) {
    const auto& [name, p] = entry;
    CAPTURE(entry.first);
    const double error = relative_error(p.grad(), golden.at("grad." + name));
    CHECK(error < 1e-5);
    worst = std::max(worst, error);
  }
  MESSAGE("worst relative error: ", worst);
}

TEST_CASE("gpt: names, shapes and the number of parameters are GPT-2's") {
  GPT gpt(kTinyGpt);
  std::vector<std::string> names;
  for (const auto& [name, p] : gpt.named_parameters()) names.push_back(name);
  const std::vector<std::string> first = {"wte.weight", "wpe.weight", "h.0.ln_1.weight",
                                          "h.0.ln_1.bias", "h.0.attn.c_attn.weight"};
  CHECK(std::vector<std::string>(names.begin(), names.begin() + 5) == first);
  CHECK(names.back() == "ln_f.bias");
  const StateDict dict = gpt.state_dict();
  CHECK(dict.at("h.1.attn.c_attn.weight").sizes() == IntList{96, 32});
  CHECK(dict.at("h.1.mlp.c_fc.weight").sizes() == IntList{128, 32});
  CHECK(dict.at("h.1.mlp.c_proj.bias").sizes() == IntList{32});
  // Embeddings, 12 w^2 + 13 w per layer, the last norm.
  CHECK(gpt.num_parameters() == (17 + 8) * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
  CHECK(gpt(ids_of(3, 5, 7, 17)).sizes() == IntList{3, 5, 17});

  GPT other(modern());
  CHECK(other(ids_of(1, 8, 7, 17)).sizes() == IntList{1, 8, 17});
  CHECK(other.state_dict().count("lm_head.weight") == 1);
  CHECK(other.state_dict().count("wpe.weight") == 0);
  CHECK(other.state_dict().count("h.0.ln_1.bias") == 0);
  CHECK(other.state_dict().at("h.0.mlp.c_fc.weight").sizes() == IntList{2 * 88, 32});
  CHECK(other.state_dict().at("h.0.mlp.c_proj.weight").sizes() == IntList{32, 88});
}

TEST_CASE("gpt: starts as GPT-2 does") {
  manual_seed(3);
  GPTOptions o = kTinyGpt;
  o.width = 128;
  o.layers = 8;
  GPT gpt(o);
  for (const NamedTensor& entry : gpt.named_parameters()) {
    const auto& [name, p] = entry;
    CAPTURE(entry.first);
    const double mean = p.detach().mean().item<double>();
    if (p.dim() == 2) {
      const double want = name.ends_with("c_proj.weight") ? 0.02 / 4 : 0.02;
      const double deviation = std::sqrt(p.detach().square().mean().item<double>());
      CHECK(std::fabs(mean) < 0.1 * want);
      CHECK(std::fabs(deviation / want - 1) < 0.1);
    } else {
      CHECK(mean == (name.ends_with(".weight") ? 1.0 : 0.0));
    }
  }
  // Nearly uniform predictions.
  CHECK(std::fabs(gpt.loss(ids_of(4, 8, 7, 17), ids_of(4, 8, 5, 17)).item<double>() -
                  std::log(17.0)) < 0.3);
}

TEST_CASE("gpt: a tied weight is one parameter with both gradients, and one in files") {
  GPT tied(kTinyGpt);
  GPTOptions o = kTinyGpt;
  o.tie_weights = false;
  GPT untied(o);
  StateDict dict = tied.state_dict();
  CHECK(dict.count("lm_head.weight") == 0);
  dict["lm_head.weight"] = dict.at("wte.weight");
  untied.load_state_dict(dict);
  const Tensor x = ids_of(2, 8, 7, 17), y = ids_of(2, 8, 5, 17);
  check_same(tied(x).detach(), untied(x).detach());
  tied.loss(x, y).backward();
  untied.loss(x, y).backward();
  const auto a = tied.named_parameters(), b = untied.named_parameters();
  CHECK(a.size() + 1 == b.size());
  CHECK(b.back().first == "lm_head.weight");
  check_close(a[0].second.grad(), b[0].second.grad() + b.back().second.grad(), 1e-6);

  // It stays tied through conversions and loading.
  tied.to(kFloat64);
  tied.load_state_dict(tied.state_dict());
  {
    NoGradGuard guard;
    a[0].second.zero_();
  }
  CHECK(tied(x).abs().max().item<double>() == 0);
}

TEST_CASE("gpt: no token sees a later one") {
  for (const GPTOptions& o : {kTinyGpt, modern()}) {
    GPT gpt(o);
    const Tensor x = ids_of(1, 8, 7, 17);
    const Tensor changed = cat({x.narrow(1, 0, 5), remainder(x.narrow(1, 5, 3) + 1, 17)}, 1);
    const Tensor a = gpt(x).detach(), b = gpt(changed).detach();
    check_same(a.narrow(1, 0, 5), b.narrow(1, 0, 5));
    CHECK((a - b).narrow(1, 5, 3).abs().max().item<float>() > 1e-4f);
  }
}

TEST_CASE("gpt: wrong options and inputs say what was expected") {
  const auto with = [](const std::function<void(GPTOptions&)>& change) {
    GPTOptions o = kTinyGpt;
    change(o);
    return error_of([&] { GPT gpt(o); });
  };
  CHECK(with([](GPTOptions& o) { o.heads = 5; }) ==
        "GPT: a width of 32 does not divide among 5 heads; make it a multiple of them");
  CHECK(with([](GPTOptions& o) { o.vocab = 0; }).find("vocab 0") != std::string::npos);
  CHECK(with([](GPTOptions& o) { o.layers = -1; }).find("layers -1") != std::string::npos);
  CHECK(with([](GPTOptions& o) { o.dropout = 1.5; }).find("[0, 1], got 1.5") != std::string::npos);
  CHECK(with([](GPTOptions& o) { o.dropout = std::nan(""); }).find("got nan") != std::string::npos);
  CHECK(with([](GPTOptions& o) { o.positions = "alibi"; }) ==
        "GPT: unknown positions \"alibi\"; known are learned and rotary");
  CHECK(with([](GPTOptions& o) { o.activation = "relu"; }).find("gelu and swiglu") !=
        std::string::npos);
  CHECK(with([](GPTOptions& o) { o.norm = "batch"; }).find("layer and rms") != std::string::npos);
  CHECK(with([](GPTOptions& o) {
          o.positions = "rotary";
          o.width = 12;
        }).find("a head is 3 wide") != std::string::npos);

  GPT gpt(kTinyGpt);
  CHECK(error_of([&] {
          gpt(zeros({1, 9}, kInt64));
        }) == "GPT: ids int64[1, 9] are longer than the context of 8; crop them");
  CHECK(error_of([&] { gpt(zeros({1, 0}, kInt64)); }).find("at least one") != std::string::npos);
  CHECK(error_of([&] { gpt(zeros({8}, kInt64)); }).find("[batch, time]") != std::string::npos);
  CHECK(error_of([&] { gpt(zeros({1, 8})); }).find("int64 [batch, time]") != std::string::npos);
  CHECK(error_of([&] { gpt(Tensor()); }).find("undefined") != std::string::npos);
  for (int64_t bad : {-1, 17}) {
    const std::string text = error_of([&] { gpt(full({1, 3}, bad)); });
    CHECK_MESSAGE(text.find("17") != std::string::npos, text);
    CHECK(error_of([&] { gpt.loss(zeros({1, 3}, kInt64), full({1, 3}, bad)); }) != "");
  }
  CHECK(error_of([&] {
          gpt.loss(zeros({1, 3}, kInt64), zeros({1, 4}, kInt64));
        }).find("one shape") != std::string::npos);
}

TEST_CASE("gpt: gradients of whole models agree with finite differences in float64") {
  GPTOptions learned = {.vocab = 7, .block = 5, .layers = 2, .heads = 2, .width = 8};
  GPTOptions rotary = learned;
  rotary.positions = "rotary";
  rotary.activation = "swiglu";
  rotary.norm = "rms";
  rotary.tie_weights = false;
  for (const GPTOptions& o : {learned, rotary}) {
    for (int64_t time : {1, 4, 5}) {  // With and without a cut of the position table.
      CAPTURE(o.positions);
      CAPTURE(time);
      manual_seed(5);
      GPT gpt(o);
      gpt.to(kFloat64);
      NoGradGuard guard;
      for (const Tensor& p : gpt.parameters()) p.add_(randn(p.sizes()).to(kFloat64) * 0.3);
      const Tensor x = ids_of(2, time, 7, 7), y = ids_of(2, time, 5, 7);
      {
        EnableGradGuard enable;
        gpt.loss(x, y).backward();
      }
      constexpr double h = 1e-5;
      for (const NamedTensor& entry : gpt.named_parameters()) {
        const auto& [name, p] = entry;
        CAPTURE(entry.first);
        const Tensor d = randn(p.sizes()).to(kFloat64), before = p.clone();
        p.copy_(before + d * h);
        const double up = gpt.loss(x, y).item<double>();
        p.copy_(before - d * h);
        const double down = gpt.loss(x, y).item<double>();
        p.copy_(before);
        const double want = (up - down) / (2 * h), got = (p.grad() * d).sum().item<double>();
        CHECK(std::fabs(got - want) < 1e-7 * (1 + std::fabs(want)));
      }
    }
  }
}

TEST_CASE("gpt: 20 steps are the same in both modes, to the bit") {
  for (GPTOptions o : {kTinyGpt, modern()}) {
    o.dropout = 0.1;
    same_in_all_modes([&](const StepOptions& options, Trace& trace) {
      GPT gpt(o);
      optim::AdamW opt(gpt.parameters(), {.lr = 1e-2});
      auto step = brrr::step(
          [&](const Tensor& x, const Tensor& y) {
            const Tensor loss = gpt.loss(x, y);
            opt.zero_grad();
            loss.backward();
            optim::clip_grad_norm_(gpt.parameters(), 1.0);
            opt.step();
            return loss;
          },
          options);
      const Tensor data = randint(0, o.vocab, {200});
      float first = 0, last = 0;
      for (int i = 0; i < 20; ++i) {
        opt.set_lr(1e-2 / (1 + i));
        const Tensor x = data.narrow(0, i % 4 * 24, 24).view({3, 8});
        const Tensor y = data.narrow(0, i % 4 * 24 + 1, 24).view({3, 8});
        const Tensor loss = step(x, y);
        trace.add(loss);
        (i ? last : first) = loss.item<float>();
      }
      trace.add_leaves(gpt.parameters());
      trace.add_state(opt.state_dict());
      CHECK(last < first);
      CHECK(step.stats().fallbacks <= 1);
      CHECK(step.stats().recordings <= 1);
    });
  }
}

TEST_CASE("gpt: a file restores a model to the bit") {
  for (const GPTOptions& o : {kTinyGpt, modern()}) {
    GPT a(o), b(o);
    const TempCache temp;
    const std::string path = temp.dir + "/gpt.safetensors";
    save(path, a.state_dict());
    b.load_state_dict(load(path));
    const Tensor x = ids_of(2, 8, 7, 17);
    check_same(a(x).detach(), b(x).detach());
    GPTOptions wider = o;
    wider.vocab = 18;
    GPT c(wider);
    CHECK(error_of([&] { c.load_state_dict(load(path)); }).find("wte.weight (is float32[17, 32]") !=
          std::string::npos);
  }
}
