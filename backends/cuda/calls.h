#pragma once
// Turns calls of pointwise rows, row ops and reductions into programs (ops/program/cuda.h and
// cuda_rows.h, which defines the order of folds); their kernels are generated from the rows'
// formulas. A row of a reduction longer than 16384 is reduced in pieces, whose results are then
// reduced as a row of their own.

#include <functional>
#include <string>

#include "backends/cuda/kernels.h"
#include "ops/kinds/pointwise_iteration.h"
#include "ops/program/cuda_rows.h"

namespace brrr::cuda {

/// A pointwise call, a call of a row op, or one pass of a reduction. Each operand and result is a
/// window (memory) or a number (scalar).
struct Call {
  static constexpr int kOperands = kMostPointwise;
  const OpDef* op;
  DType compute;
  bool map = true, finish = true;  ///< Which parts of a reduction row this pass applies.
  program::Space space;
  program::Window windows[kOperands];
  program::Number numbers[kOperands];
  int n_windows = 0, n_numbers = 0;
  int in[kOperands], out[kMaxOutputs], ignored[kOperands];  ///< As in program::Step.
  int n_in = 0, n_out = 0;

  Call(const OpDef& o, DType c) : op(&o), compute(c) {}
  program::Program program() const;
};

/// A call with the walk of its kernel, a program::Walk or program::RowWalk.
template <class Walk> struct WalkedCall : Call {
  using Call::Call;
  Walk walk;

  KernelKey key(program::Stage stage = program::Stage::Elements) const;
  /// The kernel's text without the prelude; its name is "k" and the stage's suffix.
  std::string text(program::Stage stage = program::Stage::Elements) const;
  void launch(const OpCall& c) const;
};
using PointwiseCall = WalkedCall<program::Walk>;
using RowsCall = WalkedCall<program::RowWalk>;

PointwiseCall pointwise_call(const OpDef& op, const Iteration& it);
/// Calls use(RowsCall) for each pass that a call of a row op or a reduction consists of, in order.
void for_each_rows_call(OpCall& c, const std::function<void(const RowsCall&)>& use);

/// Runs a call of a pointwise row, a row op or a reduction.
void run_row(OpCall& c);

}  // namespace brrr::cuda
