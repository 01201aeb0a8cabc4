#pragma once
// What is joined is written where it is joined.

#include <memory>

#include "graph/recording.h"

namespace brrr::graph {

/// The recording without those joins (OpSpec::joins) whose operands' makers can write them into the
/// result (OpSpec::apart): temporaries that nobody else reads. Null: there are none. Instructions
/// and storages keep their numbers; one that went has no operands.
std::unique_ptr<Recording> write_joined(const Recording& r);

}  // namespace brrr::graph
