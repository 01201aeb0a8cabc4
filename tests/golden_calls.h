#pragma once
// The calls whose results test_golden.cpp compares with stored checksums. A line of that file is
// named by the text of the call here.

#include "brrr.h"
#include "tests/op_cases.h"

namespace brrr::test {

struct Outputs {
  Tensors all;
  Outputs(const Tensor& t) : all{t} {}                                     // NOLINT
  Outputs(const std::pair<Tensor, Tensor>& p) : all{p.first, p.second} {}  // NOLINT
  Outputs(Tensors t) : all(std::move(t)) {}                                // NOLINT
};
using In = const Tensors&;
using Function = std::function<Outputs(In)>;

struct Call {
  std::string name;
  Function fn;
  double lo = -2, hi = 2;  ///< Range of pointwise calls' operands.
};

// A function of up to five operands, named x, y, w, b and i; its name is its text without blanks.
#define CALL(...)                                              \
  Call {                                                       \
    squeezed(#__VA_ARGS__), [](In in) -> Outputs {             \
      Tensor operands[5];                                      \
      std::copy(in.begin(), in.end(), operands);               \
      [[maybe_unused]] const auto& [x, y, w, b, i] = operands; \
      return __VA_ARGS__;                                      \
    }                                                          \
  }
inline std::string squeezed(std::string text) {
  std::erase(text, ' ');
  return text;
}
inline Call over(double lo, double hi, Call c) {
  c.lo = lo;
  c.hi = hi;
  return c;
}

inline Tensor ids(int64_t n, int64_t classes) { return remainder(arange(n) * 7 + 3, classes); }

// clang-format off
// Operands have equal sizes or sizes that broadcast; the first list also takes integers.
inline const std::vector<Call>& number_calls() {
  static const std::vector<Call> calls = {
      CALL(add(x, y)), CALL(sub(x, y)), CALL(mul(x, y)), CALL(div(x, y)), CALL(floor_div(x, y)),
      CALL(remainder(x, y)), CALL(minimum(x, y)), CALL(maximum(x, y)), CALL(lt(x, y)),
      CALL(le(x, y)), CALL(gt(x, y)), CALL(ge(x, y)), CALL(eq(x, y)), CALL(ne(x, y)),
      CALL(logical_and(x, y)), CALL(logical_or(x, y)), CALL(logical_xor(x, y)), CALL(neg(x)),
      CALL(logical_not(x)), CALL(isnan(x)), CALL(isfinite(x)), CALL(square(x)), CALL(abs(x)),
      CALL(sign(x)), CALL(floor(x)), CALL(ceil(x)), CALL(round(x)), CALL(trunc(x)), CALL(relu(x)),
      CALL(add(x, 3)), CALL(mul(x, 3)), CALL(sub(3, x)), CALL(sub(x, 3)), CALL(div(3, x)),
      CALL(div(x, 3)), CALL(floor_div(x, 3)), CALL(remainder(x, 3)), CALL(minimum(x, 1)),
      CALL(maximum(x, 1)), CALL(clamp(x, -1, 1)), CALL(lt(x, 1)), CALL(le(x, 1)), CALL(gt(x, 1)),
      CALL(ge(x, 1)), CALL(eq(x, 1)), CALL(ne(x, 1)), CALL(pow(x, 2)), CALL(pow(x, 3)),
      CALL(where(w > 0, x, y)), CALL(where(w > 0, x, 1)), CALL(where(w > 0, 1, x)),
      CALL(where(w > 0, 1, 0)), CALL(x.clone()), CALL(x.contiguous()), CALL(x.to(kBFloat16)),
      CALL(x.to(kFloat16)), CALL(x.to(kFloat32)), CALL(x.to(kFloat64)), CALL(x.to(kBool)),
      CALL((x + y).add_(w)), CALL((x + y).sub_(w)), CALL((x + y).mul_(w.detach())),
      CALL((x + y).copy_(w)), CALL((x + y).detach().clamp_(-1, 1)), CALL((x + y).fill_(3)),
  };
  return calls;
}
inline const std::vector<Call>& float_calls() {
  static const std::vector<Call> calls = {
      CALL(add(x, 2.5)), CALL(sub(x, 0.3)), CALL(mul(x, 0.3)), CALL(div(x, 0.3)),
      CALL(floor_div(x, 0.3)), CALL(remainder(x, 0.3)), CALL(pow(x, -1.0)),
      CALL((x + y).div_(w.detach())), CALL(exp(x)), CALL(expm1(x)), CALL(reciprocal(x)),
      over(0.1, 3, CALL(pow(x, y))), over(0.1, 3, CALL(pow(x, 2.5))), over(0.1, 5, CALL(log(x))),
      over(-0.9, 5, CALL(log1p(x))), over(0.01, 5, CALL(sqrt(x))), over(0.01, 5, CALL(rsqrt(x))),
      over(-40, 40, CALL(sin(x))), over(-40, 40, CALL(cos(x))), over(-6, 6, CALL(tanh(x))),
      over(-20, 20, CALL(sigmoid(x))), over(-4, 4, CALL(erf(x))), over(-4, 4, CALL(leaky_relu(x))),
      over(-4, 4, CALL(leaky_relu(x, 0.2))), over(-4, 4, CALL(elu(x))),
      over(-4, 4, CALL(elu(x, 0.5))), over(-6, 6, CALL(gelu(x))),
      over(-6, 6, CALL(gelu(x, "tanh"))), over(-20, 20, CALL(silu(x))),
      over(-30, 30, CALL(softplus(x))),
  };
  return calls;
}

// Operands are matrices x and y, w and b for each column, and a class i for each row.
inline const std::vector<Call>& row_calls() {
  static const std::vector<Call> calls = {
      CALL(softmax(x, -1)), CALL(softmax(x, 0)), CALL(log_softmax(x, -1)), CALL(log_softmax(x, 0)),
      CALL(layer_norm(x, w.sizes())), CALL(layer_norm(x, w.sizes(), w)),
      CALL(layer_norm(x, w.sizes(), {}, b)), CALL(layer_norm(x, w.sizes(), w, b, 1e-3)),
      CALL(layer_norm(x, x.sizes(), y)), CALL(rms_norm(x, w.sizes())),
      CALL(rms_norm(x, w.sizes(), w, 1e-3)), CALL(rms_norm(x, x.sizes(), y)),
      CALL(cross_entropy(x, i)), CALL(cross_entropy(x, i, {.ignore_index = 0})),
      CALL(cross_entropy(x, i, {.label_smoothing = 0.1})),
      CALL(cross_entropy(x, i, {.ignore_index = 0, .label_smoothing = 0.25})),
      CALL(mse_loss(x, y)), CALL(mse_loss(x, w.expand(x.sizes()))),
      CALL(bce_with_logits(x, y * 0.25 + 0.5)), CALL(argmax(x, -1)), CALL(argmax(x, 0, true)),
      CALL(argmin(x, -1, true)), CALL(argmin(x, 0)), CALL(argmax(round(x), -1)),
      CALL(max_with_indices(x, -1)), CALL(amax(round(x), -1)),
      CALL(amin(round(x), 0)), CALL(cumsum(x, -1)), CALL(cumsum(x, 0)), CALL(tril(x, 1)),
      CALL(triu(x, -1)), CALL(sort(x, -1)), CALL(sort(x, 0, true)),
      CALL(argsort(round(x), -1, true)), CALL(topk(x, (x.size(1) + 2) / 3)),
      CALL(topk(x, 2, 0, false)), CALL(cat({x, y, x}, 0)), CALL(cat({y, x}, -1)),
      CALL(stack({x, y}, 1)), CALL(index_select(x, 0, remainder(i, 2))),
      CALL(embedding(x, remainder(i.unsqueeze(1), 3))), CALL(gather(x, 1, argsort(y, -1))),
      CALL(scatter_add(x, 1, floor_div(argsort(y, -1), 3), y)), CALL(dropout(x, 0.3, true)),
      CALL(dropout(x, 0.3, false)), CALL(dropout_mask(x, 0.3)), CALL(rand_like(x)),
      CALL(randn_like(x)), CALL(multinomial(exp(x.detach()), (x.size(1) + 1) / 2)),
      CALL(multinomial(exp(x.detach()), 20, true)), CALL(rotary_embedding(cat({x, y}, 1), i)),
  };
  return calls;
}
inline const std::vector<Call>& makers() {
  static const std::vector<Call> calls = {
      CALL(arange(1000)), CALL(arange(0.5, 300, 0.3)), CALL(arange(-3, 90, 7)),
      CALL(linspace(-1, 3.7, 1001)), CALL(linspace(2, 3, 1)), CALL(eye(17)), CALL(eye(5, 70)),
      CALL(full({5, 17}, 0.1)), CALL(full({257}, 0.1, kFloat64)), CALL(zeros({33})),
      CALL(ones({3, 17}, kInt32)), CALL(one_hot(ids(300, 13).view({3, 100}), 13)),
      CALL(rand({40007})), CALL(randn({40007})), CALL(randn({3, 5})), CALL(randperm(1000)),
      CALL(randint(-3, 1000, {5000})), CALL(randint(0, int64_t{1} << 40, {100})),
      CALL(draw_key()), CALL(tensor({{1.5f, -2.f}, {0.1f, 3.f}})), CALL(tensor(0.1)),
  };
  return calls;
}
// clang-format on

}  // namespace brrr::test
