// Attention: the kernels against the decomposition and against plain loops, gradients, masks,
// dropout, layouts, both modes, errors.

#include <cmath>
#include <functional>

#include "backends/cpu/pool.h"
#include "brrr.h"
#include "ops/kinds/composite.h"
#include "ops/rows/attention_kernel.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

Tensor normal(const IntList& sizes, DType t = kFloat32) { return randn(sizes).to(t); }

Tensor attend(const Tensors& in, const AttentionOptions& o) {
  return scaled_dot_product_attention(in[0], in[1], in[2], o);
}

// The shape of q, k and v.
struct Shape {
  IntList batch;
  int64_t queries, keys, width, depth;
  Tensors operands(DType t) const {
    auto make = [&](int64_t rows, int64_t cols) {
      IntList sizes = batch;
      sizes.push_back(rows);
      sizes.push_back(cols);
      return normal(sizes, t);
    };
    return {make(queries, width), make(keys, width), make(keys, depth)};
  }
};

// Sizes around a vector, a query tile (16) and a key tile (64); one token, one element; wider than
// the 256 elements transposed at a time, with several key tiles.
const Shape kShapes[] = {{{2}, 1, 1, 1, 1},     {{}, 5, 7, 3, 4},         {{2, 1}, 16, 16, 16, 16},
                         {{3}, 17, 15, 5, 33},  {{2, 2}, 32, 32, 16, 16}, {{1}, 33, 65, 8, 9},
                         {{2}, 70, 64, 20, 12}, {{1}, 1, 130, 16, 16},    {{1}, 100, 200, 48, 64},
                         {{1}, 130, 3, 64, 32}, {{1}, 20, 150, 300, 8}};

// Masks of every kind: none, some keys, and for some queries every key.
std::vector<AttentionOptions> masks_for(const Shape& s, DType t) {
  const IntList full{s.queries, s.keys};
  Tensor some = rand(full) < 0.6;
  some.select(0, 0).fill_(false);
  const Tensor bias = where(rand(full) < 0.8, normal(full, t), -kInf);
  return {{},
          {.causal = true},
          {.mask = some},
          {.causal = true, .mask = some},
          {.mask = bias},
          {.mask = rand({1, s.keys}) < 0.7},
          {.causal = true, .mask = normal({s.queries, 1}, t), .scale = 0.3}};
}

// Compares all outputs of the row `name`, by its kernel and by its decomposition.
void check_row(const char* name, const Tensors& in, const AttentionOptions& o, double scale,
               bool by_length) {
  const OpDef* op = find_op(name);
  REQUIRE(op);
  const double tolerance = op->tolerance;
  REQUIRE(tolerance < 1e-5);
  std::vector<TensorImpl*> impls;
  for (const Tensor& t : in) impls.push_back(t.impl());
  auto call = [&](OpCall& c) -> OpCall& {
    c.attrs.push(int64_t{o.causal});
    c.attrs.push(scale);
    c.attrs.push(o.dropout);
    c.attrs.push(int64_t{by_length});
    return c;
  };
  OpCall kernel(*op, impls.data(), static_cast<int>(impls.size()));
  OpCall decomposed(*op, impls.data(), static_cast<int>(impls.size()));
  dispatch(call(kernel));
  op->decompose(call(decomposed), in.data());
  for (int k = 0; k < op->n_out - op->n_scratch; ++k) {
    CAPTURE(k);
    const Tensor &a = kernel.out[k], &b = decomposed.out[k];
    REQUIRE(a.sizes() == b.sizes());
    REQUIRE(a.dtype() == b.dtype());
    const auto x = a.to(kFloat64).to_vector<double>(), y = b.to(kFloat64).to_vector<double>();
    const bool half = a.dtype() == kBFloat16 || a.dtype() == kFloat16;
    double largest = 0;
    for (double v : y) {
      if (std::isfinite(v)) largest = std::max(largest, std::fabs(v));
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double bound = (half ? 8e-3 : tolerance) * std::max(largest, 1.0);
      if (x[i] != y[i] && !(std::fabs(x[i] - y[i]) <= bound)) {
        FAIL_CHECK(fmt::format("{}: output {}, element {}: {} against {}, bound {}", name, k, i,
                               x[i], y[i], bound));
        break;
      }
    }
  }
}

