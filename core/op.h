#pragma once
// The records that all parts share: an op's definition, one call of it, and the tape node, which
// the graph's recorder stores as an instruction.

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "core/tensor_impl.h"

namespace brrr {

inline constexpr int kMaxAttrs = 13;  ///< Attribute words of a call.
inline constexpr int kMaxOutputs = 4;
inline constexpr int kInlineInputs = 4;

/// A host scalar that may change between steps without a new recording, such as a learning rate.
/// The values of calls made with one are never compared; they are read when the step is replayed.
struct ControlCell {
  enum Kind : uint8_t { Value, RngSeed, RngDraw, Mark, Mode, OwnDraw };
  RefCount refs;
  double value = 0;
  /// RngSeed, RngDraw: the words come from core/rng.h instead of `value`. OwnDraw: they are of a
  /// stream that the step began itself, which does not follow that of a frozen step. Mark: read by
  /// no op; a frozen step sets it as the function did. Mode: a module's (train, eval), read by no
  /// op either; a step that leaves it changed is not frozen.
  Kind kind = Value;
};
inline void destroy(ControlCell* c) noexcept { delete c; }
/// A cell holding `v`.
Ref<ControlCell> control_cell(double v, ControlCell::Kind kind = ControlCell::Value);

/// Scalar attributes as 64-bit words. Word i of a pointwise call belongs to its i-th scalar
/// operand. Other ops name theirs in a struct beside the row, members of eight bytes each, which is
/// pushed and read as a whole; a list may follow it.
struct Attrs {
  int64_t v[kMaxAttrs];
  uint8_t n = 0;
  uint8_t dtype = 0xff;  ///< An explicit result dtype, or 0xff.
  uint16_t dynamic = 0;  ///< Bit i: a ControlCell supplies word i.
  uint32_t kinds = 0;    ///< Two bits per operand: 0 tensor, 1 bool, 2 integer, 3 floating.
  uint8_t device = 0;    ///< DeviceType of a creation op.

  Attrs() {}  // NOLINT: words beyond n stay unset on purpose, calls are hot.
  void push(int64_t x) { v[n++] = x; }
  void push(double x) { push(std::bit_cast<int64_t>(x)); }
  void push(const IntList& list) {
    for (int64_t x : list) push(x);
  }
  void push(DType t) { set_dtype(t); }
  void push(Device d) { device = static_cast<uint8_t>(d.type); }
  template <class Words>
  requires std::is_aggregate_v<Words>
  void push(const Words& words) {
    std::memcpy(&v[n], &words, sizeof words);
    n += count<Words>();
  }
  /// The words as the struct that was pushed.
  template <class Words> Words as() const {
    Words words;
    std::memcpy(&words, v, count<Words>() * sizeof v[0]);
    return words;
  }
  /// The list after the struct.
  template <class Words> IntList after() const { return list(count<Words>()); }
  IntList list(int begin = 0) const { return {v + begin, static_cast<size_t>(n - begin)}; }
  double d(int i) const { return std::bit_cast<double>(v[i]); }
  int kind(int operand) const { return (kinds >> (2 * operand)) & 3; }
  void set_dtype(DType t) { dtype = static_cast<uint8_t>(t); }
  /// Calls `f(word)` for each of the dynamic words, in order.
  template <class F> void each_dynamic(const F& f) const {
    for (unsigned bits = dynamic; bits; bits &= bits - 1) f(std::countr_zero(bits));
  }
  /// n, dtype, dynamic and kinds as one word, to compare.
  uint64_t form() const {
    uint64_t bits;
    static_assert(offsetof(Attrs, device) - offsetof(Attrs, n) == sizeof bits);
    std::memcpy(&bits, &n, sizeof bits);
    return bits;
  }
  /// Sets one word, for `operand`. n to kinds are written in one store: several could not be
  /// forwarded to the load of form().
  template <class T> void set_only(int operand, uint32_t kind, T value) {
    static_assert(sizeof value == sizeof v[0]);
    std::memcpy(&v[0], &value, sizeof value);
    const uint64_t bits = 0xff01 | uint64_t{kind << (2 * operand)} << 32;
    std::memcpy(&n, &bits, sizeof bits);
  }

