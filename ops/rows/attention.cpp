// Scaled dot-product attention: the row, its gradient, their decompositions.
//
// Rows take q, k, v, a mask and a dropout key (the last two may be absent), all with the leading
// dims of the result; the mask is bool or of the compute type. Two more outputs are the maximum and
// sum of each row's softmax; a GPU writes another value for the first (attention_tiles.h).
#include <cmath>
#include <optional>

#include "core/autocast.h"
#include "core/check.h"
#include "ops/rows/attention_kernel.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

constexpr double kInfinity = __builtin_inf();
constexpr const char* kName = "scaled_dot_product_attention";
using enum attention::Operand;

// Calls f(head, its index) for all heads, in parallel where that pays.
template <class F>
void for_heads(const OpCall& c, DType compute, const AttentionOperands& o, const F& f) {
  std::optional<DropoutDraw> draw;
  if (const TensorImpl* key = c.in[Key]) {
    const auto* words = reinterpret_cast<const int64_t*>(key->data());
    draw = {DropoutRate(o.attrs.dropout), words[0], words[key->strides[0]]};
  }
  const int64_t work = o.queries * o.keys * (o.width + o.depth) + 1;
  const auto run = [&]<class T>(T) {
    parallel_for(o.heads, std::max<int64_t>(1, (1 << 18) / work), [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) {
        f(AttentionHead<T>(o, begin, draw ? &*draw : nullptr), begin);
      }
    });
  };
  compute == kFloat64 ? run(double{}) : run(float{});
}

// An output as one matrix per head.
struct HeadsOutput : DenseOutput {
  HeadsOutput(const Tensor& t, DType compute, const AttentionAttrs& attrs)
      : DenseOutput(t, compute),
        view(heads_view(memory(), attrs)),
        matrices(view.impl(), compute) {}
  template <class T> RowMatrix<T> of(int64_t head) const {
    return {const_cast<T*>(matrices.at<T>(head)), matrices.row()};
  }
  Tensor view;
  MatrixInput matrices;
};

void attention_cpu(OpCall& c) {
  const DType compute = compute_type(c.in[Q]->dtype);
  const AttentionOperands o(c, compute);
  HeadsOutput out(c.out[0], compute, o.attrs);
  DenseOutput max(c.out[1], compute), sum(c.out[2], compute);
  for_heads(c, compute, o, [&]<class T>(const AttentionHead<T>& head, int64_t i) {
    attention_forward<T>(head, out.of<T>(i), max.as<T>() + i * o.queries,
                         sum.as<T>() + i * o.queries);
  });
  out.finish();
}

void attention_backward_cpu(OpCall& c) {
  const DType compute = compute_type(c.in[Q]->dtype);
  const AttentionOperands o(c, compute);
  const DenseInput max(c.in[Max], compute), sum(c.in[Sum], compute);
  HeadsOutput dq(c.out[0], compute, o.attrs), dk(c.out[1], compute, o.attrs),
      dv(c.out[2], compute, o.attrs);
  for_heads(c, compute, o, [&]<class T>(const AttentionHead<T>& head, int64_t i) {
    attention_backward<T>(head,
                          {.g = matrix_of<T>(o.g, i),
                           .out = matrix_of<T>(o.out, i),
                           .max = max.as<T>() + i * o.queries,
                           .sum = sum.as<T>() + i * o.queries,
                           .dq = dq.of<T>(i),
                           .dk = dk.of<T>(i),
                           .dv = dv.of<T>(i),
                           .along = reinterpret_cast<T*>(c.out[3].impl()->data()) + i * o.queries});
  });
  dq.finish();
  dk.finish();
  dv.finish();
}

// Copies of operands and results that are not contiguous rows of the compute type.
int64_t attention_scratch(const OpCall& c) {
  const DType compute = compute_type(c.in[Q]->dtype);
  const auto item = static_cast<int64_t>(itemsize(compute));
  int64_t bytes = 0;
  for (int i = 0; i < c.n_in; ++i) {
    const bool rows = i != Max && i != Sum && i != Key;
    const bool copied = rows ? MatrixInput::is_copied(c.in[i], compute, i == Mask)
                             : i != Key && !c.in[i]->contiguous();
    if (copied) bytes += scratch_for(c.in[i]->numel, item);
  }
  for (int k = 0; k < c.n_out; ++k) {
    const TensorImpl& out = *c.out[k].impl();
    if (out.dtype != compute) bytes += scratch_for(out.numel, item);
  }
  return bytes;
}

