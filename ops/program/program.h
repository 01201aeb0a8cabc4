#pragma once
// A kernel that is no library call, as a program: windows on memory over an iteration space, and
// statements, for each element the same, in the vocabulary `m::`. A program with rows folds, too:
// over a row, over all of them. It is built from rows of ops (an eager call's, or a fused group's
// of a recording) and printed by targets: cpu.h, cuda.h.

#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ops/kinds/pointwise.h"

namespace brrr::program {

/// What is walked, dim by dim, the last one innermost.
inline constexpr int kSpaceDims = kMaxDims + 1;  ///< A GPU cuts long rows in pieces.
struct Space {
  int ndim = 0;
  int64_t size[kSpaceDims] = {};
  int64_t numel() const {
    return std::accumulate(size, size + ndim, int64_t{1}, std::multiplies<>());
  }
};

/// An operand that has an element for each of the space. One that is neither loaded nor stored is
/// in a register only: it carries a value from step to step.
struct Window {
  /// How the walk of a GPU (cuda.h) reaches it.
  enum Reach : uint8_t {
    Dense,    ///< At the element's own number; a group in one access.
    Splat,    ///< One element for all.
    Strided,  ///< By strides, one element after the other.
    Row,      ///< By strides; a group in one access.
    Held,     ///< By strides; one element for a group.
    Turned,   ///< By tiles in shared memory, which are read along its own dense dim.
  };
  DType dtype = DType::Float32;
  bool loaded = false;  ///< Read before anything in the program has written it.
  bool stored = false;  ///< Written, and wanted afterwards.
  bool index = false;   ///< There is no memory: the element is the offset itself, an int64.
  Reach reach = Dense;
  uintptr_t address = 0;            ///< Or what it leaves modulo 16.
  int64_t stride[kSpaceDims] = {};  ///< Over the space's dims, in elements.

  bool touched() const { return loaded || stored; }
  bool in_memory() const { return touched() && !index; }
  /// Whether that walk reaches it by strides.
  bool by_strides() const { return touched() && reach != Dense && reach != Splat; }
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype)); }
  /// Whether its place depends on any of the space's first so many dims.
  bool varies(int dims) const {
    return std::any_of(stride, stride + dims, [](int64_t s) { return s != 0; });
  }
};

/// A number given with the call; or, in a recorded step, read from its control word.
struct Number {
  DType dtype;       ///< Float64 or Int64.
  int64_t bits = 0;  ///< Its value, or the number of the control word.
  bool control = false;
};

/// One call of a program that is to be built: of a pointwise op, a reduction or a row op.
struct Step {
  static constexpr int kAbsent = INT_MIN;
  const OpDef* op;
  DType compute;
  std::vector<int> in;             ///< By operand: windows; of numbers ~index.
  std::vector<int> out;            ///< Windows.
  std::vector<int> ignored = {};   ///< Of a row op: by operand, the number that is no id.
  bool map = true, finish = true;  ///< Of a reduction: its first and its last pass.
};

struct Program {
  Space space;
  std::vector<Window> windows;
  std::vector<Number> numbers;
  int64_t row = 0;  ///< The length of a row, the last dim of the space; 0: there are no rows.
  /// Loads first, stores last; every statement comes after its arguments.
  Statements statements;

  const Statement& at(int id) const { return statements[static_cast<size_t>(id)]; }
  const Window& window(int w) const { return windows[static_cast<size_t>(w)]; }
  const Window& window(const Statement& s) const { return window(s.which); }
  /// Of a statement that reads an id.
  int ignored(const Statement& s) const { return std::stoi(s.text); }
  /// Of the window's elements in memory.
  int64_t bytes_of(const Window& w) const;
  /// What a kernel loads and stores at least: each element in memory once.
  int64_t bytes() const;
};

/// Makes the dims as few as the windows allow, the larger strides of what is written outside. Rows
/// stay what they are, in their order.
void merge_dims(Program& p);
/// The statements of the steps, one after the other; `fast`: 16-bit floats are rounded only when
/// stored.
void append_steps(Program& p, const std::vector<Step>& steps, bool fast);

/// What a walk over rows has to know of a statement.
struct RowState {
  int depth = 0;       ///< How many folds lie behind it.
  bool after = false;  ///< It is known after all rows only.
  bool live = false;   ///< A result depends on it.
  bool kept = false;   ///< Its first pass leaves it for later ones (on a CPU),
  int pass = -1;       ///< and that is the first.
};
std::vector<RowState> row_states(const Program& p);
/// Whether it stores elements of a row, in a pass over them.
inline bool is_element_store(const Program& p, const Statement& s, const RowState& state) {
  return s.kind == Statement::Store && !state.after && p.window(s).stride[p.space.ndim - 1] != 0;
}
/// Whether it ends a pass over the elements of a row.
inline bool ends_pass(const Statement& s) {
  return s.kind == Statement::Fold || s.kind == Statement::Pick;
}

/// What is done with all elements of a row, one after the other: a pass for each depth of folds.
struct RowPass {
  std::vector<int> folds, picks, list;  ///< What ends it; statements of elements.
};
/// The passes up to a depth. What a later pass needs again is kept for it where `keeps(id)`, and
/// else computed anew.
std::vector<RowPass> row_passes(const Program& p, std::vector<RowState>& states, int deepest,
                                const std::function<bool(int id)>& keeps);

/// The number's value as text; of one that is not read from a control word.
std::string literal(const Number& n);
/// A scalar, cast to `type`, for all lanes.
std::string splat(DType type, const std::string& value);

}  // namespace brrr::program
