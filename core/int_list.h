#pragma once
// Sizes, strides and dims: a short list of int64 with inline storage.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace brrr {

/// The most dimensions a tensor may have.
inline constexpr int kMaxDims = 8;

/// At most kMaxDims integers, held inline. One implicit constructor each from a braced list, one
/// integer and a vector, so that `sum({})`, `sum({0, 1})` and `sum(1)` need a single overload.
/// Throws brrr::Error beyond kMaxDims entries.
class IntList {
 public:
  IntList() = default;
  IntList(std::initializer_list<int64_t> v) { assign(v.begin(), v.size()); }
  IntList(int64_t v) : size_(1) { data_[0] = v; }  // NOLINT(google-explicit-constructor)
  IntList(const std::vector<int64_t>& v) { assign(v.data(), v.size()); }  // NOLINT
  IntList(const int64_t* p, size_t n) { assign(p, n); }
  /// The first n entries of a full array, in a handful of instructions.
  static IntList of(const int64_t (&all)[kMaxDims], int n) {
    IntList v;
    v.set(all, n);
    return v;
  }
  void set(const int64_t (&all)[kMaxDims], int n) {
    size_ = n;
    // Most tensors have one or two dims; a copy of fixed size needs no loop.
    if (n <= 2) {
      std::memcpy(data_.data(), all, 2 * sizeof all[0]);
    } else {
      std::memcpy(data_.data(), all, sizeof all);
    }
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](int i) const { return data_[i]; }
  int64_t& operator[](int i) { return data_[i]; }
  const int64_t* data() const { return data_.data(); }
  const int64_t* begin() const { return data_.data(); }
  const int64_t* end() const { return data_.data() + size_; }
  int64_t* begin() { return data_.data(); }
  int64_t* end() { return data_.data() + size_; }
  int64_t back() const { return data_[size_ - 1]; }
  void push_back(int64_t v) { insert(size_, v); }
  void insert(int at, int64_t v);
  void erase(int at);
  std::vector<int64_t> vec() const { return {begin(), end()}; }
  friend bool operator==(const IntList& a, const IntList& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i) {
      if (a.data_[i] != b.data_[i]) return false;
    }
    return true;
  }

 private:
  [[noreturn]] static void too_many(size_t n);
  void assign(const int64_t* p, size_t n) {
    if (n > kMaxDims) [[unlikely]]
      too_many(n);
    size_ = static_cast<int>(n);
    for (size_t i = 0; i < n; ++i) data_[i] = p[i];
  }
  std::array<int64_t, kMaxDims> data_;
  int size_ = 0;
};

/// "[4, 3]".
std::string to_string(const IntList& v);
/// Sets `n` to the product of sizes that are not negative, 1 for an empty list. False when the
/// sizes without zeros multiply to 2^58 or more: below it the product of any of them, and so a
/// stride or a number of bytes, fits into int64.
bool product_of(const IntList& sizes, int64_t& n);
/// The slow path of numel_of().
int64_t checked_numel(const IntList& sizes, const char* op);
/// The number of elements of a tensor of these sizes. Throws brrr::Error, naming `op` if given, on
/// a negative size and when there are too many.
inline int64_t numel_of(const IntList& sizes, const char* op = nullptr) {
  uint64_t n = 1, any = 0;
  for (int64_t s : sizes) {
    n *= static_cast<uint64_t>(s);
    any |= static_cast<uint64_t>(s);
  }
  // On the path of every call. Sizes of so few bits cannot multiply to more than 57 bits.
  if (std::bit_width(any) * sizes.size() <= 57) [[likely]]
    return static_cast<int64_t>(n);
  return checked_numel(sizes, op);
}
/// Row-major strides.
IntList contiguous_strides(const IntList& sizes);
/// The broadcast of two shapes; throws brrr::Error naming `op` when they do not match.
IntList broadcast_shapes(const char* op, const IntList& a, const IntList& b);
/// `dim` in [-ndim, ndim) as [0, ndim); throws brrr::Error naming `op`. A 0-d tensor has one dim.
int wrap_dim(const char* op, int64_t dim, int ndim);

}  // namespace brrr