// Heads are independent, but for their elements of a dropout mask, which depend on their index.
int attention_cut(const OpCall& c, int operand) {
  const TensorImpl& q = *c.in[Q];
  const bool heads_outside = q.ndim > (c.attrs.as<AttentionAttrs>().by_length ? 3 : 2);
  const bool alike = cut_beside(*c.in[K], q) == 0 && cut_beside(*c.in[V], q) == 0;
  if (!heads_outside || !alike || c.in[Key]) return kUncut;
  return operand == Mask ? cut_beside(*c.in[Mask], q) : 0;
}

// --- decompositions ------------------------------------------------------------------------------

// Softmax over the keys that a query may see. Without any, weights are 0: the sum counts as 1.
struct Weights {
  Tensor p, max, sum, keep;

  Weights(const AttentionAttrs& attrs, const Tensor* in) {
    const Tensor q = widened(in[Q]), k = widened(in[K]), &mask = in[Mask];
    Tensor s = matmul(q, k.transpose(-2, -1)) * attrs.scale;
    if (mask.defined()) s = s + (mask.dtype() == kBool ? where(mask, 0.0, -kInfinity) : mask);
    if (attrs.causal) {
      const Tensor row = arange(q.size(-2), s.device()), column = arange(k.size(-2), s.device());
      s = where(column <= row.unsqueeze(1), s, -kInfinity);
    }
    max = s.numel() ? amax(s.detach(), -1, true) : brrr::sum(s.detach(), -1, true) - kInfinity;
    const Tensor e = exp(s - where(max == -kInfinity, 0.0, max));
    sum = brrr::sum(e, -1, true);
    p = e * reciprocal(where(sum == 0.0, 1.0, sum));
    if (in[Key].defined()) keep = dropout_mask_at(in[Key], attrs.dropout, p.sizes(), p.dtype());
  }
  Tensor dropped(const Tensor& t) const { return keep.defined() ? t * keep : t; }
  /// The gradient of the scores, from g, that of the result.
  Tensor gradient(const Tensor* in, const Tensor& g) const {
    const Tensor dp = dropped(matmul(widened(g), widened(in[V]).transpose(-2, -1)));
    return p * (dp - brrr::sum(p * dp, -1, true));
  }
};

// Converts [.., heads, length, width] to the layout of the row's results and gradients, and back.
Tensor laid_out(const Tensor& t, const AttentionAttrs& attrs) {
  return attrs.by_length ? t.transpose(-3, -2).contiguous() : t;
}
Tensor heads_outside(const Tensor& t, const AttentionAttrs& attrs) {
  return attrs.by_length ? t.transpose(-3, -2) : t;
}

void attention_decompose(OpCall& c, const Tensor* in) {
  const auto attrs = c.attrs.as<AttentionAttrs>();
  const Weights w(attrs, in);
  c.out[0] = laid_out(matmul(w.dropped(w.p), widened(in[V])).to(in[Q].dtype()), attrs);
  c.out[1] = w.max;
  c.out[2] = w.sum;
}

// Computed from the operands alone, so that it can be differentiated again.
void attention_backward_decompose(OpCall& c, const Tensor* in) {
  const auto attrs = c.attrs.as<AttentionAttrs>();
  const Weights w(attrs, in);
  const DType t = in[Q].dtype();
  const Tensor ds = w.gradient(in, in[G]) * attrs.scale;
  c.out[0] = laid_out(matmul(ds, widened(in[K])).to(t), attrs);
  c.out[1] = laid_out(matmul(ds.transpose(-2, -1), widened(in[Q])).to(t), attrs);
  c.out[2] = laid_out(matmul(w.dropped(w.p).transpose(-2, -1), widened(in[G])).to(t), attrs);
}

// --- rows ----------------------------------------------------------------------------------------

// Sets the meta of output k, of sizes [.., heads, length, width], in its layout.
void set_heads_meta(OpCall& c, int k, IntList sizes) {
  const int n = sizes.size();
  if (c.attrs.as<AttentionAttrs>().by_length) std::swap(sizes[n - 3], sizes[n - 2]);
  set_meta(c, k, c.in[Q]->dtype, sizes);
}

