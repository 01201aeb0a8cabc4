#pragma once
// Mixed precision: matrix products on 16-bit operands in a model whose weights stay float32.

#include "core/tensor.h"

namespace brrr {

/// While one of these lives, on this thread:
///
/// - matrix products (matmul, linear, attention: rows marked Autocast::Round) take their floating
///   operands rounded to `dtype`, kBFloat16 or kFloat16. They sum in float32 and their results have
///   `dtype`, as PyTorch's autocast: the next product would round its operand anyway, so a wider
///   result would cost memory and save one rounding only where something else reads it. Operations
///   on such a result and a float32 tensor (a residual, a norm's weight) give float32.
/// - reductions and composites (sums, norms, softmax, losses: Autocast::Widen) take 16-bit operands
///   widened to float32 and give float32.
/// - everything else, cumsum too, follows its operands. float64 and integers are left alone.
///
/// Weights stay as they are: the casts are ordinary recorded ops with gradients, so each leaf gets
/// its gradient in its own dtype, and a graph-mode step called under another guard than before
/// makes a new recording. A weight is cast at each use of it in the forward pass (backward reuses
/// that copy); there is no cache, whose hits would depend on grad mode and on writes in between.
/// backward() and grad() run as recorded by the forward pass, inside a guard or not. Guards nest;
/// AutocastGuard(kFloat32) switches it off inside another.
///
/// CPUs gain nothing: there are no 16-bit matrix kernels here, products widen their operands again,
/// so that a step takes longer than in float32. It is for trying out what a GPU will compute.
///
/// Throws brrr::Error for other dtypes.
class AutocastGuard : NotCopied {
 public:
  explicit AutocastGuard(DType dtype);

 private:
  Held<DType> dtype_;
};
/// `t` cast as a product takes it under the innermost guard, or `t` itself without a guard: for
/// functions that look at dtypes before they call their op.
Tensor autocast_operand(const Tensor& t);
/// The dtype of the innermost guard on this thread; kFloat32 if there is none or it is off.
DType autocast_dtype();

}  // namespace brrr
