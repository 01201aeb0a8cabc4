// Runs kernels one by one, for counts.py. Under callgrind, which begins without collecting, each
// kernel is a separate dump with its name; otherwise each prints the figures of brrr::Profile.
#include <brrr/brrr.h>

#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include <functional>
#include <string>

#include "backends/cpu/pool.h"
#include "ops/vocabulary/vec_fold.h"

using namespace brrr;

namespace {

// Large enough that code before and after a loop is negligible, small enough for valgrind.
constexpr int64_t kMany = 1 << 16, kRows = 32, kLength = 4096;

using Call = std::function<void()>;
std::string wanted;  // Kernels whose names contain it are counted.

// Properties of a kernel that its row does not state.
struct Extra {
  double recomputed = 0;  // Operations that the CPU recomputes instead of keeping a result.
  bool streams = false;   // Reads and writes its operands, and keeps nothing in memory.
};
constexpr Extra kStreams{.streams = true};

// Counts the third call: by then a step replays and memory is allocated.
void count(const std::string& name, const Call& call, Extra extra = {}) {
  if (name.find(wanted) == name.npos) return;
  for (int k = 0; k < 2; ++k) call();
  if (RUNNING_ON_VALGRIND) {
    CALLGRIND_TOGGLE_COLLECT;
    call();
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(name.c_str());
    return;
  }
  double flops = 0, bytes = 0;
  {
    Profile profile;
    call();
    for (const ProfileRow& row : profile.rows()) flops += row.flops, bytes += row.bytes;
  }
  fmt::print("{}\t{}\t{}\t{}\n", name, flops, extra.recomputed, extra.streams ? bytes : 0);
}

void count_step(const std::string& name, const std::function<Tensor()>& fn, Extra extra = {}) {
  auto step = brrr::step(fn, {.require_graph = true, .build_at_first_call = true});
  count(
      name, [&] { step(); }, extra);
}

// Eagerly and in graph mode.
void count_both(const std::string& name, const std::function<Tensor()>& fn, Extra extra = {}) {
  count(name, fn, extra);
  count_step(name + ", graph", fn, extra);
}

// Every function of m:: by the op that consists of it alone. Arguments are in the common range, in
// which sine and cosine take the fast path.
void functions() {
  const Tensor x = rand({kMany}) * 2.0 - 1.0, y = rand({kMany}) + 0.5;
  using Function = Tensor (*)(const Tensor&);
  const auto one = [](const char* name, Function f, const Tensor& at, Extra extra = {}) {
    count(
        name, [&] { f(at); }, extra);
  };
  one("exp", exp, x);
  one("expm1", expm1, x);
  one("log", log, y);
  one("log1p", log1p, x);
  one("sqrt", sqrt, y, kStreams);
  one("rsqrt", rsqrt, y);
  one("sin", sin, x);  // They read x once more than their row states, from L1.
  one("cos", cos, x);
  one("tanh", tanh, x);
  one("sigmoid", sigmoid, x);
  one("erf", erf, x, kStreams);
  one("floor", floor, x, kStreams);
  one("sign", sign, x);
  one("abs", abs, x);
  one("isnan", isnan, x);
  one("isfinite", isfinite, x, kStreams);
  count("minimum", [&] { minimum(x, y); });
  count("maximum", [&] { maximum(x, y); });
  count("pow", [&] { pow(y, x); });
  count("remainder", [&] { remainder(x, y); });
  count("floor_div", [&] { floor_div(x, y); });
  count("randn", [&] { randn({kMany}); });
}

void pointwise() {
  const Tensor a = randn({kMany}), b = randn({kMany}), c = randn({kMany});
  count(
      "add", [&] { a + b; }, kStreams);
  count_both("(a * b + c) * a", [&] { return (a * b + c) * a; });
  count_both("relu", [&] { return relu(a); });
  count_both(
      "gelu", [&] { return gelu(a); }, kStreams);
  count_both(
      "gelu, tanh", [&] { return gelu(a, "tanh"); }, kStreams);
  count_both("silu", [&] { return silu(a); });
  count_both("where(a > b)", [&] { return where(gt(a, b), a, c); });
}

// The gradients of x and of the other inputs of f.
void count_gradient(const std::string& name, const std::vector<Tensor>& leaves,
                    const std::function<Tensor()>& f, Extra extra = {}) {
  for (const Tensor& t : leaves) t.set_requires_grad();
  const Tensor y = f(), g = randn(y.sizes());
  count(
      name, [&] { grad({y}, leaves, {.retain_graph = true}, {g}); }, extra);
}

// A pass over the elements recomputes cheap values: x - mean, g * weight and the like.
constexpr Extra recomputed(double each) { return {.recomputed = each * kRows * kLength}; }

void rows() {
  const Tensor x = randn({kRows, kLength}), w = randn({kLength}), b = randn({kLength});
  const Tensor ids = randint(0, kLength, {kRows});
  // In each chunk four vectors of sums are reduced to a scalar: 80 additions, including those in
  // unused lanes.
  count_both("sum", [&] { return x.sum(); },
             {.recomputed = 80.0 * kRows * kLength / vx::kFoldChunk});
  count_both("softmax", [&] { return softmax(x, -1); });
  count_both(
      "log_softmax", [&] { return log_softmax(x, -1); }, recomputed(1));
  count_both(
      "layer_norm", [&] { return layer_norm(x, {kLength}, w, b); }, recomputed(1));
  count_both("rms_norm", [&] { return rms_norm(x, {kLength}, w); });
  count_both("cross_entropy", [&] { return cross_entropy(x, ids); });
  count_gradient("gelu, backward", {x}, [&] { return gelu(x); });
  count_gradient("softmax, backward", {x}, [&] { return softmax(x, -1); });
  count_gradient(
      "layer_norm, backward", {x, w, b}, [&] { return layer_norm(x, {kLength}, w, b); },
      recomputed(4));
  count_gradient(
      "rms_norm, backward", {x, w}, [&] { return rms_norm(x, {kLength}, w); }, recomputed(2));
}

void products() {
  for (const int64_t n : {64, 256}) {
    const Tensor a = randn({n, n}), b = randn({n, n});
    count(fmt::format("matmul {}", n), [&] { matmul(a, b); });
  }
  const Tensor x = randn({128, 256}), w = randn({64, 256}), b = randn({64});
  count_both("linear", [&] { return linear(x, w, b); });
  const Tensor q = randn({2, 4, 128, 64}), k = randn({2, 4, 128, 64}), v = randn({2, 4, 128, 64});
  const auto attention = [&] { return scaled_dot_product_attention(q, k, v); };
  count("attention", attention);
  count_gradient("attention, backward", {q, k, v}, attention);
}

void updates() {
  for (const bool graph : {false, true}) {
    const Tensor p = randn({kMany});
    p.set_requires_grad();
    p.set_grad(randn({kMany}));
    optim::AdamW opt({p}, {.lr = 1e-3, .weight_decay = 0.1});
    const auto update = [&] {
      opt.step();
      return p.grad();
    };
    // Eagerly the three operations on rates and decay are done for each vector.
    graph ? count_step("AdamW, graph", update)
          : count("AdamW", update, {.recomputed = 3.0 * kMany});
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) wanted = argv[1];
  cpu::set_num_threads(1);
  functions();
  pointwise();
  rows();
  products();
  updates();
}
