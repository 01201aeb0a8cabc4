#pragma once
// A program for a GPU: how threads divide the elements, the text of the kernel, and the argument
// struct of a launch.

#include <fmt/format.h>

#include <span>

#include "core/device_kernel.h"
#include "ops/program/program.h"

namespace brrr::program {

inline constexpr int kDeviceThreads = 256;  ///< Per block.
inline constexpr int kDeviceEach = 4;       ///< Elements per thread, or one larger group.
inline constexpr int kDeviceTile = 32;      ///< Side of a tile, in elements.

/// A thread takes groups of `vector` neighbouring elements; or blocks take tiles of two dims, the
/// innermost one and the one along which some operand is dense instead.
struct Walk {
  int ndim = 0;          ///< The space's dims if any operand is reached by strides, else 0.
  int vector = 1;        ///< Elements of a group.
  bool in_rows = false;  ///< No group crosses the end of its row, the innermost dim.
  bool wide = false;     ///< Linear indices need 64 bits.
  bool notes = false;    ///< Reports indices that are out of range.
  int turned = -1;       ///< The dim along which Turned windows are dense; -1: no tiles.

  int groups() const { return vector < kDeviceEach ? kDeviceEach / vector : 1; }
  bool tiled(int d) const { return turned >= 0 && (d == turned || d == ndim - 1); }
  /// How many parts of a dim the walk counts: its tiles, or its elements.
  int64_t parts(int d, int64_t size) const {
    return tiled(d) ? (size + kDeviceTile - 1) / kDeviceTile : size;
  }
  int64_t blocks(const Space& space) const;  ///< Of the launch.
  int64_t scratch_bytes() const { return 0; }
  /// Distinguishes the text from that of other walks of the same program.
  uint64_t bits() const;
};

/// Plans the walk and sets the windows' reaches. Bits do not depend on it.
Walk plan_walk(const Space& space, std::span<Window> windows);

/// The launches of a program, in order. Without folds there is only the first.
enum class Stage : uint8_t {
  Elements,  ///< Elements and rows, and each walker's part of folds over rows.
  Columns,   ///< Folds over the rows per place, and what depends on them.
  Numbers,   ///< The same for totals.
};
inline const char* suffix(Stage s) {
  return s == Stage::Elements ? "" : s == Stage::Columns ? "_columns" : "_numbers";
}

/// The kernel of a stage as text, without the prelude and its argument struct. A thread reads all
/// its elements before it writes one. With `table` the argument is a CallTable of several calls,
/// the text of which goes before.
std::string cuda_text(const Program& p, const Walk& walk, const std::string& name,
                      Stage stage = Stage::Elements, bool table = false);
/// The same program with several sets of operands: their arguments, contiguous, and the first block
/// of each.
BRRR_DEVICE_STRUCT(CallTable, {
  const char* arguments;
  const long* first;
  long count;
});
/// Calls launch(stage, blocks, threads per block) for each launch.
template <class F> void each_launch(const Walk& walk, const Space& space, const F& launch) {
  launch(Stage::Elements, walk.blocks(space), kDeviceThreads);
}

// --- shared by the kernels of all walks ----------------------------------------------------------

/// The head of a kernel: its argument is `p`, the index of the block within its call `block`.
std::string kernel_head(const char* macro, const std::string& name, const char* suffix, int threads,
                        bool table);
/// The expression of a number of the program.
std::string number(const Program& p, int which);
/// Splits the linear index `r` into `j<d>`, the walk's last dim fastest; of tiled dims, the tile's.
std::string unflatten(const Walk& walk, const char* type);
/// The byte offset in window w of the element at `j<d>`, without the part of dim `but`.
std::string offset_of(int w, int ndim, int but = -1);

// --- the kernel's argument -----------------------------------------------------------------------

/// r / count for r < 2^31 is r * mul >> shift (Granlund and Montgomery, "Division by invariant
/// integers using multiplication", PLDI 1994).
struct Divisor {
  int64_t mul, shift;
  explicit Divisor(int64_t count);
};

/// A word of the argument; all have 64 bits.
struct Word {
  /// Rows: one of RowWalk::fields, in their order. Scratch: where the parts of a fold over rows
  /// go. Fault and Op: device_fault() and fault_op().
  enum Kind { Address, Number, Numel, Size, Mul, Shift, Stride, Rows, Scratch, Fault, Op } kind;
  int which = 0;  ///< Window, number, dim or fold.
  int dim = 0;    ///< Of a stride.
};
/// The word's declaration as a member of the kernel's struct.
std::string declaration(Word w, const std::vector<Number>& numbers);

/// Calls word(Word, value) for each word, in the order of the struct. Addresses are the windows';
/// for a number that is read from a control word the value is the control word's index.
template <class F>
void each_word(const Walk& walk, const Space& space, std::span<const Window> windows,
               std::span<const Number> numbers, const F& word) {
  for (int which = 0; const Window& w : windows) {
    if (w.in_memory()) word(Word{Word::Address, which}, static_cast<int64_t>(w.address));
    ++which;
  }
  for (int which = 0; const Number& n : numbers) word(Word{Word::Number, which++}, n.bits);
  word(Word{Word::Numel}, space.numel());
  for (int d = 0; d < walk.ndim; ++d) {
    const Divisor by(walk.parts(d, space.size[d]));
    word(Word{Word::Size, d}, space.size[d]);
    word(Word{Word::Mul, d}, by.mul);
    word(Word{Word::Shift, d}, by.shift);
  }
  for (int which = 0; const Window& w : windows) {
    const int64_t item = w.index ? 1 : w.item();
    for (int d = 0; d < walk.ndim && w.by_strides(); ++d) {
      word(Word{Word::Stride, which, d}, w.stride[d] * item);
    }
    ++which;
  }
  if (walk.notes) {
    word(Word{Word::Fault}, 0);
    word(Word{Word::Op}, 0);
  }
}

/// The struct of a program's words as text: the argument of all its kernels.
template <class W>
std::string cuda_argument(const Program& p, const W& walk, const std::string& name) {
  std::string out = fmt::format("struct A_{} {{\n", name);
  each_word(walk, p.space, p.windows, p.numbers,
            [&](Word w, int64_t) { out += "  " + declaration(w, p.numbers) + ";\n"; });
  return out + "};\n";
}

inline constexpr size_t kMostWords = 512;  ///< 4 KB, the limit of a kernel's argument.
/// Whether a kernel's argument has room for that many windows and numbers over `ndim` dims.
inline bool cuda_takes(size_t windows, size_t numbers, int ndim) {
  // A walk over rows may add a dim, and has words of its own.
  const auto n = static_cast<size_t>(ndim) + 1;
  return windows * (1 + n) + numbers + 1 + 3 * n + 24 <= kMostWords;
}

}  // namespace brrr::program
