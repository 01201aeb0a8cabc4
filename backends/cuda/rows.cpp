#include "backends/cuda/rows.h"

#include <mutex>
#include <optional>
#include <unordered_map>

#include "core/context.h"
#include "ops/kinds/reduction_layout.h"
#include "ops/program/cuda_rows_text.h"
#include "ops/program/rows.h"

namespace brrr::cuda {

namespace {

using program::RowArguments;

// The kernels of a row op. Rows of every length share a text: what differs is a block's threads.
struct RowKernels {
  program::CudaRows text;
  const std::string rows_name, columns_name, sums_name, numbers_name;
  const DeviceKernel narrow, wide, columns, sums, numbers;
  explicit RowKernels(const OpDef& op)
      : text(program::cuda_rows(*op.row, op.name)),
        rows_name(op.name + std::string("_rows")),
        columns_name(op.name + std::string("_columns")),
        sums_name(op.name + std::string("_sums")),
        numbers_name(op.name + std::string("_numbers")),
        narrow{rows_name.c_str(), program::RowArgumentsText, 256, text.rows.c_str()},
        wide{rows_name.c_str(), program::RowArgumentsText, 1024, text.rows.c_str()},
        columns{columns_name.c_str(), program::RowArgumentsText, 256, text.columns.c_str()},
        sums{sums_name.c_str(), program::RowArgumentsText, 1024, text.sums.c_str()},
        numbers{numbers_name.c_str(), program::RowArgumentsText, 1024, text.numbers.c_str()} {}
  RowKernels(const RowKernels&) = delete;
  RowKernels& operator=(const RowKernels&) = delete;
};

const RowKernels& kernels_of(const OpDef& op) {
  static std::mutex mutex;
  static auto& all = *new std::unordered_map<const OpDef*, std::unique_ptr<RowKernels>>;
  const std::lock_guard lock(mutex);
  auto& found = all[&op];
  if (!found) found = std::make_unique<RowKernels>(op);
  return *found;
}

// The dtypes in which elements, and what the rows share, are read: their own if all have the same,
// else that of the arithmetic. Long rows of 16 bits and odd length pass through shared memory,
// which has room for two operands.
struct Reading {
  DType elements, shared;
  Reading(const OpCall& c, const RowShape& s) {
    const DType compute = compute_type(s.x->dtype);
    std::optional<DType> own[2];
    int each = 0;
    for (const RowOperand& o : c.op->row->operands) {
      const bool element = o.kind == Operand::Each;
      if (!element && o.kind != Operand::Weight && o.kind != Operand::Bias) continue;
      const TensorImpl* t = c.in[o.input];
      if (!t) continue;
      each += element && c.op->row->uses >> o.input & 1;
      auto& dtype = own[!element];
      dtype = dtype && *dtype != t->dtype ? compute : t->dtype;
    }
    elements = own[0].value_or(compute);
    if (each > 2 && s.n > 16384 && s.n % 2) elements = compute;
    shared = own[1].value_or(elements);
  }
};

// Results of columns: sums over blocks of rows, then over the blocks.
void sum_columns(const OpCall& c, const RowKernels& kernels, const Reading& reading, int flags,
                 RowArguments a) {
  int columns[kMaxOutputs], count = 0;
  for (int k = 0; k < c.n_out; ++k) {
    if (c.op->row->results[static_cast<size_t>(k)] == RowResult::Column) columns[count++] = k;
  }
  if (!count) return;
  a.chunks = std::max<int64_t>(1, blocks_for(a.rows, kReduceBlock));
  Tensor blocks[kMaxOutputs];
  for (int k = 0; k < count; ++k) {
    blocks[k] = raw_empty({a.chunks, a.n}, compute_type(reading.elements), c.out[0].device());
    a.totals[k] = blocks[k].impl()->data();
  }
  RowForm form(a.n, reading.elements);  // Only its groups matter to threads that own columns.
  form.log_lanes = form.held = 0;
  run_kernel(kernels.columns, {.t = reading.elements, .u = reading.shared, .n = form.bits(flags)},
             {blocks_for(a.chunks * (a.n >> form.log_group))}, a);
  for (int k = 0; k < count; ++k) {
    const TensorImpl& to = *c.out[columns[k]].impl();
    RowArguments sums{};
    sums.in[0] = a.totals[k];
    sums.out[0] = to.data();
    sums.rows = a.chunks;
    sums.n = a.n;
    run_kernel(kernels.sums, {.t = to.dtype}, {blocks_for(a.n, 32)}, sums);
  }
}

}  // namespace

bool serves_rows(const OpDef& op) { return kernels_of(op).text.served; }

void run_rows(OpCall& c) {
  const RowInfo& info = *c.op->row;
  const RowKernels& kernels = kernels_of(*c.op);
  const RowShape s(c);
  const DType compute = compute_type(s.x->dtype);
  const Reading reading(c, s);
  RowArguments a{};
  a.rows = s.rows;
  a.n = a.length = a.stride = a.step = s.n;
  a.chunks = a.matrices = 1;
  a.fault = device_fault();
  a.op = fault_op(c);
  int flags = 0;
  DenseInput in[kMaxRowOperands];
  for (size_t k = 0; k < info.operands.size(); ++k) {
    const RowOperand& o = info.operands[k];
    if (o.kind == Operand::Scalar) {
      a.scalar[k] = c.attrs.d(o.word);
      continue;
    }
    DType dtype = compute;
    if (o.kind == Operand::Each) dtype = reading.elements;
    if (o.kind == Operand::Weight || o.kind == Operand::Bias) {
      dtype = reading.shared;
      if (c.in[o.input]) flags |= 1 << k;
    }
    if (o.kind == Operand::Id) {
      dtype = kInt64;
      a.ignored[k] = c.attrs.v[o.word];
    }
    in[k] = DenseInput(c.in[o.input], dtype, 16);
    a.in[k] = in[k].as<char>();
  }
  std::optional<DenseOutput> out[kMaxOutputs];
  for (int k = 0; k < c.n_out; ++k) {
    const RowResult kind = info.results[static_cast<size_t>(k)];
    // A number of the first result is rounded by its kernel.
    const DType dtype = kind == RowResult::Each               ? reading.elements
                        : kind == RowResult::Number && k == 0 ? reading.elements
                                                              : compute;
    if (kind != RowResult::Column) a.out[k] = out[k].emplace(c.out[k], dtype).as<char>();
  }
  const Variant variant{
      .t = reading.elements, .u = reading.shared, .n = RowForm(s.n, reading.elements).bits(flags)};
  Tensor totals[kMaxOutputs];
  for (int k = 0; k < info.totals; ++k) {
    totals[k] = raw_empty({s.rows}, compute, s.x->device);
    a.totals[k] = totals[k].impl()->data();
  }
  if (!kernels.text.rows.empty()) {
    const RowForm form(s.n, reading.elements);
    run_kernel(form.log_lanes > 8 ? kernels.wide : kernels.narrow, variant, {form.blocks(s.rows)},
               a);
  }
  if (info.totals) {
    run_kernel(kernels.numbers,
               {.t = reading.elements,
                .u = reading.shared,
                .n = RowForm(INT64_MAX, reading.elements).bits(flags)},
               {1}, a);
  }
  sum_columns(c, kernels, reading, flags, a);
  for (auto& o : out) {
    if (o) o->finish();
  }
}

// --- reductions ----------------------------------------------------------------------------------

namespace {

using program::ReductionPart;

constexpr int64_t kWarpRow = 1024, kChunk = 16384, kManyBlocks = 4096;

// Group by group, without keeping any: rows are read once, from wherever they begin.
int lanes_bits(bool wide) {
  RowForm form;
  form.log_lanes = wide ? 8 : 5;
  return form.bits(0);
}

// The passes of a reduction, of which the first maps and the last finishes.
class Reduction {
 public:
  explicit Reduction(const OpCall& c)
      : l_(reduction_layout(c)), y_(*c.out[0].impl()), form_{.op = c.op} {
    form_.in = l_.count ? l_.dtype : l_.compute;
    form_.compute = l_.compute;
    a_.in[0] = l_.base;
    a_.scalar[1] = static_cast<double>(l_.count);
    a_.matrices = l_.outer;
  }

