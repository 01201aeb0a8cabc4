// Tensors from nothing and from host memory.
#include "ops/factory_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/backend.h"
#include "core/moved.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/creation.h"
#include "ops/rows/factory_kernels.h"

namespace brrr {

// --- calls ---------------------------------------------------------------------------------------

CreationCall::CreationCall(const OpDef& op, const IntList& sizes, DType dtype, Device device)
    : call_(op, nullptr, 0), sizes_(sizes) {
  numel_of(sizes, op.name);  // Throws when there are too many elements.
  backend(device);           // Throws when there is no such device.
  call_.attrs.set_dtype(dtype);
  call_.attrs.device = static_cast<uint8_t>(device.type);
}

CreationCall& CreationCall::push(Scalar s) {
  call_.attrs.kinds = s.is_floating() ? 3 : s.dtype() == kBool ? 1 : 2;
  return s.is_floating() ? push(s.to_double()) : push(s.to_int());
}

CreationCall& CreationCall::push_draw() {
  brrr::push_draw(call_);
  return *this;
}

Tensor CreationCall::run() {
  for (int64_t s : sizes_) push(s);
  try {
    dispatch(call_);
  } catch (...) {  // Most likely there was no memory: whoever tries again gets the same numbers.
    const bool drew = (call_.attrs.dynamic & 3) == 3;
    if (drew && !context.recorder) return_draw(static_cast<uint64_t>(call_.attrs.v[1]));
    throw;
  }
  return std::move(call_.out[0]);
}

// --- kernels -------------------------------------------------------------------------------------

namespace {

void run_empty(OpCall&) {}

void run_full(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const DType from = c.attrs.kind(0) == 3 ? kFloat64 : kInt64;
  const size_t size = itemsize(o.dtype);
  alignas(64) char block[64];
  store_tile(o.dtype, block, 1, from, &c.attrs.v[0], 1);
  for (size_t i = size; i < sizeof block; ++i) block[i] = block[i - size];
  const bool one_byte = std::all_of(block, block + size, [&](char b) { return b == block[0]; });
  const auto bytes = o.numel * static_cast<int64_t>(size);
  const auto blocks = (bytes + 63) / 64;
  char* to = o.data();
  parallel_for(blocks, 8192, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 64, last = std::min(end * 64, bytes);
    if (one_byte) {
      std::memset(to + first, block[0], static_cast<size_t>(last - first));
      return;
    }
    int64_t i = first;
    for (; i + 64 <= last; i += 64) std::memcpy(to + i, block, 64);
    std::memcpy(to + i, block, static_cast<size_t>(last - i));
  });
}

// Element i is start + i * step in double or, modulo 2^64, in integers: no error builds up.
void run_arange(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const Attrs& a = c.attrs;
  parallel_for(o.numel, 1 << 15, [&](int64_t begin, int64_t end) {
    if (o.dtype == kInt64) {
      auto* p = reinterpret_cast<int64_t*>(o.data());
      const auto start = static_cast<uint64_t>(a.v[0]), step = static_cast<uint64_t>(a.v[1]);
      for (int64_t i = begin; i < end; ++i) {
        p[i] = static_cast<int64_t>(start + static_cast<uint64_t>(i) * step);
      }
    } else {
      auto* p = reinterpret_cast<float*>(o.data());
      const double start = a.d(0), step = a.d(1);
      for (int64_t i = begin; i < end; ++i) {
        p[i] = static_cast<float>(start + static_cast<double>(i) * step);
      }
    }
  });
}

// Counted from both ends, as PyTorch does: the last element is `end` exactly.
void run_linspace(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const double start = c.attrs.d(0), end = c.attrs.d(1);
  const int64_t n = o.numel;
  const double step = n > 1 ? (end - start) / static_cast<double>(n - 1) : 0.0;
  auto* p = reinterpret_cast<float*>(o.data());
  parallel_for(n, 1 << 15, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const double x = i < (n + 1) / 2 ? start + static_cast<double>(i) * step
                                       : end - static_cast<double>(n - 1 - i) * step;
      p[i] = static_cast<float>(x);
    }
  });
}

void run_eye(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const int64_t n = o.sizes[0], m = o.sizes[1];
  auto* p = reinterpret_cast<float*>(o.data());
  if (o.numel) std::memset(p, 0, static_cast<size_t>(o.numel) * sizeof(float));
  for (int64_t i = 0; i < std::min(n, m); ++i) p[i * m + i] = 1;
}

const OpDef empty_row{"empty",
                      "uninitialised memory",
                      {.infer = creation_infer<0>, .kernel = {{run_empty}, {run_empty}}}};
