#pragma once
// Tensors created from scalars, from host memory and from the random stream.

#include <initializer_list>
#include <vector>

#include "core/device.h"
#include "core/rng.h"
#include "core/tensor.h"

namespace brrr {

/// A nested braced list of scalars: the argument of tensor({{1.f, 2.f}, {3.f, 4.f}}).
class NestedList {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  NestedList(T v) : values_{Scalar(v)} {}  // NOLINT(google-explicit-constructor)
  NestedList(std::initializer_list<NestedList> items);
  const std::vector<Scalar>& values() const { return values_; }
  const IntList& sizes() const { return sizes_; }

 private:
  std::vector<Scalar> values_;
  IntList sizes_;
};

// --- from host memory (in a step, read again on every call) --------------------------------------
/// Floating literals give float32, integers int64, bools bool. Throws on ragged nesting.
Tensor tensor(std::initializer_list<NestedList> items);
Tensor tensor(Scalar v);
Tensor tensor(const std::vector<float>& v);
Tensor tensor(const std::vector<double>& v);  ///< float64
Tensor tensor(const std::vector<int64_t>& v);
Tensor tensor(const std::vector<int32_t>& v);
/// A CPU tensor of host memory: a copy or, if `copy` is false (not inside a graph-mode step), the
/// memory itself, which must be aligned to the dtype and outlive the tensor.
Tensor from_blob(const void* data, const IntList& sizes, DType dtype, bool copy = true);

// --- filled --------------------------------------------------------------------------------------
Tensor empty(const IntList& sizes, DType dtype = kFloat32, Device device = default_device());
Tensor zeros(const IntList& sizes, DType dtype = kFloat32, Device device = default_device());
Tensor zeros(const IntList& sizes, Device device);
Tensor ones(const IntList& sizes, DType dtype = kFloat32, Device device = default_device());
Tensor ones(const IntList& sizes, Device device);
/// full({3}, 2) is int64, full({3}, 2.0) float32, full({3}, true) bool.
Tensor full(const IntList& sizes, Scalar v);
Tensor full(const IntList& sizes, Scalar v, DType dtype, Device device = default_device());
Tensor arange(Scalar end, Device device = default_device());
/// start, start + step, ... before end: int64 if all are integers, else float32. Throws if an
/// explicit integer dtype does not hold them.
Tensor arange(Scalar start, Scalar end, Scalar step = 1, Device device = default_device());
Tensor arange(Scalar start, Scalar end, Scalar step, DType dtype, Device device = default_device());
/// `steps` evenly spaced values from start to end, inclusive; float32 or another floating dtype.
Tensor linspace(double start, double end, int64_t steps, Device device = default_device());
Tensor linspace(double start, double end, int64_t steps, DType dtype,
                Device device = default_device());
/// Ones on the diagonal of [n, m] ([n, n] if m is -1), else zeros; float32 or another float dtype.
Tensor eye(int64_t n, int64_t m = -1, Device device = default_device());
Tensor eye(int64_t n, int64_t m, DType dtype, Device device = default_device());
Tensor empty_like(const Tensor& t);
Tensor zeros_like(const Tensor& t);
Tensor ones_like(const Tensor& t);
Tensor full_like(const Tensor& t, Scalar v);

// --- random: each call takes one draw of the stream ----------------------------------------------
/// Uniform in [0, 1), of a floating dtype; at most 24 random bits, for float64 too.
Tensor rand(const IntList& sizes, DType dtype = kFloat32, Device device = default_device());
Tensor rand(const IntList& sizes, Device device);
/// Standard normal, of a floating dtype, from 24-bit uniforms as well: no magnitude exceeds 5.77.
Tensor randn(const IntList& sizes, DType dtype = kFloat32, Device device = default_device());
Tensor randn(const IntList& sizes, Device device);
/// Integers in [low, high), int64. Their probabilities differ by less than 0.1 % for ranges up to
/// 2^54, and beyond that by at most one part in 2^64 / (high - low).
Tensor randint(int64_t low, int64_t high, const IntList& sizes, Device device = default_device());
Tensor rand_like(const Tensor& t);
Tensor randn_like(const Tensor& t);
/// A random permutation of 0..n-1, int64.
Tensor randperm(int64_t n, Device device = default_device());
/// 0 with probability p, else 1 / (1 - p), in the dtype of `like`.
Tensor dropout_mask(const Tensor& like, double p);
/// int64 [2]: seed and number of one draw, for kernels that generate its values tile by tile.
Tensor draw_key(Device device = default_device());
/// The mask that dropout_mask would generate with the draw `key`; `sizes` are its shape.
Tensor dropout_mask_at(const Tensor& key, double p, const IntList& sizes, DType dtype);
/// x times a dropout mask while training, else x.
Tensor dropout(const Tensor& x, double p, bool training);

}  // namespace brrr
