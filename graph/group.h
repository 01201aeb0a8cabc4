#pragma once
// A part of a fused group as a program.

#include "graph/schedule.h"
#include "ops/program/program.h"

namespace brrr::graph {

struct GroupProgram {
  program::Program program;
  std::vector<uint32_t> values;  ///< By window: a value that it is; of places kNone.
};
/// One window for values that are the same elements walked alike: x and x.view({n, 1}) are not.
GroupProgram program_of(const Recording& r, const Part& g, const Schedule& s);

/// For people: "add relu sum", of several alike "12 times adamw".
std::string group_name(const Recording& r, const Group& g);
/// What the kernels of a fused group load and store.
double group_bytes(const Recording& r, const Schedule& s, const Group& g);

}  // namespace brrr::graph
