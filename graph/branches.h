#pragma once
// Kernels of a GPU's step that run beside the others. Small ones leave most of the GPU idle, and of
// two that do not need each other (the gradients of a product's factors) neither has to wait: the
// captured graph has two branches then.

#include <vector>

#include "core/context.h"
#include "graph/schedule.h"

namespace brrr::graph {

/// An order of the groups in which what is needed later comes first where two do not need each
/// other, so that it may run beside the other one. What looks at values (ids) keeps its place: of
/// two that find something wrong the same one says it in every mode. `notes` by group.
std::vector<uint32_t> order_for_branches(const Recording& r, const Schedule& s,
                                         const std::vector<KernelNote>& notes);

struct Branches {
  std::vector<uint8_t> beside;  ///< By group: it is queued beside the others.
  /// By group: the last one during which it may still run; of those not beside itself.
  std::vector<uint32_t> until;
  size_t count = 0;  ///< Groups beside.
};
/// Chosen by what kernels need of each other and about take; memory is not planned yet.
Branches find_branches(const Recording& r, const Schedule& s, const std::vector<KernelNote>& notes);

/// Memory that a group's kernels use.
struct Use {
  const char *begin, *end;
  bool write;
  uint32_t storage = kNone, value = kNone;  ///< kNone: it is no operand.
};
/// By group: the last one beside that has to be over before it begins, unless one before it has
/// waited for that; kNone. Groups beside come in their own order, behind all others before them.
std::vector<uint32_t> find_awaits(const Recording& r, const Branches& b,
                                  const std::vector<std::vector<Use>>& uses);

}  // namespace brrr::graph
