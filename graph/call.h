#pragma once
// Calls of library kernels as a plan replays them.

#include <memory>
#include <utility>
#include <vector>

#include "core/op.h"
#include "graph/schedule.h"

namespace brrr::graph {

/// A library kernel with its operands.
struct LibraryCall {
  std::vector<TensorImpl*> in;
  std::vector<Tensor> keep;
  OpCall call;
  std::vector<std::pair<int, uint32_t>> dynamic;  ///< Attribute word, control word.
  LibraryCall(const OpDef& op, int n, int outputs)
      : in(static_cast<size_t>(n)), call(op, in.data(), n, outputs) {}
};

/// By storage id; null, or nothing at all: an operand has its layout and no memory.
using Storages = std::vector<Ref<Storage>>;
/// Which of the parts of an instruction in a strip a call is.
struct PartOf {
  const Strips* strips = nullptr;  ///< Null: it is the whole.
  int64_t part = 0, parts = 1;
};
std::unique_ptr<LibraryCall> make_call(const Recording& r, const Instr& i, const Storages& storages,
                                       const PartOf& of = {});

}  // namespace brrr::graph