  bool by_columns() const { return l_.cols > 0; }

  void rows() {
    const bool none = l_.count == 0;  // Every result is that of a row without elements.
    int64_t outer = none ? y_.numel : l_.outer;
    a_.length = none ? 0 : l_.rows;
    a_.stride = l_.outer_stride;
    for (;;) {
      a_.chunks = std::max<int64_t>(1, blocks_for(a_.length, kChunk));
      a_.n = std::min(a_.length, kChunk);
      a_.rows = outer * a_.chunks;
      form_.wide = a_.n > kWarpRow;
      const bool last = a_.chunks == 1;
      pass(ReductionPart::Rows, last, a_.rows, form_.wide ? a_.rows : blocks_for(a_.rows, 8));
      if (last) return;
      a_.length = a_.stride = a_.chunks;
    }
  }

  void columns() {
    a_.n = l_.cols;
    a_.rows = l_.rows;
    a_.stride = l_.outer_stride;
    a_.step = l_.row_stride;
    for (bool last = false; !last;) {
      a_.chunks = blocks_for(a_.rows, kReduceBlock);
      last = a_.chunks == 1;
      const int64_t results = l_.outer * a_.chunks * a_.n;
      pass(ReductionPart::Columns, last, results, blocks_for(results));
      a_.rows = a_.chunks;
      if (last || a_.rows > kManyBlocks) {
        a_.stride = a_.rows * a_.n;
        a_.step = a_.n;
        continue;
      }
      return pass(ReductionPart::Sums, true, 0, l_.outer * blocks_for(a_.n, 32));
    }
  }