const OpDef full_row{"full",
                     "every element the same number",
                     {.infer = creation_infer<1>, .kernel = {{run_full}, {full_cuda}}}};
const OpDef arange_row{"arange",
                       "start, start + step, ... below end",
                       {.infer = creation_infer<2>, .kernel = {{run_arange}, {arange_cuda}}}};
const OpDef linspace_row{"linspace",
                         "evenly spaced numbers from start to end, inclusive",
                         {.infer = creation_infer<2>, .kernel = {{run_linspace}, {linspace_cuda}}}};
const OpDef eye_row{"eye",
                    "ones on the diagonal, zeros elsewhere",
                    {.infer = creation_infer<0>, .kernel = {{run_eye}, {eye_cuda}}}};

// --- checks --------------------------------------------------------------------------------------

// How many steps there are from start to below end. Integers in 128 bits: the distance of two
// int64 and its rounding up do not fit into 64.
int64_t count_integers(int64_t start, int64_t end, int64_t step) {
  __extension__ using wide = __int128;
  const wide distance = wide{end} - start, by = step;
  const wide n = (distance + by - (by > 0 ? 1 : -1)) / by;
  BRRR_CHECK(n <= INT64_MAX, "arange: too many elements from {} to {} by {}", start, end, step);
  return static_cast<int64_t>(n);
}
int64_t count_reals(double start, double end, double step) {
  const double n = std::ceil((end - start) / step);
  BRRR_CHECK(n < 0x1p58, "arange: too many elements from {} to {} by {}", start, end, step);
  return static_cast<int64_t>(n);
}

}  // namespace

// --- filled --------------------------------------------------------------------------------------

Tensor empty(const IntList& sizes, DType dtype, Device device) {
  return CreationCall(empty_row, sizes, dtype, device).run();
}

Tensor full(const IntList& sizes, Scalar v, DType dtype, Device device) {
  check_holds("full", v, dtype);
  return CreationCall(full_row, sizes, dtype, device).push(v).run();
}
Tensor full(const IntList& sizes, Scalar v) {
  return full(sizes, v, v.dtype());
}

Tensor zeros(const IntList& sizes, DType dtype, Device device) {
  return full(sizes, 0, dtype, device);
}
Tensor zeros(const IntList& sizes, Device device) {
  return full(sizes, 0, kFloat32, device);
}
Tensor ones(const IntList& sizes, DType dtype, Device device) {
  return full(sizes, 1, dtype, device);
}
Tensor ones(const IntList& sizes, Device device) {
  return full(sizes, 1, kFloat32, device);
}

static void check_like(const char* op, const Tensor& t) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined; assign one first", op);
}
Tensor empty_like(const Tensor& t) {
  check_like("empty_like", t);
  return empty(t.sizes(), t.dtype(), t.device());
}
Tensor full_like(const Tensor& t, Scalar v) {
  check_like("full_like", t);
  return full(t.sizes(), v, t.dtype(), t.device());
}
Tensor zeros_like(const Tensor& t) {
  check_like("zeros_like", t);
  return zeros(t.sizes(), t.dtype(), t.device());
}
Tensor ones_like(const Tensor& t) {
  check_like("ones_like", t);
  return ones(t.sizes(), t.dtype(), t.device());
}

// --- sequences -----------------------------------------------------------------------------------

Tensor arange(Scalar end, Device device) {
  return arange(0, end, 1, device);
}

Tensor arange(Scalar start, Scalar end, Scalar step, Device device) {
  const double from = start.to_double(), to = end.to_double(), by = step.to_double();
  BRRR_CHECK(std::isfinite(from) && std::isfinite(to) && std::isfinite(by),
             "arange: start {}, end {} and step {} must not be non-finite", from, to, by);
  BRRR_CHECK(by != 0, "arange: step must not be 0");
  BRRR_CHECK(by > 0 ? to >= from : to <= from,
             "arange: step {} leads away from end: start {}, end {}; change the sign of step", by,
             from, to);
  if (start.is_floating() || end.is_floating() || step.is_floating()) {
    const int64_t n = count_reals(from, to, by);
    return CreationCall(arange_row, {n}, kFloat32, device).push(from).push(by).run();
  }
  const int64_t n = count_integers(start.to_int(), end.to_int(), step.to_int());
  CreationCall c(arange_row, {n}, kInt64, device);
  return c.push(start.to_int()).push(step.to_int()).run();
}

Tensor linspace(double start, double end, int64_t steps, Device device) {
  BRRR_CHECK(steps >= 0, "linspace: steps must not be negative, got {}", steps);
  BRRR_CHECK(std::isfinite(start) && std::isfinite(end) && std::isfinite(end - start),
             "linspace: start {} and end {} must not be non-finite, nor their distance", start,
             end);
  return CreationCall(linspace_row, {steps}, kFloat32, device).push(start).push(end).run();
}

