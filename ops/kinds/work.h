#pragma once
// What a call does at least: its floating-point operations and the bytes that it has to move. Both
// follow from the op's row.

#include "core/op.h"

namespace brrr {

/// Of a call whose outputs exist. A pointwise op, a reduction and a row op are counted by their
/// statements, whose functions say what they take (ops/vocabulary/scalar_math.h); of other rows
/// OpSpec::work says it. Views do nothing.
Work work_of(const OpCall& call);

/// How many long chains of operations, polynomials, its statements have. (Of a library row: 0.)
size_t polynomials_of(const OpDef& op);

/// Its class: "contraction" (products), "normalisation" (what folds), "pointwise" or "other".
const char* kind_of(const OpDef& op, const Work& work);

}  // namespace brrr