 private:
  template <class Words> static constexpr uint8_t count() {
    static_assert(std::is_trivially_copyable_v<Words> && sizeof(Words) % sizeof v[0] == 0);
    return sizeof(Words) / sizeof v[0];
  }
};
/// The attribute of rows that work along one dim.
struct DimAttrs {
  int64_t dim;
};
inline int dim_of(const Attrs& a) { return static_cast<int>(a.as<DimAttrs>().dim); }

struct OpDef;

/// Where a gradient goes: an output of a node, or a leaf. Not counted; the slot that it is read
/// from holds the references.
struct Edge {
  Node* node = nullptr;
  TensorImpl* leaf = nullptr;
  uint8_t output = 0;
  explicit operator bool() const { return node || leaf; }
};

/// What a tape node keeps of an input: plain fields that the tape counts by hand, because a node is
/// created and freed for every differentiable op.
struct NodeInput {
  TensorImpl* saved;  ///< Counted; only if the gradient needs the value.
  Edge edge;          ///< Counted.
  uint32_t version;   ///< Storage version when it was saved.
  Meta meta;          ///< Unset for scalar operands.
};
struct NodeOutput {
  TensorImpl* saved;
  uint32_t version;
};

/// The tape record of one call.
struct Node {
  RefCount refs;
  uint8_t n_in;
  uint8_t n_out;
  bool released = false;
  const OpDef* op;
  uint64_t sequence;                  ///< Backward runs in decreasing order.
  uint64_t recorder_number;           ///< Recorder::number of its step, or 0.
  NodeInput* in;                      ///< inline_in, or a heap block for more.
  Node* next = nullptr;               ///< Worklist link while being destroyed.
  struct Pending* pending = nullptr;  ///< Output gradients gathered by the running backward pass.
  Attrs attrs;
  NodeOutput out[kMaxOutputs];  ///< Set only if the op saves outputs.
  union {
    NodeInput inline_in[kInlineInputs];
  };
  Node() {}   // NOLINT: write_tape sets what it uses.
  ~Node() {}  // NOLINT
};
/// Drops saved tensors and edges, without recursion.
void release_node(Node& n) noexcept;
/// Drops saved tensors only.
void release_saved(Node& n) noexcept;

/// Arguments of an op's gradient: given the node and the gradients of its outputs, it sets `gin[i]`
/// for every input that `needs(i)`. It may move from the output gradients.
struct VjpCall {
  const Node& node;
  Tensor* gout;
  Tensor* gin;
  uint64_t wanted;  ///< Bit i: input i's gradient is needed (bit 63: that of any from 63 on).

