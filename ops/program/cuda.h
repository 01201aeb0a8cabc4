#pragma once
// A program for a GPU: how its threads share out the elements, the text of the kernel, and the
// struct that a launch hands over.

#include "core/check.h"
#include "core/device_kernel.h"
#include "ops/program/program.h"

namespace brrr::program {

inline constexpr int kDeviceThreads = 256;  ///< Of a block.
inline constexpr int kDeviceEach = 4;       ///< Elements of a thread, or one larger group.
inline constexpr int kDeviceTile = 32;      ///< Side of a tile, in elements.

/// A thread has groups of `vector` elements that are neighbours; or blocks have tiles of two dims,
/// the innermost one and the one along which some operand is dense instead.
struct Walk {
  int ndim = 0;          ///< Dims of the walk if any operand is reached by strides, else 0.
  int vector = 1;        ///< Elements of a group.
  bool in_rows = false;  ///< No group goes beyond its row, the innermost dim.
  bool wide = false;     ///< Element numbers need 64 bits.
  bool notes = false;    ///< It notes indices that are out of range.
  int turned = -1;       ///< The dim along which what is Turned is dense; -1: no tiles.

  int groups() const { return vector < kDeviceEach ? kDeviceEach / vector : 1; }
  bool tiled(int d) const { return turned >= 0 && (d == turned || d == ndim - 1); }
  /// How many parts of a dim the walk numbers: its tiles, or its elements.
  int64_t parts(int d, int64_t size) const {
    return tiled(d) ? (size + kDeviceTile - 1) / kDeviceTile : size;
  }
  int64_t blocks(const Space& space) const;  ///< Of the launch.
  bool by_strides(const Window& w) const {
    return w.touched() && w.reach != Window::Dense && w.reach != Window::Splat;
  }
};

/// The walk; it sets the windows' reaches. Bits do not depend on it.
Walk plan_walk(const Space& space, Window* windows, int count);

/// The kernel as text, without the prelude. A thread reads all its elements before it writes one.
/// With `table` its argument is a CallTable of those of several calls, the text of which goes
/// before.
std::string cuda_text(const Program& p, const Walk& walk, const std::string& name,
                      bool table = false);
/// The same program with several sets of operands: their arguments, one after the other, and of
/// each the number of its first block.
BRRR_DEVICE_STRUCT(CallTable, {
  const char* arguments;
  const long* first;
  long count;
});
/// How such kernels begin: with the argument as `p` and the number of the call's block as `block`.
std::string kernel_head(const char* macro, const std::string& name, const char* suffix, int threads,
                        bool table);

// --- the kernel's argument -----------------------------------------------------------------------

/// r / count for r < 2^31 is r * mul >> shift (Granlund and Montgomery, "Division by invariant
/// integers using multiplication", PLDI 1994).
struct Divisor {
  int64_t mul, shift;
  explicit Divisor(int64_t count);
};

/// A word of the argument: all are 64 bits.
struct Word {
  enum Kind : uint8_t {
    Address,
    Number,
    Numel,
    Size,
    Mul,
    Shift,
    Stride,
    Rows,     ///< One of RowWalk's numbers, in their order.
    Scratch,  ///< Where the parts of a fold over rows go.
    Fault,    ///< What device_fault() gives,
    Op,       ///< and fault_op().
  } kind;
  int which = 0;  ///< Window, number, dim or fold.
  int dim = 0;    ///< Of a stride.
};
/// The word as a member of the kernel's struct.
std::string declaration(Word w, const std::vector<Number>& numbers);

/// Calls word(Word, value) for each word, in the order of the struct. Addresses are the windows';
/// of a number that is read from a control word the value is which.
template <class F>
void each_word(const Walk& walk, const Space& space, const Window* windows, int n_windows,
               const Number* numbers, int n_numbers, const F& word) {
  for (int w = 0; w < n_windows; ++w) {
    if (windows[w].in_memory()) {
      word(Word{Word::Address, w}, static_cast<int64_t>(windows[w].address));
    }
  }
  for (int k = 0; k < n_numbers; ++k) word(Word{Word::Number, k}, numbers[k].bits);
  word(Word{Word::Numel}, space.numel());
  for (int d = 0; d < walk.ndim; ++d) {
    const Divisor by(walk.parts(d, space.size[d]));
    word(Word{Word::Size, d}, space.size[d]);
    word(Word{Word::Mul, d}, by.mul);
    word(Word{Word::Shift, d}, by.shift);
  }
  for (int w = 0; w < n_windows; ++w) {
    const int64_t item = windows[w].source == Window::Index ? 1 : windows[w].item();
    for (int d = 0; d < walk.ndim && walk.by_strides(windows[w]); ++d) {
      word(Word{Word::Stride, w, d}, windows[w].stride[d] * item);
    }
  }
  if (walk.notes) {
    word(Word{Word::Fault}, 0);
    word(Word{Word::Op}, 0);
  }
}

/// The words of a call.
class Words {
 public:
  static constexpr size_t kMost = 512;  ///< 4 KB, all that a kernel takes.
  void push(int64_t w) {
    BRRR_CHECK(n_ < kMost, "cuda: a kernel with too many operands");
    words_[n_++] = w;
  }
  /// Of a call, which may note faults.
  void push(Word w, int64_t value, const OpCall& c) {
    if (w.kind == Word::Fault) value = reinterpret_cast<int64_t>(device_fault());
    push(w.kind == Word::Op ? fault_op(c) : value);
  }
  void set(size_t word, const void* p) { words_[word] = reinterpret_cast<int64_t>(p); }
  size_t size() const { return n_; }
  const int64_t* data() const { return words_; }
  size_t bytes() const { return n_ * sizeof words_[0]; }

 private:
  size_t n_ = 0;
  int64_t words_[kMost];  // Uninitialised: calls are hot.
};

/// Whether a kernel's argument has room for so many windows and numbers over so many dims.
inline bool cuda_takes(size_t windows, size_t numbers, int ndim) {
  // Rows may take one more dim, and words of their own.
  const auto n = static_cast<size_t>(ndim) + 1;
  return windows * (1 + n) + numbers + 1 + 3 * n + 24 <= Words::kMost;
}

}  // namespace brrr::program
