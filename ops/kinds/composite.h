#pragma once
// The composite row: an op that is a decomposition into other ops, with a fast kernel beside it.
//
// The kernel does the decomposition's arithmetic in its order (see row_kernel.h), and tests hold
// the two equal to the last bit in float32; a row whose kernel has an order of its own says how far
// it may be off. 16-bit floats are widened first and rounded once, at
// the end, in both. A gradient is a composite row of its own; second derivatives come from
// differentiating its decomposition.

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/context.h"

namespace brrr {

/// What a composite row is made of.
struct CompositeParts {
  uint8_t n_out = 1;
  uint8_t n_scratch = 0;  ///< Of them, the last: a kernel's scratch memory, which is planned then.
  void (*infer)(OpCall&) = nullptr;
  /// Fills every result by public differentiable ops; undefined tensors stand for absent inputs.
  void (*decompose)(OpCall&, const Tensor* in) = nullptr;
  void (*check_values)(const OpCall&) = nullptr;
  void (*cpu)(OpCall&) = nullptr;
  int64_t (*scratch)(const OpCall&) = nullptr;
  void (*cuda)(OpCall&) = nullptr;  ///< If null, the decomposition runs there.
  bool (*cuda_serves)(const OpCall&) = nullptr;
  void (*vjp)(VjpCall&) = nullptr;  ///< If null, the decomposition is differentiated.
  uint32_t saves_inputs = 0;        ///< For vjp; without one all inputs are saved.
  uint32_t saves_outputs = 0;
  bool gradient_row = false;
  Autocast autocast = Autocast::Widen;  ///< Round for products.
  /// Largest |kernel - decomposition| in float32, relative to the result's largest element; 0:
  /// equal to the last bit.
  double tolerance = 0;
};

class CompositeOp : public OpDef {
 public:
  CompositeOp(const char* n, const char* d, const CompositeParts& parts)
      : tolerance(parts.tolerance) {
    name = n;
    doc = d;
    kind = OpKind::Composite;
    n_out = parts.n_out;
    n_scratch = parts.n_scratch;
    gradient_row = parts.gradient_row;
    autocast = parts.autocast;
    infer = parts.infer;
    decompose = parts.decompose;
    check_values = parts.check_values;
    cpu = parts.cpu;
    scratch = parts.scratch;
    cuda = parts.cuda;
    cuda_serves = parts.cuda_serves;
    vjp = parts.vjp;
    saves_inputs = vjp ? parts.saves_inputs : ~0u;
    saves_outputs = parts.saves_outputs;
    // What a decomposition's gradient shares memory with is not known.
    grad_aliases = vjp ? 0 : ~0u;
    register_row();
  }
  const double tolerance;
};

/// One call of a composite row; the inputs are borrowed until it has run, null ones are absent.
class CompositeCall {
 public:
  CompositeCall(const CompositeOp& op, std::initializer_list<TensorImpl*> in)
      : call_(op, in_.data(), static_cast<int>(in.size())) {
    std::copy(in.begin(), in.end(), in_.begin());
  }
  template <class T> CompositeCall& attr(T value) {
    call_.attrs.push(value);
    return *this;
  }
  CompositeCall(const CompositeCall&) = delete;
  CompositeCall& operator=(const CompositeCall&) = delete;
  /// The first output.
  Tensor run() {
    dispatch(call_);
    return std::move(call_.out[0]);
  }
  Tensor output(int k) { return std::move(call_.out[k]); }

 private:
  std::array<TensorImpl*, 9> in_{};
  OpCall call_;
};

/// Meta of output k: contiguous memory of its own.
inline void set_meta(OpCall& c, int k, DType dtype, const IntList& sizes) {
  OutMeta& m = c.meta[k];
  m.dtype = dtype;
  m.device = c.in[0]->device;
  m.alias = -1;
  m.sizes = sizes;
}

/// Throws unless the first input is floating and all inputs live where it does.
void check_composite(const OpCall& c);
/// x in the dtype it is computed in: 16-bit floats become float32.
Tensor widened(const Tensor& x);
/// x in dtype `t`, itself where it has that already.
Tensor converted(const Tensor& x, DType t);

}  // namespace brrr
