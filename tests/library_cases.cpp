#include "tests/library_cases.h"

#include "brrr.h"

namespace brrr::test {

namespace {

Tensor real(const IntList& sizes, int salt = 0) { return sampled(sizes, kFloat64, -2, 2, salt); }
Tensor like(const Tensor& made, const Tensor& t) { return made.to(t.dtype()).to(t.device()); }
Tensor ids(std::vector<int64_t> v, const IntList& sizes) { return tensor(v).view(sizes); }

// clang-format off

std::vector<Case> view_cases() {
  const Tensor m = real({3, 4}), t = real({2, 3, 4}), column = real({3, 1});
  return {
      {"alias", {m}, [](const Tensors& x) { return alias(x[0]) * 2.0; }},
      {"permute", {t}, [](const Tensors& x) { return x[0].permute({2, 0, -2}); }},
      {"permute", {t}, [](const Tensors& x) { return x[0].transpose(0, 2).exp(); }},
      {"permute", {m}, [](const Tensors& x) { return x[0].t() + transpose(x[0], 1, 0); }},
      {"view", {t}, [](const Tensors& x) { return x[0].view({6, -1}).sin(); }},
      {"view", {t}, [](const Tensors& x) { return x[0].transpose(0, 1).reshape({-1}); }},
      {"view", {t}, [](const Tensors& x) { return x[0].flatten(1) * flatten(x[0], -2, -1); }},
      {"expand", {column}, [](const Tensors& x) { return x[0].expand({2, -1, 5}); }},
      {"expand", {column}, [](const Tensors& x) { return expand(x[0], {3, 4}).square(); }},
      {"slice", {m}, [](const Tensors& x) { return x[0].slice(1, 1, 4, 2); }},
      {"slice", {m}, [](const Tensors& x) { return x[0].slice(0, -2, 3).slice(1, 0, 3, 2).exp(); }},
      {"slice", {m}, [](const Tensors& x) { return x[0].narrow(1, 1, 2) * x[0].narrow(1, 0, 2); }},
      {"select", {t}, [](const Tensors& x) { return x[0].select(1, -1); }},
      {"select", {t}, [](const Tensors& x) { return x[0].select(0, 1).select(1, 2).tanh(); }},
      {"unsqueeze", {m}, [](const Tensors& x) {
         return x[0].unsqueeze(-1) * unsqueeze(x[0], 0).view({3, 1, 4});
       }},
      {"squeeze", {column}, [](const Tensors& x) { return x[0].squeeze(1) + squeeze(x[0], -1); }},
      {"as_strided", {m}, [](const Tensors& x) {
         return as_strided(x[0].detach(), {2, 3}, {1, 2}, 1) * 2.0;
       }},
      {"as_strided", {m}, [](const Tensors& x) {
         return as_strided(x[0].detach(), {1, 2, 1, 2, 3, 1}, {9, 6, 5, 3, 1, 2}, 0) * 2.0;
       }},
      {"chunk", {m}, [](const Tensors& x) { return x[0].chunk(2, 1)[0] * chunk(x[0], 2, 1)[1]; }},
      {"split", {m}, [](const Tensors& x) { return split(x[0], 2, 1)[1] - x[0].split(2, 1)[0]; }},
      {"split", {t}, [](const Tensors& x) {  // A shorter one at the end, and one without gradient.
         const Tensors parts = split(x[0], 3, -1);
         return parts[0] * parts[0] + parts.back().sum() * split(x[0].transpose(0, 1), 1, 1)[1].sum();
       }},
      {"unbind", {t}, [](const Tensors& x) {
         const Tensors parts = unbind(x[0], 1);
         return parts[0].exp() * parts[2] + parts[1];
       }},
      {"unbind", {t}, [](const Tensors& x) {
         return unbind(x[0].transpose(0, 1), -1)[3] * unbind(x[0], 2)[1].t();
       }},
      {"unbind", {real({2, 6})}, [](const Tensors& x) {  // More than a call has outputs.
         return unbind(x[0], -1)[5] * unbind(x[0])[0].narrow(0, 4, 2);
       }},
      {"sum_to", {t}, [](const Tensors& x) { return sum_to(x[0].square(), {3, 1}); }},
      {"contiguous", {t}, [](const Tensors& x) {
         return x[0].transpose(0, 2).contiguous().view({-1});
       }},
      // In place; through views only without gradients.
      {"slice", {m}, [m](const Tensors& x) {
         const Tensor y = like(m, x[0]) * 1.5;
         y.slice(1, 0, 4, 2).mul_(y.slice(1, 1, 4, 2).exp());
         y.narrow(0, 1, 2).copy_(y.narrow(0, 0, 2));  // Overlapping.
         return x[0] * y;
       }},
      {"select", {m, real({4}, 3)}, [m](const Tensors& x) {
         const Tensor y = like(m, x[0]).clone();
         y.select(0, 1).copy_(y.select(0, 2));
         y.t().select(0, 2).add_(1.0);
         return y * x[0] + x[1];
       }},
      {"expand", {m, real({4}, 3)}, [](const Tensors& x) {
         const Tensor y = x[0] * 2.0;
         y.add_(x[1].expand({3, 4}));
         y.mul_(0.5).sub_(x[0]);
         return y.square();
       }},
  };
}

std::vector<Case> index_cases() {
  const Tensor m = real({4, 5}), t = real({3, 4, 2});
  const Tensor at = ids({0, 3, 3, 1, 0, 2}, {2, 3}), rows = ids({2, 0, 2, 3}, {4});
  const Tensor src = real({2, 3}, 7);
  return {
      {"argmax", {t}, [](const Tensors& x) { return argmax(x[0], 1); }},
      {"argmax", {m}, [](const Tensors& x) { return x[0].t().argmax(-1, true); }},
      {"argmin", {m}, [](const Tensors& x) { return argmin(x[0], 0, true); }},
      {"gather", {m, at}, [](const Tensors& x) { return gather(x[0], 0, x[1]); }},
      {"gather", {m, at}, [](const Tensors& x) { return x[0].t().gather(-1, x[1]).exp(); }},
      {"scatter_add", {m, at, src}, [](const Tensors& x) {
         return scatter_add(x[0], 0, x[1], x[2]);
       }},
      {"scatter_add", {m, at, src}, [](const Tensors& x) {
         return scatter_add(x[0].square(), 1, x[1], x[2].square());
       }},
      {"scatter_add", {m, at, src}, [](const Tensors& x) {
         const Tensor y = x[0] * 2.0;
         y.scatter_add_(0, x[1], x[2]);
         return y.square();
       }},
      {"index_select", {m, rows}, [](const Tensors& x) { return index_select(x[0], 0, x[1]); }},
      {"index_select", {t, rows}, [](const Tensors& x) {
         return x[0].index_select(1, x[1]).sin();
       }},
      {"embedding", {m, at}, [](const Tensors& x) { return embedding(x[0], x[1]); }},
      {"embedding", {m, at}, [](const Tensors& x) {
         return embedding(x[0].square(), x[1].t()).exp();
       }},
      {"one_hot", {at}, [](const Tensors& x) { return one_hot(x[0], 4); }},
      // In a single process each of them is a copy.
      {"all_reduce", {m}, [](const Tensors& x) { return dist::all_reduce(x[0].t()) * 2.0; }},
      {"all_gather", {m}, [](const Tensors& x) { return dist::all_gather(x[0]).exp(); }},
      {"reduce_scatter", {m}, [](const Tensors& x) { return dist::reduce_scatter(x[0].sin()); }},
      {"broadcast", {m}, [](const Tensors& x) { return dist::broadcast(x[0]) + x[0]; }},
      {"cat", {m, real({2, 5}, 3)}, [](const Tensors& x) { return cat({x[0], x[1], x[0]}, 0); }},
      {"cat", {m, real({5, 2}, 3)}, [](const Tensors& x) {
         return cat({x[0].exp(), x[1].slice(0, 0, 4)}, -1).square();
       }},
      {"stack", {m, real({4, 5}, 3)}, [](const Tensors& x) { return stack({x[0], x[1]}, 1); }},
      {"stack", {m, real({5, 4}, 3)}, [](const Tensors& x) {
         return stack({x[0], x[1].t()}, -1).exp();
       }},
      {"max_with_indices", {m}, [](const Tensors& x) { return max_with_indices(x[0], 1).first; }},
      {"max_with_indices", {m}, [](const Tensors& x) {
         return max_with_indices(x[0], 0, true).second;
       }},
  };
}

std::vector<Case> line_cases() {
  const Tensor m = real({4, 5}), t = real({3, 4, 2}), wide = real({3, 19}, 2);
  const Tensor whole = ids({3, -1, 4, 1, -5, 9}, {2, 3});
  return {
      {"tril", {m}, [](const Tensors& x) { return tril(x[0]); }},
      {"tril", {t}, [](const Tensors& x) { return x[0].square().tril(-1).exp(); }},
      {"triu", {t}, [](const Tensors& x) { return triu(x[0].transpose(0, 2), 1); }},
      {"triu", {m}, [](const Tensors& x) { return x[0].exp().triu(-2) * x[0]; }},
      {"cumsum", {m}, [](const Tensors& x) { return cumsum(x[0], 0); }},
      {"cumsum", {t}, [](const Tensors& x) { return x[0].exp().cumsum(1).square(); }},
      {"cumsum", {wide}, [](const Tensors& x) { return cumsum(x[0].square(), -1); }},
      {"cumsum", {whole}, [](const Tensors& x) { return cumsum(x[0], 1); }},
      {"argsort", {t}, [](const Tensors& x) { return argsort(x[0], 1); }},
      {"argsort", {wide}, [](const Tensors& x) { return x[0].argsort(-1, true); }},
      {"sort", {m}, [](const Tensors& x) { return sort(x[0], 0).first.exp(); }},
      {"sort", {wide}, [](const Tensors& x) { return x[0].square().sort(1, true).first; }},
      {"sort", {whole}, [](const Tensors& x) { return sort(x[0], 0, true).second; }},
      {"topk", {wide}, [](const Tensors& x) { return topk(x[0].square(), 3).first; }},
      {"topk", {t}, [](const Tensors& x) { return x[0].topk(2, 1, false).first.exp(); }},
      {"topk", {whole}, [](const Tensors& x) { return topk(x[0], 2).second; }},
  };
}

std::vector<Case> product_cases() {
  std::vector<Case> cases;
  const std::pair<IntList, IntList> shapes[] = {
      {{3, 4}, {4, 5}}, {{4}, {4}}, {{3, 4}, {4}}, {{4}, {4, 5}}, {{2, 3, 4}, {4, 5}},
      {{2, 3, 4}, {4}}, {{2, 3, 4}, {2, 4, 5}}, {{3, 4}, {2, 4, 5}}, {{2, 1, 3, 4}, {3, 4, 2}},
      {{4}, {2, 4, 3}}};
  for (const auto& [a, b] : shapes) {
    cases.push_back({"matmul", {real(a), real(b, 3)}, [](const Tensors& x) {
       return matmul(x[0], x[1]);
     }});
  }
  cases.push_back({"matmul", {real({3, 4}), real({3, 5}, 3)}, [](const Tensors& x) {
    return x[0].t().matmul(x[1]).exp();
  }});
  cases.push_back({"matmul", {real({3, 4}), real({5, 4}, 3)}, [](const Tensors& x) {
    return matmul(x[0], x[1].t()).t().square();
  }});
  const std::pair<const char*, Tensors> sums[] = {
      {"bhid,bhjd->bhij", {real({2, 2, 3, 4}), real({2, 2, 5, 4}, 3)}},
      {"ij,jk", {real({3, 4}), real({4, 5}, 3)}},
      {"ij,ij,i->", {real({3, 4}), real({3, 4}, 1), real({3}, 2)}},
      {"bi,bi->b", {real({3, 4}), real({3, 4}, 1)}},
      {"i,j,ij->ji", {real({3}), real({4}, 1), real({3, 4}, 2)}},
      {"iij->ij", {real({3, 3, 2})}},
      {"ba", {real({3, 4})}},
      {"...ij,...jk->...ik", {real({2, 1, 3, 4}), real({3, 4, 2}, 1)}},
      {"ij,kj->", {real({3, 4}), real({1, 4}, 1)}}};
  for (const auto& [equation, in] : sums) {
    cases.push_back({"einsum", in, [text = std::string(equation)](const Tensors& x) {
       return einsum(text, x);
     }});
  }
  const Tensor w = real({5, 4}, 2), bias = real({5}, 4);
  for (const IntList& s : {IntList{4}, {3, 4}, {2, 3, 4}}) {
    cases.push_back({"linear", {real(s), w, bias}, [](const Tensors& x) {
       return linear(x[0], x[1], x[2]);
     }});
    cases.push_back({"linear", {real(s), w}, [](const Tensors& x) {
       return linear(x[0], x[1]).sin();
     }});
  }
  return cases;
}

std::vector<Case> composite_cases() {
  const Tensor m = real({4, 5}), t = real({2, 3, 4}), w = real({5}, 2), b = real({5}, 3);
  const Tensor classes = ids({1, 4, 0, 1}, {4}), some = ids({-100, 4, -100, 1}, {4});
  const Tensor targets = sampled({4, 5}, kFloat64, 0, 1, 6), wide = real({3, 4}, 2);
  return {
      {"softmax", {t}, [](const Tensors& x) { return softmax(x[0], 1); }},
      {"softmax", {m}, [](const Tensors& x) { return x[0].softmax(-1).log(); }},
      {"log_softmax", {t}, [](const Tensors& x) { return log_softmax(x[0], 0); }},
      {"log_softmax", {m}, [](const Tensors& x) { return x[0].log_softmax(1).exp(); }},
      {"cross_entropy", {m, classes}, [](const Tensors& x) { return cross_entropy(x[0], x[1]); }},
      {"cross_entropy", {m, classes}, [](const Tensors& x) {
         return cross_entropy(x[0].exp(), x[1]) * 3.0;
       }},
      {"cross_entropy", {m, classes}, [](const Tensors& x) {
         return cross_entropy(x[0].exp(), x[1], {.ignore_index = 1, .label_smoothing = 0.1});
       }},
      {"cross_entropy", {m, some}, [](const Tensors& x) {
         return cross_entropy(x[0], x[1]).square();
       }},
      {"smooth_cross_entropy", {m, classes}, [](const Tensors& x) {
         return cross_entropy(x[0], x[1], {.label_smoothing = 0.2});
       }},
      {"row_cross_entropy", {m, some}, [](const Tensors& x) {
         return cross_entropy(x[0], x[1], {.reduction = Reduction::None}).square();
       }},
      {"smooth_row_cross_entropy", {m, classes}, [](const Tensors& x) {
         return cross_entropy(x[0], x[1], {.label_smoothing = 0.2, .reduction = Reduction::Sum});
       }},
      {"layer_norm", {m}, [](const Tensors& x) { return layer_norm(x[0], {5}); }},
      {"layer_norm", {m, w}, [](const Tensors& x) { return layer_norm(x[0], {5}, x[1]); }},
      {"layer_norm", {m, w, b}, [](const Tensors& x) {
         return layer_norm(x[0], {5}, x[1], x[2], 1e-3);
       }},
      {"layer_norm", {t, wide}, [](const Tensors& x) {
         return layer_norm(x[0], {3, 4}, x[1], {});
       }},
      {"rms_norm", {m}, [](const Tensors& x) { return rms_norm(x[0], {5}); }},
      {"rms_norm", {m, w}, [](const Tensors& x) { return rms_norm(x[0], {5}, x[1]).square(); }},
      {"scaled_dot_product_attention", {t, wide, real({3, 2}, 7)}, [](const Tensors& x) {
         return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true});
       }},
      {"rotary_embedding", {t, ids({7, 0, 3}, {3})}, [](const Tensors& x) {
         return rotary_embedding(x[0], x[1], 100.0);
       }},
      {"mse_loss", {m, targets}, [](const Tensors& x) { return mse_loss(x[0], x[1]); }},
      {"bce_with_logits", {m, targets}, [](const Tensors& x) {
         return bce_with_logits(x[0], x[1]);
       }},
      {"var", {t}, [](const Tensors& x) { return var(x[0], {0, 2}); }},
      {"var", {t}, [](const Tensors& x) { return x[0].var({1}, false, true); }},
      {"logsumexp", {t}, [](const Tensors& x) { return logsumexp(x[0], {1}); }},
      {"logsumexp", {t}, [](const Tensors& x) { return x[0].logsumexp({0, -1}, true); }},
  };
}

