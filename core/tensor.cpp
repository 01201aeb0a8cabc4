// Lifetime and metadata of tensors.
#include "core/tensor.h"

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"

namespace brrr {

// --- storage -------------------------------------------------------------------------------------

void out_of_memory(const Storage& s) {
  fail("out of memory on {}: {} bytes asked for; {}; use a smaller batch or free tensors",
       name(s.device), s.bytes, backend(s.device.type).describe_memory());
}

// --- memory that is lent -------------------------------------------------------------------------

std::recursive_mutex& lent_memory_mutex() {
  static std::recursive_mutex& m = *new std::recursive_mutex;
  return m;
}

void own_memory(Storage& s) {
  const std::lock_guard lock(lent_memory_mutex());
  if (!s.lent) return;
  const Backend& b = backend(s.device.type);
  void* own = s.bytes ? b.allocate(s.bytes) : nullptr;
  if (s.bytes && !own) out_of_memory(s);
  if (s.bytes) b.copy(own, s.data, s.bytes);
  own_memory(s, own);
}

void own_memory(Storage& s, void* memory) {
  s.data = memory;
  s.owned = !s.early;  // Else there is more to release than memory: see release_foreign.
  __atomic_store_n(&s.lent, false, __ATOMIC_RELEASE);
}

void drop_early_copy(Storage& s) noexcept {
  if (!s.early) return;
  device_queue::drop(std::exchange(s.early, nullptr));
  s.owned = !s.lent;
}

void release_foreign(Storage& s) noexcept {
  if (s.data && s.release) (*s.release)();
  delete s.release;
  drop_early_copy(s);
  if (!s.owned) s.data = nullptr;  // Else the caller deallocates it.
}

// --- placeholders released by another thread -----------------------------------------------------

thread_local constinit char thread_mark = 0;

// The step may be at any point, and go on to write to `s`. Set the count to this last reference,
// which may be subtracted already or not; a plan that has lent memory meanwhile holds another.
void destroy_from_other_thread(Storage* s) noexcept {
  std::unique_lock lock(lent_memory_mutex());
  s->refs.reset();
  if (s->lent) s->refs.retain();
  if (Placeholders* const pass = s->pass) {
    s->next = std::exchange(pass->deferred, s);
  } else if (s->refs.release()) {
    lock.unlock();
    destroy(s);
  }
}

void Placeholders::end(const std::function<void()>& f) {
  std::unique_lock lock(lent_memory_mutex(), std::defer_lock);
  if (!BRRR_ONE_THREAD) lock.lock();
  f();
  Storage* s = std::exchange(deferred, nullptr);
  if (lock) lock.unlock();
  while (s) {
    Storage* const next = std::exchange(s->next, nullptr);
    if (s->refs.release()) destroy(s);
    s = next;
  }
}

// --- tensor objects ------------------------------------------------------------------------------

bool is_contiguous(const int64_t* sizes, const int64_t* strides, int ndim) {
  int64_t step = 1;
  bool ok = true;
  for (int i = ndim - 1; i >= 0; --i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != step) ok = false;
    step *= sizes[i];
  }
  return ok;
}

TensorImpl* new_impl(Storage* storage, DType dtype, const IntList& sizes) {
  TensorImpl* t = raw_impl(storage, dtype, sizes.size(), storage->device);
  int64_t step = 1;
  bool empty = false;
  for (int i = t->ndim - 1; i >= 0; --i) {
    t->sizes[i] = sizes[i];
    t->strides[i] = step;
    step *= sizes[i] > 1 ? sizes[i] : 1;
    empty |= sizes[i] == 0;
  }
  t->numel = empty ? 0 : step;
  return t;
}

Tensor tensor_on(Storage& s, DType dtype, const IntList& sizes, const IntList& strides,
                 int64_t offset) {
  s.refs.retain();
  TensorImpl* t = raw_impl(&s, dtype, sizes.size(), s.device);
  int64_t numel = 1;
  for (int i = 0; i < t->ndim; ++i) {
    t->sizes[i] = sizes[i];
    t->strides[i] = strides[i];
    numel *= sizes[i];
  }
  t->numel = numel;
  t->offset = offset;
  if (!is_contiguous(t->sizes, t->strides, t->ndim)) t->flags |= kStrided;
  return Tensor(Ref<TensorImpl>::adopt(t));
}

void drop_autograd(TensorImpl& t) noexcept {
  Ref<Node>::adopt(t.grad_fn).reset();
  Ref<TensorImpl>::adopt(t.grad).reset();
}

static std::atomic<const char*> first_shortage{nullptr};
const char* scratch_shortage() { return first_shortage.load(std::memory_order_relaxed); }

// Takes planned scratch memory; false if it has no room.
static bool take_scratch(Storage& s) {
  Scratch& room = context.scratch;
  const int64_t bytes = scratch_for(static_cast<int64_t>(s.bytes), 1);
  if (s.device != kCPU || s.bytes == 0) return false;
  if (room.end - room.next < bytes) {
    const char* none = nullptr;
    first_shortage.compare_exchange_strong(none, room.op->name);
    return false;
  }
  s.data = std::exchange(room.next, room.next + bytes);
  s.owned = false;
  return true;
}

Tensor raw_empty(const IntList& sizes, DType dtype, Device device) {
  const size_t bytes = static_cast<size_t>(numel_of(sizes)) * itemsize(dtype);
  auto s = Ref<Storage>::adopt(new_storage(device, bytes));
  if (!context.scratch.op || !take_scratch(*s)) [[likely]]
    allocate(*s);
  return Tensor(Ref<TensorImpl>::adopt(new_impl(s.detach(), dtype, sizes)));
}