Tensor eye(int64_t n, int64_t m, Device device) {
  BRRR_CHECK(n >= 0 && m >= -1, "eye: sizes must not be negative: {} rows, {} columns", n, m);
  return CreationCall(eye_row, {n, m < 0 ? n : m}, kFloat32, device).run();
}

// --- from host memory ----------------------------------------------------------------------------

static Tensor from_host(const void* data, const IntList& sizes, DType dtype,
                        Device device = default_device()) {
  const Backend& there = backend(device);
  if (context.recorder) return context.recorder->host_data(data, Meta{sizes, dtype, device});
  Tensor t = raw_empty(sizes, dtype, device);
  const size_t bytes = static_cast<size_t>(t.numel()) * itemsize(dtype);
  if (bytes) there.copy_from_host(t.impl()->data(), data, bytes);
  return t;
}

NestedList::NestedList(std::initializer_list<NestedList> items) {
  if (items.size() > 0) sizes_ = items.begin()->sizes_;
  int64_t at = 0;
  for (const NestedList& item : items) {
    if (static_cast<int64_t>(item.values_.size()) != numel_of(item.sizes_))
      moved_from("NestedList");
    BRRR_CHECK(item.sizes_ == sizes_,
               "tensor: a ragged list: sub-list {} of {} has shape {}, those before it {}; "
               "all must have one shape",
               at, items.size(), to_string(item.sizes_), to_string(sizes_));
    values_.insert(values_.end(), item.values_.begin(), item.values_.end());
    ++at;
  }
  sizes_.insert(0, at);
}

template <class T, class F>
static Tensor pack(const NestedList& list, DType dtype, const F& value) {
  std::vector<T> data;
  data.reserve(list.values().size());
  for (Scalar s : list.values()) data.push_back(value(s));
  return from_host(data.data(), list.sizes(), dtype);
}

static Tensor from_list(const NestedList& list) {
  const auto& v = list.values();
  if (v.empty() || std::any_of(v.begin(), v.end(), [](Scalar s) { return s.is_floating(); })) {
    return pack<float>(list, kFloat32, [](Scalar s) { return static_cast<float>(s.to_double()); });
  }
  if (std::all_of(v.begin(), v.end(), [](Scalar s) { return s.dtype() == kBool; })) {
    return pack<uint8_t>(list, kBool, [](Scalar s) { return uint8_t{s.to_int() != 0}; });
  }
  return pack<int64_t>(list, kInt64, [](Scalar s) { return s.to_int(); });
}

Tensor tensor(std::initializer_list<NestedList> items) {
  return from_list(NestedList(items));
}

Tensor tensor(Scalar v) {
  if (v.is_floating()) {
    const auto x = static_cast<float>(v.to_double());
    return from_host(&x, {}, kFloat32);
  }
  const int64_t x = v.to_int();
  const uint8_t bit = x != 0;
  return v.dtype() == kBool ? from_host(&bit, {}, kBool) : from_host(&x, {}, kInt64);
}

template <class T> static Tensor from_vector(const std::vector<T>& v) {
  return from_host(v.data(), {static_cast<int64_t>(v.size())}, DTypeOf<T>::value);
}
Tensor tensor(const std::vector<float>& v) {
  return from_vector(v);
}
Tensor tensor(const std::vector<double>& v) {
  return from_vector(v);
}
Tensor tensor(const std::vector<int64_t>& v) {
  return from_vector(v);
}
Tensor tensor(const std::vector<int32_t>& v) {
  return from_vector(v);
}

Tensor from_blob(void* data, const IntList& sizes, DType dtype, bool copy) {
  const int64_t n = numel_of(sizes, "from_blob");
  BRRR_CHECK(data || n == 0, "from_blob: a null pointer for sizes {}", to_string(sizes));
  if (copy) return from_host(data, sizes, dtype, kCPU);
  check_host_access("from_blob", nullptr);
  BRRR_CHECK(reinterpret_cast<uintptr_t>(data) % itemsize(dtype) == 0,
             "from_blob: the address is not aligned to the {} bytes of a {}; let it copy",
             itemsize(dtype), name(dtype));
  Storage* s = new_storage(kCPU, static_cast<size_t>(n) * itemsize(dtype));
  s->data = data;
  s->owned = false;
  return Tensor(Ref<TensorImpl>::adopt(new_impl(s, dtype, sizes)));
}
Tensor from_blob(const void* data, const IntList& sizes, DType dtype, bool copy) {
  return from_blob(const_cast<void*>(data), sizes, dtype, copy);
}

}  // namespace brrr
