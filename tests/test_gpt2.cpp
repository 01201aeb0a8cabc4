// GPT-2 checkpoints under Hugging Face's names, in both directions.
#include <doctest/doctest.h>

#include <fstream>

#include "models/gpt2.h"
#include "models/safetensors.h"
#include "tests/op_cases.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;
using models::GPT;
using models::GPTOptions;
using models::load_gpt2;
using models::save_gpt2;

namespace {

const GPTOptions kTiny = {.vocab = 11, .block = 6, .layers = 2, .heads = 2, .width = 8};
const char* const kFile = BRRR_SOURCE_DIR "/tests/golden/gpt2_tiny.safetensors";

// The committed file with changes.
struct Changed {
  TempCache temp;
  std::string path = temp.dir + "/changed.safetensors";
  StateDict dict = load(kFile);
  std::string load_into(GPT& gpt) {
    save(path, dict);
    return error_of([&] { load_gpt2(path, gpt); });
  }
};

std::string without(const std::string& name) {
  return name.substr(std::string("transformer.").size());
}

void check_same(const StateDict& a, const StateDict& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& entry : a) {
    CAPTURE(entry.first);
    REQUIRE(b.count(entry.first));
    test::check_same(entry.second, b.at(entry.first));
  }
}

}  // namespace

TEST_CASE("gpt2: another implementation's checkpoint gives that implementation's logits") {
  GPT gpt(kTiny);
  load_gpt2(kFile, gpt);
  const StateDict file = load(kFile);
  test::check_same(gpt.state_dict().at("h.1.attn.c_attn.weight"),
                   file.at("transformer.h.1.attn.c_attn.weight").t());
  test::check_same(gpt.state_dict().at("h.0.mlp.c_fc.bias"),
                   file.at("transformer.h.0.mlp.c_fc.bias"));
  const StateDict want = load(BRRR_SOURCE_DIR "/tests/golden/gpt2_tiny_logits.safetensors");
  const Tensor logits = gpt(arange(6).unsqueeze(0)).detach();
  check_close(logits.select(0, 0), want.at("logits"), 2e-6);
}

TEST_CASE("gpt2: saved and loaded again, every bit is there, and the layout is the file's") {
  manual_seed(9);
  for (bool tied : {true, false}) {
    GPTOptions o = kTiny;
    o.tie_weights = tied;
    GPT from(o), to(o);
    const TempCache temp;
    const std::string path = temp.dir + "/gpt2.safetensors";
    save_gpt2(path, from);
    load_gpt2(path, to);
    check_same(from.state_dict(), to.state_dict());
    Metadata metadata;
    const StateDict dict = load(path, metadata);
    CHECK(metadata.at("format") == "pt");
    CHECK(dict.count("lm_head.weight") == !tied);
    CHECK(dict.at("transformer.h.0.mlp.c_proj.weight").sizes() == IntList{32, 8});
    // The names of the independent file, without its constant masks.
    for (const auto& [name, t] : load(kFile)) {
      const bool mask = contains(name, ".attn.bias") || contains(name, "masked_bias");
      CHECK(dict.count(name) == !mask);
    }
  }
}

TEST_CASE("gpt2: names without prefix, a separate head, other dtypes") {
  GPT want(kTiny);
  load_gpt2(kFile, want);
  Changed f;
  StateDict bare;
  for (const auto& [name, t] : f.dict) bare[without(name)] = t;
  f.dict = bare;
  GPT gpt(kTiny);
  CHECK(f.load_into(gpt) == "");
  check_same(gpt.state_dict(), want.state_dict());

  // A head equal to the embedding is tied; any other head needs an untied model.
  f.dict["lm_head.weight"] = bare.at("wte.weight").clone();
  CHECK(f.load_into(gpt) == "");
  f.dict["lm_head.weight"] = bare.at("wte.weight") * 2.0;
  CHECK(contains(f.load_into(gpt), "tie_weights = false"));
  GPTOptions o = kTiny;
  o.tie_weights = false;
  GPT untied(o);
  CHECK(f.load_into(untied) == "");
  test::check_same(untied.state_dict().at("lm_head.weight"), f.dict.at("lm_head.weight"));
  f.dict.erase("lm_head.weight");
  CHECK(f.load_into(untied) == "");
  test::check_same(untied.state_dict().at("lm_head.weight"), bare.at("wte.weight"));

  for (auto& [name, t] : f.dict) t = t.to(kFloat16);
  CHECK(f.load_into(gpt) == "");
  test::check_same(gpt.state_dict().at("wpe.weight"),
                   bare.at("wpe.weight").to(kFloat16).to(kFloat32));
}

