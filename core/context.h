#pragma once
// State of a thread that ops share or reuse, and the recorder's interface.

#include "core/op.h"
#include "core/thread_own.h"

namespace brrr {

struct Recorder;

/// One level of the module path ("mlp.fc1"), a linked list on the stack.
struct Scope {
  const std::string* name;
  const Scope* parent;
};

/// A kernel of a replay, as reported to the observer.
struct KernelNote {
  std::string name;    ///< Its ops.
  std::string module;  ///< Of the first of them.
  const char* kind;    ///< See kind_of().
  Work work;
};

/// Observes what this thread runs, while it is installed in `context`: every kernel of both modes.
struct Observer {
  virtual ~Observer() = default;
  /// A kernel is about to run on the device.
  virtual void begins(Device) {}
  /// The kernel threw.
  virtual void failed() {}
  /// The call has run eagerly; its operands still exist. (Views come here without begins().)
  virtual void ran(const OpCall& call) = 0;
  /// Work between the two is done for the observer itself, which may leave its time out.
  virtual void pause() {}
  virtual void resume() {}
  /// A replay has run this kernel of its plan.
  virtual void ran(const KernelNote&, Device) {}
};

/// Follows a backward pass, while it is installed in `context`.
struct GradientHook {
  virtual ~GradientHook() = default;
  /// The pass adds nothing more to this leaf's gradient.
  virtual void ready(TensorImpl& leaf) = 0;
  /// The pass is over.
  virtual void finished() = 0;
  /// An error has ended the pass, or a replay that contained one: everything that reads or writes
  /// gradients has to stop before they are freed or overwritten.
  virtual void abandoned() noexcept = 0;
  /// Whether a pass is still to come; if not, another hook may replace this one.
  virtual bool awaited() const = 0;
};

/// Memory planned for the scratch tensors of an op's kernel, as its row declares.
struct Scratch {
  const OpDef* op = nullptr;  ///< Null: nothing is planned.
  char *next = nullptr, *end = nullptr;
};

struct Context {
  Recorder* recorder = nullptr;  ///< Set while a step is being recorded or verified.
  Observer* observer = nullptr;
  GradientHook* gradients = nullptr;  ///< Of backward passes into leaves.
  bool grad_enabled = true;
  DType autocast = DType::Float32;  ///< What products round to; float32: autocast is off.
  uint64_t sequence = 1;            ///< Of the next tape node.
  const Scope* scope = nullptr;
  const OpDef* running = nullptr;  ///< The op run last, for messages about memory.
  Scratch scratch;                 ///< While a replay runs a kernel: raw_empty takes from it.
  uint32_t site = 0;               ///< While a replay queues kernels: see device_queue::site().
  int tf32 = -1;                   ///< The recorded step's allow_tf32(); < 0: that of all threads.
};
inline thread_local constinit Context context;

/// The one place through which all kernels pass, of both modes and every device. The observer sees
/// each one begin and fail; the caller reports what it was.
template <class Run> inline void run_observed(Device device, const Run& run) {
  Observer* const observer = context.observer;
  if (!observer) [[likely]]
    return run();
  observer->begins(device);
  try {
    run();
  } catch (...) {
    observer->failed();
    throw;
  }
}

/// While it lives ops run at once and leave no trace: no recorder, no observer, no gradients, no
/// autocast.
class PlainScope : NotCopied {
  Held<Recorder*> recorder_{context.recorder, nullptr};
  Held<Observer*> observer_{context.observer, nullptr};
  Held<GradientHook*> gradients_{context.gradients, nullptr};
  Held<bool> grad_enabled_{context.grad_enabled, false};
  Held<DType> autocast_{context.autocast, kFloat32};
  Held<const OpDef*> running_{context.running, context.running};
};

/// Metadata whose old value a recorder journals, so that a step that throws has changed nothing.
/// HasGrad: nothing changes, but the code has seen that there is a gradient.
enum class Field : uint8_t { Grad, RequiresGrad, History, Version, HasGrad };

/// A step's recorder, called by core while it is installed in `context`.
struct Recorder : Placeholders {
  virtual ~Recorder() = default;
  /// Records or compares the call and fills `call.out` with placeholders.
  virtual void op(OpCall& call) = 0;
  /// A tensor made from host memory inside the step: its bytes are read again on every call.
  virtual Tensor host_data(const void* data, const Meta& meta) = 0;
  /// `t`, which is on the CPU, with the values that it has at this point of the step. Throws if the
  /// step computes them: there are none yet.
  virtual Tensor host_values(const TensorImpl& t) = 0;
  /// Called before the metadata of a tensor from before the step changes.
  virtual void journal(TensorImpl& t, Field f) = 0;
  /// Called before a control cell changes.
  virtual void journal(ControlCell& cell) = 0;
  /// A backward pass has consumed a tape node from before the step: it keeps what it saved until
  /// the step has run.
  virtual void journal(Node& node) = 0;
  /// How many views of `s` exist only because the journal holds them.
  virtual uint32_t journalled_views(const Storage& s) = 0;
  uint64_t number = 0;           ///< Of this call of a step; tape nodes made inside it have it.
  bool sets_rng = false;         ///< The step has set the random stream itself.
  bool uses_older_tape = false;  ///< A backward pass has used a tape node from before the step.
};

/// Throws inside a recorded step: `what` needs data that does not exist yet. Also throws when `t`
/// is a placeholder that outlived its step.
void check_host_access(const char* what, const TensorImpl* t);
/// Journals the field if a step is being recorded and `t` existed before it.
inline void before_change(TensorImpl& t, Field f) {
  if (context.recorder && !t.storage->pass) context.recorder->journal(t, f);
}

namespace detail {
bool overlaps_itself(const TensorImpl& t);  ///< Whether two of its elements may share memory.
void check_in_place(const OpCall& call, bool grads);
void after_write(OpCall& call, bool grads);
void run_now(OpCall& call);
/// Casts the operands as the op's row says, then dispatches.
void dispatch_autocast(OpCall& call);
}  // namespace detail

/// dispatch() without autocast, inlined for hot callers.
[[gnu::always_inline]] inline void dispatch_inline(OpCall& c) {
  uint8_t flags = 0;
  for (int i = 0; i < c.n_in; ++i) flags |= c.in[i] ? c.in[i]->flags : 0;
  const bool grads = (flags & kRequiresGrad) && context.grad_enabled && c.op->differentiable();
  if (c.into) [[unlikely]]
    detail::check_in_place(c, grads);
  if (Recorder* r = context.recorder) {
    r->op(c);  // Checks operands that are new to it.
  } else {
    detail::run_now(c);
  }
  if (c.into) [[unlikely]]
    detail::after_write(c, grads);
  if (grads) write_tape(*c.op, c.in, c.n_in, c.attrs, c.out, c.n_out, c.into);
}

/// Path of the modules that are computing, "mlp.fc1"; "" outside of all.
std::string module_path();

/// Counts changes that a frozen step cannot see: requires_grad and train/eval switches.
uint64_t settings_epoch();
void bump_settings_epoch();

/// Sets a control cell's value; undone if the step that does it throws.
inline void set_control(ControlCell& cell, double v) {
  if (context.recorder) context.recorder->journal(cell);
  cell.value = v;
}

}  // namespace brrr
