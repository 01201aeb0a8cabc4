#pragma once
// What a Tensor handle points to. Internal: users see core/tensor.h.

#include <functional>
#include <mutex>

#include "core/backend.h"
#include "core/tensor.h"

namespace brrr {

void destroy(Node*) noexcept;

/// An address that no other thread has. (The library's: one of a header would be another one in a
/// program or plugin that hides its symbols.)
extern thread_local constinit char thread_mark;
inline const void* this_thread() noexcept { return &thread_mark; }

struct Storage;
/// The part of a recorder that a dying placeholder touches.
struct Placeholders {
  Storage** by_slot = nullptr;                     ///< Null for the dead.
  std::atomic<const void*> thread{this_thread()};  ///< That the step runs on.
  Storage* elsewhere = nullptr;  ///< Let go of by other threads: they live until the step ends.
  /// Calls `f`, which ends the step for its placeholders, while no other thread lets go of one.
  void end(const std::function<void()>& f);
};

/// Counts in-place writes; saved tensors remember it. Threads may write windows of one tensor at a
/// time, so it is read and set whole, but without a locked addition: they may lose each other's.
class WriteCount {
 public:
  operator uint32_t() const noexcept { return __atomic_load_n(&n_, __ATOMIC_RELAXED); }
  void operator=(uint32_t n) noexcept { __atomic_store_n(&n_, n, __ATOMIC_RELAXED); }
  void operator++() noexcept { *this = *this + 1; }

 private:
  uint32_t n_ = 0;
};

/// A block of memory. In a recorded step it may be a placeholder: `data` is null and `pass` is the
/// recording it belongs to; when the step has run, survivors get their memory.
struct Storage {
  RefCount refs;
  uint32_t slot = 0;  ///< Number of the placeholder in its pass.
  void* data = nullptr;
  size_t bytes = 0;
  WriteCount version;
  uint32_t number = 0;  ///< Of an argument of a step: tells it from others at its address.
  Device device;
  bool owned = true;  ///< From the backend's allocator (else `release` tells).
  RefCount views;     ///< Tensors that view ops made of it and that are still there; 1: none.
  // A pass copies everything above as one block (Cue in graph/recording.h).
  Placeholders* pass = nullptr;              ///< The recording it is a placeholder of.
  std::function<void()>* release = nullptr;  ///< For memory that somebody else owns.
  const char* lost = nullptr;  ///< Set when a placeholder outlived its pass: the op that made it.
  Storage* next = nullptr;     ///< In Placeholders::elsewhere.
  uint32_t histories = 0;      ///< How often a tensor of it has got or lost a history in place.
  bool gradient = false;       ///< It has been a leaf's grad.
  bool lent = false;  ///< The memory is a replay's, which will write there again (not owned).
  bool gaps = false;  ///< What its tensors leave of it is nobody's: kernels may write there.
  /// Of a small result of a replay: its bytes on their way to the host, as of `early_version`.
  HostCopy* early = nullptr;
  uint32_t early_version = 0;
};
/// Memory that is not the backend's.
void release_foreign(Storage& s) noexcept;
[[noreturn]] void out_of_memory(const Storage& s);
/// Of a placeholder whose step runs on another thread.
void destroy_elsewhere(Storage* s) noexcept;
inline void destroy(Storage* s) noexcept {
  if (Placeholders* const pass = std::atomic_ref(s->pass).load(std::memory_order_acquire)) {
    if (pass->thread.load(std::memory_order_relaxed) != this_thread()) [[unlikely]]
      return destroy_elsewhere(s);
    pass->by_slot[s->slot] = nullptr;
  } else if (!s->owned) [[unlikely]] {
    release_foreign(*s);
  }
  if (s->data) backend(s->device.type).deallocate(s->data, s->bytes);
  FreeList<Storage>::give(s);
}

/// Flags that send an op to the slow path when set on any input.
enum TensorFlag : uint8_t {
  kRequiresGrad = 1,  ///< A leaf that wants a gradient, or the result of one.
  kStrided = 2,       ///< Not contiguous.
  kForeign = 4,       ///< Not on the CPU.
};

/// Whether a view op made a tensor. A Cut one was made under NoGradGuard of what requires grad,
/// whose gradient would miss a write to it.
enum class View : uint8_t { No, Yes, Cut };

void drop_autograd(TensorImpl& t) noexcept;

struct TensorImpl {
  RefCount refs;
  DType dtype;
  Device device;
  uint8_t ndim;
  uint8_t flags;
  uint8_t output = 0;  ///< Which output of grad_fn this is.
  View view = View::No;
  std::atomic<bool> saved;  ///< A tape node has saved this very object.
  uint32_t value;           ///< Number in the pass of the storage (placeholders only).
  int64_t offset;           ///< Elements from the start of the storage.
  int64_t numel;
  // A pass copies everything above as one block (Cue in graph/recording.h).
  Storage* storage;
  Node* grad_fn;     ///< Counted; null for leaves.
  TensorImpl* grad;  ///< Counted; leaves only.
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];

