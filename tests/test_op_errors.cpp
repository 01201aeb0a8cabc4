// Invalid arguments: every call throws brrr::Error, names the op first, and leaves the operands and
// their versions unchanged.

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

struct Operands {
  Tensor x = sampled({3, 4}, kFloat32), v = sampled({4}, kFloat32), w = sampled({3, 4}, kFloat64);
  Tensor i = tensor({0, 2, 1}), far = tensor({0, 9, -1}), scalar = tensor(1.f), none;
  Tensor deep = ones({1, 1, 1, 1, 1, 1, 1, 1});
};
struct Wrong {
  const char* op;
  std::function<void()> call;
};

std::vector<Wrong> wrong_views(const Operands& o) {
  return {
      {"view",
       [&] {
         o.x.view({5, -1});
       }},
      {"view", [&] { o.x.t().view({12}); }},
      {"view",
       [&] {
         o.x.view({-1, -1});
       }},
      {"reshape", [&] { o.x.reshape({7}); }},
      {"permute",
       [&] {
         o.x.permute({0, 0});
       }},
      {"permute", [&] { o.x.permute({0}); }},
      {"transpose", [&] { o.x.transpose(0, 2); }},
      {"t",
       [&] {
         ones({2, 2, 2}).t();
       }},
      {"slice", [&] { o.x.slice(0, 0, 2, 0); }},
      {"slice", [&] { o.x.slice(2, 0, 1); }},
      {"narrow", [&] { o.x.narrow(1, 3, 2); }},
      {"select", [&] { o.x.select(0, 3); }},
      {"select", [&] { o.scalar.select(0, 0); }},
      {"expand",
       [&] {
         o.x.expand({3, 5});
       }},
      {"expand", [&] { o.x.expand({4}); }},
      {"unsqueeze", [&] { o.x.unsqueeze(4); }},
      {"squeeze", [&] { o.x.squeeze(2); }},
      {"flatten", [&] { o.x.flatten(1, 0); }},
      {"as_strided", [&] { as_strided(o.x, {4}, {4}, 0); }},
      {"chunk", [&] { o.x.chunk(0, 0); }},
      {"chunk", [&] { o.scalar.chunk(2); }},
      {"split", [&] { o.scalar.split(1); }},
      {"split", [&] { o.x.split(0, 0); }},
      {"unbind", [&] { unbind(o.x, 2); }},
      {"unbind", [&] { unbind(o.scalar); }},
      {"unbind", [] { unbind(Tensor()); }},
      {"alias", [&] { alias(o.none); }},
  };
}

