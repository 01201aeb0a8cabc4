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

}  // namespace brrr::graph
