#pragma once
// Calls of pointwise rows, row ops and reductions as programs (ops/program/cuda.h and cuda_rows.h,
// where the order of folds is); their kernels are generated from the rows' formulas. A row of a
// reduction that is longer than 16384 is taken in pieces, whose results are reduced as a row of
// their own.

#include <functional>
#include <string>

#include "backends/cuda/kernels.h"
#include "ops/kinds/pointwise_iteration.h"
#include "ops/program/cuda_rows.h"

namespace brrr::cuda {

/// A pointwise call, a call of a row op, or a pass of a reduction. Of each operand and result there
/// is one window or number.
struct Call {
  static constexpr int kOperands = kMostPointwise;
  const OpDef* op;
  DType compute;
  bool map = true, finish = true;  ///< Of a reduction's pass.
  program::Space space;
  program::Window windows[kOperands];
  program::Number numbers[kOperands];
  int n_windows = 0, n_numbers = 0;
  int in[kOperands], out[kMaxOutputs], ignored[kOperands];  ///< As in program::Step.
  int n_in = 0, n_out = 0;

  Call(const OpDef& o, DType c) : op(&o), compute(c) {}
  program::Program program() const;
};

/// With the way that a kernel takes through it, a program::Walk or program::RowWalk.
template <class Walk> struct WalkedCall : Call {
  using Call::Call;
  Walk walk;

  KernelKey key(program::Stage stage = program::Stage::Elements) const;
  /// Without the prelude; the kernel's name is "k" and the suffix.
  std::string text(program::Stage stage = program::Stage::Elements) const;
  void launch(const OpCall& c) const;
};
using PointwiseCall = WalkedCall<program::Walk>;
using RowsCall = WalkedCall<program::RowWalk>;

PointwiseCall pointwise_call(const OpDef& op, const Iteration& it);
/// Calls use(RowsCall) for what a call of a row op or a reduction is, in order.
void each_rows_call(OpCall& c, const std::function<void(const RowsCall&)>& use);

/// Runs a call of such a row.
void run_row(OpCall& c);

}  // namespace brrr::cuda