std::vector<Case> factory_cases() {
  const Tensor m = real({2, 3});
  return {
      {"empty", {m}, [](const Tensors& x) {
         const Tensor y = empty_like(x[0]);
         y.copy_(x[0]);
         return y.square();
       }},
      {"full", {m}, [](const Tensors& x) {
         return full_like(x[0], 0.1) * x[0] + ones_like(x[0]) - zeros_like(x[0]);
       }},
      {"full", {m}, [](const Tensors& x) {
         return full({3}, 2, kInt64, x[0].device());
       }},
      {"arange", {m}, [](const Tensors& x) { return arange(2, 19, 3).to(x[0].device()); }},
      {"arange", {m}, [](const Tensors& x) {
         return like(arange(0.5, 2.0, 0.5), x[0]) * x[0];
       }},
      {"linspace", {m}, [](const Tensors& x) {
         return like(linspace(-1, 1, 3), x[0]) * x[0];
       }},
      {"eye", {m}, [](const Tensors& x) { return matmul(x[0], like(eye(3, 4), x[0])); }},
      {"host_data", {m}, [](const Tensors& x) {
         return x[0] * like(tensor({0.5f, 2.f, 3.f}), x[0]);
       }},
      {"host_data", {m}, [](const Tensors& x) { return x[0] * like(tensor(2.5), x[0]); }},
  };
}

