#pragma once
// What a Tensor handle points to. Internal: users see core/tensor.h.

#include <functional>
#include <mutex>

#include "core/backend.h"
#include "core/tensor.h"

namespace brrr {

void destroy(Node*) noexcept;

/// Its address identifies the thread. (Defined in the library: one in a header would be duplicated
/// in a program or plugin that hides its symbols.)
extern thread_local constinit char thread_mark;
inline const void* this_thread() noexcept { return &thread_mark; }

struct Storage;
/// The part of a recorder that the destruction of a placeholder touches.
struct Placeholders {
  Storage** by_slot = nullptr;                     ///< Null where it was destroyed.
  std::atomic<const void*> thread{this_thread()};  ///< The one that runs the step.
  Storage* deferred = nullptr;  ///< Released by other threads: they live until the step ends.
  /// Calls `f`, which ends the step for its placeholders, while no other thread can release one.
  void end(const std::function<void()>& f);
};

/// Counts in-place writes; saved tensors remember the count. Threads may write windows of one
/// tensor concurrently: accesses are atomic, increments are not (no locked addition), so some may
/// be lost.
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
  uint32_t slot = 0;  ///< Index of the placeholder in its pass.
  void* data = nullptr;
  size_t bytes = 0;
  WriteCount version;
  uint32_t number = 0;  ///< Of an argument of a step: distinguishes it from others at its address.
  Device device;
  bool owned = true;  ///< From the backend's allocator (else see `release`).
  RefCount views;     ///< 1 + the number of live tensors that view ops made of it.
  // A pass copies everything above as one block (Cue in graph/recording.h).
  Placeholders* pass = nullptr;              ///< The recording it is a placeholder of.
  std::function<void()>* release = nullptr;  ///< Frees memory that another owner provided.
  const char* lost = nullptr;  ///< Set when a placeholder outlived its pass: the op that made it.
  Storage* next = nullptr;     ///< Link in Placeholders::deferred.
  uint32_t histories = 0;      ///< How often one of its tensors has got or lost a history in place.
  bool gradient = false;       ///< Has been a leaf's grad.
  bool lent = false;           ///< Memory of a replay's plan, which will overwrite it (not owned).
  bool gaps = false;  ///< Bytes between its tensors' elements are unused: kernels may write there.
  /// The copy to the host of a small result of a replay, as of `early_version`; or null.
  HostCopy* early = nullptr;
  uint32_t early_version = 0;
};
/// Releases memory that is not the backend's, and an early copy.
void release_foreign(Storage& s) noexcept;
[[noreturn]] void out_of_memory(const Storage& s);
/// Destroys a placeholder whose step runs on another thread.
void destroy_from_other_thread(Storage* s) noexcept;
inline void destroy(Storage* s) noexcept {
  if (Placeholders* const pass = std::atomic_ref(s->pass).load(std::memory_order_acquire)) {
    if (pass->thread.load(std::memory_order_relaxed) != this_thread()) [[unlikely]]
      return destroy_from_other_thread(s);
    pass->by_slot[s->slot] = nullptr;
  } else if (!s->owned) [[unlikely]] {
    release_foreign(*s);
  }
  if (s->data) backend(s->device.type).deallocate(s->data, s->bytes);
  FreeList<Storage>::give(s);
}

/// Flags that send an op to the slow path when set on any input.
enum TensorFlag : uint8_t {
  kRequiresGrad = 1,  ///< A leaf that requires grad, or a result that depends on one.
  kStrided = 2,       ///< Not contiguous.
  kNotOnCpu = 4,      ///< Not on the CPU.
};

/// Whether a view op made the tensor. Cut: under NoGradGuard, of a tensor that requires grad, whose
/// gradient would miss a write to the view.
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
  uint32_t value;           ///< Index in the pass of the storage (placeholders only).
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

