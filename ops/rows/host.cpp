// What leaves the framework for host memory, and copies between devices.
#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

static TensorImpl& readable(const Tensor& t, const char* what) {
  check_host_access(what, defined(what, t).impl());
  return *t.impl();
}

static size_t bytes_of(const TensorImpl& t) {
  return static_cast<size_t>(t.numel) * itemsize(t.dtype);
}

static std::unique_lock<std::recursive_mutex> lock_lent(const Storage& s) {
  return is_lent(s) ? std::unique_lock(lending()) : std::unique_lock<std::recursive_mutex>();
}

static Tensor dense(const Tensor& t) {
  if (t.is_contiguous()) return t;
  NoGradGuard guard;
  return t.device().type == DeviceType::CPU ? copied(*t.impl(), t.dtype()) : t.contiguous();
}

// The same values, contiguous and on the CPU; `t` itself if it is that already.
static Tensor on_host(const Tensor& t) {
  Tensor from = dense(t);
  const TensorImpl& f = *from.impl();
  if (f.device.type == DeviceType::CPU) return from;
  Tensor copy = raw_empty(f.size_list(), f.dtype, kCPU);
  const Storage& s = *f.storage;
  if (s.early && s.early_version == s.version && f.numel) {
    const size_t offset = static_cast<size_t>(f.offset) * itemsize(f.dtype);
    backend(f.device.type).graphs->read(s.early, copy.impl()->data(), offset, bytes_of(f));
    return copy;
  }
  const auto lock = lock_lent(s);
  if (f.numel) backend(f.device.type).copy_to_host(copy.impl()->data(), f.data(), bytes_of(f));
  return copy;
}

// n elements of `t` converted to T, into the iterator `out` (a bool vector's has no address).
template <class T, class Out> static void read(const TensorImpl& t, Out out) {
  constexpr int64_t kTile = 256;
  alignas(64) char values[kTile * 8];
  T converted[kTile];
  const DType compute = compute_type(t.dtype);
  const auto size = static_cast<int64_t>(itemsize(t.dtype));
  for (int64_t i = 0; i < t.numel; i += kTile) {
    const int64_t n = std::min(kTile, t.numel - i);
    load_tile(compute, values, t.dtype, t.data() + i * size, 1, n);
    store_tile(DTypeOf<T>::value, reinterpret_cast<char*>(converted), 1, compute, values, n);
    out = std::copy(converted, converted + n, out);
  }
}

// Results of a replay on a GPU lie in its slots until the next one: an address that goes to the
// user must stay.
static TensorImpl& addressable(const Tensor& t, const char* what) {
  TensorImpl& x = readable(t, what);
  if (is_lent(*x.storage)) own_memory(*x.storage);
  if (x.storage->early) forget_early(*x.storage);  // Nobody sees what is written there.
  return x;
}

void* Tensor::data_ptr() const { return addressable(*this, "data_ptr").data(); }

template <class T> T* Tensor::data() const {
  const TensorImpl& t = addressable(*this, "data");
  BRRR_CHECK(t.dtype == DTypeOf<T>::value,
             "data: asked for {}, the tensor is {}; convert with to(dtype)",
             name(DTypeOf<T>::value), describe(&t));
  return reinterpret_cast<T*>(t.data());
}

template <class T> T Tensor::item() const {
  const TensorImpl& t = readable(*this, "item");
  BRRR_CHECK(t.numel == 1,
             "item: {} has {} elements instead of one; select or reduce first, or use to_vector()",
             describe(&t), t.numel);
  T value;
  read<T>(*on_host(*this).impl(), &value);
  return value;
}

template <class T> std::vector<T> Tensor::to_vector() const {
  const TensorImpl& t = readable(*this, "to_vector");
  const Tensor host = on_host(*this);  // First: it says so when there is not so much memory.
  std::vector<T> out(static_cast<size_t>(t.numel));
  read<T>(*host.impl(), out.begin());
  return out;
}

#define BRRR_HOST_ACCESS(T)            \
  template T* Tensor::data<T>() const; \
  template T Tensor::item<T>() const;  \
  template std::vector<T> Tensor::to_vector<T>() const;
BRRR_HOST_ACCESS(float)
BRRR_HOST_ACCESS(double)
BRRR_HOST_ACCESS(int64_t)
BRRR_HOST_ACCESS(int32_t)
BRRR_HOST_ACCESS(uint8_t)
BRRR_HOST_ACCESS(bool)
#undef BRRR_HOST_ACCESS

Tensor Tensor::to(Device target) const {
  if (device() == target) return *this;
  BRRR_CHECK(!(requires_grad() && context.grad_enabled),
             "to(device): {} requires grad and no "
             "gradient crosses devices; detach() it or use NoGradGuard",
             describe(impl()));
  const Backend& there = backend(target);
  if (context.recorder && device().type == DeviceType::CPU) {
    const Tensor now = dense(context.recorder->host_values(*impl()));
    return context.recorder->host_data(now.impl()->data(), Meta{sizes(), dtype(), target});
  }
  readable(*this, "to(device)");
  if (target.type == DeviceType::CPU) return on_host(*this);
  const Tensor from = dense(*this);
  const TensorImpl& f = *from.impl();
  Tensor copy = raw_empty(f.size_list(), f.dtype, target);
  const auto transfer = f.device.type == DeviceType::CPU ? there.copy_from_host : there.copy;
  const auto lock = lock_lent(*f.storage);
  if (f.numel) transfer(copy.impl()->data(), f.data(), bytes_of(f));
  return copy;
}

}  // namespace brrr