  bool needs(int i) const { return node.in[i].edge && (wanted >> (i < 63 ? i : 63) & 1); }
  const Meta& meta(int i) const { return node.in[i].meta; }
  const Attrs& attrs() const { return node.attrs; }
  Tensor input(int i) const;  ///< The saved input; throws if it was written in place since.
  TensorImpl* borrow_input(int i) const;  ///< The same, not counted: the node keeps it.
  Tensor output(int k) const;
};

enum class OpKind : uint8_t { Pointwise, Reduction, View, Library, Random, Composite };
const char* name(OpKind k);

/// What an AutocastGuard does to an op's operands.
enum class Autocast : uint8_t {
  Keep,   ///< Nothing.
  Round,  ///< A product: float32 and 16-bit floats are rounded to the guard's dtype.
  Widen,  ///< 16-bit floats become float32.
};

struct PointwiseInfo;
struct ReductionInfo;
struct RowInfo;

/// An op's kernel on one device.
struct Kernel {
  void (*run)(OpCall&) = nullptr;           ///< Runs the call, or queues it.
  bool (*serves)(const OpCall&) = nullptr;  ///< The calls that it supports; null: all of them.
};

/// The least work of a call, with any kernel.
struct Work {
  double flops = 0;  ///< Floating-point operations, an fma being two.
  double bytes = 0;  ///< Each element that is needed read once, each result written once.
  DType dtype = DType::Float32;  ///< Of the operations.
  bool product = false;          ///< Nearly all operations are those of matrix products.
};

/// Memory of a matrix operand: room for `rows` rows, `pitch` elements apart (the leading
/// dimension); 0: as it is.
struct MatrixPadding {
  int64_t rows = 0, pitch = 0;
};

/// How one operand is divided among equal parts of a call, which run one after the other: a value
/// >= 0 is the dim of which each part has its share.
enum Cut : int {
  kWhole = -1,  ///< An input that every part reads in full.
  kSum = -2,    ///< A result: each part adds to it.
  kUncut = -3,  ///< The call cannot be cut like this.
};

/// Bytes for a dense copy, in the dtype of the arithmetic, of each operand that is not such itself.
int64_t packed_bytes(const OpCall& call);
/// For kernels that need no scratch memory.
constexpr int64_t no_scratch(const OpCall&) { return 0; }

/// What a row says of its op, besides its name and a line of documentation.
struct OpSpec {
  OpKind kind = OpKind::Library;
  uint8_t n_out = 1;
  uint8_t n_scratch = 0;             ///< The last n_scratch outputs are kernel scratch.
  void (*infer)(OpCall&) = nullptr;  ///< Checks the call, fills `meta`.
  /// The same result by differentiable tensor ops, whose derivative is the gradient when there is
  /// no vjp. Absent inputs are undefined tensors.
  void (*decompose)(OpCall&, const Tensor* in) = nullptr;
  /// Throws for values that the kernel cannot take: indices out of range. Runs before the kernel; a
  /// replay runs it before anything else if the non-floating operands come from outside the step.
  void (*check_values)(const OpCall&) = nullptr;
  /// By DeviceType; none for views. Where a GPU has none, or one that does not support the call,
  /// its backend generates a kernel from the row or runs decompose.
  Kernel kernel[kDeviceTypes] = {};
  /// Upper bound of the bytes that the CPU's kernel takes besides its outputs; negative: unknown.
  /// Looks at dtypes and layouts only.
  int64_t (*scratch)(const OpCall&) = packed_bytes;
  /// Of a library row: how `operand`, results numbered after inputs, is divided when the call is
  /// cut into equal parts, whose elements have the same bits as those of the whole. Looks at dtypes
  /// and layouts only; null: the CPU's kernel cannot be cut. See Share.
  int (*cut)(const OpCall&, int operand) = nullptr;
  /// Bytes that the first of several parts computes for all, from the call of one. Null: none.
  int64_t (*keeps)(const OpCall&) = nullptr;
  /// Of a library row on a GPU: the memory that lets `operand`, results after inputs, be used
  /// without a copy. Looks at dtypes and layouts only. Null: the kernel takes dense ones only.
  MatrixPadding (*room)(const OpCall&, int operand) = nullptr;
  /// Of a library row. Null: no operations, every operand and result in full. See work_of().
  Work (*work)(const OpCall&) = nullptr;
  void (*vjp)(VjpCall&) = nullptr;
  /// Outputs whose gradients vjp takes; for the others decompose is differentiated.
  uint32_t vjp_outputs = ~0u;
  uint32_t saves_inputs = 0;  ///< Bit i: the gradient needs the value of input i.
  uint32_t saves_outputs = 0;
  uint32_t grad_aliases = 0;  ///< Bit i: input i's gradient may alias another tensor.
  uint16_t numbers = 0;       ///< Bit i: word i is a mere scalar to the CPU's kernel.
  bool joins = false;         ///< Its result concatenates its operands along a dim.
  bool apart = false;         ///< Its kernels also write results with gaps between rows.
  bool communicates = false;  ///< Has side effects: no plan leaves it out.
  bool gradient_row = false;  ///< Derived from another row; not public itself.
  Autocast autocast = Autocast::Keep;
  /// Largest |kernel - decompose| in float32, relative to the result's largest element; 0: equal to
  /// the last bit.
  double tolerance = 0;
  const PointwiseInfo* pointwise = nullptr;
  const ReductionInfo* reduction = nullptr;
  const RowInfo* row = nullptr;
};

/// An op: a row of ops/, which registers itself.
///
///   const OpDef cat_row{"cat", "tensors one after the other along a dim",
///                       {.infer = cat_infer, .kernel = {{cat_cpu}, {cat_cuda}}, .vjp = cat_vjp}};
struct OpDef : OpSpec, NotCopied {
  const char* name;
  const char* doc;
  uint32_t index;  ///< Position in the registry.

