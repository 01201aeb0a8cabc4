// Shape rules and kernel drivers that all row ops share.
#include "ops/kinds/row.h"

#include <limits>
#include <optional>

#include "core/check.h"
#include "ops/factory_ops.h"

namespace brrr {

// --- calls ---------------------------------------------------------------------------------------

namespace {

const RowInfo& info_of(const OpCall& c) { return *c.op->row; }

// Adding -0 leaves every x as it is, zeros of either sign included.
double absent_value(Operand o) { return o == Operand::Weight ? 1.0 : -0.0; }
// An absent operand that the kernel reads is filled with its default.
bool is_filled(const RowInfo& info, const OpCall& c, const RowOperand& o) {
  return is_shared(o.kind) && !c.in[o.input] && info.uses >> o.input & 1;
}
bool is_result(const RowInfo& info, const OpCall& c, int k, Operand kind) {
  return k < c.n_out && info.results[static_cast<size_t>(k)] == kind;
}
int columns_of(const RowInfo& info, const OpCall& c) {
  const auto begin = info.results.begin();
  return static_cast<int>(std::count(begin, begin + c.n_out, Operand::Column));
}
int64_t row_blocks(const RowShape& s) {
  return std::max<int64_t>(1, (s.rows + kReduceBlock - 1) / kReduceBlock);
}

// The first result has the dtype of the first Each operand, and so has its gradient; other results
// have the compute type. A gradient has the dtype of its operand where that is known: operands that
// the lambda does not read are not passed.
DType result_dtype(const RowInfo& info, const OpCall& c, const TensorImpl& x, int k) {
  if (!c.op->gradient_row) return k == 0 ? x.dtype : compute_type(x.dtype);
  if (c.in[k]) return c.in[k]->dtype;
  const bool as_g = k == 0 && info.operands[0].kind == Operand::Each;
  return as_g ? c.in[c.n_in - 1]->dtype : compute_type(x.dtype);
}

}  // namespace

RowShape::RowShape(const OpCall& c) {
  for (const RowOperand& o : info_of(c).operands) {
    if (!x && o.kind == Operand::Each) x = c.in[o.input];
  }
  if (!x) return;
  dims = static_cast<int>(std::min<int64_t>(c.attrs.as<RowAttrs>().dims, x->ndim));
  for (int d = 0; d < x->ndim; ++d) (d < x->ndim - dims ? rows : n) *= x->sizes[d];
}
IntList RowShape::sizes(Operand kind) const {
  IntList all = x->size_list();
  int64_t* const row = all.end() - dims;
  if (kind == Operand::Number) return {};
  if (kind == Operand::Id) return {x->sizes, static_cast<size_t>(x->ndim - dims)};
  if (is_shared(kind)) return {row, static_cast<size_t>(dims)};
  if (kind == Operand::PerRow) std::fill(row, all.end(), 1);
  return all;
}

// --- shapes --------------------------------------------------------------------------------------

std::string RowInfo::name_of(int k) const {
  const auto i = static_cast<size_t>(k);
  return i < names.size() ? names[i] : fmt::format("operand {}", k);
}

// The end of an error message: the shape that an operand should have.
static std::string expected(const RowShape& s, Operand kind, const std::string& operand) {
  const std::string x = describe(s.x), sizes = to_string(s.sizes(kind));
  if (kind == Operand::Each) return fmt::format(" and x is {}; reshape or expand one", x);
  if (kind == Operand::Number) return ", but takes a single number; use reshape({})";
  if (kind == Operand::Id) return fmt::format(", but takes an int64 id for each row of {}", x);
  if (kind == Operand::PerRow) {
    return fmt::format(", but takes a number for each row of {}, {}; reshape it", x, sizes);
  }
  return fmt::format(
      ", but the normalized shape of {} is {}; give one {} for each normalized element", x, sizes,
      operand);
}

static void check_operand(const OpCall& c, const RowShape& s, int k) {
  const RowInfo& info = info_of(c);
  const RowOperand& o = info.operands[static_cast<size_t>(k)];
  if (o.kind == Operand::Scalar) return;
  const TensorImpl* t = c.in[o.input];
  BRRR_CHECK(t || is_shared(o.kind) || !(info.uses >> o.input & 1),
             "{}: {} is undefined; assign a tensor first", c.op->name, info.name_of(k));
  if (!t || (t == s.x && o.kind == Operand::Each)) return;
  const bool id = o.kind == Operand::Id;
  BRRR_CHECK(t->size_list() == s.sizes(o.kind) && (!id || t->dtype == kInt64), "{}: {} is {}{}",
             c.op->name, info.name_of(k), describe(t), expected(s, o.kind, info.name_of(k)));
  BRRR_CHECK(id || (is_floating(t->dtype) && compute_type(t->dtype) == compute_type(s.x->dtype)),
             "{}: {} is {} and x is {}; convert one with to(dtype)", c.op->name, info.name_of(k),
             describe(t), describe(s.x));
}

static void row_infer(OpCall& c) {
  const RowInfo& info = info_of(c);
  const RowShape s(c);
  BRRR_CHECK(s.x, "{}: the tensor is undefined; assign one first", c.op->name);
  check_floating(c.op->name, *s.x);
  check_devices(c, s.x->device);
  for (int k = 0; k < static_cast<int>(info.operands.size()); ++k) check_operand(c, s, k);
  for (int k = 0; k < c.n_out; ++k) {
    const Operand kind = info.results[static_cast<size_t>(k)];
    set_meta(c, k, result_dtype(info, c, *s.x, k), s.sizes(kind), s.x->device);
  }
}

static void row_check_values(const OpCall& c) {
  const RowShape s(c);
  for (const RowOperand& o : info_of(c).operands) {
    if (o.kind != Operand::Id || !c.in[o.input]) continue;  // (One that is not read may be absent.)
    const DenseInput given(c.in[o.input], kInt64);
    const auto* ids = given.as<int64_t>();
    for (int64_t r = 0; r < s.rows; ++r) {
      BRRR_CHECK((ids[r] >= 0 && ids[r] < s.n) || ids[r] == c.attrs.v[o.word],
                 "{}: id {} at position {} is out of range for {} classes", c.op->name, ids[r], r,
                 s.n);
    }
  }
}

// --- kernels -------------------------------------------------------------------------------------

static int64_t row_scratch(const OpCall& c) {
  const RowInfo& info = info_of(c);
  const RowShape s(c);
  const auto item = static_cast<int64_t>(itemsize(compute_type(s.x->dtype)));
  const int columns = columns_of(info, c);
  int64_t bytes = packed_bytes(c);
  for (const RowOperand& o : info.operands) {
    if (is_filled(info, c, o)) bytes += scratch_for(s.n, item);
  }
  if (columns) bytes += scratch_for(row_blocks(s) * columns * s.n, item);
  return bytes + info.totals * scratch_for(s.rows, item);
}

namespace {

// Column results are summed in the order of a column reduction: blocks of rows, then the blocks.
template <class V>
constexpr auto kAddBlocks = reduce_columns<decltype([] { return 0.0; }), Keep, lifted::Add, V>;

// A kernel takes each step for several rows at once, because the steps of one short row depend on
// each other; the rows' elements that it reads and writes have to stay in the L1 cache.
constexpr int64_t kBlockBytes = 32 << 10;
constexpr int64_t kTogetherBlock = 256;  // They are computed in registers, whatever their number.
int64_t row_block(const OpCall& c, const RowShape& s, DType compute) {
  const RowInfo& info = info_of(c);
  int64_t own = 0, shared = columns_of(info, c);  // Those with elements: per row, shared by all.
  for (const RowOperand& o : info.operands)
    own += o.kind == Operand::Each, shared += is_shared(o.kind);
  for (int k = 0; k < c.n_out; ++k) own += is_result(info, c, k, Operand::Each);
  const auto line = std::max<int64_t>(1, s.n * static_cast<int64_t>(itemsize(compute)));
  return std::clamp<int64_t>((kBlockBytes / line - shared) / std::max<int64_t>(own, 1), 1,
                             kRowBlock);
}

// Runs all rows, block by block. Each unit of rows has its own partial sums of the column results,
// which are added up last.
void run_rows(const OpCall& c, const RowShape& s, const RowSource& source, DType compute,
              void* const* out) {
  const RowInfo& info = info_of(c);
  const RowLoops& loops = info.loops[compute_index(compute)];
  const int columns = columns_of(info, c);
  const bool together = loops.together && vx::packs_rows(s.rows, s.n);
  const auto run = together ? loops.together : loops.block;
  const int64_t block = together ? kTogetherBlock : row_block(c, s, compute);
  const int64_t unit = columns ? kReduceBlock : block;
  const int64_t units = columns ? row_blocks(s) : (s.rows + block - 1) / block;
  const int64_t bytes = s.n * static_cast<int64_t>(itemsize(compute));  // Of one column result.
  const Tensor parts = columns ? raw_empty({units, columns, s.n}, compute, s.x->device) : Tensor();
  char* const part = columns ? parts.impl()->data() : nullptr;
  parallel_for(units, std::max<int64_t>(1, kRowGrain / (unit * s.n + 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k) {
                   char* own = part + k * columns * bytes;
                   if (columns) std::memset(own, 0, static_cast<size_t>(columns * bytes));
                   void* to[kMaxOutputs];
                   for (int o = 0; o < kMaxOutputs; ++o) {
                     const bool sums = is_result(info, c, o, Operand::Column);
                     to[o] = sums ? std::exchange(own, own + bytes) : out[o];
                   }
                   const int64_t last = std::min((k + 1) * unit, s.rows);
                   for (int64_t r = k * unit; r < last; r += block) {
                     run(source, r, std::min(block, last - r), to);
                   }
                 }
               });
  const auto add_blocks = compute == kFloat64 ? kAddBlocks<vx::f64> : kAddBlocks<vx::f32>;
  const char* from = part;
  for (int o = 0; o < c.n_out; ++o) {
    if (!is_result(info, c, o, Operand::Column)) continue;
    add_blocks(from, columns * s.n, units, s.n, true, out[o]);
    from += bytes;
  }
  if (loops.finish) loops.finish(source, out);
}

}  // namespace

static void row_cpu(OpCall& c) {
  const RowInfo& info = info_of(c);
  const RowShape s(c);
  const DType compute = compute_type(s.x->dtype);
  RowSource source{};
  source.rows = s.rows;
  source.n = s.n;
  std::array<DenseInput, kMaxRowOperands> dense;
  for (size_t k = 0; k < info.operands.size(); ++k) {
    const RowOperand& o = info.operands[k];
    if (o.kind == Operand::Scalar) {
      source.scalar[k] = c.attrs.d(o.word);
      continue;
    }
    if (o.kind == Operand::Id) source.ignored[k] = c.attrs.v[o.word];
    dense[k] = is_filled(info, c, o)
                   ? DenseInput::filled(s.n, compute, s.x->device, absent_value(o.kind))
                   : DenseInput(c.in[o.input], o.kind == Operand::Id ? kInt64 : compute);
    source.in[k] = dense[k].as<void>();
  }
  Tensor totals[kMaxOutputs];
  for (int k = 0; k < info.totals; ++k) {
    totals[k] = raw_empty({s.rows}, compute, s.x->device);
    source.totals[k] = totals[k].impl()->data();
  }
  std::optional<DenseOutput> results[kMaxOutputs];
  void* out[kMaxOutputs] = {};
  for (int k = 0; k < c.n_out; ++k) out[k] = results[k].emplace(c.out[k], compute).as<void>();
  run_rows(c, s, source, compute, out);
  for (int k = 0; k < c.n_out; ++k) results[k]->finish();
}

// --- the differentiable form ---------------------------------------------------------------------

RowTensor row_tensor(const RowShape& s, const OpCall& c, const Tensor* in, int k) {
  const RowOperand& o = info_of(c).operands[static_cast<size_t>(k)];
  RowTensor r{.t = {}, .rows = &s};
  const auto number = [&](double v) { return full({}, v, compute_type(s.x->dtype), s.x->device); };
  if (o.kind == Operand::Scalar) {
    r.t = number(c.attrs.d(o.word));
  } else if (in[o.input].defined()) {
    r.t = widened(in[o.input]);
  } else if (is_shared(o.kind)) {
    r.t = number(absent_value(o.kind));
  }
  return r;
}

RowTensorIds row_tensor_ids(const RowShape& s, const OpCall& c, const Tensor* in, int k) {
  const RowOperand& o = info_of(c).operands[static_cast<size_t>(k)];
  if (!in[o.input].defined()) return {};  // Not read.
  const Tensor given = s.dims ? unsqueeze(in[o.input], -1) : in[o.input];
  const Tensor counted = given != c.attrs.v[o.word];
  return {{where(counted, given, 0), &s}, {counted, &s}};
}

static void row_decompose(OpCall& c, const Tensor* in) {
  const RowInfo& info = info_of(c);
  const RowShape s(c);
  const m::LiteralDTypeScope numbers(compute_type(s.x->dtype));
  const std::vector<RowTensor> results = info.tensors(s, c, in);
  for (int k = 0; k < c.n_out; ++k) {
    const auto i = static_cast<size_t>(k);
    const Tensor all = RowTensor::expanded_to(results[i].t, s.sizes(info.results[i]));
    c.out[k] = all.to(result_dtype(info, c, *s.x, k));
  }
}

// --- rows ----------------------------------------------------------------------------------------

// Evaluates the lambda on symbols once, to find the operands that it really reads.
static uint64_t uses_of(const RowInfo& info) {
  Statements list;
  SymScope scope(list, kFloat32);
  int in[kMaxRowOperands];
  for (size_t k = 0; k < info.operands.size(); ++k) {
    const RowOperand& o = info.operands[k];
    if (o.kind == Operand::Scalar)
      in[k] = Sym(0.0).id;
    else
      in[k] = o.kind == Operand::Id ? o.input : scope.operand(o.input);
  }
  uint64_t uses = 0;
  for (int id : info.symbols(in)) uses |= operands_used(list, id);
  return uses;
}

void RowOp::finish() {
  autocast = Autocast::Widen;
  infer = row_infer;
  kernel[static_cast<int>(DeviceType::CPU)].run = row_cpu;
  scratch = row_scratch;
  decompose = row_decompose;
  row = &info;
  for (const RowOperand& o : info.operands) {
    if (o.kind == Operand::Id) check_values = row_check_values;
  }
  info.uses = uses_of(info);
}

void RowOp::add_operand(Operand o) {
  info.operands.push_back({o, inputs_, words_});
  inputs_ += o != Operand::Scalar;
  if (o == Operand::Scalar) numbers |= static_cast<uint16_t>(1u << words_);
  words_ += o == Operand::Scalar || o == Operand::Id;
}

Tensor RowOp::run(std::initializer_list<Given> operands) const {
  BRRR_CHECK(operands.size() == info.operands.size(), "{}: takes {} operands, got {}", name,
             info.operands.size(), operands.size());
  TensorImpl* in[kMaxRowOperands] = {};
  OpCall c(*this, in, inputs_);
  c.attrs.push(RowAttrs{.dims = 1});
  int k = 0;
  for (const Given& given : operands) {
    const RowOperand& o = info.operands[static_cast<size_t>(k)];
    const bool number = o.kind == Operand::Scalar;
    BRRR_CHECK(number == !given.tensor, "{}: {} is a {}; give {}", name, info.name_of(k),
               given.tensor ? "tensor" : "number", number ? "a number" : "a tensor");
    if (number)
      c.attrs.push(given.number);
    else
      in[o.input] = given.tensor->impl();
    // (In the 32 bits in which kernels compare indices this is -1, which no element has.)
    constexpr int64_t none = std::numeric_limits<int64_t>::max();
    if (o.kind == Operand::Id) c.attrs.push(none);
    ++k;
  }
  dispatch(c);
  return std::move(c.out[0]);
}

}  // namespace brrr