void attention_infer(OpCall& c) {
  check_floating(c.op->name, *c.in[Q]);
  check_devices(c);
  const TensorImpl& q = *c.in[Q];
  IntList sizes = q.size_list();
  sizes[q.ndim - 1] = c.in[V]->sizes[q.ndim - 1];
  set_heads_meta(c, 0, sizes);
  sizes[q.ndim - 1] = 1;
  set_meta(c, 1, compute_type(q.dtype), sizes);
  set_meta(c, 2, compute_type(q.dtype), sizes);
}

void attention_backward_infer(OpCall& c) {
  check_floating(c.op->name, *c.in[Q]);
  check_devices(c);
  for (int i : {Q, K, V}) set_heads_meta(c, i, c.in[i]->size_list());
  set_meta(c, 3, compute_type(c.in[Q]->dtype), c.in[Q]->size_list());
  c.meta[3].sizes[c.in[Q]->ndim - 1] = 1;
}

// Relative errors of the sums, whose order differs from the decompositions': a few units in the
// last place times the square root of some thousand terms.
constexpr double kTolerance = 4e-6;

// Counts pairs of a query and a key that the causal rule allows: two operations per element of q or
// v in every product, and `each` in the softmax. (What an explicit mask saves depends on values.)
Work attention_work(const OpCall& c, double q_products, double v_products, double each) {
  const AttentionSizes s(c);
  const auto queries = static_cast<double>(s.queries), keys = static_cast<double>(s.keys);
  const auto width = static_cast<double>(s.width), depth = static_cast<double>(s.depth);
  double pairs = queries * keys;
  if (c.attrs.as<AttentionAttrs>().causal) {
    const double corner = std::min(queries, keys);
    pairs = corner * (corner + 1) / 2 + std::max(0.0, queries - keys) * keys;
  }
  const double flops = pairs * (2 * width * q_products + 2 * depth * v_products + each);
  return {static_cast<double>(s.heads) * flops, operand_bytes(c), c.in[Q]->dtype, true};
}

const OpDef attention_backward_op{
    "attention_backward",
    "dq, dk and dv of scaled_dot_product_attention",
    {.kind = OpKind::Composite,
     .n_out = 4,
     .n_scratch = 1,  // rowsum(g * out)
     .infer = attention_backward_infer,
     .decompose = attention_backward_decompose,
     .kernel = {{attention_backward_cpu}, {attention_backward_cuda, attention_on_cuda}},
     .scratch = attention_scratch,
     .cut = attention_cut,
     // q k^T again, dS k, dS^T q; P^T g, g v^T. exp(s * scale - max) / sum; P * (dP - row) * scale.
     .work = [](const OpCall& c) { return attention_work(c, 3, 2, 29); },
     .apart = true,
     .gradient_row = true,
     .autocast = Autocast::Widen,
     .tolerance = kTolerance}};

void attention_vjp(VjpCall& v) {
  const auto attrs = v.attrs().as<AttentionAttrs>();
  const Tensor g = heads_outside(v.gout[0], attrs);
  const auto saved = [&](int i) { return v.node.in[i].saved ? v.input(i) : Tensor(); };
  const Tensor in[] = {saved(Q), saved(K), saved(V), saved(Mask), saved(Key)};
  if (v.needs(Q) || v.needs(K) || v.needs(V)) {
    const Tensor out = heads_outside(v.output(0), attrs), max = v.output(1), sum = v.output(2);
    Outputs d = call_outputs(attention_backward_op, attention_backward_op.n_out,
                             {in[Q], in[K], in[V], in[Mask], in[Key], out, max, sum, g}, attrs);
    for (int i : {Q, K, V}) v.gin[i] = heads_outside(d[static_cast<size_t>(i)], attrs);
  }
  // By the decomposition: a floating mask's gradient has the size of the scores anyway.
  if (v.needs(Mask)) v.gin[Mask] = Weights(attrs, in).gradient(in, g);
}

