#pragma once
// The row of an op without inputs, and a call of it. Factories and random draws go through dispatch
// like everything else, so that a recorded step makes its tensors anew on every replay.

#include "core/check.h"
#include "core/context.h"

namespace brrr {

/// Attribute words are `kOwn` of the op's own, then the sizes of the result; its dtype and device
/// are attributes too.
template <int kOwn> void creation_infer(OpCall& c) {
  OutMeta& m = c.meta[0];
  m.dtype = static_cast<DType>(c.attrs.dtype);
  m.device = {static_cast<DeviceType>(c.attrs.device), 0};
  m.alias = -1;
  m.sizes = c.attrs.list(kOwn);
}

/// Collects the words of a call. The constructor checks what may fail, so that nothing (a draw of
/// the random stream, say) is used up by a call that throws.
class CreationCall {
 public:
  CreationCall(const OpDef& op, const IntList& sizes, DType dtype, Device device);
  template <class T> CreationCall& push(T word) {
    call_.attrs.push(word);
    return *this;
  }
  /// An integer or floating word, told apart by the kind of operand 0.
  CreationCall& push(Scalar s);
  /// Seed and number of the next draw.
  CreationCall& push_draw();
  Tensor run();

 private:
  OpCall call_;
  IntList sizes_;
};

}  // namespace brrr