  OpDef(const char* n, const char* d, const OpSpec& spec);
  bool differentiable() const { return vjp || decompose; }
  bool is_view() const { return kind == OpKind::View; }
  const Kernel& on(DeviceType device) const { return kernel[static_cast<int>(device)]; }
};

/// Layout of one output, filled by OpDef::infer.
struct OutMeta {
  DType dtype;
  Device device;
  int8_t alias = -1;  ///< Input whose storage this output views, or -1 for memory of its own.
  IntList sizes;
  IntList strides;     ///< Views only.
  int64_t offset = 0;  ///< Views only.
};

/// Whether a call is one of the equal parts of another (see OpSpec::cut). Its elements have the
/// same bits as in the whole; a later part adds to the sums in `out`.
enum class Share : uint8_t { All, First, Later };

/// One call of an op. Inputs are borrowed; a null input of a pointwise op is a scalar operand.
struct OpCall : NotCopied {
  const OpDef* op;
  TensorImpl* const* in;
  int n_in;
  bool into = false;  ///< `out` is given by the caller and written in place.
  Share share = Share::All;
  void* kept = nullptr;  ///< Of a part: OpSpec::keeps bytes that the first one fills and all read.
  const uint8_t n_out;
  Attrs attrs;
  union {
    Tensor out[kMaxOutputs];  ///< Only n_out of them may hold anything: the rest is not destroyed.
  };
  ControlCell* cells[kMaxAttrs];  ///< Valid where attrs.dynamic has a bit.
  /// In a replay on a GPU: the device address of the words with a dynamic bit, which are
  /// contiguous. Set only where attrs.dynamic has a bit.
  const char* control = nullptr;
  union {
    OutMeta meta[kMaxOutputs];  ///< Valid after infer().
  };

  OpCall(const OpDef& o, TensorImpl* const* inputs, int n) : OpCall(o, inputs, n, o.n_out) {}
  /// With `outputs` outputs, for rows whose number of outputs varies from call to call.
  OpCall(const OpDef& o, TensorImpl* const* inputs, int n, int outputs)
      : op(&o), in(inputs), n_in(n), n_out(static_cast<uint8_t>(outputs)) {
    for (Tensor& t : out) new (&t) Tensor;
  }
  ~OpCall() {
    out[0].~Tensor();  // Usually the only one, and known to be moved from.
    for (int k = 1; k < n_out; ++k) out[k].~Tensor();
  }
  /// Checks the call and fills `meta`, whose sizes then pass numel_of().
  void infer() {
    for (int k = 0; k < n_out; ++k) new (&meta[k]) OutMeta;
    op->infer(*this);
    for (int k = 0; k < n_out; ++k) numel_of(meta[k].sizes, op->name);
  }
};

/// Bytes that raw_empty takes for a tensor from planned scratch memory.
constexpr int64_t scratch_for(int64_t numel, int64_t item) { return (numel * item + 63) / 64 * 64; }
/// Bytes of the operands and results, repeated and broadcast ones counted once.
double operand_bytes(const OpCall& call);
/// Bytes that the call's CPU kernel takes besides its outputs, which exist.
inline int64_t scratch_bytes(const OpCall& call) { return call.op->scratch(call); }

/// All rows of the library and of the program, in registration order.
const std::vector<const OpDef*>& registry();
/// The row of that name, or null.
const OpDef* find_op(const std::string& name);

/// Runs, records or compares a call, then writes the tape: the only way an op is executed. (Rows
/// and gradients use core/call.h.)
void dispatch(OpCall& call);
/// Writes the tape node of an executed call, some of whose inputs require grad.
void write_tape(const OpDef& op, TensorImpl* const* in, int n_in, const Attrs& attrs,
                const Tensor* out, int n_out, bool into);
/// Throws if an operand is a placeholder of another recording, or one that outlived its own.
void check_readable(const OpCall& call);
/// Runs a call whose outputs have memory, and reports it to the observer: no recording, no tape.
void execute(OpCall& call);
/// Outputs for `call.meta`: views of the inputs or fresh memory.
void make_outputs(OpCall& call);
/// Marks output k, which a view op has made of `of`, as a view.
void mark_view(OpCall& call, int k, const TensorImpl& of);

}  // namespace brrr