  char* data() const {
    return static_cast<char*>(storage->data) + offset * static_cast<int64_t>(itemsize(dtype));
  }
  bool requires_grad() const { return flags & kRequiresGrad; }
  bool contiguous() const { return !(flags & kStrided); }
  bool same_shape(const TensorImpl& o) const {
    if (ndim != o.ndim) return false;
    for (int i = 0; i < ndim; ++i) {
      if (sizes[i] != o.sizes[i]) return false;
    }
    return true;
  }
  IntList size_list() const { return IntList::of(sizes, ndim); }
  IntList stride_list() const { return IntList::of(strides, ndim); }
};

inline void destroy(TensorImpl* t) noexcept {
  if (t->grad_fn || t->grad) [[unlikely]]
    drop_autograd(*t);
  if (t->view != View::No) t->storage->views.release();
  if (t->storage->refs.release()) destroy(t->storage);
  FreeList<TensorImpl>::give(t);
}

/// A handle without a reference of its own, while somebody else surely holds one: a locked
/// read-modify-write less where every nanosecond counts.
class Borrowed : NotCopied {
 public:
  explicit Borrowed(TensorImpl* t) : t_(Ref<TensorImpl>::adopt(t)) {}
  ~Borrowed() { t_.detach_impl(); }
  operator const Tensor&() const { return t_; }  // NOLINT(google-explicit-constructor)
  const Tensor* operator->() const { return &t_; }

 private:
  Tensor t_;
};

/// `t`, the only view of what nobody else can reach: a write to it leaves no other history wrong.
inline Tensor sole_view(const Tensor& t) {
  if (std::exchange(t.impl()->view, View::No) != View::No) t.impl()->storage->views.release();
  return t;
}

/// Shape, dtype and device of a tensor without its data.
struct Meta {
  IntList sizes;
  DType dtype = kFloat32;
  Device device;
};

/// A storage object without memory (count 1).
inline Storage* new_storage(Device device, size_t bytes) {
  auto* s = new (FreeList<Storage>::take()) Storage;
  s->device = device;
  s->bytes = bytes;
  return s;
}
/// Backend memory for a storage without any; throws brrr::Error when there is none.
inline void allocate(Storage& s) {
  s.data = backend(s.device.type).allocate(s.bytes);
  if (!s.data) [[unlikely]]
    out_of_memory(s);
}
/// Held by whoever gives lent storages other memory, so by every replay, and by whoever queues work
/// on an address of one: what another thread moves away between the two would be read too late.
std::recursive_mutex& lending();
inline bool is_lent(const Storage& s) { return __atomic_load_n(&s.lent, __ATOMIC_ACQUIRE); }
/// Gives a storage that is lent at this moment a copy of its own; throws brrr::Error when there is
/// no memory.
void own_memory(Storage& s);
/// Drops the bytes on their way to the host: the memory is about to be written unseen.
void forget_early(Storage& s) noexcept;
/// The same with memory of the device's allocator that has the contents already.
void own_memory(Storage& s, void* memory);
/// A tensor object without sizes over `storage`, which is on `device` and whose reference it takes.
inline TensorImpl* raw_impl(Storage* storage, DType dtype, int ndim, Device device) {
  auto* t = static_cast<TensorImpl*>(FreeList<TensorImpl>::take());
  new (&t->refs) RefCount;
  t->dtype = dtype;
  t->device = device;
  t->ndim = static_cast<uint8_t>(ndim);
  t->flags = device.type == DeviceType::CPU ? 0 : kForeign;
  t->output = 0;
  t->view = View::No;
  new (&t->saved) std::atomic<bool>(false);
  t->value = 0;
  t->offset = 0;
  t->storage = storage;
  t->grad_fn = nullptr;
  t->grad = nullptr;
  return t;
}
/// A contiguous tensor object over `storage`, whose reference it takes.
TensorImpl* new_impl(Storage* storage, DType dtype, const IntList& sizes);
/// A tensor on a part of a storage that others hold, too.
Tensor tensor_on(Storage& s, DType dtype, const IntList& sizes, const IntList& strides,
                 int64_t offset);
