#include "backends/cuda/rows.h"

#include <mutex>
#include <optional>
#include <unordered_map>

#include "core/context.h"
#include "ops/program/cuda_rows_text.h"
#include "ops/program/rows.h"

namespace brrr::cuda {

namespace {

using program::RowArguments;

// The kernels of a row op. Rows of every length share a text: what differs is a block's threads.
struct RowKernels {
  program::CudaRows text;
  const std::string rows_name, columns_name, numbers_name;
  const DeviceKernel narrow, wide, columns, numbers;
  explicit RowKernels(const OpDef& op)
      : text(program::cuda_rows(*op.row, op.name)),
        rows_name(op.name + std::string("_rows")),
        columns_name(op.name + std::string("_columns")),
        numbers_name(op.name + std::string("_numbers")),
        narrow{rows_name.c_str(), program::RowArgumentsText, 256, text.rows.c_str()},
        wide{rows_name.c_str(), program::RowArgumentsText, 1024, text.rows.c_str()},
        columns{columns_name.c_str(), program::RowArgumentsText, 256, text.columns.c_str()},
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

BRRR_DEVICE_STRUCT(SumArguments, {
  const char* part;
  char* to;
  long parts;
  long n;
});

// Sums over blocks, added up: part b goes to slot b % 32, which adds them in order; then a tree
// over slots.
constexpr DeviceKernel sum_kernel{"row_sums", SumArgumentsText, 1024, R"(
BLOCK_KERNEL(row_sums, SumArguments, 1024) {
  __shared__ TC partial[32][32];
  const int tx = threadIdx.x % 32, slot = threadIdx.x / 32;
  const long column = (long)blockIdx.x * 32 + tx;
  TCV sum{};
  if (column < p.n) {
#pragma unroll 8
    for (long b = slot; b < p.parts; b += 32) {
      sum = sum + load((const TC*)p.part + b * p.n + column);
    }
  }
  partial[slot][tx] = sum[0];
  for (int d = 16; d > 0; d /= 2) {
    __syncthreads();
    if (slot < d) partial[slot][tx] += partial[slot + d][tx];
  }
  if (slot == 0 && column < p.n) put((T*)p.to + column, splat(partial[0][tx]));
}
)"};

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
  a.n = s.n;
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
  int columns[kMaxOutputs], n_columns = 0;
  for (int k = 0; k < c.n_out; ++k) {
    const RowResult kind = info.results[static_cast<size_t>(k)];
    if (kind == RowResult::Column) columns[n_columns++] = k;
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
  if (n_columns) {
    const int64_t blocks = std::max<int64_t>(1, (s.rows + kReduceBlock - 1) / kReduceBlock);
    RowForm form(s.n, reading.elements);  // Only its groups matter to threads that own columns.
    form.log_lanes = form.held = 0;
    for (int k = 0; k < n_columns; ++k) {
      totals[k] = raw_empty({blocks, s.n}, compute, s.x->device);
      a.totals[k] = totals[k].impl()->data();
    }
    run_kernel(kernels.columns, {.t = reading.elements, .u = reading.shared, .n = form.bits(flags)},
               {blocks_for(blocks * (s.n >> form.log_group))}, a);
    for (int k = 0; k < n_columns; ++k) {
      TensorImpl& to = *c.out[columns[k]].impl();
      run_kernel(sum_kernel, {.t = to.dtype}, {blocks_for(s.n, 32)},
                 SumArguments{a.totals[k], to.data(), blocks, s.n});
    }
  }
  for (auto& o : out) {
    if (o) o->finish();
  }
}

}  // namespace brrr::cuda