void check_both(const Shape& s, const AttentionOptions& options, DType t, bool by_length) {
  AttentionOptions o = options;
  Tensors in = s.operands(t);
  IntList scores = s.batch;
  scores.push_back(s.queries);
  scores.push_back(s.keys);
  if (o.mask.defined()) {
    if (o.mask.dtype() != kBool) o.mask = o.mask.to(t == kFloat64 ? kFloat64 : kFloat32);
    o.mask = o.mask.expand(scores);
  }
  in.push_back(o.mask);
  in.push_back(o.dropout > 0 ? draw_key() : Tensor());
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(s.width));
  check_row("scaled_dot_product_attention", in, o, scale, by_length);
  const OpDef* op = find_op("scaled_dot_product_attention");
  std::vector<TensorImpl*> impls;
  for (const Tensor& x : in) impls.push_back(x.impl());
  OpCall c(*op, impls.data(), 5);
  c.attrs.push(int64_t{o.causal});
  c.attrs.push(scale);
  c.attrs.push(o.dropout);
  c.attrs.push(int64_t{by_length});
  dispatch(c);
  for (int k = 0; k < c.n_out; ++k) {
    in.push_back(by_length && k == 0 ? c.out[k].transpose(-3, -2) : c.out[k]);
  }
  in.push_back(normal(in[attention::Out].sizes(), t));
  check_row("attention_backward", in, o, scale, by_length);
}

void check_gradients(const std::function<Tensor(const Tensors&)>& fn, const Tensors& in) {
  const auto r = gradcheck(fn, in, {.tolerance = 5e-6, .second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
}

}  // namespace

TEST_CASE("attention: the kernels agree with the decomposition") {
  manual_seed(1);
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    for (const Shape& s : kShapes) {
      CAPTURE(s.queries);
      CAPTURE(s.keys);
      int which = 0;
      for (AttentionOptions o : masks_for(s, t)) {
        CAPTURE(which++);
        check_both(s, o, t, false);
        o.dropout = 0.4;
        check_both(s, o, t, false);
        if (!s.batch.empty() && itemsize(t) > 2) check_both(s, o, t, true);
      }
    }
  }
}

TEST_CASE("attention: values") {
  manual_seed(2);
  const Shape s{{2, 3}, 6, 9, 4, 5};
  const Tensors in = s.operands(kFloat64);
  auto at = [](const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t j) {
    return t.select(0, b).select(0, h).select(0, i).select(0, j).item<double>();
  };
  const Tensor y = attend(in, {.causal = true});
  for (int64_t i : {0, 3, 5}) {
    // The causal mask is aligned with the first key, as PyTorch's is_causal.
    double sum = 0, value = 0;
    for (int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < 4; ++d) dot += at(in[0], 1, 2, i, d) * at(in[1], 1, 2, j, d);
      sum += std::exp(dot / 2);
      value += std::exp(dot / 2) * at(in[2], 1, 2, j, 3);
    }
    CHECK(std::fabs(at(y, 1, 2, i, 3) - value / sum) < 1e-12);
  }
  // Scores of 1e4 and more do not overflow.
  const Tensor big = attend({in[0] * 1e3, in[1] * 1e3, in[2]}, {});
  CHECK(brrr::all(isfinite(big)).item<bool>());
  // Kernels and decomposition add a bool mask as 0 or -inf: a score that overflowed gives NaN,
  // masked or not, in gradients of both orders.
  const Tensor q = full({1, 1}, 1e200, kFloat64).set_requires_grad(),
               k = tensor(std::vector<double>{1, 1e200}).view({2, 1});
  const Tensor hidden = attend({q, k, ones_like(k)}, {.mask = arange(2) < 1.0});
  const Tensor first = grad({hidden}, {q}, {.create_graph = true})[0];
  CHECK(isnan(first).item<bool>());
  CHECK(isnan(grad({first}, {q})[0]).item<bool>());
  // Bool and floating masks are equivalent; leading dims broadcast.
  const Tensor mask = rand({2, 1, 6, 9}) < 0.5;
  const Tensor bias = where(mask, full({1}, 0.0), -kInf);
  check_same(attend(in, {.mask = mask}), attend(in, {.mask = bias}));
  const Tensor one = in[1].narrow(1, 0, 1), v = in[2].narrow(0, 0, 1);
  check_same(attend({in[0], one, v}, {}),
             attend({in[0], one.expand(in[1].sizes()), v.expand(in[2].sizes())}, {}));
  CHECK(
      scaled_dot_product_attention(zeros({2, 0, 4}), zeros({2, 3, 4}), zeros({2, 3, 5})).sizes() ==
      IntList{2, 0, 5});
  const Tensor keyless = ones({2, 3, 4}).set_requires_grad(true);
  const Tensor none = attend({keyless, ones({2, 0, 4}), ones({2, 0, 5})}, {});
  check_same(none.detach(), zeros({2, 3, 5}));
  none.sum().backward();
  check_same(keyless.grad(), zeros({2, 3, 4}));
  // With queries and keys of width 0 all keys have equal weights.
  check_close(attend({ones({1, 2, 0}), ones({1, 2, 0}), tensor({{{1.f, 4.f}, {3.f, 0.f}}})}, {}),
              full({1, 2, 2}, 2.0), 1e-6);
}

