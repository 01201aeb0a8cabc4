#pragma once
// Pointwise formulas as a kernel for a GPU: one op run eagerly, or a fused group of a recorded
// step.

#include <string>
#include <vector>

#include "core/check.h"
#include "ops/pointwise.h"

namespace brrr {

inline constexpr int kDeviceThreads = 256;  ///< Of a block.
inline constexpr int kDeviceEach = 4;       ///< Elements of a thread in a strided walk.

/// What a pointwise kernel computes, and how it reaches its operands.
struct PointwiseProgram {
  /// At the element's own number, one element for all, or by strides.
  enum Reach : uint8_t { Dense, Splat, Strided };
  /// A tensor as the formulas see it: read from memory first if `loaded`, written to it in the end
  /// if `stored`; between the steps it is in a register.
  struct Window {
    DType dtype;
    Reach reach;
    bool loaded, stored;
  };
  /// A number given with the call; or, in a recorded step, the address of its control word.
  struct Number {
    DType dtype;  ///< Float64 or Int64.
    bool control;
  };
  struct Step {
    const OpDef* op;
    DType compute;
    std::vector<int> in;  ///< Windows; of numbers ~index.
    std::vector<int> out;
  };
  std::vector<Window> windows;
  std::vector<Number> numbers;
  std::vector<Step> steps;
  int ndim = 0;       ///< Dims of the walk if any window is strided, else 0.
  int vector = 1;     ///< Elements of one access; 1 if any window is strided.
  bool wide = false;  ///< Element numbers need 64 bits.
  bool fast = false;  ///< 16-bit floats are rounded only when stored.
};

/// The kernel as text, without the prelude. Its argument is a struct of 64-bit words, in this
/// order: the addresses of windows that are loaded or stored, the numbers, the count of elements;
/// and, where any window is strided, push_dim() of each dim, then each of those windows' strides in
/// bytes.
std::string pointwise_kernel_text(const PointwiseProgram& p, const std::string& name);

/// The words of an argument.
class PointwiseWords {
 public:
  void push(int64_t w) {
    BRRR_CHECK(n_ < kMost, "cuda: a kernel with too many operands");
    words_[n_++] = w;
  }
  void push(const void* p) { push(reinterpret_cast<int64_t>(p)); }
  void set(size_t word, const void* p) { words_[word] = reinterpret_cast<int64_t>(p); }
  /// A dim's size, and what divides by it.
  void push_dim(int64_t size);
  const int64_t* data() const { return words_; }
  size_t bytes() const { return n_ * sizeof words_[0]; }

 private:
  static constexpr size_t kMost = 512;  // 4 KB, all that a kernel takes.
  size_t n_ = 0;
  int64_t words_[kMost];  // Uninitialised: calls are hot.
};

}  // namespace brrr