 private:
  // What one pass leaves, so many results, the next one reads.
  void pass(ReductionPart part, bool last, int64_t results, int64_t blocks) {
    form_.part = part;
    form_.finish = last;
    form_.out = last ? y_.dtype : form_.compute;
    if (!last) parts_.push_back(raw_empty({results}, form_.compute, kCUDA));
    a_.out[0] = last ? y_.data() : parts_.back().impl()->data();
    Function* const k = find_kernel(form_.key(), form_.kernel(), 0, [&] { return form_.text(); });
    launch(k, form_.op->name, {blocks}, form_.threads(), &a_, sizeof a_);
    a_.in[0] = a_.out[0];
    form_.in = form_.compute;
    form_.map = false;
  }

  const ReductionLayout l_;
  TensorImpl& y_;
  ReductionForm form_;
  RowArguments a_{};
  std::vector<Tensor> parts_;
};

}  // namespace

KernelKey ReductionForm::key() const {
  const uint64_t variant = static_cast<uint64_t>(part) | static_cast<uint64_t>(wide) << 2 |
                           static_cast<uint64_t>(map) << 3 | static_cast<uint64_t>(finish) << 4 |
                           static_cast<uint64_t>(in) << 8 | static_cast<uint64_t>(compute) << 12 |
                           static_cast<uint64_t>(out) << 16;
  return {op, variant};
}
const char* ReductionForm::kernel() const {
  static constexpr const char* names[] = {"reduction_rows", "reduction_columns", "reduction_sums"};
  return names[static_cast<int>(part)];
}
int ReductionForm::threads() const { return part == ReductionPart::Sums ? 1024 : 256; }

std::string ReductionForm::text() const {
  // The arithmetic may be wider than that of the elements: sums of int32.
  const DType t = part == ReductionPart::Sums ? out : in;
  return program::RowArgumentsText + element_text(t, compute, "T", "") +
         element_text(out, compute, "U", "_u") +
         fmt::format("constexpr int N = {};\n", lanes_bits(wide)) +
         program::cuda_reduction(*op->reduction, compute, part, map, finish);
}

void run_reduction(OpCall& c) {
  if (c.out[0].numel() == 0) return;
  Reduction r(c);
  r.by_columns() ? r.columns() : r.rows();
}

}  // namespace brrr::cuda