TEST_CASE("attention: a query with every key masked gives zeros and has no gradient") {
  for (DType t : {kFloat32, kBFloat16, kFloat64}) {
    for (int64_t n : {5, 40, 150}) {
      for (int kind = 0; kind < 2; ++kind) {
        manual_seed(3);
        Tensor mask = rand({n, n}) < 0.5;
        mask.narrow(0, 2, 2).fill_(false);
        if (kind) mask = where(mask, full({1}, 0.0), -kInf);
        Tensors in = Shape{{2}, n, n, 8, 8}.operands(t);
        for (Tensor& x : in) x.set_requires_grad();
        const Tensor y = attend(in, {.causal = true, .mask = mask});
        check_same(y.detach().narrow(1, 2, 2).contiguous(), zeros({2, 2, 8}, t));
        (y * normal(y.sizes(), t)).sum().backward();
        check_same(in[0].grad().narrow(1, 2, 2).contiguous(), zeros({2, 2, 8}, t));
        for (const Tensor& x : in) CHECK(brrr::all(isfinite(x.grad())).item<bool>());
        // Every query has every key masked.
        for (Tensor& x : in) x = x.detach().set_requires_grad();
        const Tensor none = zeros({n, 1}, kBool);
        attend(in, {.mask = none}).sum().backward();
        for (const Tensor& x : in) check_same(x.grad(), zeros(x.sizes(), t));
      }
    }
  }
}

TEST_CASE("attention: gradients of both orders") {
  manual_seed(4);
  for (const Shape& s : {Shape{{2}, 1, 1, 2, 2}, Shape{{}, 3, 5, 3, 2}, Shape{{1, 2}, 5, 3, 2, 3},
                         Shape{{1}, 18, 2, 1, 1}}) {
    for (const AttentionOptions& o : masks_for(s, kFloat64)) {
      check_gradients([&](const Tensors& in) { return attend(in, o); }, s.operands(kFloat64));
    }
  }
  const Shape heads{{3, 2}, 4, 3, 2, 3};  // Interleaved per token, as from a projection.
  for (const AttentionOptions& o : masks_for(heads, kFloat64)) {
    const auto sides = [&](const Tensors& in) {
      Tensors t;
      for (const Tensor& x : in) t.push_back(x.transpose(1, 2));
      return attend(t, o);
    };
    Tensors in = heads.operands(kFloat64);
    for (Tensor& x : in) x = x.transpose(1, 2).contiguous();
    check_gradients(sides, in);
  }
  // More than one query tile and key tile, first order.
  const Shape wide{{}, 19, 67, 2, 2};
  for (const AttentionOptions& o : masks_for(wide, kFloat64)) {
    const auto r = gradcheck([&](const Tensors& in) { return attend(in, o); },
                             wide.operands(kFloat64), {.tolerance = 5e-6});
    CHECK_MESSAGE(r.ok, r.report);
  }
}

