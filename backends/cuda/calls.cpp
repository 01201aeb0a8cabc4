#include "backends/cuda/calls.h"

#include <bit>
#include <map>
#include <mutex>
#include <type_traits>

#include "ops/kinds/reduction_layout.h"
#include "ops/kinds/row.h"
#include "ops/kinds/row_kernel.h"

namespace brrr::cuda {

using namespace program;

namespace {

static_assert(Call::kOperands >= kMaxRowOperands + kMaxOutputs);

// --- filling a call ------------------------------------------------------------------------------

void add_operand(Call& c, int which, bool result = false) {
  (result ? c.out[c.n_out++] : c.in[c.n_in++]) = which;
}
Window& add_window(Call& c, DType t, const void* at, bool stored) {
  Window& w = c.windows[c.n_windows];
  w.dtype = t;
  w.address = reinterpret_cast<uintptr_t>(at);
  w.loaded = !stored;
  w.stored = stored;
  add_operand(c, c.n_windows++, stored);
  return w;
}
void add_window(Call& c, DType t, const void* at, const IntList& strides, bool stored) {
  std::copy(strides.begin(), strides.end(), add_window(c, t, at, stored).stride);
}
int add_number(Call& c, Number x) {
  c.numbers[c.n_numbers] = x;
  return c.n_numbers++;
}
void add_scalar(Call& c, double x) {
  add_operand(c, ~add_number(c, {kFloat64, std::bit_cast<int64_t>(x)}));
}
void set_space(Call& c, const IntList& sizes) {
  c.space.ndim = sizes.size();
  std::copy(sizes.begin(), sizes.end(), c.space.size);
}
std::span<Window> windows_of(Call& c) { return {c.windows, static_cast<size_t>(c.n_windows)}; }

// Bit k is set if optional operand k was not passed.
uint64_t absent(const Call& call) {
  uint64_t bits = 0;
  for (int k = 0; k < call.n_in; ++k) bits |= uint64_t{call.in[k] == Step::kAbsent} << k;
  return bits;
}

// Cached: the traits depend on the op, the compute type, absent operands and the result count only.
RowTraits traits_of(const RowsCall& call) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::tuple<const OpDef*, DType, uint64_t, int>, RowTraits>;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = all.try_emplace({call.op, call.compute, absent(call), call.n_out});
  if (fresh) at->second = row_traits(call.program(), false);
  return at->second;
}

void row_op(OpCall& c, const std::function<void(const RowsCall&)>& use) {
  const RowShape s(c);
  RowsCall call(*c.op, compute_type(s.x->dtype));
  set_space(call, {s.rows, s.n});
  // Strides over (row, element) of an operand with one value per element, row or column, or one for
  // all. Not 0 for empty rows: the traits of the first call are those of all.
  const auto strides = [&](Operand kind) -> IntList {
    const bool each = kind == Operand::Each;
    const bool per_row = kind == Operand::PerRow || kind == Operand::Id;
    return {each ? std::max<int64_t>(1, s.n) : per_row, each || is_shared(kind)};
  };
  DenseInput dense[kMaxRowOperands];
  for (size_t k = 0; k < c.op->row->operands.size(); ++k) {
    const RowOperand& o = c.op->row->operands[k];
    const TensorImpl* const t = o.kind == Operand::Scalar ? nullptr : c.in[o.input];
    call.ignored[k] = o.kind == Operand::Id ? add_number(call, {kInt64, c.attrs.v[o.word]}) : 0;
    if (o.kind == Operand::Scalar) {
      add_scalar(call, c.attrs.d(o.word));
    } else if (!t) {
      add_operand(call, Step::kAbsent);
    } else {
      dense[k] = DenseInput(t, t->dtype);
      add_window(call, t->dtype, dense[k].as<char>(), strides(o.kind), false);
    }
  }
  for (int k = 0; k < c.n_out; ++k) {
    const TensorImpl& t = *c.out[k].impl();
    const Operand kind = c.op->row->results[static_cast<size_t>(k)];
    add_window(call, t.dtype, t.data(), strides(kind), true);
  }
  call.walk = plan_rows(call.space, windows_of(call), traits_of(call), 0, 0);
  use(call);
}

// A reduction as one pass or, for long rows, two: the second reduces the first one's results.
class Reduction {
 public:
  Reduction(OpCall& c, const std::function<void(const RowsCall&)>& use)
      : c_(c), use_(use), l_(direct_layout(c)), y_(*c.out[0].impl()) {}