std::vector<Wrong> wrong_calls(const Operands& o) {
  return {
      {"argmax", [&] { argmax(o.x, 2); }},
      {"argmin",
       [&] {
         argmin(ones({0, 2}), 0);
       }},
      {"gather", [&] { gather(o.x, 0, o.i); }},
      {"gather",
       [&] {
         gather(o.x, 0, o.far.view({1, 3}));
       }},
      {"gather", [&] { gather(o.x, 0, o.x); }},
      {"gather", [&] { gather(o.x, 2, o.i); }},
      {"scatter_add",
       [&] {
         scatter_add(o.x, 0, o.far.view({3, 1}), o.x);
       }},
      {"scatter_add",
       [&] {
         o.x.scatter_add_(0, o.far.view({3, 1}), o.x.narrow(1, 0, 1).clone());
       }},
      {"scatter_add",
       [&] {
         scatter_add(o.x, 0, o.i.view({3, 1}), o.w);
       }},
      {"index_select", [&] { index_select(o.x, 0, o.far); }},
      {"index_select", [&] { index_select(o.x, 0, o.v); }},
      {"index_select", [&] { index_select(o.scalar, 0, o.i); }},
      {"embedding", [&] { embedding(o.x, o.far); }},
      {"embedding", [&] { embedding(o.v, o.i); }},
      {"embedding", [&] { embedding(o.x, o.deep.to(kInt64)); }},
      {"unsqueeze", [&] { o.deep.unsqueeze(0); }},
      {"one_hot", [&] { one_hot(o.i, 2); }},
      {"one_hot", [&] { one_hot(o.i, 0); }},
      {"one_hot", [&] { one_hot(o.x, 3); }},
      {"cat", [&] { cat({}); }},
      {"cat",
       [&] {
         cat({o.x, o.v});
       }},
      {"cat",
       [&] {
         cat({o.x, o.x.t()}, 0);
       }},
      {"stack",
       [&] {
         stack({o.x, o.v});
       }},
      {"stack", [&] { stack({}); }},
      {"matmul", [&] { matmul(o.x, o.x); }},
      {"matmul", [&] { matmul(o.x, o.w.t()); }},
      {"matmul", [&] { matmul(o.x, o.scalar); }},
      {"matmul", [&] { matmul(o.x, o.none); }},
      {"linear", [&] { linear(o.x, o.x.t()); }},
      {"linear", [&] { linear(o.x, o.x, o.v); }},
      {"softmax", [&] { softmax(o.x, 2); }},
      {"softmax", [&] { softmax(o.i, 0); }},
      {"log_softmax", [&] { log_softmax(o.none, 0); }},
      {"layer_norm", [&] { layer_norm(o.x, {3}); }},
      {"layer_norm", [&] { layer_norm(o.x, {4}, o.i); }},
      {"rms_norm",
       [&] {
         rms_norm(o.x, {2, 3, 4});
       }},
      {"cross_entropy", [&] { cross_entropy(o.x, o.far); }},
      {"cross_entropy", [&] { cross_entropy(o.x, o.v); }},
      {"cross_entropy", [&] { cross_entropy(o.x, o.i, {.label_smoothing = 2}); }},
      {"tril", [&] { tril(o.v); }},
      {"triu", [&] { triu(o.scalar); }},
      {"cumsum", [&] { cumsum(o.x, 2); }},
      {"argsort", [&] { argsort(o.x, -3); }},
      {"sort", [&] { sort(o.none, 0); }},
      {"topk", [&] { topk(o.x, 5); }},
      {"multinomial", [&] { multinomial(o.x * 0.0, 1); }},
      {"multinomial", [&] { multinomial(o.i, 1); }},
      {"einsum",
       [&] {
         einsum("ij,ik", {o.x, o.i});
       }},
      {"einsum",
       [&] {
         einsum("ij,jk", {o.x, o.x});
       }},
      {"mse_loss", [&] { mse_loss(o.x, o.v); }},
      {"mse_loss", [&] { mse_loss(o.i, o.i); }},
      {"mse_loss", [&] { mse_loss(o.i > 0, o.i > 0); }},
      {"split", [&] { o.x.split(1, 2); }},
      {"chunk", [&] { o.x.chunk(2, -3); }},
      {"zeros", [&] { zeros({-1}); }},
      {"ones",
       [&] {
         ones({2, -1}, kInt64);
       }},
      {"full_like", [&] { full_like(o.x.to(kUInt8), 300); }},
      {"bce_with_logits", [&] { bce_with_logits(o.x, o.none); }},
      {"full", [&] { full({-1}, 1.0); }},
      {"full", [&] { full({1}, 300, kUInt8); }},
      {"arange", [&] { arange(0, 5, 0); }},
      {"arange", [&] { arange(0, 5, 0.5, kInt32); }},
      {"arange", [&] { arange(0, 2, 1, kBool); }},
      {"arange", [&] { arange(250, 258, 3, kUInt8); }},
      {"linspace", [&] { linspace(0, 1, -1); }},
      {"linspace", [&] { linspace(0, 1, 3, kInt64); }},
      {"eye", [&] { eye(-1); }},
      {"eye", [&] { eye(2, 2, kUInt8); }},
      {"empty",
       [&] {
         empty({2, -3});
       }},
      {"rand", [&] { rand({-1}); }},
      {"rand", [&] { rand({2}, kInt64); }},
      {"randn", [&] { randn({2}, kBool); }},
      {"randint", [&] { randint(3, 3, {1}); }},
      {"randperm", [&] { randperm(-1); }},
      {"dropout", [&] { dropout(o.x, 1.5, true); }},
      {"dropout_mask", [&] { dropout_mask(o.i, 0.5); }},
      {"logsumexp", [&] { logsumexp(o.i, {0}); }},
      {"var", [&] { var(o.x, {2}); }},
  };
}

}  // namespace

TEST_CASE("ops: wrong arguments throw, name the op and change nothing") {
  const Operands o;
  std::vector<Wrong> wrong = wrong_views(o);
  for (Wrong& w : wrong_calls(o)) wrong.push_back(std::move(w));
  const Tensors operands = {o.x, o.v, o.w, o.i, o.far, o.scalar};
  Tensors before;
  std::vector<uint32_t> versions;
  for (const Tensor& t : operands) {
    before.push_back(t.clone());
    versions.push_back(t.version());
  }
  for (size_t k = 0; k < wrong.size(); ++k) {
    CAPTURE(k);
    const std::string error = error_of(wrong[k].call);
    CHECK_MESSAGE(error.find(wrong[k].op) == 0, std::string(wrong[k].op), ": ", error);
    check_same(operands, before);
    for (size_t n = 0; n < operands.size(); ++n) CHECK(operands[n].version() == versions[n]);
  }
}
