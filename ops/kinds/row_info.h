#pragma once
// What the fields of a row op are beside its lambdas: its operands, its results, its readings.

#include <string>
#include <vector>

#include "core/op.h"

namespace brrr {

struct RowTensor;
struct RowNumberIds;
template <class T> struct RowNumbersOf;
using RowNumbers = RowNumbersOf<double>;

/// What an operand of a row op is, or a result: the gradient lambda takes it as such an operand.
enum class Operand : uint8_t {
  Each,    ///< Elements: a tensor of the rows' shape.
  PerRow,  ///< A number of each row: the rows' shape with 1 in the dims of the row.
  Weight,  ///< Elements that all rows share, of the row's shape; may be absent, and is 1 then.
  Bias,    ///< The same, absent: 0.
  Number,  ///< A tensor without dims.
  Scalar,  ///< A host number: an attribute word.
  Id,      ///< An int64 of each row, the place of an element; an attribute word is the id that
           ///< does not count.
  Column = Weight,  ///< Of results: the sum over all rows of each of their elements.
};
/// Whether all rows have it in common.
constexpr bool is_shared(Operand o) { return o == Operand::Weight || o == Operand::Bias; }

template <Operand... O> struct Operands {};

inline constexpr int kMaxRowOperands = 12;

/// What the kernels of a call read: dense, in the compute type.
struct RowSource {
  const void* in[kMaxRowOperands];  ///< Null: not needed.
  double scalar[kMaxRowOperands];
  int64_t ignored[kMaxRowOperands];  ///< Of an Id.
  int64_t rows, n;
  void* totals[kMaxOutputs];  ///< Where each row leaves what is summed over all.
};
/// The most rows that a kernel gets at once: a number of each is a lane.
inline constexpr int64_t kRowBlock = 16;
/// Kernels of one compute type.
struct RowLoops {
  /// Rows first .. first + rows - 1, at most kRowBlock. `out` has the beginning of each result,
  /// null for one that nobody wants; columns are added to.
  void (*block)(const RowSource& s, int64_t first, int64_t rows, void* const* out) = nullptr;
  /// The same of rows that lie together in vectors, as many as there are; null if a result is a sum
  /// over rows or an operand a place in one.
  void (*together)(const RowSource& s, int64_t first, int64_t rows, void* const* out) = nullptr;
  /// The results that are one number, after all rows; null if there are none.
  void (*finish)(const RowSource& s, void* const* out) = nullptr;
};

struct RowShape;
/// What is known of a row op beside its lambdas.
struct RowOperand {
  Operand kind;
  int input;  ///< Which tensor of a call, unless it is a Scalar, and
  int word;   ///< which attribute word, if it is a Scalar or an Id.
};
struct RowInfo {
  std::vector<RowOperand> operands;
  std::vector<Operand> results;
  uint64_t uses = 0;                ///< Bit i: the results depend on input i, or on its shape.
  int totals = 0;                   ///< Sums over all rows that its results are made of.
  std::vector<const char*> names;   ///< Of the first operands, for messages.
  RowLoops loops[2];                ///< By compute_index.
  const OpDef* gradient = nullptr;  ///< The row of the first operands' gradients.
  std::vector<RowTensor> (*tensors)(const RowShape& s, const OpCall& c, const Tensor* in) = nullptr;
  /// Operand k is in[k], or ids[k] for an Id.
  std::vector<RowNumbers> (*oracle)(const RowNumbers* in, const RowNumberIds* ids) = nullptr;
  /// Writes the statements over the operands' ones; an Id's is what `which` of those that read it
  /// will say. The results' places.
  std::vector<int> (*symbols)(const int* operands) = nullptr;
  std::string name_of(int k) const;  ///< Of operand k.
};

/// Attributes of a call: this, then a word for each Scalar and the id that does not count of each
/// Id, in order.
struct RowAttrs {
  int64_t dims;  ///< How many of the last dims are the row.
};

/// The rows that a call sees.
struct RowShape {
  const TensorImpl* x = nullptr;  ///< The first operand that has elements.
  int dims = 0;
  int64_t rows = 1, n = 1;
  explicit RowShape(const OpCall& c);
  /// Of an operand that is a tensor, or of a result.
  IntList sizes(Operand kind) const;
};

}  // namespace brrr
