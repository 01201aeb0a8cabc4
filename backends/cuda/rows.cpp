#include "backends/cuda/rows.h"

#include <bit>
#include <map>
#include <mutex>

#include "core/context.h"
#include "ops/kinds/reduction_layout.h"
#include "ops/kinds/row_kernel.h"

namespace brrr::cuda {

using namespace program;

namespace {

class Builder {
 public:
  Builder(RowsCall& call, const OpCall& c, DType compute) : call_(call) {
    call_.op = c.op;
    call_.compute = compute;
  }
  int window(DType t, const void* at, const IntList& strides, bool stored) {
    Window& w = call_.windows[call_.n_windows];
    w.dtype = t;
    w.address = reinterpret_cast<uintptr_t>(at);
    w.loaded = !stored;
    w.stored = stored;
    std::copy(strides.begin(), strides.end(), w.stride);
    return call_.n_windows++;
  }
  int number(double x) { return number({kFloat64, std::bit_cast<int64_t>(x)}); }
  int number(Number x) {
    call_.numbers[call_.n_numbers] = x;
    return call_.n_numbers++;
  }
  void in(int which) { call_.in[call_.n_in++] = which; }
  void out(int which) { call_.out[call_.n_out++] = which; }
  void space(const IntList& sizes) {
    call_.space.ndim = sizes.size();
    std::copy(sizes.begin(), sizes.end(), call_.space.size);
  }
  void plan(const RowTraits& traits, int outer, int64_t longest) {
    call_.walk = plan_rows(call_.space, call_.windows, call_.n_windows, traits, outer, longest);
  }

 private:
  RowsCall& call_;
};

// The same for all calls of a row op with such operands and as many results.
RowTraits traits_of(const RowsCall& call) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::tuple<const OpDef*, DType, uint64_t, int>, RowTraits>;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = all.try_emplace({call.op, call.compute, call.absent(), call.n_out});
  if (fresh) at->second = row_traits(call.program(), false);
  return at->second;
}

void row_op(OpCall& c, const std::function<void(const RowsCall&)>& use) {
  const RowShape s(c);
  RowsCall call;
  Builder b(call, c, compute_type(s.x->dtype));
  b.space({s.rows, s.n});
  DenseInput dense[kMaxRowOperands];
  for (size_t k = 0; k < c.op->row->operands.size(); ++k) {
    const RowOperand& o = c.op->row->operands[k];
    const TensorImpl* const t = o.kind == Operand::Scalar ? nullptr : c.in[o.input];
    call.ignored[k] = o.kind == Operand::Id ? b.number({kInt64, c.attrs.v[o.word]}) : 0;
    if (o.kind == Operand::Scalar) {
      b.in(~b.number(c.attrs.d(o.word)));
    } else if (!t) {
      b.in(Step::kAbsent);
    } else {
      dense[k] = DenseInput(t, t->dtype);
      const bool each = o.kind == Operand::Each, number = o.kind == Operand::Number;
      const bool shared = o.kind == Operand::Weight || o.kind == Operand::Bias;
      b.in(b.window(t->dtype, dense[k].as<char>(),
                    {each               ? s.n
                     : shared || number ? 0
                                        : 1,
                     each || shared ? 1 : 0},
                    false));
    }
  }
  for (int k = 0; k < c.n_out; ++k) {
    const TensorImpl& t = *c.out[k].impl();
    const RowResult kind = c.op->row->results[static_cast<size_t>(k)];
    const bool each = kind == RowResult::Each;
    b.out(b.window(t.dtype, t.data(),
                   {each                        ? s.n
                    : kind == RowResult::PerRow ? 1
                                                : 0,
                    each || kind == RowResult::Column ? 1 : 0},
                   true));
  }
  b.plan(traits_of(call), 0, 0);
  use(call);
}

// One pass, or for long rows several: what one leaves the next one reads.
class Reduction {
 public:
  Reduction(OpCall& c, const std::function<void(const RowsCall&)>& use)
      : c_(c), use_(use), l_(reduction_layout(c)), y_(*c.out[0].impl()) {}

  void run() {
    if (l_.cols > 0) return columns();
    if (l_.count == 0) return rows(l_.compute, nullptr, y_.numel, 0, 0, y_);  // Of nothing.
    if (l_.outer == 1) return whole();
    const int64_t outer = l_.outer, pieces = (l_.rows + kLongestPiece - 1) / kLongestPiece;
    if (pieces == 1) return rows(l_.dtype, l_.base, outer, l_.rows, l_.outer_stride, y_);
    const Tensor parts = raw_empty({outer * pieces}, l_.compute, y_.device);
    finish_ = false;
    rows(l_.dtype, l_.base, outer, l_.rows, l_.outer_stride, *parts.impl());
    map_ = false;
    finish_ = true;
    rows(l_.compute, parts.impl()->data(), outer, pieces, pieces, y_);
  }

