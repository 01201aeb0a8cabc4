// Tensors created from scalars and from host memory.
#include "ops/factory_ops.h"

#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/check.h"
#include "core/moved.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/pointwise.h"
#include "ops/vocabulary/convert.h"

namespace brrr {

namespace {

const OpDef empty_row{
    "empty",
    "uninitialised memory",
    {.infer =
         [](OpCall& c) { set_made_meta(c, static_cast<DType>(c.attrs.dtype), c.attrs.list()); },
     .kernel = {{[](OpCall&) {}}, {[](OpCall&) {}}},
     .scratch = no_scratch,
     .work = [](const OpCall&) { return Work{}; }}};

const NumberOp full_row{
    "full", "one value in every element", {.moves = true}, [](auto value) { return value; }};

// Rounding does not accumulate: element i is start + i * step in float64, integers modulo 2^64.
const NumberOp arange_row{
    "arange",
    "start, start + step, ... below end",
    {.wide = true},
    Integers<0, kNumber>{},
    [](auto start, auto step, auto i) { return start + m::like(start, i) * step; }};

// Computed from both ends, as in PyTorch: the last element is `end` exactly.
const PointwiseOp linspace_row{"linspace",
                               "evenly spaced numbers from start to end, inclusive",
                               {.wide = true},
                               Integers<0b11000, kNumber>{},
                               [](auto start, auto end, auto step, auto middle, auto last, auto i) {
                                 return m::where(i < middle, start + m::like(start, i) * step,
                                                 end - m::like(end, last - i) * step);
                               }};

const PointwiseOp eye_row{
    "eye",
    "ones on the diagonal, zeros elsewhere",
    {},
    Integers<0, 2, 1>{},
    [](auto one, auto row, auto column) { return m::where(row == column, one, 0.0); }};

// The number of elements from start to before end. Integers are counted in 128 bits: the distance
// of two int64 and its rounding up do not fit in 64.
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

Tensor empty(const IntList& sizes, DType dtype, Device device) {
  numel_of(sizes, "empty");  // Throws if there are too many elements.
  backend(device);           // Throws if there is no such device.
  return call(empty_row, {}, dtype, device, sizes);
}

static Tensor filled(const char* op, const IntList& sizes, Scalar v, DType dtype, Device device) {
  numel_of(sizes, op);
  check_holds(op, v, dtype);
  if (dtype == kBool) v = v.to_double() != 0;
  return PointwiseCall(full_row).make(sizes, dtype, device).add(v).run();
}
Tensor full(const IntList& sizes, Scalar v, DType dtype, Device device) {
  return filled("full", sizes, v, dtype, device);
}
Tensor full(const IntList& sizes, Scalar v) { return full(sizes, v, v.dtype()); }

Tensor zeros(const IntList& sizes, DType dtype, Device device) {
  return filled("zeros", sizes, 0, dtype, device);
}
Tensor zeros(const IntList& sizes, Device device) { return zeros(sizes, kFloat32, device); }
Tensor ones(const IntList& sizes, DType dtype, Device device) {
  return filled("ones", sizes, 1, dtype, device);
}
Tensor ones(const IntList& sizes, Device device) { return ones(sizes, kFloat32, device); }

Tensor empty_like(const Tensor& t) {
  defined("empty_like", t);
  return empty(t.sizes(), t.dtype(), t.device());
}
static Tensor fill_like(const char* op, const Tensor& t, Scalar v) {
  defined(op, t);
  return filled(op, t.sizes(), v, t.dtype(), t.device());
}
Tensor full_like(const Tensor& t, Scalar v) { return fill_like("full_like", t, v); }
Tensor zeros_like(const Tensor& t) { return fill_like("zeros_like", t, 0); }
Tensor ones_like(const Tensor& t) { return fill_like("ones_like", t, 1); }

// --- sequences -----------------------------------------------------------------------------------

Tensor arange(Scalar end, Device device) { return arange(0, end, 1, device); }

Tensor arange(Scalar start, Scalar end, Scalar step, Device device) {
  const bool real = start.is_floating() || end.is_floating() || step.is_floating();
  return arange(start, end, step, real ? kFloat32 : kInt64, device);
}

Tensor arange(Scalar start, Scalar end, Scalar step, DType dtype, Device device) {
  const double from = start.to_double(), to = end.to_double(), by = step.to_double();
  BRRR_CHECK(std::isfinite(from) && std::isfinite(to) && std::isfinite(by),
             "arange: start {}, end {} and step {} must be finite", from, to, by);
  BRRR_CHECK(by != 0, "arange: step must not be 0");
  const bool real = start.is_floating() || end.is_floating() || step.is_floating(),
             rises = real ? from <= to : start.to_int() <= end.to_int(),
             falls = real ? from >= to : start.to_int() >= end.to_int();
  BRRR_CHECK(by > 0 ? rises : falls,
             "arange: step {} leads away from end: start {}, end {}; change the sign of step", by,
             from, to);
  const int64_t n = real ? count_reals(from, to, by)
                         : count_integers(start.to_int(), end.to_int(), step.to_int());
  PointwiseCall c(arange_row);
  c.make({n}, dtype, device);
  if (is_floating(dtype)) return c.add(from).add(by).run();
  BRRR_CHECK(!real && dtype != kBool, "arange: start {}, end {} and step {} cannot give {}; {}",
             from, to, by, name(dtype), dtype == kBool ? "convert with to()" : "use integers");
  if (n > 0) {
    check_holds("arange", start, dtype);
    const uint64_t off = static_cast<uint64_t>(n - 1) * static_cast<uint64_t>(step.to_int());
    check_holds("arange", static_cast<int64_t>(static_cast<uint64_t>(start.to_int()) + off), dtype);
  }
  return c.add(start.to_int()).add(step.to_int()).run();
}

Tensor linspace(double start, double end, int64_t steps, Device device) {
  return linspace(start, end, steps, kFloat32, device);
}
Tensor linspace(double start, double end, int64_t steps, DType dtype, Device device) {
  check_gives_floating("linspace", dtype);
  BRRR_CHECK(steps >= 0, "linspace: steps must not be negative, got {}", steps);
  BRRR_CHECK(std::isfinite(start) && std::isfinite(end) && std::isfinite(end - start),
             "linspace: start {} and end {} and their distance must be finite", start, end);
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0.0;
  PointwiseCall c(linspace_row);
  c.make({steps}, dtype, device).add(start).add(end).add(step);
  return c.add((steps + 1) / 2).add(steps - 1).run();
}

Tensor eye(int64_t n, int64_t m, Device device) { return eye(n, m, kFloat32, device); }
Tensor eye(int64_t n, int64_t m, DType dtype, Device device) {
  check_gives_floating("eye", dtype);
  BRRR_CHECK(n >= 0 && m >= -1, "eye: sizes must not be negative: {} rows, {} columns", n, m);
  return PointwiseCall(eye_row).make({n, m < 0 ? n : m}, dtype, device).add(1.0).run();
}

// --- from host memory ----------------------------------------------------------------------------

static Tensor from_host(const void* data, const IntList& sizes, DType dtype,
                        Device device = default_device()) {
  const Backend& target = backend(device);
  if (context.recorder) return context.recorder->host_data(data, Meta{sizes, dtype, device});
  Tensor t = raw_empty(sizes, dtype, device);
  const size_t bytes = static_cast<size_t>(t.numel()) * itemsize(dtype);
  if (bytes) target.copy_from_host(t.impl()->data(), data, bytes);
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
static Tensor pack(const std::vector<Scalar>& v, const IntList& sizes, DType dtype,
                   const F& value) {
  std::vector<T> data(v.size());
  std::ranges::transform(v, data.begin(), value);
  return from_host(data.data(), sizes, dtype);
}

static Tensor from_scalars(const std::vector<Scalar>& v, const IntList& sizes) {
  if (v.empty() || std::any_of(v.begin(), v.end(), [](Scalar s) { return s.is_floating(); })) {
    return pack<float>(v, sizes, kFloat32,
                       [](Scalar s) { return static_cast<float>(s.to_double()); });
  }
  if (std::all_of(v.begin(), v.end(), [](Scalar s) { return s.dtype() == kBool; })) {
    return pack<uint8_t>(v, sizes, kBool, [](Scalar s) { return uint8_t{s.to_int() != 0}; });
  }
  return pack<int64_t>(v, sizes, kInt64, [](Scalar s) { return s.to_int(); });
}

Tensor tensor(std::initializer_list<NestedList> items) {
  const NestedList list(items);
  return from_scalars(list.values(), list.sizes());
}
Tensor tensor(Scalar v) { return from_scalars({v}, {}); }

template <class T> static Tensor from_vector(const std::vector<T>& v) {
  return from_host(v.data(), {static_cast<int64_t>(v.size())}, DTypeOf<T>::value);
}
Tensor tensor(const std::vector<float>& v) { return from_vector(v); }
Tensor tensor(const std::vector<double>& v) { return from_vector(v); }
Tensor tensor(const std::vector<int64_t>& v) { return from_vector(v); }
Tensor tensor(const std::vector<int32_t>& v) { return from_vector(v); }

Tensor from_blob(const void* data, const IntList& sizes, DType dtype, bool copy) {
  const int64_t n = numel_of(sizes, "from_blob");
  BRRR_CHECK(data || n == 0, "from_blob: a null pointer for sizes {}", to_string(sizes));
  if (copy) return from_host(data, sizes, dtype, kCPU);
  check_host_access("from_blob", nullptr);
  BRRR_CHECK(reinterpret_cast<uintptr_t>(data) % itemsize(dtype) == 0,
             "from_blob: the address is not aligned to the {} bytes of a {}; let it copy",
             itemsize(dtype), name(dtype));
  Storage* s = new_storage(kCPU, static_cast<size_t>(n) * itemsize(dtype));
  s->data = const_cast<void*>(data);
  s->owned = false;
  return Tensor(Ref<TensorImpl>::adopt(new_impl(s, dtype, sizes)));
}

}  // namespace brrr
