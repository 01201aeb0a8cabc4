// libtorch's part of `./brrr bench --peers`: the CPU training steps of bench_steps through the C++
// API, from the weights and batches that bench_steps writes. peers.py builds and runs this.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/bench/figures.h"
#include "tests/bench/peer_torch_models.h"
#include "tests/bench/timed_step.h"

namespace {

using namespace brrr::bench;
using Tensors = std::map<std::string, torch::Tensor>;

constexpr const char* help =
    R"(usage: peer_torch_steps --inputs FILE [--only STEP] [--threads N] [--seconds S] [--json FILE]
  --inputs   weights and batches that bench_steps --inputs wrote
  --only     the step of that name
  --threads  1 if not given
  --seconds  at least, for each figure; 0.5 if not given
  --json     write the figures, after each of them
  --version  libtorch's, and nothing else
)";

// Reads a safetensors file of float32 and int64: step key -> tensors by name.
std::map<std::string, Tensors> read_inputs(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + " cannot be read");
  in.exceptions(std::ios::failbit | std::ios::badbit);
  std::uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, ' ');
  in.read(header.data(), static_cast<std::streamsize>(length));
  std::map<std::string, Tensors> found;
  const nlohmann::json entries = nlohmann::json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
    const auto t = torch::empty(shape, entry["dtype"] == "F32" ? torch::kFloat32 : torch::kInt64);
    in.seekg(static_cast<std::streamoff>(sizeof length + length +
                                         entry["data_offsets"][0].get<std::uint64_t>()));
    in.read(static_cast<char*>(t.data_ptr()), static_cast<std::streamsize>(t.nbytes()));
    const auto dot = name.find('.');
    found[name.substr(0, dot)][name.substr(dot + 1)] = t;
  }
  return found;
}

GptSizes sizes_of_gpt(const Tensors& inputs) {
  const torch::Tensor &wte = inputs.at("wte.weight"), &wpe = inputs.at("wpe.weight");
  GptSizes s{wte.size(0), wpe.size(0), 0, inputs.at("heads").item<std::int64_t>(), wte.size(1)};
  while (inputs.count("h." + std::to_string(s.layers) + ".ln_1.weight") > 0) ++s.layers;
  return s;
}

bool is_gpt(const Tensors& inputs) { return inputs.count("wte.weight") > 0; }

std::string name_of(const Tensors& inputs) {
  const std::int64_t batch = inputs.at("x").size(0);
  if (!is_gpt(inputs)) return mlp_step_name(batch);
  const GptSizes s = sizes_of_gpt(inputs);
  return gpt_step_name(s.layers, s.width, batch);
}

std::unique_ptr<TorchModel> model_of(const Tensors& inputs) {
  if (is_gpt(inputs)) return std::make_unique<TorchGpt>(sizes_of_gpt(inputs));
  return std::make_unique<TorchMlp>(mlp_sizes);
}

// A step's model and optimiser, with brrr's weights.
class TorchRun {
 public:
  explicit TorchRun(const Tensors& inputs)
      : inputs_(inputs),
        model_(model_of(inputs)),
        optimizer_(make_optimizer("adamw", model_->parameters())) {
    reset();
  }
  torch::Tensor step() {
    drop_gradients(*optimizer_);
    const torch::Tensor loss = model_->loss(inputs_.at("x"), inputs_.at("y"));
    loss.backward();
    optimizer_->step();
    return loss;
  }
  void reset() {
    const torch::NoGradGuard no_grad;
    for (auto& p : model_->named_parameters()) p.value().copy_(inputs_.at(p.key()));
  }

 private:
  const Tensors& inputs_;
  std::unique_ptr<TorchModel> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

void measure(const std::string& name, const Tensors& inputs, double seconds, Figures& figures) {
  figures.attempt(name, [&] {
    TorchRun run(inputs);
    std::vector<float> losses;
    for (int i = 0; i < kLosses; ++i) losses.push_back(run.step().item<float>());
    figures.note_losses(name, losses);
    const Timed t = timed(run, seconds);
    figures.note(name, t.seconds * 1e6, "us");
    figures.note(name + ", cores", t.cores, "");
  });
}

struct Options : StepsOptions {
  bool version = false;
  bool take(Words& words) { return words.take("--version", version) || StepsOptions::take(words); }
};

int run(const Options& o) {
  if (o.version) return std::puts(TORCH_VERSION) < 0;
  if (o.inputs.empty()) throw UsageError("--inputs is missing, see --help");
  at::set_num_threads(o.threads);
  Figures figures(o.json, {{"libtorch", TORCH_VERSION}});
  for (const auto& [key, inputs] : read_inputs(o.inputs)) {
    const std::string name = name_of(inputs);
    if (o.only.empty() || name == o.only) measure(name, inputs, o.seconds, figures);
  }
  return figures.failed() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return words_main("peer_torch_steps", argc, argv, help, Options{}, run);
}
