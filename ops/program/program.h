#pragma once
// A kernel that is not a library call, as a program: an iteration space, windows on memory, and
// statements in the vocabulary `m::`, applied to every element. A program with rows can also fold:
// over each row, or over all of them. It is built from op rows (of one eager call, or of a fused
// group of a recording) and printed as source text by the targets: cpu.h, cuda.h.

#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ops/kinds/pointwise.h"

namespace brrr::program {

/// The iteration space, dim by dim, the last one innermost.
inline constexpr int kSpaceDims = kMaxDims + 1;  ///< One extra: a GPU cuts long rows into pieces.
struct Space {
  int ndim = 0;
  int64_t size[kSpaceDims] = {};
  int64_t numel() const {
    return std::accumulate(size, size + ndim, int64_t{1}, std::multiplies<>());
  }
};

/// An operand, with an element for each element of the space. One that is neither loaded nor stored
/// lives in a register only: it carries a value from step to step.
struct Window {
  /// How the GPU's walk (cuda.h) addresses it.
  enum Reach : uint8_t {
    Dense,    ///< Contiguous, by the element's linear index; a group in one access.
    Splat,    ///< One element, broadcast to all.
    Strided,  ///< By strides, one element per access.
    Row,      ///< By strides; a group in one access.
    Held,     ///< By strides; one element serves a whole group.
    Turned,   ///< Transposed by tiles in shared memory, which are read along its own dense dim.
  };
  DType dtype = DType::Float32;
  bool loaded = false;  ///< Read before the program writes it.
  bool stored = false;  ///< Written, and needed afterwards.
  bool index = false;   ///< Not in memory: the value is the offset itself, an int64.
  Reach reach = Dense;
  uintptr_t address = 0;            ///< Or the address modulo 16.
  int64_t stride[kSpaceDims] = {};  ///< Over the space's dims, in elements.

  bool touched() const { return loaded || stored; }
  bool in_memory() const { return touched() && !index; }
  /// Whether the GPU's walk reaches it by strides.
  bool by_strides() const { return touched() && reach != Dense && reach != Splat; }
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype)); }
  /// Whether its address depends on any of the first `dims` dims of the space.
  bool varies(int dims) const {
    return std::any_of(stride, stride + dims, [](int64_t s) { return s != 0; });
  }
};

/// A scalar passed with the call; or, in a recorded step, read from its control word.
struct Number {
  DType dtype;       ///< Float64 or Int64.
  int64_t bits = 0;  ///< Its value, or the index of the control word.
  bool control = false;
};

/// One op call to append to a program: of a pointwise op, a reduction or a row op.
struct Step {
  static constexpr int kAbsent = INT_MIN;
  const OpDef* op;
  DType compute;
  std::vector<int> in;             ///< Per operand: a window; of a number ~index.
  std::vector<int> out;            ///< Windows.
  std::vector<int> ignored = {};   ///< Of a row op, per operand: the number with the ignored id.
  bool map = true, finish = true;  ///< Of a reduction: whether map and finish apply.
};

struct Program {
  Space space;
  std::vector<Window> windows;
  std::vector<Number> numbers;
  int64_t row = 0;  ///< Length of a row, the last dim of the space; 0: there are no rows.
  /// Loads first, stores last; every statement comes after its arguments.
  Statements statements;

  const Statement& at(int id) const { return statements[static_cast<size_t>(id)]; }
  const Window& window(int w) const { return windows[static_cast<size_t>(w)]; }
  const Window& window(const Statement& s) const { return window(s.which); }
  /// The number that holds the ignored id, of a statement that reads an id.
  int ignored(const Statement& s) const { return std::stoi(s.text); }
  /// Bytes of the window's elements in memory.
  int64_t bytes_of(const Window& w) const;
  /// The least that a kernel loads and stores: each element in memory once.
  int64_t bytes() const;
};

/// Merges dims as far as the windows' strides allow, after ordering them by the strides of the
/// first stored window, the largest outermost. Rows keep their length and order.
void merge_dims(Program& p);
/// Appends the statements of the steps in order; `fast`: 16-bit floats are rounded only when
/// stored.
void append_steps(Program& p, const std::vector<Step>& steps, bool fast);

/// What a walk over rows needs to know of a statement.
struct RowState {
  int depth = 0;       ///< The longest chain of folds and picks up to it, itself included.
  bool after = false;  ///< It is known only after all rows.
  bool live = false;   ///< A result depends on it.
  bool kept = false;   ///< Its first pass keeps it for later ones (a GPU: in registers).
  int pass = -1;       ///< The first pass that computes it.
};
std::vector<RowState> row_states(const Program& p);
/// Whether the statement stores elements of a row, in a pass over them.
inline bool is_element_store(const Program& p, const Statement& s, const RowState& state) {
  return s.kind == Statement::Store && !state.after && p.window(s).stride[p.space.ndim - 1] != 0;
}
/// Whether the statement ends a pass over the elements of a row.
inline bool ends_pass(const Statement& s) {
  return s.kind == Statement::Fold || s.kind == Statement::Pick;
}

/// One pass over all elements of a row; there is one for each depth of folds.
struct RowPass {
  std::vector<int> folds, picks, list;  ///< What ends it; per-element statements.
};
/// The passes up to depth `deepest`. A value that a later pass needs again is kept for it where
/// `keeps(id)`, and recomputed otherwise.
std::vector<RowPass> row_passes(const Program& p, std::vector<RowState>& states, int deepest,
                                const std::function<bool(int id)>& keeps);

/// The value as text, of a number that is not read from a control word.
std::string literal(const Number& n);
/// A scalar expression, cast to `type` and broadcast to all lanes.
std::string splat(DType type, const std::string& value);

}  // namespace brrr::program
