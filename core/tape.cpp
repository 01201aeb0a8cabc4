// The tape: nodes written by differentiable ops, and their release.
#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/check.h"
#include "core/context.h"

namespace brrr {

namespace {

// Nodes that lost their last reference wait here, so that a chain of a million ops is freed without
// recursion: releasing a saved tensor may re-enter destroy() through its history.
thread_local constinit Node* pending = nullptr;
thread_local constinit bool draining = false;

template <class T> void drop(T* held) noexcept {
  if (held && held->refs.release()) destroy(held);
}

inline void drop_saved(Node& n) noexcept {
  if (n.op->saves_inputs) {
    for (int i = 0; i < n.n_in; ++i) drop(std::exchange(n.in[i].saved, nullptr));
  }
  if (!n.op->saves_outputs) return;
  for (int k = 0; k < n.n_out; ++k) drop(std::exchange(n.out[k].saved, nullptr));
}

inline void drop_edges(Node& n) noexcept {
  for (NodeInput *slot = n.in, *end = slot + n.n_in; slot != end; ++slot) {
    drop(std::exchange(slot->edge.leaf, nullptr));
    drop(std::exchange(slot->edge.node, nullptr));
  }
}

void free_node(Node* n) noexcept {
  if (!n->released) {
    drop_saved(*n);
    drop_edges(*n);
  }
  if (n->in != n->inline_in) delete[] n->in;
  FreeList<Node>::give(n);
}

}  // namespace

void destroy(Node* n) noexcept {
  if (draining) {
    n->next = pending;
    pending = n;
    return;
  }
  draining = true;
  free_node(n);
  while (pending) free_node(std::exchange(pending, pending->next));
  draining = false;
}

void release_saved(Node& n) noexcept { drop_saved(n); }

void release_node(Node& n) noexcept {
  drop_saved(n);
  drop_edges(n);
  n.released = true;
}

// --- reading -------------------------------------------------------------------------------------

static TensorImpl* unpack(const Node& n, TensorImpl* saved, uint32_t version, const char* role,
                          int i) {
  BRRR_CHECK(saved,
             "backward: an earlier backward ran through {} and freed its saved tensors; pass "
             "retain_graph to it",
             n.op->name);
  const uint32_t now = saved->storage->version;
  BRRR_CHECK(now == version,
             "backward: {} {} of {}, {}, was changed in place after it "
             "was saved (version {}, now {}); clone it before the in-place op",
             role, i, n.op->name, describe(saved), version, now);
  return saved;
}

TensorImpl* VjpCall::borrow_input(int i) const {
  return unpack(node, node.in[i].saved, node.in[i].version, "input", i);
}

Tensor VjpCall::input(int i) const { return Tensor(Ref<TensorImpl>::share(borrow_input(i))); }

Tensor VjpCall::output(int k) const {
  const Tensor t(
      Ref<TensorImpl>::share(unpack(node, node.out[k].saved, node.out[k].version, "output", k)));
  // The saved output is an alias without history; else node and output would keep each other alive.
  if (!context.grad_enabled) return t;
  Tensor alias = t.detach();
  alias.impl()->grad_fn = Ref<Node>::share(const_cast<Node*>(&node)).detach();
  alias.impl()->output = static_cast<uint8_t>(k);
  alias.impl()->flags |= kRequiresGrad;
  return alias;
}

// --- writing -------------------------------------------------------------------------------------

// An input that the call itself overwrites is saved with its old version: its gradient then fails
// with the in-place error instead of using the new values.
static void save_input(TensorImpl& t, const Tensor* out, int n_out, bool into, NodeInput& slot) {
  slot.version = t.storage->version;
  for (int k = 0; into && k < n_out; ++k) {
    if (out[k].impl()->storage != t.storage) continue;
    // An alias without history: the tensor itself will point to this node.
    slot.saved = Tensor(Ref<TensorImpl>::share(&t)).detach().detach_impl();
    --slot.version;
    return;
  }
  t.refs.retain();
  t.saved.store(true, std::memory_order_relaxed);
  slot.saved = &t;
}

// `o` is about to get the history `n` although earlier nodes may have saved it. One reachable from
// `n` would keep `o`, and so itself, alive for ever: it gets an alias with the history that `o`
// had. What it saved is outdated now, so its gradient can only fail; but it may never be needed.
static void break_cycles(Node& n, TensorImpl& o) {
  Tensor alias;
  std::vector<Node*> path{&n};
  // What the old history leads to was searched when `o` got it.
  std::unordered_set<Node*> seen{&n, o.grad_fn};
  while (!path.empty()) {
    Node* at = path.back();
    path.pop_back();
    for (int i = 0; i < at->n_in; ++i) {
      NodeInput& slot = at->in[i];
      if (slot.edge.node && seen.insert(slot.edge.node).second) path.push_back(slot.edge.node);
      if (slot.saved != &o) continue;
      if (!alias.defined()) {
        alias = Tensor(Ref<TensorImpl>::share(&o)).detach();
        alias.impl()->grad_fn = Ref<Node>::share(o.grad_fn).detach();
        alias.impl()->output = o.output;
        alias.impl()->flags = o.flags;
      }
      slot.saved = Tensor(alias).detach_impl();
      o.refs.release();  // Never the last: the caller holds one.
    }
  }
}

// Makes `n` the history of output k. The first output takes over the reference that `n` was created
// with.
static void write_output(Node* n, TensorImpl& o, int k, bool into, bool& taken) {
  const OpDef& op = *n->op;
  if (into) before_change(o, Field::History);
  if (op.saves_outputs) {
    n->out[k].saved = nullptr;
    if (op.saves_outputs >> k & 1) {
      n->out[k].saved = Tensor(Ref<TensorImpl>::share(&o)).detach().detach_impl();
      n->out[k].version = o.storage->version;
    }
  }
  if (!is_floating(o.dtype)) return;
  if (into && o.saved.load(std::memory_order_relaxed)) [[unlikely]]
    break_cycles(*n, o);
  if (taken) n->refs.retain();
  taken = true;
  o.storage->histories += into;
  drop(std::exchange(o.grad_fn, n));
  o.output = static_cast<uint8_t>(k);
  o.flags |= kRequiresGrad;
}

void write_tape(const OpDef& op, TensorImpl* const* in, int n_in, const Attrs& attrs,
                const Tensor* out, int n_out, bool into) {
  Node* n = new (FreeList<Node>::take()) Node;
  n->op = &op;
  n->n_in = static_cast<uint8_t>(n_in);
  n->n_out = static_cast<uint8_t>(n_out);
  n->in = n_in <= kInlineInputs ? n->inline_in : new NodeInput[static_cast<size_t>(n_in)];
  std::copy_n(attrs.v, attrs.n, n->attrs.v);
  n->attrs.n = attrs.n;
  n->attrs.dtype = attrs.dtype;
  n->attrs.dynamic = attrs.dynamic;
  n->attrs.kinds = attrs.kinds;
  const uint32_t saves = op.saves_inputs;
  NodeInput* const slots = n->in;
  for (int i = 0; i < n_in; ++i) {
    NodeInput& slot = slots[i];
    slot.saved = nullptr;
    slot.edge = {};
    TensorImpl* t = in[i];
    if (!t) continue;
    slot.meta.sizes.set(t->sizes, t->ndim);
    slot.meta.dtype = t->dtype;
    slot.meta.device = t->device;
    if (saves && (saves >> std::min(i, 31) & 1)) save_input(*t, out, n_out, into, slot);
    if (!t->requires_grad()) continue;
    if (Node* from = t->grad_fn) {
      from->refs.retain();
      slot.edge.node = from;
      slot.edge.output = t->output;
      // The tape may have begun on another thread: consumers always get a higher number.
      context.sequence = std::max(context.sequence, from->sequence + 1);
    } else {
      t->refs.retain();
      slot.edge.leaf = t;
    }
  }
  n->sequence = context.sequence++;
  n->recorder_number = context.recorder ? context.recorder->number : 0;
  if (n_out == 1 && !into && !op.saves_outputs && op.kind != OpKind::View &&
      is_floating(out[0].impl()->dtype) && !out[0].impl()->grad_fn) [[likely]] {
    TensorImpl& o = *out[0].impl();
    o.grad_fn = n;
    o.flags |= kRequiresGrad;
    return;
  }
  bool taken = false;
  for (int k = 0; k < n_out; ++k) write_output(n, *out[k].impl(), k, into, taken);
  if (!taken) destroy(n);
}

}  // namespace brrr
