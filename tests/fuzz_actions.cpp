// The actions of a fuzzed step program's instructions.
#include "tests/fuzz_steps.h"

namespace brrr::fuzz {

const std::vector<const OpDef*>& pointwise_rows() {
  static const auto rows = [] {
    std::vector<const OpDef*> all;
    for (const OpDef* op : registry()) {
      // Rows that use positions have separate actions: not every operand can be a seed.
      if (op->pointwise && !op->pointwise->integers) all.push_back(op);
    }
    return all;
  }();
  return rows;
}

// Defined in fuzz_index.cpp, fuzz_nets.cpp and fuzz_state.cpp.
void index(Machine& m, const Ins& i);
void computed_index(Machine& m, const Ins& i);
void layer(Machine& m, const Ins& i);
void train(Machine& m, const Ins& i);
void differentiate(Machine& m, const Ins& i);
void use_grad(Machine& m, const Ins& i);
void optimise(Machine& m, const Ins& i);
void keep(Machine& m, const Ins& i);
void new_leaf(Machine& m, const Ins& i);

namespace {

Scalar scalar(const Machine& m, const Ins& i, uint32_t bits) {
  // Some scalars change from call to call, like a schedule on the host.
  const double s = i.s + (bits % 7 == 0 ? m.call * 0.5 : 0.0);
  if (bits % 5 == 0) return static_cast<int64_t>(s * 2);
  if (bits % 11 == 0) return s > 0;
  return s;
}

IntList some_sizes(uint32_t n) {
  static constexpr int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 1, 33, 4, 6, 0};
  IntList s;
  for (uint32_t d = n % 4; d > 0; --d) s.push_back(sizes[(n / 4 * d + n / 64) % std::size(sizes)]);
  return numel_of(s) > 2048 ? IntList{17} : s;
}

IntList some_dims(const Tensor& t, uint32_t n) {
  IntList dims;
  for (int d = 0; d < t.dim(); ++d) {
    if (n >> d & 1) dims.push_back(d);
  }
  return dims;
}

int64_t some_dim(const Tensor& t, uint32_t n) { return t.dim() ? n % t.dim() : 0; }

// Operands for any row of the registry, including gradient rows: tensors and scalars of any dtype.
void add_operands(PointwiseCall& call, Machine& m, const Ins& i, std::vector<Tensor>& keep,
                  IntList shape, bool to, bool narrow) {
  const OpDef* op = i.row;
  // Backward calls gradient rows with g of the full shape, which their own gradient relies on.
  if (op->gradient_row) context.grad_enabled = false;
  uint32_t bits = i.b * 2654435761u + i.c;
  bool any = to;
  for (int k = 0; k < op->pointwise->n_in; ++k, bits = bits * 1664525u + 1013904223u) {
    const bool last = k + 1 == op->pointwise->n_in;
    if (bits >> 24 & 3 || (last && !any)) {
      Tensor t = m.pick(k == 0 ? i.a : bits >> 8);
      if (narrow && !is_floating(t.dtype())) t = m.floating(bits >> 8);
      if (!any) shape = t.sizes();
      t = Machine::fit(t, shape, to);
      if (!to) shape = broadcast_shapes("fuzz", shape, t.sizes());
      any = true;
      call.add(keep.emplace_back(t));
    } else {
      call.add(scalar(m, i, bits >> 8));
    }
  }
}

void pointwise(Machine& m, const Ins& i) {
  std::vector<Tensor> keep;
  keep.reserve(kMaxOperands);
  PointwiseCall call(*i.row);
  add_operands(call, m, i, keep, {}, false, i.c % 3);
  for (const Tensor& t : call.run_all()) m.push(t);
}

void pointwise_into(Machine& m, const Ins& i) {
  std::vector<Tensor> keep;
  keep.reserve(kMaxOperands);
  const Tensor to = m.pick(i.a);
  PointwiseCall call(*i.row);
  add_operands(call, m, i, keep, to.sizes(), true, i.c % 3);
  call.run_into({to});
}

void in_place(Machine& m, const Ins& i) {
  const Tensor to = m.pick(i.a);
  const Tensor from = Machine::fit(m.pick(i.b), to.sizes(), true);
  const Scalar s = scalar(m, i, i.c);
  switch (i.n % 11) {
    case 0:
      to.add_(from);
      break;
    case 1:
      to.sub_(from);
      break;
    case 2:
      to.mul_(from);
      break;
    case 3:
      to.div_(from);
      break;
    case 4:
      to.copy_(from);
      break;
    case 5:
      to.add_(s);
      break;
    case 6:
      to.mul_(s);
      break;
    case 7:
      to.fill_(s);
      break;
    case 8:
      to.zero_();
      break;
    case 9:
      to.clamp_(-1.0, 1.0);
      break;
    default:
      to.mul_(0.9).add_(from * 0.1);
  }
}

// x[1:] = x[:-1] and the like: both sides share memory.
void shift(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  if (t.dim() == 0) return;
  const int64_t d = some_dim(t, i.b), n = t.size(d), by = std::min<int64_t>(n, 1 + i.c % 2);
  const Tensor to = t.slice(d, by, n), from = t.slice(d, 0, n - by);
  switch (i.n % 4) {
    case 0:
      to.copy_(from);
      break;
    case 1:
      to.add_(from);
      break;
    case 2:
      from.sub_(to * 0.5);
      break;
    default:
      to.add_(1.0);
  }
}

void view(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  const int64_t d = some_dim(t, i.b), n = t.dim() ? t.size(d) : 1;
  switch (i.n % 13) {
    case 0:
      return m.push(t.slice(d, i.c % (n + 1), n, 1 + i.c % 3));
    case 1:
      return m.push(t.slice(d, 0, n - n / 2));
    case 2:
      return m.push(t.transpose(d, some_dim(t, i.c)));
    case 3:
      return m.push(t.select(d, n ? i.c % n : 0));
    case 4:
      return m.push(t.unsqueeze(i.b % static_cast<uint32_t>(t.dim() + 1)));
    case 5:
      return m.push(t.squeeze(d));
    case 6:
      return m.push(t.flatten(0, d));
    case 7:
      return m.push(t.reshape({-1}));
    case 8:
      return m.push(t.detach());
    case 9: {
      IntList sizes = t.sizes();
      sizes.insert(0, 1 + i.c % 3);
      return m.push(t.expand(sizes));
    }
    case 10: {
      IntList order;
      for (int k = 0; k < t.dim(); ++k) order.push_back((k + i.c) % t.dim());
      return m.push(t.permute(order));
    }
    case 11:
      for (const Tensor& part : t.chunk(2, d)) m.push(part);
      return;
    default:
      m.push(as_strided(t.detach(), {n}, {1}, t.storage_offset()));
  }
}

void join(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  const Tensor other = m.find(i.b, [&](const Tensor& x) {
    return x.sizes() == t.sizes() && (i.c % 4 == 0 || x.dtype() == t.dtype());
  });
  const std::vector<Tensor> list{t, other, t};
  m.push(i.n % 2 ? cat(list, some_dim(t, i.n)) : stack(list, some_dim(t, i.n)));
}

void reduce(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  const IntList dims = some_dims(t, i.b);
  const bool keep = i.c & 1;
  const int64_t d = some_dim(t, i.b);
  switch (i.n % 14) {
    case 0:
      return m.push(t.sum(dims, keep));
    case 1:
      return m.push(t.mean(dims, keep));
    case 2:
      return m.push(t.prod(dims, keep));
    case 3:
      return m.push(t.max(dims, keep));
    case 4:
      return m.push(t.min(dims, keep));
    case 5:
      return m.push(t.var(dims, i.c & 2, keep));
    case 6:
      return m.push(t.norm(dims, keep));
    case 7:
      return m.push(t.logsumexp({d}, keep));
    case 8:
      return m.push(t.any(dims, keep));
    case 9:
      return m.push(t.all(dims, keep));
    case 10:
      return m.push(t.argmax(d, keep));
    case 11:
      return m.push(t.argmin(d, keep));
    case 12: {
      const auto [values, index] = max_with_indices(t, d, keep);
      m.push(values);
      return m.push(index);
    }
    default:
      m.push(t.sum());
  }
}

void product(Machine& m, const Ins& i) {
  const Tensor a = m.floating(i.a);
  if (a.dim() == 0 || a.numel() > 600) return;
  const int64_t k = a.size(-1);
  auto fits = [&](const Tensor& x, int64_t dim) {
    return x.dtype() == a.dtype() && x.numel() <= 600 && x.dim() > 0 && x.dim() <= 3 &&
           x.size(x.dim() == 1 ? 0 : dim) == k;
  };
  if (i.n % 2) {
    const Tensor w = m.find(i.b, [&](const Tensor& x) { return x.dim() == 2 && fits(x, 1); });
    if (!w.defined()) return;
    const Tensor bias = m.find(i.c, [&](const Tensor& x) {
      return x.dtype() == a.dtype() && x.sizes() == IntList{w.size(0)};
    });
    return m.push(linear(a, w, bias));
  }
  const Tensor b = m.find(i.b, [&](const Tensor& x) { return fits(x, -2); });
  m.push(b.defined() ? matmul(a, b) : matmul(a, a.dim() == 1 ? a : a.transpose(-1, -2)));
}

void network(Machine& m, const Ins& i) {
  const Tensor t = m.floating(i.a);
  const int64_t d = some_dim(t, i.b);
  switch (i.n % 9) {
    case 0:
      return m.push(softmax(t, d));
    case 1:
      return m.push(log_softmax(t, d));
    case 2: {
      if (t.dim() == 0) return;
      const IntList last{t.size(-1)};
      const Tensor w =
          m.find(i.c, [&](const Tensor& x) { return x.sizes() == last && x.dtype() == t.dtype(); });
      return m.push(layer_norm(t, last, w, i.c & 1 ? w : Tensor()));
    }
    case 3:
      return t.dim() ? m.push(rms_norm(t, {t.size(-1)})) : void();
    case 4: {
      if (t.dim() == 0) return;
      const Tensor rows = t.reshape({-1, t.size(-1)});
      return m.push(cross_entropy(rows, remainder(arange(rows.size(0)), t.size(-1))));
    }
    case 5:
      return m.push(mse_loss(t, Machine::fit(m.floating(i.b), t.sizes(), true)));
    case 6:
      return m.push(bce_with_logits(t, (t > 0.0).to(t.dtype())));
    case 7:
      return m.push(gelu(t, i.b & 1 ? "tanh" : "none"));
    default:
      m.push(dropout(t, 0.3, i.c % 4 != 0));
  }
}

void create(Machine& m, const Ins& i) {
  static constexpr DType types[] = {kFloat32, kFloat32, kFloat32, kFloat64, kBFloat16,
                                    kFloat16, kInt64,   kInt32,   kUInt8,   kBool};
  const DType type = types[i.a % std::size(types)];
  const IntList sizes = some_sizes(i.b);
  switch (i.n % 13) {
    case 0:
      return m.push(zeros(sizes, type));
    case 1:
      return m.push(ones(sizes, type));
    case 2:
      return m.push(full(sizes, scalar(m, i, i.c), type));
    case 3:
      return m.push(arange(static_cast<int64_t>(i.c % 20)));
    case 4:
      return m.push(linspace(-2.0, 3.0, 1 + i.c % 17));
    case 5:
      return m.push(eye(1 + i.c % 5, 1 + i.b % 6));
    case 6:
      return m.push(rand(sizes).to(type));
    case 7:
      return m.push(randn(sizes).to(type));
    case 8:
      return m.push(randint(0, 9, sizes).to(type));
    case 9:
      return m.push(randperm(i.c % 9));
    case 10:
      return m.push(dropout_mask(m.floating(i.c), 0.4));
    case 11:
      return m.push(full_like(m.pick(i.c), scalar(m, i, i.b)));
    default: {  // Host data: read again on every call.
      std::vector<float> data(i.c % 5 + 1);
      for (size_t k = 0; k < data.size(); ++k) data[k] = static_cast<float>(k) + m.call * 0.25f;
      m.push(tensor(data).to(type));
    }
  }
}

void convert(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  if (i.n % 5 == 0) return m.push(t.clone());
  if (i.n % 5 == 1) return m.push(t.contiguous());
  m.push(t.to(static_cast<DType>(i.b % kNumDTypes)));
}

void wrong(Machine& m, const Ins& i) {
  const Tensor t = m.pick(i.a);
  matmul(t, zeros({1009, 2}, t.dtype()));
}

}  // namespace

const std::vector<NamedAction>& actions() {
  static const std::vector<NamedAction> all{
      {"pointwise", pointwise, 24, 4},
      {"pointwise_into", pointwise_into, 4, 1},
      {"in_place", in_place, 8, 1},
      {"shift", shift, 2, 1},
      {"view", view, 12, 3},
      {"join", join, 2, 1},
      {"reduce", reduce, 6, 3},
      {"product", product, 6, 2},
      {"index", index, 4, 1},
      {"computed_index", computed_index, 3, 2},
      {"network", network, 6, 2},
      {"create", create, 5, 0},
      {"convert", convert, 5, 1},
      {"differentiate", differentiate, 5, 1},
      {"use_grad", use_grad, 2, 1},
      {"optimise", optimise, 2, 3},
      {"keep", keep, 4, 1},
      {"new_leaf", new_leaf, 1, 0},
      {"wrong", wrong, 1, 0},
      {"layer", layer, 0, 60},
      {"train", train, 0, 8},
  };
  return all;
}

}  // namespace brrr::fuzz