TEST_CASE("attention: a floating mask and broadcast operands get gradients") {
  manual_seed(5);
  Tensors in = Shape{{2, 2}, 3, 4, 2, 3}.operands(kFloat64);
  in.push_back(normal({2, 1, 1, 4}, kFloat64));
  check_gradients([](const Tensors& x) { return attend(x, {.causal = true, .mask = x[3]}); }, in);
  in[1] = in[1].narrow(1, 0, 1).contiguous();
  in[2] = in[2].select(0, 0).contiguous();
  check_gradients([](const Tensors& x) { return attend(x, {.mask = x[3]}); }, in);
}

TEST_CASE("attention: dropout uses the mask that dropout() would draw") {
  for (DType t : {kFloat32, kFloat64, kBFloat16}) {
    for (const Shape& s : {Shape{{2, 2}, 32, 32, 16, 16}, Shape{{3}, 21, 77, 4, 5}}) {
      manual_seed(6);
      const Tensors in = s.operands(t);
      const RngState before = rng_state();
      const Tensor y = attend(in, {.causal = true, .dropout = 0.3});
      CHECK(rng_state().draw == before.draw + 1);
      set_rng_state(before);
      Tensor scores = matmul(in[0].to(kFloat64), in[1].to(kFloat64).transpose(-2, -1));
      scores = scores * (1 / std::sqrt(static_cast<double>(s.width)));
      const Tensor seen = arange(s.keys) <= arange(s.queries).unsqueeze(1);
      const Tensor p = where(seen, scores, -kInf).softmax(-1).to(t == kBFloat16 ? kFloat32 : t);
      const Tensor want = matmul(dropout(p, 0.3, true), in[2].to(p.dtype()));
      check_close(y, want, t == kBFloat16 ? 1e-2 : 1e-5);
      // No dropout in evaluation, and no draw.
      const RngState now = rng_state();
      check_same(attend(in, {.dropout = 0.3, .training = false}), attend(in, {}));
      CHECK(rng_state().draw == now.draw);
    }
  }
  const Tensor key = draw_key();
  set_rng_state({rng_state().seed, rng_state().draw - 1});
  check_same(dropout_mask(zeros({5, 7}), 0.3), dropout_mask_at(key, 0.3, {5, 7}, kFloat32));
  // The backward pass draws the same mask again: gradients match the values that were returned.
  for (double p : {0.5, 1.0}) {
    const auto r = gradcheck(
        [=](const Tensors& in) {
          manual_seed(7);
          return attend(in, {.causal = true, .dropout = p});
        },
        Shape{{2}, 5, 7, 2, 2}.operands(kFloat64), {.tolerance = 5e-6, .second_order = true});
    CHECK_MESSAGE(r.ok, r.report);
  }
}