const OpDef attention_op{kName,
                         "softmax(q k^T * scale + mask) v",
                         {.kind = OpKind::Composite,
                          .n_out = 3,
                          .infer = attention_infer,
                          .decompose = attention_decompose,
                          .kernel = {{attention_cpu}, {attention_cuda, attention_on_cuda}},
                          .scratch = attention_scratch,
                          .cut = attention_cut,
                          // Scale, maximum, difference, exp, sum.
                          .work = [](const OpCall& c) { return attention_work(c, 1, 1, 27); },
                          .vjp = attention_vjp,
                          .saves_inputs = 0b11111,
                          .saves_outputs = 0b111,
                          .autocast = Autocast::Round,
                          .tolerance = kTolerance}};

// --- the call ------------------------------------------------------------------------------------

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  BRRR_CHECK(q.defined() && k.defined() && v.defined(), "{}: q, k or v is undefined; assign it",
             kName);
  for (const Tensor& t : {q, k, v}) {
    check_floating(kName, *t.impl());
    BRRR_CHECK(t.dtype() == q.dtype() && t.device() == q.device(),
               "{}: operands are {} on {} and {} on {}; convert one with to()", kName,
               describe(q.impl()), name(q.device()), describe(t.impl()), name(t.device()));
    BRRR_CHECK(t.dim() >= 2, "{}: takes [.., length, width], got {}; add dims with unsqueeze",
               kName, describe(t.impl()));
  }
  BRRR_CHECK(q.size(-1) == k.size(-1),
             "{}: q {} and k {} differ in their last dim; project them to one width", kName,
             describe(q.impl()), describe(k.impl()));
  BRRR_CHECK(k.size(-2) == v.size(-2),
             "{}: k {} and v {} differ in length; give one value for each key", kName,
             describe(k.impl()), describe(v.impl()));
  BRRR_CHECK(!o.mask.defined() || o.mask.dtype() == kBool || is_floating(o.mask.dtype()),
             "{}: the mask is bool (true takes part) or floating (added), got {}; convert with "
             "to(kBool)",
             kName, describe(o.mask.impl()));
  BRRR_CHECK(o.dropout >= 0 && o.dropout <= 1, "{}: dropout is a probability in [0, 1], got {}",
             kName, o.dropout);
  BRRR_CHECK(std::isfinite(o.scale), "{}: scale must be finite, got {}; 0 means 1 / sqrt(width)",
             kName, o.scale);
}

IntList leading(const Tensor& t) { return {t.sizes().data(), static_cast<size_t>(t.dim() - 2)}; }
IntList matrices(IntList leading, int64_t rows, int64_t cols) {
  leading.push_back(rows);
  leading.push_back(cols);
  return leading;
}
Tensor broadcast(const Tensor& t, const IntList& batch) {
  const IntList sizes = matrices(batch, t.size(-2), t.size(-1));
  return t.sizes() == sizes ? t : expand(t, sizes);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& keys_in, const Tensor& value,
                                    const AttentionOptions& o) {
  const Tensor q = autocast_operand(query), k = autocast_operand(keys_in),
               v = autocast_operand(value);
  check_attention(q, k, v, o);
  IntList batch = broadcast_shapes(kName, leading(q), leading(k));
  batch = broadcast_shapes(kName, batch, leading(v));
  const Tensor a = broadcast(q, batch), b = broadcast(k, batch), c = broadcast(v, batch);
  Tensor mask = o.mask;
  if (mask.defined()) {
    if (mask.dtype() != kBool) mask = mask.to(compute_type(q.dtype()));
    const IntList scores = matrices(batch, q.size(-2), k.size(-2));
    bool fits = mask.dim() <= scores.size();
    for (int d = 1; fits && d <= mask.dim(); ++d) {
      fits = mask.size(-d) == 1 || mask.size(-d) == scores[scores.size() - d];
    }
    BRRR_CHECK(fits,
               "{}: the mask {} does not broadcast to the scores {}; give it their last dims, or 1",
               kName, describe(mask.impl()), to_string(scores));
    if (mask.sizes() != scores) mask = expand(mask, scores);
  }
  const double p = o.training ? o.dropout : 0;
  const Tensor key = p > 0 ? draw_key(q.device()) : Tensor();
  const auto width = static_cast<double>(q.size(-1));
  const double scale = o.scale != 0 ? o.scale : width > 0 ? 1 / std::sqrt(width) : 1;
  const AttentionAttrs attrs{o.causal, scale, p, is_by_length(a)};
  return heads_outside(call(attention_op, {a, b, c, mask, key}, attrs), attrs);
}

}  // namespace brrr
