#pragma once
// The work that a call does at least: floating-point operations and bytes to move. Both follow from
// the op's row.

#include "core/op.h"

namespace brrr {

/// For a call whose outputs exist. Pointwise ops, reductions and row ops are counted by their
/// statements, at the cost of each function (ops/vocabulary/scalar_math.h); other rows have
/// OpSpec::work. Views do nothing.
Work work_of(const OpCall& call);

/// The number of polynomials (long chains of operations) in the op's statements; 0: a library row.
size_t polynomials_of(const OpDef& op);

/// The op's class: "contraction" (products), "normalisation" (with folds), "pointwise" or "other".
const char* kind_of(const OpDef& op, const Work& work);

}  // namespace brrr
