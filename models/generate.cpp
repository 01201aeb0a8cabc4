#include "models/generate.h"

#include <algorithm>
#include <cmath>

#include "core/autocast.h"
#include "core/check.h"
#include "core/context.h"
#include "core/rng.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::models {

namespace {

void check_sample(const char* op, double temperature, int64_t top_k, double top_p) {
  BRRR_CHECK(std::isfinite(temperature) && temperature >= 0,
             "{}: temperature must be 0 (the likeliest) or positive, got {}", op, temperature);
  BRRR_CHECK(top_k >= 0, "{}: top_k must be positive, or 0 for all tokens, got {}", op, top_k);
  BRRR_CHECK(top_p > 0 && top_p <= 1, "{}: top_p must be in (0, 1], got {}", op, top_p);
}

const GenerateOptions& checked(const GenerateOptions& o) {
  check_sample("generate", o.temperature, o.top_k, o.top_p);
  BRRR_CHECK(o.tokens >= 0, "generate: tokens is {}; give 0 or more", o.tokens);
  return o;
}

// Checks logits by the maximum of each row, which is finite unless one logit is NaN or infinity or
// all are -infinity.
void check_finite(const char* op, int64_t vocab, const Tensor& largest) {
  const auto values = largest.to(kFloat64).to_vector<double>();
  for (size_t row = 0; row < values.size(); ++row) {
    BRRR_CHECK(std::isfinite(values[row]),
               "{}: the logits [{}, {}] of row {} are not finite; "
               "models::first_nonfinite(model) names the parameter",
               op, values.size(), vocab, row);
  }
}

Tensor largest_of(const Tensor& logits, const Tensor& ids) {
  return gather(logits, 1, ids.unsqueeze(1)).squeeze(1);
}

// Like sample(), without its checks of the logits.
Tensor draw(const Tensor& logits, const SampleOptions& o) {
  if (o.temperature == 0) return logits.argmax(1);
  const int64_t vocab = logits.size(1), k = std::min(o.top_k ? o.top_k : vocab, vocab);
  const Tensor wide = itemsize(logits.dtype()) < 4 ? logits.to(kFloat32) : logits;
  // With the largest logit shifted to 0, a small temperature can overflow only to -inf. The clamp
  // excludes temperatures that float32 cannot represent, which would give 0 / 0 or -inf / inf.
  const Tensor scaled = (wide - wide.max({1}, true)) / std::clamp(o.temperature, 1e-30, 1e30);
  if (k == vocab && o.top_p == 1) return multinomial(softmax(scaled, 1), 1).squeeze(1);
  auto [values, ids] = topk(scaled, k, 1);
  Tensor p = softmax(values, 1);
  // Zeroes the tokens after those that together reach top_p, but never the first.
  if (o.top_p < 1) p = where(cumsum(p, 1) - p >= std::max(o.top_p, 1e-30), 0.0, p);
  return gather(ids, 1, multinomial(p, 1)).squeeze(1);
}

}  // namespace

Tensor sample(const Tensor& logits, const SampleOptions& o) {
  check_sample("sample", o.temperature, o.top_k, o.top_p);
  BRRR_CHECK(
      logits.defined() && is_floating(logits.dtype()) && logits.dim() == 2 && logits.size(1) > 0,
      "sample: takes floating logits [rows, vocab], got {}", describe(logits));
  if (context.recorder) return draw(logits, o);
  try {
    const Tensor ids = draw(logits, o);
    if (o.temperature == 0) check_finite("sample", logits.size(1), largest_of(logits, ids));
    return ids;
  } catch (const Error&) {  // multinomial's error is about its weights: report bad logits instead.
    check_finite("sample", logits.size(1), logits.max({1}));
    throw;
  }
}

Generator::Generator(GPT& gpt, const GenerateOptions& options)
    : gpt_(gpt),
      options_(checked(options)),
      cache_(gpt.make_cache()),
      positions_(cache_.slots.clone()),
      step_(
          [this](const Tensor& id, const Tensor& position) {
            const Tensor logits = gpt_.forward(id.unsqueeze(0), position, cache_);
            const Tensor ids = draw(logits, {.temperature = options_.temperature,
                                             .top_k = options_.top_k,
                                             .top_p = options_.top_p});
            std::vector<Tensor> results{ids};
            if (options_.temperature == 0) results.push_back(largest_of(logits, ids));
            return results;
          },
          StepOptions{.mode = options.mode}) {}

std::vector<int64_t> Generator::operator()(const std::vector<int64_t>& prompt) {
  const GPTOptions& o = gpt_.options();
  BRRR_CHECK(!prompt.empty(), "generate: the prompt is empty; give at least one token");
  for (int64_t id : prompt) {
    BRRR_CHECK(id >= 0 && id < o.vocab, "generate: token {} of the prompt is not in [0, {})", id,
               o.vocab);
  }
  const NoGradGuard no_grad;
  const struct Restore {
    GPT& gpt;
    bool training = gpt.is_training();
    ~Restore() {
      if (training) gpt.train();
    }
  } restore{gpt_};
  if (restore.training) gpt_.eval();
  check_host_access("generate", nullptr);
  std::optional<RngScope> own;
  if (options_.seed) own.emplace(*options_.seed);
  const AutocastGuard no_autocast(kFloat32);  // The cache needs keys and values in its own dtype.

  const std::vector<int64_t> given(prompt.end() - std::min(std::ssize(prompt), o.block),
                                   prompt.end());
  std::vector<Tensor> context = tensor(given).to(positions_.device()).split(1);
  int64_t fed = 0;
  try {
    return append_to(context, fed);
  } catch (const Error&) {  // E.g. multinomial's, on a GPU of an earlier token: check the logits.
    const int64_t at = std::min(fed, o.block - 1);
    const Tensor position = positions_.narrow(0, at, 1);
    check_logits(gpt_.forward(context[at].unsqueeze(0), position, cache_).max({1}));
    throw;
  }
}

void Generator::check_logits(const Tensor& largest) const {
  for (const Tensor& one : largest.to(kCPU).split(1)) {
    check_finite("generate", gpt_.options().vocab, one);
  }
}

// Ids stay on the device until the end, so that the host waits for a token only if on_token is set.
std::vector<int64_t> Generator::append_to(std::vector<Tensor>& context, int64_t& fed) {
  const GPTOptions& o = gpt_.options();
  std::vector<Tensor> generated, largest;
  while (std::ssize(generated) < options_.tokens) {
    if (fed == o.block) {
      context.erase(context.begin(), context.end() - std::max<int64_t>(1, o.block / 2));
      fed = 0;
    }
    if (fed == 0) {
      // Masked slots have weight 0, but 0 * NaN, from an earlier context, would be NaN.
      for (const LayerCache& layer : cache_.layers) {
        layer.keys.zero_();
        layer.values.zero_();
      }
    }
    std::vector<Tensor> next;
    for (; fed < std::ssize(context); ++fed) {
      next = step_(context[fed], positions_.narrow(0, fed, 1));
    }
    context.push_back(next[0]);
    generated.push_back(next[0]);
    if (next.size() > 1) largest.push_back(next[1]);
    if (!options_.on_token) continue;
    if (next.size() > 1) check_logits(next[1]);
    options_.on_token(next[0].item<int64_t>());
  }
  if (generated.empty()) return {};
  if (!largest.empty()) check_logits(cat(largest));
  return cat(generated).to_vector<int64_t>();
}

std::vector<int64_t> generate(GPT& gpt, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options) {
  return Generator(gpt, options)(prompt);
}

}  // namespace brrr::models