 private:
  void begin(RowsCall& call) const {
    call.map = map_;
    call.finish = finish_;
  }
  void rows(DType t, const char* from, int64_t outer, int64_t n, int64_t stride,
            const TensorImpl& to) {
    RowsCall call;
    begin(call);
    Builder b(call, c_, l_.compute);
    b.space({outer, n});
    b.in(b.window(t, from, {stride, 1}, false));
    b.in(~b.number(static_cast<double>(l_.count)));
    b.out(b.window(to.dtype, to.data(), {1, 0}, true));
    b.plan({.folds = true, .item = item_}, 1, finish_ ? 0 : kLongestPiece);
    if (call.walk.pieces > 1) {
      call.windows[1].stride[0] = call.walk.pieces;
      call.windows[1].stride[1] = 1;
    }
    use_(call);
  }
  void whole() {
    RowsCall call;
    Builder b(call, c_, l_.compute);
    b.space({l_.rows});
    b.in(b.window(l_.dtype, l_.base, {1}, false));
    b.in(~b.number(static_cast<double>(l_.count)));
    b.out(b.window(y_.dtype, y_.data(), {0}, true));
    const bool split = l_.rows > kLongestPiece;
    b.plan({.folds = true, .totals = split, .item = item_, .split = split}, 0, 0);
    use_(call);
  }
  void columns() {
    RowsCall call;
    Builder b(call, c_, l_.compute);
    b.space({l_.outer, l_.rows, l_.cols});
    b.in(b.window(l_.dtype, l_.base, {l_.outer_stride, l_.row_stride, 1}, false));
    b.in(~b.number(static_cast<double>(l_.count)));
    b.out(b.window(y_.dtype, y_.data(), {l_.cols, 0, 1}, true));
    b.plan({.columns = 1, .item = item_}, 1, 0);
    use_(call);
  }

  OpCall& c_;
  const std::function<void(const RowsCall&)>& use_;
  const ReductionLayout l_;
  const TensorImpl& y_;
  const int item_ = static_cast<int>(itemsize(l_.compute));
  bool map_ = true, finish_ = true;
};

}  // namespace

void each_rows_call(OpCall& c, const std::function<void(const RowsCall&)>& use) {
  if (c.op->row) return row_op(c, use);
  if (c.out[0].numel() > 0) Reduction(c, use).run();
}

Program RowsCall::program() const {
  Program p;
  p.space = space;
  p.row = space.size[space.ndim - 1];
  p.windows.assign(windows, windows + n_windows);
  p.numbers.assign(numbers, numbers + n_numbers);
  Step step{op, compute, {in, in + n_in}, {out, out + n_out}, {}, map, finish};
  if (op->row) step.ignored.assign(ignored, ignored + n_in);
  append_steps(p, {step}, false);
  return p;
}

uint64_t RowsCall::absent() const {
  uint64_t bits = 0;
  for (int k = 0; k < n_in; ++k) bits |= uint64_t{in[k] == Step::kAbsent} << k;
  return bits;
}

KernelKey RowsCall::key(RowKernel which) const {
  uint64_t variant = walk.bits() | static_cast<uint64_t>(which) << 16 | uint64_t{map} << 18 |
                     uint64_t{finish} << 19 | static_cast<uint64_t>(compute_index(compute)) << 20 |
                     uint64_t{walk.traits.columns > 0} << 22;
  uint64_t more = 0;
  for (int k = 0; k < n_windows; ++k) {
    more |= static_cast<uint64_t>(windows[k].dtype) << 3 * k;
    variant |= uint64_t{windows[k].reach == Window::Row} << (24 + k);
  }
  variant |= static_cast<uint64_t>(n_out) << 40;
  return {op, variant, more | absent() << 48};
}

std::string RowsCall::text(RowKernel which) const {
  const Program p = program();
  return with_support(kRowText + cuda_row_argument(p, walk, "k") + cuda_rows(p, walk, "k", which));
}

void RowsCall::launch(const OpCall& c) const {
  const int64_t bytes = walk.scratch_bytes();
  const Tensor scratch = bytes ? raw_empty({bytes}, kUInt8, kCUDA) : Tensor();
  Words words;
  each_row_word(walk, space, windows, n_windows, numbers, n_numbers, [&](Word w, int64_t value) {
    if (w.kind == Word::Scratch && bytes) {
      value += reinterpret_cast<int64_t>(scratch.impl()->data());
    }
    words.push(w, value, c);
  });
  each_row_launch(walk, [&](RowKernel which, int64_t blocks, int threads) {
    if (blocks == 0) return;
    const std::string name = std::string("k") + suffix(which);
    Function* const k = find_kernel(key(which), name.c_str(), 0, [&] { return text(which); });
    cuda::launch(k, op->name, {blocks}, threads, words.data(), words.bytes());
  });
}

}  // namespace brrr::cuda