/// A contiguous tensor object of `a`'s shape over `storage`, which is on `device` and whose
/// reference it takes. `a` is contiguous too.
inline TensorImpl* new_impl_like(Storage* storage, DType dtype, const TensorImpl& a,
                                 Device device) {
  TensorImpl* t = raw_impl(storage, dtype, a.ndim, device);
  t->numel = a.numel;
  if (a.ndim <= 2) {
    std::memcpy(t->sizes, a.sizes, 2 * sizeof t->sizes[0]);
    std::memcpy(t->strides, a.strides, 2 * sizeof t->strides[0]);
  } else {
    std::memcpy(t->sizes, a.sizes, sizeof t->sizes);
    std::memcpy(t->strides, a.strides, sizeof t->strides);
  }
  return t;
}
/// Uninitialised contiguous memory on `device`; never recorded, for kernels' own use. Of the CPU's
/// it comes from context.scratch while that has room, and then lives as long as the kernel runs.
Tensor raw_empty(const IntList& sizes, DType dtype, Device device);
/// The first op whose kernel took more than its row's `scratch` had said, or null. It then gets
/// memory like any other, but a step that runs out of it there is half done.
const char* scratch_shortage();
/// "float32[4, 3]", for error messages.
std::string describe(const TensorImpl* t);
std::string describe(const Tensor& t);
/// The tensor; throws, naming `op`, unless it is defined.
const Tensor& defined(const char* op, const Tensor& t);
/// From the first byte of its storage that a window of at least one element touches to beyond the
/// last.
struct ByteSpan {
  int64_t low, high;
};
template <class Window> ByteSpan byte_span(const Window& w) {
  int64_t high = w.offset + 1;
  for (int d = 0; d < w.ndim; ++d) high += (w.sizes[d] - 1) * w.strides[d];
  const auto item = static_cast<int64_t>(itemsize(w.dtype));
  return {w.offset * item, high * item};
}
/// Bytes of a window's elements, what is broadcast counted once.
template <class Window> double memory_bytes(const Window& w) {
  auto bytes = static_cast<double>(itemsize(w.dtype));
  for (int d = 0; d < w.ndim; ++d) {
    bytes *= w.strides[d] || w.sizes[d] == 0 ? static_cast<double>(w.sizes[d]) : 1;
  }
  return bytes;
}
/// Where a window lies in each line of `line` elements; 0, 0: it may go on from one to the next.
/// Offsets below zero are those of recordings, which count from the first window that they saw.
template <class Window> std::pair<int64_t, int64_t> within(const Window& w, int64_t line) {
  const int64_t begin = (w.offset % line + line) % line;
  int64_t end = begin + 1;
  for (int d = 0; d < w.ndim; ++d) {
    if (w.strides[d] % line != 0) end += (w.sizes[d] - 1) * w.strides[d];
  }
  return end <= line ? std::pair{begin, end} : std::pair<int64_t, int64_t>{};
}
/// Whether two windows on one storage surely touch none of the same bytes: they lie behind each
/// other, or side by side as columns of a matrix do.
template <class Window> bool apart(const Window& a, const Window& b) {
  const ByteSpan x = byte_span(a), y = byte_span(b);
  if (x.high <= y.low || y.high <= x.low) return true;
  const auto beside = [&](const Window& lines) {
    for (int d = 0; d < lines.ndim && a.dtype == b.dtype; ++d) {
      if (lines.strides[d] < 2) continue;
      const auto [low, high] = within(a, lines.strides[d]);
      const auto [begin, end] = within(b, lines.strides[d]);
      if (high && end && (high <= begin || end <= low)) return true;
    }
    return false;
  };
  return beside(a) || beside(b);
}
/// Whether the layout is row-major without gaps.
bool is_contiguous(const int64_t* sizes, const int64_t* strides, int ndim);

}  // namespace brrr
