#pragma once

// What the stand-alone peer programs share: options, the same data and initial weights for every
// peer (so that their losses can be compared), timing, and the one JSON line each prints.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/measure/timing.h"
#include "tests/bench/words.h"

namespace brrr::bench {

inline const std::vector<std::int64_t> mlp_sizes = {784, 256, 128, 10};
inline constexpr int num_batches = 16;  // inputs rotate: one batch would stay in the cache
inline constexpr double sgd_lr = 1e-2;
inline constexpr double adamw_lr = 1e-3;
inline constexpr double adamw_weight_decay = 1e-2;

struct PeerOptions {
  std::string model = "mlp";
  std::int64_t batch = 32;
  std::string optimizer = "sgd";
  int steps = 2000;
  int warmup = 200;
  int threads = 1;
  std::string micro;          // "", "add1" or "instr"
  std::int64_t count = 1000;  // of adds, for instr
  bool grad = false;          // instr: with requires_grad
};

// Reads argv over the defaults `o`; throws std::invalid_argument that names what is wrong. `micro`
// tells whether the peer has the micro modes.
inline PeerOptions parse_peer_options(int argc, char** argv, bool micro, PeerOptions o = {}) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&] {
      if (++i >= argc) throw std::invalid_argument(std::string(name) + ": value missing");
      return argv[i];
    };
    if (name == "--batch") {
      o.batch = positive_number(name, value());
    } else if (name == "--optimizer") {
      o.optimizer = value();
    } else if (name == "--steps") {
      o.steps = static_cast<int>(positive_number(name, value()));
    } else if (name == "--warmup") {
      o.warmup = static_cast<int>(positive_number(name, value()));
    } else if (name == "--threads") {
      o.threads = static_cast<int>(positive_number(name, value()));
    } else if (micro && name == "--micro") {
      o.micro = value();
      if (o.micro == "instr") o.count = positive_number("--micro instr", value());
    } else if (micro && name == "--grad") {
      o.grad = true;
    } else {
      throw std::invalid_argument("unknown option '" + std::string(name) + "', see --help");
    }
  }
  if (o.optimizer != "sgd" && o.optimizer != "adamw") {
    throw std::invalid_argument("--optimizer: '" + o.optimizer + "' is neither sgd nor adamw");
  }
  if (!o.micro.empty() && o.micro != "add1" && o.micro != "instr") {
    throw std::invalid_argument("--micro: '" + o.micro + "' is neither add1 nor instr");
  }
  return o;
}

// Uniform floats in [-bound, bound) from a 64-bit linear congruential generator (Knuth's MMIX
// constants): the same on every machine and in every language a peer may be written in.
class PeerRandom {
 public:
  explicit PeerRandom(std::uint64_t seed) : state_(seed) {}
  std::uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float uniform(float bound) { return (static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f) * bound; }
  void fill(float* p, std::int64_t n, float bound) {
    for (std::int64_t i = 0; i < n; ++i) p[i] = uniform(bound);
  }

 private:
  std::uint64_t state_;
};

struct MlpBatches {
  std::vector<std::vector<float>> x;         // num_batches of [batch, sizes.front()]
  std::vector<std::vector<std::int64_t>> y;  // num_batches of [batch]
};

inline MlpBatches make_mlp_batches(std::int64_t batch) {
  PeerRandom random(1);
  MlpBatches data;
  for (int b = 0; b < num_batches; ++b) {
    data.x.emplace_back(static_cast<std::size_t>(batch * mlp_sizes.front()));
    random.fill(data.x.back().data(), batch * mlp_sizes.front(), 1.0f);
    data.y.emplace_back(static_cast<std::size_t>(batch));
    for (auto& label : data.y.back()) {
      label = random.bits() % static_cast<std::uint32_t>(mlp_sizes.back());
    }
  }
  return data;
}

inline std::int64_t mlp_parameters() {
  std::int64_t n = 0;
  for (std::size_t l = 0; l + 1 < mlp_sizes.size(); ++l) n += (mlp_sizes[l] + 1) * mlp_sizes[l + 1];
  return n;
}

// Weight [out, in] and bias [out] of one layer, uniform in +-1/sqrt(in) as torch.nn.Linear's are.
inline void init_mlp_layer(std::size_t layer, float* weight, float* bias) {
  const std::int64_t in = mlp_sizes.at(layer), out = mlp_sizes.at(layer + 1);
  const float bound = 1.0f / std::sqrt(static_cast<float>(in));
  PeerRandom random(100 + layer);
  random.fill(weight, in * out, bound);
  random.fill(bias, out, bound);
}

// Calls step(i) warmup + steps times; microseconds of each of the last `steps` calls.
template <class Step> std::vector<double> time_steps(int warmup, int steps, Step&& step) {
  std::vector<double> us;
  us.reserve(static_cast<std::size_t>(steps));
  for (int i = 0; i < warmup; ++i) step(i);
  for (int i = warmup; i < warmup + steps; ++i) {
    const auto start = Clock::now();
    step(i);
    us.push_back(1e6 * seconds_since(start));
  }
  return us;
}

inline void print_step_json(const char* peer, const char* version, const char* blas_core,
                            const PeerOptions& o, std::int64_t parameters,
                            const std::vector<double>& us, double loss) {
  const Quantiles q = quantiles(us);
  std::printf(
      "{\"peer\":\"%s\",\"version\":\"%s\",\"model\":\"%s\",\"parameters\":%lld,\"batch\":%lld,"
      "\"optimizer\":\"%s\",\"us_per_step_median\":%.2f,\"p95\":%.2f,\"n\":%zu,\"threads\":%d,"
      "\"final_loss\":%.9g,\"openblas_core\":\"%s\"}\n",
      peer, version, o.model.c_str(), static_cast<long long>(parameters),
      static_cast<long long>(o.batch), o.optimizer.c_str(), q.median, q.p95, us.size(), o.threads,
      loss, blas_core);
}

}  // namespace brrr::bench