// Draws: identical in both modes for the same seed, but not functions of their inputs.
std::vector<Case> random_cases() {
  const Tensor m = real({5, 7});
  return {
      {"rand", {m}, [](const Tensors& x) {
         return like(rand({5, 7}, x[0].device()), x[0]) * x[0];
       }},
      {"rand", {m}, [](const Tensors& x) {
         const Tensor first = rand_like(x[0]);
         return rand_like(x[0]) - first;
       }},
      {"randn", {m}, [](const Tensors& x) {
         const Tensor first = randn_like(x[0]);
         return like(randn({7}, x[0].device()), x[0]) + x[0] * first;
       }},
      {"randint", {m}, [](const Tensors& x) {
         return randint(-3, 1000, {40}, x[0].device());
       }},
      {"randperm", {m}, [](const Tensors& x) { return randperm(33).to(x[0].device()); }},
      {"multinomial", {m}, [](const Tensors& x) {
         return multinomial(x[0].detach().square(), 40, true);
       }},
      {"multinomial", {m}, [](const Tensors& x) { return multinomial(x[0].detach().exp(), 7); }},
      {"dropout_mask", {m}, [](const Tensors& x) { return dropout_mask(x[0], 0.3) * x[0]; }},
      {"draw_key", {m}, [](const Tensors& x) {
         return dropout_mask_at(draw_key(x[0].device()), 0.3, {5, 7}, x[0].dtype()) * x[0];
       }},
      {"dropout_mask_at", {m}, [](const Tensors& x) {
         return dropout_mask_at(tensor({1, 2}).to(x[0].device()), 0.5, {5, 7}, x[0].dtype()) * x[0];
       }},
      {"dropout", {m}, [](const Tensors& x) {
         return dropout(x[0].exp(), 0.5, true) + dropout(x[0], 0.5, false);
       }},
  };
}

// clang-format on

}  // namespace

std::vector<Case> function_cases() {
  std::vector<Case> all;
  for (auto& part : {view_cases(), index_cases(), line_cases(), product_cases(), composite_cases(),
                     factory_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}
std::vector<Case> all_cases() {
  auto all = function_cases();
  for (Case& c : random_cases()) all.push_back(std::move(c));
  return all;
}

Tensors inputs_of(const Case& c, DType t) {
  Tensors in;
  for (const Tensor& x : c.in) in.push_back(is_floating(x.dtype()) ? leaf(x.to(t).clone()) : x);
  return in;
}

}  // namespace brrr::test