  void run() {
    if (l_.cols > 0) return columns();
    if (l_.count == 0) return rows(l_.compute, nullptr, y_.numel, 0, 0, y_);  // Empty rows.
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
  // One pass over elements of dtype t at `from` with these strides over the space.
  void pass(const IntList& space, DType t, const char* from, const IntList& strides,
            const TensorImpl& to, const IntList& to_strides, const RowTraits& traits, int outer,
            int64_t longest) {
    RowsCall call(*c_.op, l_.compute);
    call.map = map_;
    call.finish = finish_;
    set_space(call, space);
    add_window(call, t, from, strides, false);
    add_scalar(call, static_cast<double>(l_.count));
    add_window(call, to.dtype, to.data(), to_strides, true);
    call.walk = plan_rows(call.space, windows_of(call), traits, outer, longest);
    if (!finish_) {  // Each piece stores its partial result.
      call.windows[1].stride[0] = call.walk.pieces;
      call.windows[1].stride[1] = 1;
    }
    use_(call);
  }
  void rows(DType t, const char* from, int64_t outer, int64_t n, int64_t stride,
            const TensorImpl& to) {
    pass({outer, n}, t, from, {stride, 1}, to, {1, 0}, {.folds = true, .item = item_}, 1,
         finish_ ? 0 : kLongestPiece);
  }
  void whole() {
    const bool split = l_.rows > kLongestPiece;
    pass({l_.rows}, l_.dtype, l_.base, {1}, y_, {0},
         {.folds = true, .totals = split, .item = item_, .split = split}, 0, 0);
  }
  void columns() {
    pass({l_.outer, l_.rows, l_.cols}, l_.dtype, l_.base, {l_.outer_stride, l_.row_stride, 1}, y_,
         {l_.cols, 0, 1}, {.columns = 1, .item = item_}, 1, 0);
  }

  OpCall& c_;
  const std::function<void(const RowsCall&)>& use_;
  const ReductionLayout l_;
  const TensorImpl& y_;
  const int item_ = static_cast<int>(itemsize(l_.compute));
  bool map_ = true, finish_ = true;
};

}  // namespace

void for_each_rows_call(OpCall& c, const std::function<void(const RowsCall&)>& use) {
  if (c.op->row) return row_op(c, use);
  if (c.out[0].numel() > 0) Reduction(c, use).run();
}

PointwiseCall pointwise_call(const OpDef& op, const Iteration& it) {
  PointwiseCall call(op, it.compute);
  call.space.ndim = it.ndim;
  std::copy_n(it.size, it.ndim, call.space.size);
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    if (o.number) {
      add_operand(call, ~add_number(call, {o.dtype, o.scalar}));
      continue;
    }
    Window& w = add_window(call, o.dtype, o.base, k < it.n_out);
    w.index = o.made;
    std::copy_n(o.stride, it.ndim, w.stride);
  }
  call.walk = plan_walk(call.space, windows_of(call));
  call.walk.notes = op.check_values != nullptr;
  return call;
}

void run_row(OpCall& c) {
  if (!c.op->pointwise) return for_each_rows_call(c, [&](const RowsCall& call) { call.launch(c); });
  Iteration it;
  if (pointwise_iteration(c, it)) pointwise_call(*c.op, it).launch(c);
}

Program Call::program() const {
  Program p;
  p.space = space;
  p.row = op->pointwise ? 0 : space.size[space.ndim - 1];
  p.windows.assign(windows, windows + n_windows);
  p.numbers.assign(numbers, numbers + n_numbers);
  Step step{op, compute, {in, in + n_in}, {out, out + n_out}, {}, map, finish};
  if (op->row) step.ignored.assign(ignored, ignored + n_in);
  append_steps(p, {step}, false);
  return p;
}

template <class Walk> KernelKey WalkedCall<Walk>::key(Stage stage) const {
  constexpr int kWalk = 32;  // Bits.
  const uint64_t call = static_cast<uint64_t>(stage) | uint64_t{map} << 2 | uint64_t{finish} << 3 |
                        static_cast<uint64_t>(compute) << 4 | static_cast<uint64_t>(n_out) << 8;
  KernelKey key{op, walk.bits() | call << kWalk};
  constexpr int kNumber = 6, kAbsent = 7, kBits = 3;  // Codes after those of Window::Reach.
  static_assert(Window::Turned < kNumber && kBits * kOperands <= 64);
  for (int k = 0; k < n_out + n_in; ++k) {
    const int which = k < n_out ? out[k] : in[k - n_out];
    int reach = kAbsent;
    DType dtype{};
    if (which >= 0) {
      reach = windows[which].reach;
      dtype = windows[which].dtype;
    } else if (which != Step::kAbsent) {
      reach = kNumber;
      dtype = numbers[~which].dtype;
    }
    key.reaches |= static_cast<uint64_t>(reach) << kBits * k;
    key.dtypes |= static_cast<uint64_t>(dtype) << kBits * k;
  }
  return key;
}

template <class Walk> std::string WalkedCall<Walk>::text(Stage stage) const {
  const Program p = program();
  const std::string kernel = cuda_argument(p, walk, "k") + cuda_text(p, walk, "k", stage);
  if constexpr (std::is_same_v<Walk, RowWalk>)
    return with_support(kRowText + kernel);
  else
    return walk.notes ? with_support(kernel) : kernel;
}

template <class Walk> void WalkedCall<Walk>::launch(const OpCall& c) const {
  const int64_t bytes = walk.scratch_bytes();
  const Tensor scratch = bytes ? raw_empty({bytes}, kUInt8, kCUDA) : Tensor();
  int64_t words[kMostWords];  // Uninitialised: calls are hot.
  size_t n = 0;
  each_word(walk, space, {windows, static_cast<size_t>(n_windows)},
            {numbers, static_cast<size_t>(n_numbers)}, [&](Word w, int64_t value) {
              BRRR_CHECK(n < kMostWords, "cuda: a kernel with too many operands");
              if (w.kind == Word::Scratch && bytes)
                value += reinterpret_cast<int64_t>(scratch.impl()->data());
              if (w.kind == Word::Fault) value = reinterpret_cast<int64_t>(device_fault());
              if (w.kind == Word::Op) value = fault_op(c);
              words[n++] = value;
            });
  each_launch(walk, space, [&](Stage stage, int64_t blocks, int threads) {
    if (blocks == 0) return;
    const std::string name = std::string("k") + suffix(stage);
    Function* const k = find_kernel(key(stage), name.c_str(), 0, [&] { return text(stage); });
    device_queue::launch(k, op->name, {blocks}, threads, words, n * sizeof words[0]);
  });
}

template struct WalkedCall<program::Walk>;
template struct WalkedCall<program::RowWalk>;

}  // namespace brrr::cuda
