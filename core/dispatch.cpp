// The registry, and the only way an op is executed: recorded or run, then written to the tape.
#include <algorithm>
#include <cstdlib>
#include <span>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"

namespace brrr {

Ref<ControlCell> control_cell(double v, ControlCell::Kind kind) {
  return Ref<ControlCell>::adopt(new ControlCell{.refs = {}, .value = v, .kind = kind});
}

const char* name(OpKind k) {
  constexpr const char* names[] = {"pointwise", "reduction", "view",
                                   "library",   "random",    "composite"};
  return names[static_cast<int>(k)];
}

// --- registry ------------------------------------------------------------------------------------

static std::vector<const OpDef*>& rows() {
  static auto& all = *new std::vector<const OpDef*>;  // Threads may read it while the process ends.
  return all;
}
const std::vector<const OpDef*>& registry() { return rows(); }

OpDef::OpDef(const char* n, const char* d, const OpSpec& spec)
    : OpSpec(spec), name(n), doc(d), index(static_cast<uint32_t>(rows().size())) {
  BRRR_CHECK(
      !find_op(n),
      "{}: an op of this name already exists; choose another name, and declare an op that is "
      "defined in a header inline",
      n);
  if (is_view()) grad_aliases = 1;
  // It is unknown what a decomposition's gradient reads, and what it shares memory with.
  if (kind == OpKind::Composite && !vjp) saves_inputs = grad_aliases = ~0u;
  rows().push_back(this);
}

const OpDef* find_op(const std::string& n) {
  for (const OpDef* op : rows()) {
    if (n == op->name) return op;
  }
  return nullptr;
}

// --- execution -----------------------------------------------------------------------------------

void mark_view(OpCall& c, int k, const TensorImpl& of) {
  const bool cut = of.view == View::Cut || (!context.grad_enabled && of.requires_grad());
  c.out[k].impl()->view = cut ? View::Cut : View::Yes;
  of.storage->views.retain();
}

void make_outputs(OpCall& c) {
  for (int k = 0; k < c.n_out; ++k) {
    const OutMeta& m = c.meta[k];
    if (m.alias >= 0) {
      c.out[k] = tensor_on(*c.in[m.alias]->storage, m.dtype, m.sizes, m.strides, m.offset);
      mark_view(c, k, *c.in[m.alias]);
    } else {
      c.out[k] = raw_empty(m.sizes, m.dtype, m.device);
    }
  }
}

static int64_t packed_bytes(const TensorImpl* t) {
  if (!t ||
      (t->contiguous() && (t->dtype == kFloat32 || t->dtype == kFloat64 || t->dtype == kInt64)))
    return 0;
  return scratch_for(t->numel, t->dtype != kFloat64 && is_floating(t->dtype) ? 4 : 8);
}

int64_t packed_bytes(const OpCall& c) {
  int64_t bytes = 0;
  for (int i = 0; i < c.n_in; ++i) bytes += packed_bytes(c.in[i]);
  for (int k = 0; k < c.n_out; ++k) bytes += packed_bytes(c.out[k].impl());
  return bytes;
}

static bool same_window(const TensorImpl* a, const TensorImpl* b) {
  return a && b && a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype &&
         a->size_list() == b->size_list() && a->stride_list() == b->stride_list();
}

double operand_bytes(const OpCall& c) {
  double bytes = 0;
  for (int i = 0; i < c.n_in; ++i) {
    const bool again =
        std::any_of(c.in, c.in + i, [&](const TensorImpl* t) { return same_window(t, c.in[i]); });
    if (c.in[i] && !again) bytes += memory_bytes(*c.in[i]);
  }
  for (int k = 0; k < c.n_out - c.op->n_scratch; ++k) bytes += memory_bytes(*c.out[k].impl());
  return bytes;
}

void execute(OpCall& c) {
  const Device device = c.out[0].impl()->device;
  if (!c.op->is_view()) run_observed(device, [&] { backend(device.type).launch(c); });
  if (context.observer) [[unlikely]]
    context.observer->ran(c);
}

// Dims by increasing stride: each has to step over all that the previous ones reach. (Layouts that
// interleave without overlap count as overlapping.)
[[gnu::noinline]] bool detail::overlaps_itself(const TensorImpl& t) {
  std::pair<int64_t, int64_t> dims[kMaxDims];  // Strides and sizes.
  for (int d = 0; d < t.ndim; ++d) dims[d] = {std::abs(t.strides[d]), t.sizes[d]};
  std::sort(dims, dims + t.ndim);
  int64_t reach = 0;
  for (const auto& [stride, size] : std::span(dims, t.ndim)) {
    if (size > 1 && stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

// Whether other tensors exist that view ops made of it, as eager mode would have them.
static bool has_views(const Storage& s) {
  const uint32_t views = s.views.get() - 1;
  return views && (!context.recorder || views > context.recorder->journalled_views(s));
}

// What must hold before anything is written in place; nothing has changed when this throws.
void detail::check_in_place(const OpCall& c, bool grads) {
  for (int k = 0; k < c.n_out; ++k) {
    const TensorImpl& o = *c.out[k].impl();
    BRRR_CHECK(o.contiguous() || !overlaps_itself(o),
               "{}_: {} with strides {} has elements that share memory; clone() it before writing",
               c.op->name, describe(&o), to_string(o.stride_list()));
    if (!context.grad_enabled) continue;
    BRRR_CHECK(!(o.requires_grad() && !o.grad_fn),
               "{}_: a leaf that requires grad is changed in place; do it under NoGradGuard",
               c.op->name);
    // Histories do not follow memory: where a view and its base both exist, a write to one would
    // invalidate the other's history. Only views made by view ops count: these exist in both modes.
    BRRR_CHECK(o.view != View::Cut,
               "{}_: {} is a view, made under NoGradGuard, of a tensor that requires grad, whose "
               "gradient would miss the write; write under NoGradGuard too",
               c.op->name, describe(&o));
    BRRR_CHECK(!((grads || o.requires_grad()) && (o.view != View::No || has_views(*o.storage))),
               "{}_: {} shares memory with a view of it or is one, and gradients flow; use the "
               "out-of-place op (cat, stack, where) or clone() first",
               c.op->name, describe(&o));
  }
}

std::string module_path() {
  std::string path;
  for (const Scope* s = context.scope; s; s = s->parent) {
    if (!s->name->empty()) path = path.empty() ? *s->name : *s->name + "." + path;
  }
  return path;
}

// Placeholders of a step have no meaning outside it.
[[gnu::cold]] static void fail_unreadable(const OpCall& c, const TensorImpl& t) {
  BRRR_CHECK(!t.storage->pass, "{}: operand {} is a placeholder of another step's recording",
             c.op->name, describe(&t));
  check_host_access(c.op->name, &t);
}

void check_readable(const OpCall& c) {
  auto check = [&](const TensorImpl& t) {
    const Storage& s = *t.storage;
    if ((s.pass && s.pass != context.recorder) || s.lost) [[unlikely]]
      fail_unreadable(c, t);
  };
  for (int i = 0; i < c.n_in; ++i) {
    if (c.in[i]) check(*c.in[i]);
  }
  for (int k = 0; c.into && k < c.n_out; ++k) check(*c.out[k].impl());
}

void detail::after_write(OpCall& c, bool grads) {
  for (int k = 0; k < c.n_out; ++k) {
    TensorImpl& o = *c.out[k].impl();
    if (!grads && context.grad_enabled && o.grad_fn) {
      // An op without history has overwritten what grad_fn computed.
      before_change(o, Field::History);
      ++o.storage->histories;
      Ref<Node>::adopt(std::exchange(o.grad_fn, nullptr)).reset();
      o.flags = static_cast<uint8_t>(o.flags & ~kRequiresGrad);
    }
    before_change(o, Field::Version);
    ++o.storage->version;
  }
}

void detail::run_now(OpCall& c) {
  check_readable(c);
  c.infer();
  context.running = c.op;
  if (!c.into) make_outputs(c);
  execute(c);
}

void dispatch(OpCall& c) {
  if (context.autocast != kFloat32 && c.op->autocast != Autocast::Keep) [[unlikely]]
    return detail::dispatch_autocast(c);
  dispatch_inline(c);
}

}  // namespace brrr