std::string describe(const TensorImpl* t) {
  if (!t) return "scalar";
  return fmt::format("{}{}", name(t->dtype), to_string(t->size_list()));
}
std::string describe(const Tensor& t) {
  return t.defined() ? describe(t.impl()) : "an undefined tensor";
}

const Tensor& defined(const char* op, const Tensor& t) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined; assign one first", op);
  return t;
}

// --- handle metadata -----------------------------------------------------------------------------

static TensorImpl& impl_of(const Tensor& t, const char* what) { return *defined(what, t).impl(); }

IntList Tensor::sizes() const { return impl_of(*this, "sizes").size_list(); }
IntList Tensor::strides() const { return impl_of(*this, "strides").stride_list(); }
int64_t Tensor::size(int64_t d) const {
  const TensorImpl& t = impl_of(*this, "size");
  BRRR_CHECK(t.ndim > 0, "size: a 0-d tensor has no dim {}", d);
  return t.sizes[wrap_dim("size", d, t.ndim)];
}
int64_t Tensor::dim() const { return impl_of(*this, "dim").ndim; }
int64_t Tensor::numel() const { return impl_of(*this, "numel").numel; }
DType Tensor::dtype() const { return impl_of(*this, "dtype").dtype; }
Device Tensor::device() const { return impl_of(*this, "device").device; }
bool Tensor::is_contiguous() const { return impl_of(*this, "is_contiguous").contiguous(); }
int64_t Tensor::storage_offset() const { return impl_of(*this, "storage_offset").offset; }
uint32_t Tensor::version() const { return impl_of(*this, "version").storage->version; }

bool Tensor::requires_grad() const { return impl_of(*this, "requires_grad").requires_grad(); }
bool Tensor::is_leaf() const { return impl_of(*this, "is_leaf").grad_fn == nullptr; }

const Tensor& Tensor::set_requires_grad(bool on) const {
  TensorImpl& t = impl_of(*this, "set_requires_grad");
  BRRR_CHECK(!on || is_floating(t.dtype),
             "set_requires_grad: only floating tensors have gradients, this is {}", describe(&t));
  BRRR_CHECK(!t.grad_fn, "set_requires_grad: {} is the result of an op; use detach() for a leaf",
             describe(&t));
  before_change(t, Field::RequiresGrad);
  bump_settings_epoch();
  t.flags = static_cast<uint8_t>(on ? t.flags | kRequiresGrad : t.flags & ~kRequiresGrad);
  return *this;
}

Tensor Tensor::grad() const {
  TensorImpl& t = impl_of(*this, "grad");
  // A function may act on the absence of a gradient, by skipping an update: a frozen step does so
  // only while there is none; and what it does when there is one, only while there is.
  before_change(t, t.grad ? Field::HasGrad : Field::Grad);
  return Tensor(Ref<TensorImpl>::share(t.grad));
}

void Tensor::set_grad(const Tensor& g) const {
  TensorImpl& t = impl_of(*this, "set_grad");
  if (g.defined()) {
    const TensorImpl& h = *g.impl();
    BRRR_CHECK(h.same_shape(t) && h.dtype == t.dtype && h.device == t.device,
               "set_grad: the gradient {} on {} does not match the tensor {} on {}", describe(&h),
               name(h.device), describe(&t), name(t.device));
  }
  BRRR_CHECK(!g.defined() || g.impl() != &t,
             "set_grad: {} cannot be its own gradient; give a clone()", describe(&t));
  // The gradient is written in place later (accumulated, clipped): its elements must not overlap.
  const bool dense = !g.defined() || g.is_contiguous() || !detail::overlaps_itself(*g.impl());
  Tensor own = dense ? g : g.clone();
  before_change(t, Field::Grad);
  if (own.defined()) own.impl()->storage->gradient = true;
  Ref<TensorImpl>::adopt(std::exchange(t.grad, own.detach_impl())).reset();
}

Tensor Tensor::detach() const {
  const TensorImpl& t = impl_of(*this, "detach");
  Tensor d = tensor_on(*t.storage, t.dtype, t.size_list(), t.stride_list(), t.offset);
  d.impl()->value = t.value;
  return d;
}

static std::atomic<uint64_t> epoch{0};
uint64_t settings_epoch() { return epoch.load(std::memory_order_relaxed); }
void bump_settings_epoch() { epoch.fetch_add(1, std::memory_order_relaxed); }

// --- guards --------------------------------------------------------------------------------------

bool grad_enabled() { return context.grad_enabled; }
NoGradGuard::NoGradGuard(bool enabled) : enabled_(context.grad_enabled, enabled) {}

void check_host_access(const char* what, const TensorImpl* t) {
  BRRR_CHECK(!t || !t->storage->lost,
             "{}: {} is a temporary of a recorded step (made by {}) that threw before it was "
             "computed; restore what the handle held before, or use it after a call that does not "
             "throw",
             what, describe(t), t->storage->lost);
  BRRR_CHECK(!context.recorder || t,
             "{}: cannot run inside a graph-mode step, whose tensors have no data yet; call it "
             "before",
             what);
  BRRR_CHECK(!context.recorder,
             "{}: {} cannot be read inside a graph-mode step, where tensors have no data yet; "
             "return it from the step and read it afterwards",
             what, describe(t));
  BRRR_CHECK(!t || !t->storage->pass, "{}: {} belongs to a step that another thread is recording",
             what, describe(t));
}

}  // namespace brrr
