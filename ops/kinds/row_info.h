#pragma once
// The description of a row op besides its lambdas: operands, results and instantiations.

#include <string>
#include <vector>

#include "core/op.h"

namespace brrr {

struct RowTensor;
struct RowNumberIds;
template <class T> struct RowNumbersOf;
using RowNumbers = RowNumbersOf<double>;

/// Kinds of a row op's operands, and results: the gradient lambda takes those as such operands.
enum class Operand : uint8_t {
  Each,             ///< Elements: a tensor of the rows' shape.
  PerRow,           ///< A scalar of each row: the rows' shape with 1 in the dims of the row.
  Weight,           ///< Elements that all rows share, of the row's shape; 1 if absent.
  Bias,             ///< The same; 0 if absent.
  Number,           ///< A 0-d tensor.
  Scalar,           ///< A host scalar: an attribute word.
  Id,               ///< An int64 of each row, the index of an element; an attribute word holds
                    ///< the id to ignore.
  Column = Weight,  ///< As a result: the sum over all rows of each element.
};
/// Whether all rows share it.
constexpr bool is_shared(Operand o) { return o == Operand::Weight || o == Operand::Bias; }

template <Operand... O> struct Operands {};

inline constexpr int kMaxRowOperands = 12;

/// What the kernels of a call read: dense, in the compute type.
struct RowSource {
  const void* in[kMaxRowOperands];  ///< Null: not needed.
  double scalar[kMaxRowOperands];
  int64_t ignored[kMaxRowOperands];  ///< Of an Id.
  int64_t rows, n;
  void* totals[kMaxOutputs];  ///< For each row::total: the rows' addends.
};
/// The most rows of one kernel call: per-row scalars are the lanes of one vector.
inline constexpr int64_t kRowBlock = 16;
/// Kernels of one compute type.
struct RowLoops {
  /// Rows [first, first + rows), at most kRowBlock. `out` holds the address of each whole result,
  /// null for one that is not wanted; column sums are added to what is there.
  void (*block)(const RowSource& s, int64_t first, int64_t rows, void* const* out) = nullptr;
  /// The same for short rows of which a vector holds several, any number of rows; null if a result
  /// is a sum over rows or an operand is an Id.
  void (*together)(const RowSource& s, int64_t first, int64_t rows, void* const* out) = nullptr;
  /// Computes the 0-d results after all rows; null if there are none.
  void (*finish)(const RowSource& s, void* const* out) = nullptr;
};

struct RowShape;
/// How a call passes an operand.
struct RowOperand {
  Operand kind;
  int input;  ///< Its index among a call's tensors, unless it is a Scalar.
  int word;   ///< Its attribute word, if it is a Scalar or an Id.
};
struct RowInfo {
  std::vector<RowOperand> operands;
  std::vector<Operand> results;
  uint64_t uses = 0;                ///< Bit i: the results depend on input i, or on its shape.
  int totals = 0;                   ///< The number of row::total() in its results.
  std::vector<const char*> names;   ///< Of the first operands, for messages.
  RowLoops loops[2];                ///< By compute_index.
  const OpDef* gradient = nullptr;  ///< The row of the first operands' gradients.
  std::vector<RowTensor> (*tensors)(const RowShape& s, const OpCall& c, const Tensor* in) = nullptr;
  /// Operand k is in[k], or ids[k] for an Id.
  std::vector<RowNumbers> (*oracle)(const RowNumbers* in, const RowNumberIds* ids) = nullptr;
  /// Adds the statements over the operands' statements; an Id is the `which` of the statements that
  /// will read it. Returns the results' ids.
  std::vector<int> (*symbols)(const int* operands) = nullptr;
  std::string name_of(int k) const;  ///< Of operand k.
};

/// Attributes of a call: this, then in order a word for each Scalar and each Id (the id to ignore).
struct RowAttrs {
  int64_t dims;  ///< How many of the last dims make up the row.
};

/// The rows of a call.
struct RowShape {
  const TensorImpl* x = nullptr;  ///< The first operand of kind Each.
  int dims = 0;
  int64_t rows = 1, n = 1;
  explicit RowShape(const OpCall& c);
  /// The sizes of a tensor operand of this kind, or of a result.
  IntList sizes(Operand kind) const;
};

}  // namespace brrr
