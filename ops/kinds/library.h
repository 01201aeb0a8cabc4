#pragma once
// The library row: an op with kernels of its own, a shape rule and a gradient in other ops.

#include "core/context.h"

namespace brrr {

struct LibraryTraits {
  void (*infer)(OpCall&) = nullptr;
  void (*check_values)(const OpCall&) = nullptr;
  void (*cpu)(OpCall&) = nullptr;
  int64_t (*scratch)(const OpCall&) = nullptr;
  void (*cuda)(OpCall&) = nullptr;
  void (*vjp)(VjpCall&) = nullptr;
  uint32_t saves_inputs = 0;  ///< Inputs that the gradient reads, by bits.
  uint32_t grad_aliases = 0;  ///< Inputs whose gradient may share memory with another tensor.
  bool gradient_row = false;  ///< Not public itself.
  Autocast autocast = Autocast::Keep;
};

class LibraryOp : public OpDef {
 public:
  LibraryOp(const char* n, const char* d, const LibraryTraits& traits) {
    name = n;
    doc = d;
    kind = OpKind::Library;
    infer = traits.infer;
    check_values = traits.check_values;
    cpu = traits.cpu;
    scratch = traits.scratch;
    cuda = traits.cuda;
    vjp = traits.vjp;
    saves_inputs = traits.saves_inputs;
    grad_aliases = traits.grad_aliases;
    gradient_row = traits.gradient_row;
    autocast = traits.autocast;
    register_row();
  }
};

}  // namespace brrr