TEST_CASE("gpt2: all mismatches are listed at once, and nothing changes") {
  GPT gpt(kTiny);
  StateDict before;
  for (const auto& [name, t] : gpt.state_dict()) before[name] = t.clone();
  Changed f;
  f.dict["transformer.h.0.mlp.c_fc.weight"] = zeros({32, 8});  // A linear layer's layout.
  f.dict["transformer.h.2.ln_1.weight"] = zeros({8});
  f.dict["transformer.wpe.weight"] = zeros({6, 8}, kInt64);
  f.dict.erase("transformer.ln_f.bias");
  const std::string text = f.load_into(gpt);
  CHECK(contains(text, "changed.safetensors"));
  CHECK(contains(text, "missing: ln_f.bias"));
  CHECK(contains(text, "unexpected: h.2.ln_1.weight"));
  CHECK(contains(text, "h.0.mlp.c_fc.weight (is float32[32, 8], expected float32[8, 32])"));
  CHECK(contains(text, "wpe.weight (is int64[6, 8]"));
  f.dict = load(kFile);
  f.dict["wte.weight"] = f.dict.at("transformer.wte.weight");
  CHECK(contains(f.load_into(gpt), "has wte.weight twice"));
  f.dict["\x1bx"] = f.dict["transformer.\x1bx"] = zeros({1});
  CHECK(contains(f.load_into(gpt), "has ?x twice"));
  f.dict.clear();
  CHECK(contains(f.load_into(gpt), "missing: wte.weight"));
  check_same(gpt.state_dict(), before);

  GPTOptions o = kTiny;
  o.positions = "rotary";
  GPT other(o);
  CHECK(contains(error_of([&] { load_gpt2(kFile, other); }), "this GPT has rotary positions"));
  CHECK(contains(error_of([&] { save_gpt2(f.path, other); }), "learned positions"));
  o = kTiny;
  o.layers = 3;
  GPT deeper(o);
  CHECK(contains(error_of([&] { load_gpt2(kFile, deeper); }), "missing: h.2.ln_1.weight"));
}

TEST_CASE("gpt2: options come from config.json") {
  const TempCache temp;
  const std::string path = temp.dir + "/config.json";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return models::gpt2_options(path);
  };
  const std::string sizes =
      R"("vocab_size": 11, "n_positions": 6, "n_ctx": 6, "n_layer": 2, "n_head": 2, "n_embd": 8)";
  const GPTOptions o = read("{" + sizes + R"(, "activation_function": "gelu_new",
      "model_type": "gpt2", "n_inner": null, "layer_norm_epsilon": 1e-05, "resid_pdrop": 0.2,
      "embd_pdrop": 0.2, "attn_pdrop": 0.2, "architectures": ["GPT2LMHeadModel"]})");
  CHECK(o.vocab == 11);
  CHECK(o.block == 6);
  CHECK(o.layers == 2);
  CHECK(o.heads == 2);
  CHECK(o.width == 8);
  CHECK(o.dropout == 0.2);
  CHECK(o.tie_weights);
  GPT gpt(o);
  load_gpt2(kFile, gpt);
  const auto fails = [&](const std::string& text) { return error_of([&] { read(text); }); };
  CHECK(contains(fails("{" + sizes + R"(, "activation_function": "relu"})"),
                 "activation_function is \"relu\"; GPT does"));
  CHECK(contains(fails("{" + sizes + R"(, "n_inner": 7})"), "n_inner is 7"));
  CHECK(contains(fails("{" + sizes + R"(, "attn_pdrop": 0.5})"), "attn_pdrop is 0.5"));
  CHECK(contains(fails(R"({"vocab_size": -3})"), "vocab_size must be a positive size, got -3"));
  CHECK(
      contains(fails(R"({"vocab_size": 5})"), "n_positions must be a positive size, got nothing"));
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  CHECK(contains(fails(R"({"vocab_size": )" + deep + "}"), "a positive size, got a list"));
  CHECK(contains(fails("{" + sizes + R"(, "n_inner": )" + deep + "}"), "n_inner is a list"));
  CHECK(contains(fails("{" + sizes + R"(, "resid_pdrop": {}})"), "a number, got an object"));
  CHECK(contains(fails("[1]"), "not an object"));
  CHECK(contains(fails("{\"a\""), "not JSON"));
  CHECK(contains(error_of([&] { models::gpt2_options(temp.dir + "/none.json"); }), "none.json"));
}
