#pragma once
// How the threads of a pointwise kernel on a GPU walk over its elements, and how they reach each
// operand: memory is fast where a thread moves 16 bytes at once and neighbours move neighbours.

#include <cstddef>

#include "core/check.h"
#include "core/dtype.h"

namespace brrr {

inline constexpr int kDeviceThreads = 256;  ///< Of a block.
inline constexpr int kDeviceEach = 4;       ///< Elements of a thread, or one larger group.
inline constexpr int kDeviceTile = 32;      ///< Side of a tile, in elements.

/// A thread has groups of `vector` elements that are neighbours; or blocks have tiles of two dims,
/// the innermost one and the one along which some operand is dense instead.
struct DeviceWalk {
  enum Reach : uint8_t {
    Dense,    ///< At the element's own number; a group in one access.
    Splat,    ///< One element for all.
    Strided,  ///< By strides, one element after the other.
    Row,      ///< By strides; a group in one access.
    Held,     ///< By strides; one element for a group.
    Turned,   ///< By tiles in shared memory, which are read along its own dense dim.
    Number,   ///< Not in memory: given with the call.
  };
  int ndim = 0;          ///< Dims of the walk if any operand is reached by strides, else 0.
  int vector = 1;        ///< Elements of a group.
  bool in_rows = false;  ///< No group goes beyond its row, the innermost dim.
  bool wide = false;     ///< Element numbers need 64 bits.
  int turned = -1;       ///< The dim along which what is Turned is dense; -1: no tiles.

  int groups() const { return vector < kDeviceEach ? kDeviceEach / vector : 1; }
  bool tiled(int d) const { return turned >= 0 && (d == turned || d == ndim - 1); }
  /// Of the launch over n elements.
  int64_t blocks(int64_t n, const int64_t* size) const;
  static bool by_strides(Reach r) { return r != Dense && r != Splat && r != Number; }
};

/// An operand as a walk meets it. One that is neither loaded nor stored has no part in it.
struct WalkOperand {
  DType dtype = DType::Float32;
  bool loaded = false, stored = false;
  uintptr_t address = 0;            ///< Or what it leaves modulo 16.
  const int64_t* stride = nullptr;  ///< Over the walk's dims, in elements.
  DeviceWalk::Reach reach = DeviceWalk::Dense;
};

/// The walk over dims of these sizes, with the reach of each operand. Bits do not depend on it.
DeviceWalk plan_walk(int ndim, const int64_t* size, WalkOperand* all, int count);

/// The words of a kernel's argument.
class PointwiseWords {
 public:
  void push(int64_t w) {
    BRRR_CHECK(n_ < kMost, "cuda: a kernel with too many operands");
    words_[n_++] = w;
  }
  void push(const void* p) { push(reinterpret_cast<int64_t>(p)); }
  void set(size_t word, const void* p) { words_[word] = reinterpret_cast<int64_t>(p); }
  /// What a walk over n elements needs: the argument's last words.
  void push_walk(const DeviceWalk& walk, int64_t n, const int64_t* size, const WalkOperand* all,
                 int count);
  /// A dim's size, and what divides by `count`, which is the size or how many tiles it has.
  void push_dim(int64_t size, int64_t count);
  const int64_t* data() const { return words_; }
  size_t bytes() const { return n_ * sizeof words_[0]; }

 private:
  static constexpr size_t kMost = 512;  // 4 KB, all that a kernel takes.
  size_t n_ = 0;
  int64_t words_[kMost];  // Uninitialised: calls are hot.
};

}  // namespace brrr
