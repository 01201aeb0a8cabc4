#pragma once
// The side branch of a captured GPU step. Small kernels leave most of the GPU idle, and of two that
// are independent (the gradients of a product's factors) neither has to wait for the other: one of
// them goes to a second branch of the graph, which runs concurrently with the main one.

#include <vector>

#include "core/context.h"
#include "graph/schedule.h"

namespace brrr::graph {

/// An order of the groups in which, of two independent neighbours, the one with less work waiting
/// for it comes first, so that it can run concurrently with the other. Ops that check values (ids)
/// keep their places: of two faults every mode reports the same one. `notes` by group.
std::vector<uint32_t> order_for_branches(const Recording& r, const Schedule& s,
                                         const std::vector<KernelNote>& notes);

struct Branches {
  std::vector<uint8_t> beside;  ///< By group: it is on the side branch.
  /// By group: the last group during which it may still run; on the main branch the group itself.
  std::vector<uint32_t> until;
  size_t count = 0;  ///< Groups on the side branch.
};
/// Chosen by dependences and estimated durations, before memory is planned.
Branches find_branches(const Recording& r, const Schedule& s, const std::vector<KernelNote>& notes);

/// A range of memory that a group's kernels use.
struct Use {
  const char *begin, *end;
  bool write;
  uint32_t storage = kNone, value = kNone;  ///< kNone: scratch memory.
};
/// By main-branch group: the last side-branch group that it has to wait for and no earlier group
/// has; else kNone. Side-branch groups run in order, each after the main-branch groups before it.
std::vector<uint32_t> find_awaits(const Recording& r, const Branches& b,
                                  const std::vector<std::vector<Use>>& uses);

}  // namespace brrr::graph
