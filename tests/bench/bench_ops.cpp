// brrr's part of `./brrr bench --ops`: single ops of a million elements or so, forward and
// gradient, eagerly and both together as a graph. ops.py has the same cases for PyTorch under the
// same names.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>

#include "backends/cpu/pool.h"
#include "tests/bench/figures.h"
#include "tests/bench/measure/clock.h"
#include "tests/bench/measure/timing.h"
#include "tests/bench/steps.h"

namespace {

using namespace brrr;

struct Case {
  std::string name;
  Tensor x;
  std::function<Tensor(const Tensor&)> f;
};

// The same unordered values in every program: sin(0.37 k + salt).
Tensor wave(const IntList& sizes, double salt = 0) {
  return (arange(numel_of(sizes)).to(kFloat32) * 0.37 + salt).sin().view(sizes);
}
// Unordered ids below `end`.
Tensor ids(const IntList& sizes, int64_t end) {
  return remainder(arange(numel_of(sizes)) * 7919, end).view(sizes);
}

std::vector<Case> pointwise_cases() {
  const IntList square = {1024, 1024};
  const Tensor a = wave(square), b = wave(square, 1), p = abs(a) + 0.1, row = wave({1024}, 2),
               column = wave({1024, 1}, 3), mask = a > 0.0, thin = wave({1 << 18, 4}),
               half = a.to(kBFloat16);
  return {
      {"add", a, [=](const Tensor& x) { return x + b; }},
      {"add of a row", row, [=](const Tensor& x) { return a + x; }},
      {"mul of a column", column, [=](const Tensor& x) { return a * x; }},
      {"add of a transpose", a, [=](const Tensor& x) { return x + b.t(); }},
      {"add of bfloat16", half, [=](const Tensor& x) { return x + half; }},
      {"div", p, [=](const Tensor& x) { return b / x; }},
      {"exp", a, [](const Tensor& x) { return exp(x); }},
      {"log", p, [](const Tensor& x) { return log(x); }},
      {"tanh", a, [](const Tensor& x) { return tanh(x); }},
      {"gelu", a, [](const Tensor& x) { return gelu(x); }},
      {"silu", a, [](const Tensor& x) { return silu(x); }},
      {"pow 3", a, [](const Tensor& x) { return pow(x, 3.0); }},
      {"pow 2.5", p, [](const Tensor& x) { return pow(x, 2.5); }},
      {"clamp", a, [](const Tensor& x) { return clamp(x, -0.5, 0.5); }},
      {"maximum", a, [=](const Tensor& x) { return maximum(x, b); }},
      {"where", a, [=](const Tensor& x) { return where(mask, x, 0.0); }},
      {"mul of a bool", a, [=](const Tensor& x) { return x * mask.to(kFloat32); }},
      {"and", {}, [=](const Tensor&) { return logical_and(mask, mask); }},
      {"less", {}, [=](const Tensor&) { return a < b; }},
      {"bfloat16 and back", a, [](const Tensor& x) { return x.to(kBFloat16).to(kFloat32); }},
      {"tril", a, [](const Tensor& x) { return tril(x); }},
      {"sum", a, [](const Tensor& x) { return sum(x); }},
      {"sum of columns", a, [](const Tensor& x) { return sum(x, {0}); }},
      {"sum of rows", a, [](const Tensor& x) { return sum(x, {1}); }},
      {"sum of a transpose", a, [](const Tensor& x) { return sum(x.t()); }},
      {"sum of its columns", a, [](const Tensor& x) { return sum(x.t(), {0}); }},
      {"sum of its rows", a, [](const Tensor& x) { return sum(x.t(), {1}); }},
      {"amax of rows", a, [](const Tensor& x) { return amax(x, {1}); }},
      {"var of rows", a, [](const Tensor& x) { return var(x, {1}); }},
      {"norm of rows", a, [](const Tensor& x) { return norm(x, {1}); }},
      {"argmax of rows", {}, [=](const Tensor&) { return argmax(a, 1); }},
      {"cumsum", a, [](const Tensor& x) { return cumsum(x, 1); }},
      {"softmax", a, [](const Tensor& x) { return softmax(x, 1); }},
      {"softmax of columns", a, [](const Tensor& x) { return softmax(x, 0); }},
      {"softmax of 4", thin, [](const Tensor& x) { return softmax(x, 1); }},
      {"log_softmax", a, [](const Tensor& x) { return log_softmax(x, 1); }},
      {"logsumexp", a, [](const Tensor& x) { return logsumexp(x, {1}); }},
      {"layer_norm", a, [=](const Tensor& x) { return layer_norm(x, {1024}, row, row); }},
      {"mse_loss", a, [=](const Tensor& x) { return mse_loss(x, b); }},
      {"cross_entropy", a, [=](const Tensor& x) { return cross_entropy(x, ids({1024}, 1024)); }},
  };
}

std::vector<Case> library_cases() {
  const Tensor a = wave({1024, 1024}), b = wave({1024, 1024}, 1), row = wave({1024}, 2),
               one = wave({1, 1024}, 2), eight = wave({8, 1024}, 2), cube = wave({64, 128, 128}),
               heads = wave({8, 64, 64, 32}), table = wave({50257, 64});
  const Tensor few = ids({4096}, 1024), many = ids({1024, 1024}, 1024), words = ids({8192}, 50257);
  return {
      {"transposed copy", a, [](const Tensor& x) { return x.t().contiguous(); }},
      {"heads to rows", heads, [](const Tensor& x) { return x.transpose(1, 2).contiguous(); }},
      {"channels last", heads,
       [](const Tensor& x) {
         return x.permute({0, 3, 1, 2}).contiguous();
       }},
      {"every second column", a, [](const Tensor& x) { return x.slice(1, 0, 1024, 2) * 1.0; }},
      {"cat", a,
       [=](const Tensor& x) {
         return cat({x, b}, 1);
       }},
      {"stack", a,
       [=](const Tensor& x) {
         return stack({x, b}, 2);
       }},
      {"chunk", a,
       [](const Tensor& x) {
         const std::vector<Tensor> part = x.chunk(4, 1);
         return part[0] * part[1] + part[2] * part[3];
       }},
      {"index_select", a, [=](const Tensor& x) { return index_select(x, 0, few); }},
      {"gather", a, [=](const Tensor& x) { return gather(x, 1, many); }},
      {"scatter_add", b, [=](const Tensor& x) { return scatter_add(a, 1, many, x); }},
      {"embedding", table, [=](const Tensor& x) { return embedding(x, words); }},
      {"sort", a, [](const Tensor& x) { return sort(x, 1).first; }},
      {"topk", a, [](const Tensor& x) { return topk(x, 10, 1).first; }},
      {"matmul", a, [=](const Tensor& x) { return matmul(x, b); }},
      {"linear", a, [=](const Tensor& x) { return linear(x, b); }},
      {"linear of one row", one, [=](const Tensor& x) { return linear(x, b); }},
      {"linear of eight rows", eight, [=](const Tensor& x) { return linear(x, b); }},
      {"matrix times vector", row, [=](const Tensor& x) { return matmul(a, x); }},
      {"vector times matrix", row, [=](const Tensor& x) { return matmul(x, a); }},
      {"dot", a, [=](const Tensor& x) { return matmul(x.view({-1}), b.view({-1})); }},
      {"outer", row, [=](const Tensor& x) { return matmul(x.unsqueeze(1), row.unsqueeze(0)); }},
      {"64 products of 128", cube, [=](const Tensor& x) { return matmul(x, cube); }},
      {"attention", heads,
       [](const Tensor& x) {
         const Tensor h = x.transpose(1, 2);
         return scaled_dot_product_attention(h, h, h, {.causal = true});
       }},
      {"randn",
       {},
       [](const Tensor&) {
         return randn({1024, 1024}) * 0.0;
       }},
      {"dropout", a, [](const Tensor& x) { return dropout(x, 0.1, true) * 0.0; }},
  };
}

void measure(const Case& c, double seconds, bench::Figures& figures) {
  const auto us = [&](const std::vector<std::function<void()>>& calls) {
    std::vector<double> times = bench::times_in_turns(calls, seconds);
    for (double& t : times) t *= 1e6;
    return times;
  };
  const auto forward = [&] {
    const NoGradGuard guard;
    return c.f(c.x);
  };
  const Tensor y = forward();
  figures.note_losses(c.name, {y.to(kFloat64).mean().item<float>()});
  if (!c.x.defined()) return figures.note(c.name, us({forward})[0], "us");
  const Tensor x = c.x.detach().set_requires_grad(), g = ones_like(y);
  const auto both = [&] {
    const Tensor z = c.f(x);
    return std::pair(z.detach(), grad({z}, {x}, {}, {g})[0]);
  };
  auto step = brrr::step(both);
  for (int k = 0; k < 3; ++k) step();
  const std::vector<double> t = us({forward, both, [&] { step(); }});
  figures.note(c.name, t[0], "us");
  figures.note(c.name + ", gradient", t[1] - t[0], "us");
  figures.note(c.name + ", graph", t[2], "us");
  if (step.stats().fallbacks > 0) throw Error("fell back: " + step.stats().last_fallback);
}

constexpr const char* kHelp =
    R"(usage: bench_ops [--only TEXT] [--threads N] [--seconds S] [--json FILE]
  --only     ops with this in their name
  --threads  1 if not given
  --seconds  at least, for each figure; 0.05 if not given
  --json     write the figures, after each of them
Exit status: 0, 1 after an error or if a figure failed, 2 if the command line is wrong.
)";

struct Options : bench::StepsOptions {
  Options() { seconds = 0.05; }
  bool take(bench::Words& words) { return words.word() != "--inputs" && StepsOptions::take(words); }
};

int run(const Options& o) {
  cpu::set_num_threads(o.threads);
  std::vector<Case> cases = pointwise_cases();
  std::ranges::copy(library_cases(), std::back_inserter(cases));
  std::vector<std::string> names;
  for (const Case& c : cases) names.push_back(c.name);
  std::erase_if(cases, [&](const Case& c) { return c.name.find(o.only) == std::string::npos; });
  if (cases.empty()) {
    throw bench::UsageError(fmt::format("--only: no op has '{}' in its name; the ops are {}",
                                        o.only, fmt::join(names, ", ")));
  }
  bench::Figures figures(o.json, {{"threads", o.threads}, {"clock", bench::cpu_clock()}});
  for (const Case& c : cases) {
    figures.attempt(c.name, [&] { measure(c, o.seconds, figures); });
  }
  return figures.failed() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::words_main("bench_ops", argc, argv, kHelp, Options{}, run);
}
