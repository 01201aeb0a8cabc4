#include "core/int_list.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"

namespace brrr {

void IntList::too_many(size_t n) {
  fail("a tensor has at most {} dimensions, got {}", kMaxDims, n);
}

void IntList::insert(int at, int64_t v) {
  BRRR_CHECK(size_ < kMaxDims, "a tensor has at most {} dimensions", kMaxDims);
  std::copy_backward(data_.begin() + at, data_.begin() + size_, data_.begin() + size_ + 1);
  data_[at] = v;
  ++size_;
}

void IntList::erase(int at) {
  std::copy(data_.begin() + at + 1, data_.begin() + size_, data_.begin() + at);
  --size_;
}

std::string to_string(const IntList& v) { return fmt::format("[{}]", fmt::join(v, ", ")); }

bool product_of(const IntList& sizes, int64_t& n) {
  n = 1;
  bool zero = false, fits = true;
  for (int64_t s : sizes) {
    zero |= s == 0;
    fits &= !__builtin_mul_overflow(n, s ? s : 1, &n) && n < int64_t{1} << 58;
  }
  if (zero) n = 0;
  return fits;
}

[[gnu::cold]] static void fail_sizes(const char* op, const char* what, const IntList& sizes) {
  fail("{}{}{}: {}", op ? op : "", op ? ": " : "", what, to_string(sizes));
}

int64_t checked_numel(const IntList& sizes, const char* op) {
  if (std::ranges::any_of(sizes, [](int64_t s) { return s < 0; }))
    fail_sizes(op, "sizes must not be negative", sizes);
  int64_t n;
  if (!product_of(sizes, n)) fail_sizes(op, "too many elements, 2^58 or more, of sizes", sizes);
  return n;
}

IntList contiguous_strides(const IntList& sizes) {
  IntList strides = sizes;
  int64_t step = 1;
  for (int i = sizes.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

IntList broadcast_shapes(const char* op, const IntList& a, const IntList& b) {
  const IntList& longer = a.size() >= b.size() ? a : b;
  const IntList& shorter = a.size() >= b.size() ? b : a;
  IntList out = longer;
  const int shift = longer.size() - shorter.size();
  for (int i = 0; i < shorter.size(); ++i) {
    int64_t& d = out[i + shift];
    if (d == shorter[i] || shorter[i] == 1) continue;
    BRRR_CHECK(d == 1,
               "{}: shapes {} and {} do not broadcast: dim {} is {} and {}; sizes must be "
               "equal or 1",
               op, to_string(a), to_string(b), i + shift, d, shorter[i]);
    d = shorter[i];
  }
  return out;
}

int wrap_dim(const char* op, int64_t dim, int ndim) {
  const int n = std::max(ndim, 1);
  BRRR_CHECK(dim >= -n && dim < n, "{}: dim {} is out of range for {} dimensions; give {} to {}",
             op, dim, ndim, -n, n - 1);
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

}  // namespace brrr
