// Gradients and calls that all pointwise rows share.
#include "ops/kinds/pointwise.h"

#include <algorithm>
#include <bit>

#include "core/backend.h"
#include "core/check.h"
#include "core/rng.h"
#include "ops/view_ops.h"
#include "ops/kinds/pointwise_iteration.h"

namespace brrr {

// --- rows ----------------------------------------------------------------------------------------

// The row g * f, for gradients whose factor f is already computed.
static const OpDef& times_row() {
  static PointwiseOp* const row = [] {  // Never freed: the registry keeps its name.
    auto* r = new PointwiseOp("grad.times", "g * f", {}, [](auto g, auto f) { return g * f; });
    r->gradient_row = true;
    return r;
  }();
  return *row;
}

// Evaluates the gradient lambda on symbols once, to find the operands that it really reads.
void PointwiseOp::attach_gradient(int i, PointwiseOp* row) {
  row->gradient_row = true;
  row->name = strdup(fmt::format("{}.grad{}", name, i).c_str());
  Statements list;
  SymScope scope(list, kFloat32);
  Sym in[kMaxOperands];
  const int n = row->info.n_in;
  for (int k = 0; k < n + row->info.n_made; ++k) in[k] = Sym(scope.operand(k));
  int out = -1;
  row->info.emit(in, &out);
  const uint64_t uses = operands_used(list, out);

  const int y = n - 2, g = n - 1;
  info.grad_uses[i] = uses;
  const Statement& last = list[static_cast<size_t>(out)];
  if (last.text == "$0 * $1" && last.args[0] == in[g].id &&
      !(operands_used(list, last.args[1]) >> g & 1)) {
    row->info.times = &times_row();
  }
  if (out == in[g].id) grad_aliases |= 1u << i;  // The gradient is g itself, unchanged.
  saves_inputs |= static_cast<uint32_t>(uses & ((1u << y) - 1));
  if (uses >> y & 1) saves_outputs |= 1;
  if (row->decompose) {
    row->saves_inputs = static_cast<uint32_t>(uses);
  } else {
    BRRR_CHECK(!((uses >> i | uses >> y) & 1),
               "{}: a gradient of a row with integers may not use its operand or result", name);
  }
  info.grads[i] = row;
}

PointwiseOp::PointwiseOp(const char* n, const char* d, const PointwiseInfo& i)
    : OpDef(n, d,
            {.kind = OpKind::Pointwise,
             .n_out = i.n_out,
             .infer = pointwise_infer,
             .check_values = i.traits.check,
             .kernel = {{pointwise_run}},
             .scratch = pointwise_scratch,
             .pointwise = &info}),
      info(i) {
  if (n_out > 1 || i.n_made) return;
  for (DType t : {kFloat32, kFloat64, kInt64, kInt32, kUInt8, kBool, kBFloat16, kFloat16}) {
    if (t == kBool && i.traits.no_bool) continue;
    if (i.traits.wide && t != kFloat64 && t != kInt64) continue;
    direct[static_cast<size_t>(t)] = i.loop(t);
  }
}

// --- gradient ------------------------------------------------------------------------------------

// Appends a scalar operand of the forward call, whose word is `word`, to a gradient's call. A draw
// stays dynamic: on every replay a recorded gradient draws the same numbers as its forward.
static void push_scalar_of(const Node& n, int operand, int word, OpCall& c) {
  const Attrs& a = n.attrs;
  if ((a.dynamic >> word & 1) && (n.op->pointwise->integers >> operand & 1)) {
    const bool second = word > 0 && (a.dynamic >> (word - 1) & 1);
    mark_draw(c, second ? ControlCell::RngDraw : ControlCell::RngSeed);
  }
  c.attrs.kinds |= static_cast<uint32_t>(a.kind(operand)) << (2 * operand);
  c.attrs.push(a.v[word]);
}

// Runs the row of input i's gradient on those of the inputs, output and g that it reads; the other
// operands are scalars 0. The node keeps its saved tensors alive meanwhile.
static Tensor run_gradient(VjpCall& v, int i) {
  const Node& n = v.node;
  const PointwiseInfo& info = *n.op->pointwise;
  const uint64_t uses = info.grad_uses[i];
  TensorImpl* in[kMaxOperands];
  OpCall c(*info.grads[i], in, n.n_in + 2);
  auto unused = [&](int k) {
    in[k] = nullptr;
    c.attrs.kinds |= 3u << (2 * k);
    c.attrs.push(0.0);
  };
  for (int k = 0, word = 0; k < n.n_in; ++k) {
    if (n.attrs.kind(k)) {
      in[k] = nullptr;
      push_scalar_of(n, k, word++, c);
    } else if (uses >> k & 1) {
      in[k] = v.borrow_input(k);
    } else {
      unused(k);
    }
  }
  Tensor y;
  if (uses >> n.n_in & 1) {
    y = v.output(0);
    in[n.n_in] = y.impl();
  } else {
    unused(n.n_in);
  }
  in[n.n_in + 1] = v.gout[0].impl();
  dispatch_inline(c);
  return std::move(c.out[0]);
}

// Linear in g, so its vjp is the same row applied to the incoming gradient.
void linear_vjp(VjpCall& v) {
  const Node& n = v.node;
  const int g = n.n_in - 1;
  TensorImpl* in[kMaxOperands] = {};
  OpCall c(*n.op, in, n.n_in);
  for (int k = 0; k < g; ++k) push_scalar_of(n, k, k, c);
  in[g] = v.gout[0].impl();
  dispatch_inline(c);
  v.gin[g] = std::move(c.out[0]);
}

void pointwise_vjp(VjpCall& v) {
  const Node& n = v.node;
  const PointwiseInfo& info = *n.op->pointwise;
  int left = 0;
  for (int i = 0; i < n.n_in; ++i) left += v.needs(i) && info.grads[i];
  for (int i = 0; left > 0; ++i) {
    if (!v.needs(i) || !info.grads[i]) continue;
    --left;
    const bool is_g = n.op->grad_aliases >> i & 1;
    Tensor g = !is_g ? run_gradient(v, i) : left ? v.gout[0] : std::move(v.gout[0]);
    const Meta& m = v.meta(i);
    if (g.impl()->size_list() != m.sizes) g = sum_to(g, m.sizes);
    v.gin[i] = g.impl()->dtype == m.dtype ? std::move(g) : g.to(m.dtype);
  }
}

// --- calls ---------------------------------------------------------------------------------------

[[gnu::cold]] static void fail_undefined(const OpDef& op, int i) {
  fail("{}: operand {} is an undefined tensor", op.name, i);
}

// The index of the next operand.
int PointwiseCall::next() {
  const int most = call_.op->pointwise->n_in;
  BRRR_CHECK(call_.n_in < most, "{}: takes {} operands, got more", call_.op->name, most);
  return call_.n_in++;
}

PointwiseCall& PointwiseCall::add(const Tensor& t) {
  if (!t.defined()) [[unlikely]]
    fail_undefined(*call_.op, call_.n_in);
  in_[next()] = t.impl();
  return *this;
}

// A scalar operand's kind and word (see Attrs).
static uint32_t scalar_kind(Scalar s) { return s.is_floating() ? 3 : s.dtype() == kBool ? 1 : 2; }
static int64_t scalar_word(Scalar s) {
  return s.is_floating() ? std::bit_cast<int64_t>(s.to_double()) : s.to_int();
}

PointwiseCall& PointwiseCall::add(Scalar s) {
  call_.attrs.kinds |= scalar_kind(s) << (2 * next());
  call_.attrs.push(scalar_word(s));
  return *this;
}

PointwiseCall& PointwiseCall::add(ControlCell& cell) {
  call_.attrs.dynamic |= static_cast<uint16_t>(1u << call_.attrs.n);
  call_.cells[call_.attrs.n] = &cell;
  return add(Scalar(cell.value));
}

PointwiseCall& PointwiseCall::draw() {
  const int first = next();
  next();
  drawn_ = call_.attrs.n + 1;
  push_draw(call_);
  call_.attrs.kinds |= 10u << (2 * first);
  return *this;
}

PointwiseCall& PointwiseCall::make(const IntList& sizes, DType dtype, Device device) {
  numel_of(sizes, call_.op->name);  // Throws when there are too many elements.
  backend(device);                  // Throws when there is no such device.
  call_.attrs.set_dtype(dtype);
  call_.attrs.push(device);
  sizes_ = sizes;
  return *this;
}

void PointwiseCall::go() {
  fit_integer_scalars(call_);
  if (sizes_) call_.attrs.push(*sizes_);
  try {
    dispatch(call_);
  } catch (...) {  // Most likely out of memory: a retry draws the same numbers.
    if (drawn_ >= 0 && !context.recorder) {
      return_draws(static_cast<uint64_t>(call_.attrs.v[drawn_]), 1);
    }
    throw;
  }
}

Tensor PointwiseCall::run() {
  go();
  return std::move(call_.out[0]);
}

std::vector<Tensor> PointwiseCall::run_all() {
  run_into({});
  return {call_.out, call_.out + call_.n_out};
}

void PointwiseCall::run_into(std::initializer_list<Tensor> outs) {
  call_.into = outs.size() > 0;
  std::copy(outs.begin(), outs.end(), call_.out);
  for (int k = 0; call_.into && k < call_.n_out; ++k) {
    BRRR_CHECK(call_.out[k].defined(), "{}_: the tensor is undefined", call_.op->name);
  }
  go();
}

// The fast path: same dtype and shape, contiguous, on the CPU, no recorder or observer, small. The
// general path handles all else and every error (storage without data: a lost placeholder).
template <int N>
[[gnu::always_inline]] static inline bool fast(const PointwiseOp& op, TensorImpl* const* in) {
  const TensorImpl* a = in[0];
  if (op.info.n_in != N || !a || context.recorder || context.observer || a->numel > kSmall ||
      !op.direct[static_cast<int>(a->dtype)] || (a->flags & ~kRequiresGrad) || !a->storage->data) {
    return false;
  }
  if constexpr (N == 2) {
    const TensorImpl* b = in[1];
    return b && b->dtype == a->dtype && !(b->flags & ~kRequiresGrad) && b->same_shape(*a) &&
           b->storage->data;
  }
  return true;
}

template <int N>
[[gnu::always_inline]] static inline Tensor run_fast(const PointwiseOp& op, TensorImpl* const* in) {
  static constexpr int64_t step[] = {1, 1};
  const TensorImpl& a = *in[0];
  const auto t = static_cast<int>(a.dtype);
  const DType dtype = op.info.mask_out[0] ? kBool : a.dtype;
  // The device is a compile-time constant from here on.
  Storage* s = new_storage(kCPU, static_cast<size_t>(a.numel) * itemsize(dtype));
  Tensor out(Ref<TensorImpl>::adopt(new_impl_like(s, dtype, a, kCPU)));
  s->data = backend(DeviceType::CPU).allocate(s->bytes);
  if (!s->data) [[unlikely]]
    out_of_memory(*s);
  const auto item = static_cast<int64_t>(itemsize(a.dtype));
  const char* from[N];
  uint8_t flags = 0;
  for (int k = 0; k < N; ++k) {
    from[k] = static_cast<const char*>(in[k]->storage->data) + in[k]->offset * item;
    flags |= in[k]->flags;
  }
  auto* to = static_cast<char*>(s->data);
  op.direct[t](&to, from, step, a.numel);
  if (flags && context.grad_enabled && op.vjp) [[unlikely]] {
    write_tape(op, in, N, Attrs{}, &out, 1, false);
  }
  return out;
}

static void check_defined(const PointwiseOp& op, TensorImpl* const* in, int n) {
  for (int i = 0; i < n; ++i) {
    if (!in[i]) [[unlikely]]
      fail_undefined(op, i);
  }
}

// Out of line to keep the fast path's frame small. Recorded steps come through here.
template <int N>
[[gnu::noinline]] static Tensor call_slow(const PointwiseOp& op, TensorImpl* const* in) {
  check_defined(op, in, N);
  OpCall c(op, in, N);
  dispatch_inline(c);
  return std::move(c.out[0]);
}

template <class... T>
[[gnu::always_inline]] static inline Tensor call_tensors(const PointwiseOp& op, const T&... t) {
  TensorImpl* in[] = {t.impl()...};
  if (fast<sizeof...(T)>(op, in)) [[likely]]
    return run_fast<sizeof...(T)>(op, in);
  return call_slow<sizeof...(T)>(op, in);
}
Tensor call(const PointwiseOp& op, const Tensor& a) { return call_tensors(op, a); }
Tensor call(const PointwiseOp& op, const Tensor& a, const Tensor& b) {
  return call_tensors(op, a, b);
}

// A call on a tensor and a scalar, which is operand `number` of two.
[[gnu::always_inline]] static inline Tensor call_with_scalar(const PointwiseOp& op, const Tensor& t,
                                                             Scalar s, int number) {
  if (!t.defined()) [[unlikely]]
    fail_undefined(op, 1 - number);
  TensorImpl* in[2];
  in[1 - number] = t.impl();
  in[number] = nullptr;
  OpCall c(op, in, 2);
  c.attrs.set_only(number, scalar_kind(s), scalar_word(s));
  if (!s.is_floating()) fit_integer_scalars(c);
  dispatch_inline(c);
  return std::move(c.out[0]);
}

namespace {
/// The destination of an in-place call, without a reference of its own: the caller holds one.
struct BorrowedOutput {
  OpCall& call;
  BorrowedOutput(OpCall& c, const Tensor& t) : call(c) {
    c.out[0] = Tensor(Ref<TensorImpl>::adopt(t.impl()));
  }
  ~BorrowedOutput() { call.out[0].detach_impl(); }
};
}  // namespace

Tensor call(const PointwiseOp& op, const Tensor& a, Scalar b) {
  return call_with_scalar(op, a, b, 1);
}
Tensor call(const PointwiseOp& op, Scalar a, const Tensor& b) {
  return call_with_scalar(op, b, a, 0);
}
void call_into(const PointwiseOp& op, const Tensor& a, const Tensor& b) {
  TensorImpl* in[] = {a.impl(), b.impl()};
  check_defined(op, in, 2);
  OpCall c(op, in, 2);
  c.into = true;
  const BorrowedOutput out(c, a);
  dispatch(c);
}
void call_into(const PointwiseOp& op, const Tensor& a, Scalar b) {
  PointwiseCall(op).add(a).add(b).run_into({a});
}

}  // namespace brrr
