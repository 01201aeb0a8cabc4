#pragma once
// Row ops and reductions on a GPU: calls as programs with rows (ops/program/cuda_rows.h, where the
// order of folds is). A row of a reduction that is longer than 16384 is taken in pieces, whose
// results are reduced as a row of their own.

#include <functional>
#include <string>

#include "backends/cuda/kernels.h"
#include "ops/kinds/row.h"
#include "ops/program/cuda_rows.h"

namespace brrr::cuda {

/// A call of a row op, or a pass of a reduction, as what its kernels take.
struct RowsCall {
  static constexpr int kWindows = kMaxRowOperands + kMaxOutputs;
  const OpDef* op = nullptr;
  DType compute = DType::Float32;
  bool map = true, finish = true;  ///< Of a reduction's pass.
  program::Space space;
  program::Window windows[kWindows];
  program::Number numbers[kMaxRowOperands];
  int n_windows = 0, n_numbers = 0;
  int in[kMaxRowOperands], out[kMaxOutputs], ignored[kMaxRowOperands];  ///< As in program::Step.
  int n_in = 0, n_out = 0;
  program::RowWalk walk;

  uint64_t absent() const;  ///< Bit k: operand k is not given.
  KernelKey key(program::RowKernel which) const;
  /// Without the prelude; the kernel's name is "k" and the suffix.
  std::string text(program::RowKernel which) const;
  void launch(const OpCall& c) const;
  program::Program program() const;
};
/// Calls use(RowsCall) for what a call of a row op or a reduction is, in order.
void each_rows_call(OpCall& c, const std::function<void(const RowsCall&)>& use);
/// Runs such a call.
inline void run_rows(OpCall& c) {
  each_rows_call(c, [&](const RowsCall& call) { call.launch(c); });
}

}  // namespace brrr::cuda