/// A handle that adds no reference, for use while another one surely exists: saves a locked
/// read-modify-write where every nanosecond counts.
class Borrowed : NotCopied {
 public:
  explicit Borrowed(TensorImpl* t) : t_(Ref<TensorImpl>::adopt(t)) {}
  ~Borrowed() { t_.detach_impl(); }
  operator const Tensor&() const { return t_; }  // NOLINT(google-explicit-constructor)
  const Tensor* operator->() const { return &t_; }

 private:
  Tensor t_;
};

/// `t` without its view mark: it is the only view of memory that nothing else reaches.
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
/// Held while the memory of lent storages is replaced, so by every replay, and while work on the
/// address of one is queued: data that another thread moved in between would be read too late.
std::recursive_mutex& lent_memory_mutex();
inline bool is_lent(const Storage& s) { return __atomic_load_n(&s.lent, __ATOMIC_ACQUIRE); }
/// Moves the contents of a lent storage to memory of its own; throws brrr::Error when there is
/// none.
void own_memory(Storage& s);
/// Drops the early copy to the host: the memory is about to be written without a new version.
void drop_early_copy(Storage& s) noexcept;
/// The same with memory of the device's allocator that has the contents already.
void own_memory(Storage& s, void* memory);
/// A tensor object without sizes over `storage` (on `device`), whose reference it takes over.
inline TensorImpl* raw_impl(Storage* storage, DType dtype, int ndim, Device device) {
  auto* t = static_cast<TensorImpl*>(FreeList<TensorImpl>::take());
  new (&t->refs) RefCount;
  t->dtype = dtype;
  t->device = device;
  t->ndim = static_cast<uint8_t>(ndim);
  t->flags = device.type == DeviceType::CPU ? 0 : kNotOnCpu;
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
/// A tensor on a part of a storage, to which it adds a reference.
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
/// Uninitialised contiguous memory on `device` for kernels' own use; never recorded. On the CPU it
/// comes from context.scratch while that has room, and then lives only while the kernel runs.
Tensor raw_empty(const IntList& sizes, DType dtype, Device device);
/// The first op whose kernel took more than its row's `scratch` had declared, or null. The kernel
/// then allocates memory like any other, but if that fails, the step is left half done.
const char* scratch_shortage();
/// "float32[4, 3]", for error messages.
std::string describe(const TensorImpl* t);
std::string describe(const Tensor& t);
/// The tensor; throws, naming `op`, unless it is defined.
const Tensor& defined(const char* op, const Tensor& t);
/// The bytes of its storage that a window of at least one element spans; `high` is exclusive.
struct ByteSpan {
  int64_t low, high;
};
template <class Window> ByteSpan byte_span(const Window& w) {
  int64_t high = w.offset + 1;
  for (int d = 0; d < w.ndim; ++d) high += (w.sizes[d] - 1) * w.strides[d];
  const auto item = static_cast<int64_t>(itemsize(w.dtype));
  return {w.offset * item, high * item};
}
/// Bytes of a window's elements, broadcast ones counted once.
template <class Window> double memory_bytes(const Window& w) {
  auto bytes = static_cast<double>(itemsize(w.dtype));
  for (int d = 0; d < w.ndim; ++d) {
    bytes *= w.strides[d] || w.sizes[d] == 0 ? static_cast<double>(w.sizes[d]) : 1;
  }
  return bytes;
}
/// The range of a window within each line of `line` elements; 0, 0: it may cross lines. Negative
/// offsets are those of recordings, which count from the first window that they saw.
template <class Window> std::pair<int64_t, int64_t> within(const Window& w, int64_t line) {
  const int64_t begin = (w.offset % line + line) % line;
  int64_t end = begin + 1;
  for (int d = 0; d < w.ndim; ++d) {
    if (w.strides[d] % line != 0) end += (w.sizes[d] - 1) * w.strides[d];
  }
  return end <= line ? std::pair{begin, end} : std::pair<int64_t, int64_t>{};
}
/// Whether two windows on one storage surely share no bytes: their byte ranges are disjoint, or
/// they are disjoint columns of a matrix.
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
