// Reads of tensors by the host, and copies between devices.
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

static Tensor dense(const Tensor& t) {
  if (t.is_contiguous()) return t;
  NoGradGuard guard;
  return t.device().type == DeviceType::CPU ? copied(*t.impl(), t.dtype()) : t.contiguous();
}

// A contiguous copy of `t` on `target`, or `t` itself if it is that already. There is only one GPU,
// so one of the two devices is the CPU.
static Tensor dense_on(Device target, const Tensor& t) {
  Tensor from = dense(t);
  const TensorImpl& f = *from.impl();
  if (f.device == target) return from;
  Tensor copy = raw_empty(f.size_list(), f.dtype, target);
  if (f.numel == 0) return copy;
  const Backend& gpu = backend(DeviceType::CUDA);
  const Storage& s = *f.storage;
  const size_t item = itemsize(f.dtype), bytes = static_cast<size_t>(f.numel) * item;
  void* const to = copy.impl()->data();
  if (s.early && s.early_version == s.version) {
    device_queue::read(*s.early, to, static_cast<size_t>(f.offset) * item, bytes);
    return copy;
  }
  std::unique_lock lock(lent_memory_mutex(), std::defer_lock);
  if (is_lent(s)) lock.lock();
  (target == kCPU ? gpu.copy_to_host : gpu.copy_from_host)(to, f.data(), bytes);
  return copy;
}

// Writes the elements of `t` as T to the iterator `out` (std::vector<bool> has no pointer).
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

// Prepares a tensor whose address the user gets. Results of a GPU replay stay in its slots only
// until the next replay, so they move to memory of their own.
static TensorImpl& addressable(const Tensor& t, const char* what) {
  TensorImpl& x = readable(t, what);
  if (is_lent(*x.storage)) own_memory(*x.storage);
  if (x.storage->early)
    drop_early_copy(*x.storage);  // Writes through the address change no version.
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
  read<T>(*dense_on(kCPU, *this).impl(), &value);
  return value;
}

template <class T> std::vector<T> Tensor::to_vector() const {
  const TensorImpl& t = readable(*this, "to_vector");
  const Tensor host = dense_on(kCPU, *this);  // Before `out`: its error says if memory is short.
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
  backend(target);  // Throws if there is no such device.
  if (context.recorder && device().type == DeviceType::CPU) {
    const Tensor now = dense(context.recorder->host_values(*impl()));
    return context.recorder->host_data(now.impl()->data(), Meta{sizes(), dtype(), target});
  }
  readable(*this, "to(device)");
  return dense_on(target, *this);
}

}  // namespace brrr
