// libtorch's C++ API as a peer: one training step of the benchmark's GPT. A process of its own,
// because libtorch shares OpenBLAS's global thread setting.

#include <cstring>
#include <limits>

#include "tests/bench/peer_gpt.h"
#include "tests/bench/peer_torch.h"

namespace {

using namespace brrr::bench;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr const char* help =
    R"(peer_torch_gpt: one training step of a GPT (2 layers, width 64, 4 heads, block 32), libtorch
  --batch N              sequences per step (8)
  --optimizer sgd|adamw  (adamw)
  --steps N, --warmup N  timed steps (400) and steps before them (100)
  --threads N            at::set_num_threads (1)
  --gelu tanh|erf        the form of GELU (tanh, as in GPT-2; erf is the faster one in libtorch 1.13)
Prints one JSON line.
)";

struct AttentionImpl : nn::Module {
  nn::Linear c_attn{nullptr}, c_proj{nullptr};
  AttentionImpl() {
    const std::int64_t c = gpt_sizes.width;
    c_attn = register_module("c_attn", nn::Linear(c, 3 * c));
    c_proj = register_module("c_proj", nn::Linear(c, c));
  }
  // `mask` is 0 where a token may look and -inf where not; baddbmm adds it with the product.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const std::int64_t b = x.size(0), t = x.size(1), h = gpt_sizes.heads, d = x.size(2) / h;
    const auto qkv =
        c_attn(x).view({b, t, 3, h, d}).permute({2, 0, 3, 1, 4}).reshape({3, b * h, t, d});
    const auto parts = qkv.unbind(0);
    const auto scores = torch::baddbmm(mask, parts[0], parts[1].transpose(1, 2), 1,
                                       1 / std::sqrt(static_cast<double>(d)));
    const auto y = torch::bmm(scores.softmax(-1), parts[2]);
    return c_proj(y.view({b, h, t, d}).transpose(1, 2).reshape({b, t, h * d}));
  }
};
TORCH_MODULE(Attention);

struct BlockImpl : nn::Module {
  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  Attention attn{nullptr};
  nn::Linear c_fc{nullptr}, c_proj{nullptr};
  BlockImpl() {
    const std::int64_t c = gpt_sizes.width;
    ln_1 = register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({c})));
    attn = register_module("attn", Attention());
    ln_2 = register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({c})));
    c_fc = register_module("c_fc", nn::Linear(c, 4 * c));
    c_proj = register_module("c_proj", nn::Linear(4 * c, c));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask, const char* gelu) {
    const auto h = x + attn(ln_1(x), mask);
    return h + c_proj(torch::gelu(c_fc(ln_2(h)), gelu));
  }
};
TORCH_MODULE(Block);

struct Gpt : nn::Module {
  nn::Embedding wte{nullptr}, wpe{nullptr};
  nn::ModuleList h;
  nn::LayerNorm ln_f{nullptr};
  torch::Tensor positions = torch::arange(gpt_sizes.block);
  torch::Tensor mask =
      torch::full({gpt_sizes.block, gpt_sizes.block}, -std::numeric_limits<float>::infinity())
          .triu(1);

  Gpt() {
    wte = register_module("wte", nn::Embedding(gpt_sizes.vocab, gpt_sizes.width));
    wpe = register_module("wpe", nn::Embedding(gpt_sizes.block, gpt_sizes.width));
    for (std::int64_t l = 0; l < gpt_sizes.layers; ++l) h->push_back(Block());
    register_module("h", h);
    ln_f = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({gpt_sizes.width})));
    torch::NoGradGuard no_grad;
    std::size_t index = 0;
    for (const auto& entry : named_parameters()) {
      init_gpt_parameter(index++, entry.key(), entry.value().dim() == 2,
                         entry.value().data_ptr<float>(), entry.value().numel());
    }
  }
  std::int64_t num_parameters() const {
    std::int64_t n = 0;
    for (const auto& p : parameters()) n += p.numel();
    return n;
  }
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets, const char* gelu) {
    auto x = wte(ids) + wpe(positions);
    for (const auto& block : *h) x = block->as<Block>()->forward(x, mask, gelu);
    const auto logits = torch::linear(ln_f(x), wte->weight);
    return F::cross_entropy(logits.view({-1, gpt_sizes.vocab}), targets.view({-1}));
  }
};

void run_gpt(const PeerOptions& o, const char* gelu) {
  GptBatches data = make_gpt_batches(o.batch);
  std::vector<torch::Tensor> x, y;
  for (int b = 0; b < num_batches; ++b) {
    // from_blob does not own its memory; data outlives the tensors.
    const std::vector<std::int64_t> sizes = {o.batch, gpt_sizes.block};
    x.push_back(torch::from_blob(data.x[b].data(), sizes, torch::kInt64));
    y.push_back(torch::from_blob(data.y[b].data(), sizes, torch::kInt64));
  }
  Gpt model;
  const auto optimizer = make_optimizer(o.optimizer, model.parameters());
  torch::Tensor loss;
  const auto us = time_steps(o.warmup, o.steps, [&](int i) {
    optimizer->zero_grad();
    loss = model.loss(x[i % num_batches], y[i % num_batches], gelu);
    loss.backward();
    optimizer->step();
  });
  print_step_json("libtorch", TORCH_VERSION, openblas_core(), o, model.num_parameters(), us,
                  loss.item<float>());
}

// Takes --gelu out of argv; libtorch's name for the form.
const char* take_gelu(int& argc, char** argv) {
  const char* form = "tanh";
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--gelu") != 0) {
      argv[kept++] = argv[i];
      continue;
    }
    const std::string value = ++i < argc ? argv[i] : "nothing";
    if (value != "tanh" && value != "erf") {
      throw std::invalid_argument("--gelu: '" + value + "' is neither tanh nor erf");
    }
    form = value == "erf" ? "none" : "tanh";
  }
  argc = kept;
  return form;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(help, stdout);
    return 0;
  }
  try {
    PeerOptions defaults;
    defaults.model = "gpt";
    defaults.batch = 8;
    defaults.optimizer = "adamw";
    defaults.steps = 400;
    defaults.warmup = 100;
    const char* gelu = take_gelu(argc, argv);
    const PeerOptions options = parse_peer_options(argc, argv, /*micro=*/false, defaults);
    at::set_num_threads(options.threads);
    run_gpt(options, gelu);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peer_torch_gpt: %s\n", e.what());
    return 1;
  }
  return 0;
}