TEST_CASE("attention: layouts and threads do not change bits") {
  manual_seed(8);
  for (int64_t n : {9, 32, 100}) {
    const Tensor wide = normal({2, n, 3, 4, 16});
    auto heads = [&](int64_t i) { return wide.select(2, i).transpose(1, 2); };
    Tensors strided, dense, columns;
    for (int64_t i = 0; i < 3; ++i) {
      strided.push_back(heads(i).detach().set_requires_grad());
      dense.push_back(heads(i).contiguous().set_requires_grad());
      const Tensor t = heads(i).transpose(-2, -1).contiguous().transpose(-2, -1);
      columns.push_back(t.detach().set_requires_grad());
    }
    const Tensor mask = rand({n, n}) < 0.8, g = normal({2, n, 4, 16}).transpose(1, 2);
    auto all = [&](const Tensors& in, const Tensor& m, const Tensor& weights) {
      manual_seed(9);
      const Tensor y = attend(in, {.causal = true, .mask = m, .dropout = 0.1});
      Tensors r = grad({y}, in, {}, {weights});
      r.push_back(y.detach());
      return r;
    };
    const Tensors want = all(dense, mask, g.contiguous());
    check_same(all(strided, mask, g), want);
    CHECK(attend(strided, {}).transpose(1, 2).is_contiguous());  // Merging the heads is a view.
    check_same(all(columns, mask.t().contiguous().t(), g), want);
    cpu::set_num_threads(1);
    const Tensors alone = all(strided, mask, g);
    cpu::set_num_threads(2);
    check_same(alone, want);
    // A head's bits do not depend on its neighbours.
    const Tensor y =
        attend({dense[0].narrow(1, 2, 1), dense[1].narrow(1, 2, 1), dense[2].narrow(1, 2, 1)}, {});
    check_same(y.detach(), attend(dense, {}).detach().narrow(1, 2, 1).contiguous());
  }
}

TEST_CASE("attention: both modes give the same bits") {
  manual_seed(10);
  for (DType t : {kFloat32, kBFloat16, kFloat64}) {
    Tensors in = Shape{{2, 2}, 33, 33, 16, 16}.operands(t);
    for (Tensor& x : in) x.set_requires_grad();
    Tensor bias = normal({33, 33}).set_requires_grad();
    const Tensor seen = rand({33, 33}) < 0.7;
    check_step([&](Results& r) {
      add_with_gradients(r, "plain", attend(in, {}), in);
      add_with_gradients(r, "causal", attend(in, {.causal = true}), in);
      add_with_gradients(r, "mask", attend(in, {.mask = seen, .dropout = 0.2}), in);
      add_with_gradients(r, "bias", attend(in, {.causal = true, .mask = bias, .dropout = 0.1}),
                         {in[0], in[1], in[2], bias});
      add_with_gradients(r, "again", attend(in, {.dropout = 0.1}), in);
      r.add("rotary", rotary_embedding(in[0], arange(33)));
    });
  }
}

TEST_CASE("attention: errors name the op, the shapes and the remedy") {
  const Tensor x = zeros({2, 4, 6});
  auto error = [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
    return error_of([&] { scaled_dot_product_attention(q, k, v, o); });
  };
  const std::string op = "scaled_dot_product_attention: ";
  CHECK(error(x, zeros({2, 4, 5}), x, {}) ==
        op + "q float32[2, 4, 6] and k float32[2, 4, 5] differ in their last dim; project them to "
             "one width");
  CHECK(error(x, x, zeros({2, 5, 6}), {}) ==
        op + "k float32[2, 4, 6] and v float32[2, 5, 6] differ in length; give one value for each "
             "key");
  CHECK(error(x, x, Tensor(), {}) == op + "q, k or v is undefined; assign it");
  CHECK(error(zeros({4}), x, x, {}) ==
        op + "takes [.., length, width], got float32[4]; add dims with unsqueeze");
  CHECK(error(zeros({2, 4, 6}, kInt64), x, x, {}).find(op + "takes floating dtypes") == 0);
  CHECK(error(x, x.to(kFloat64), x, {}).find(op + "operands are float32[2, 4, 6] on cpu") == 0);
  CHECK(error(x, zeros({3, 4, 6}), x, {}).find(op) == 0);
  CHECK(error(x, x, x, {.mask = zeros({4, 4}, kInt64)}).find(op + "the mask is bool") == 0);
  CHECK(error(x, x, x, {.mask = zeros({3, 4}, kBool)}) ==
        op + "the mask bool[3, 4] does not broadcast to the scores [2, 4, 4]; give it their last "
             "dims, or 1");
  CHECK(error(x, x, x, {.dropout = 1.5}) == op + "dropout is a probability in [0, 1], got 1.5");
  CHECK(error(x, x, x, {.scale = kInf}).find(op + "scale must be finite") == 0);
}
