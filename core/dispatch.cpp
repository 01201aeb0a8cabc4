// The one way an op is executed: recorded or run, then written to the tape.
#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"

namespace brrr {

Ref<ControlCell> control_cell(double v) {
  auto* c = new ControlCell;
  c->value = v;
  return Ref<ControlCell>::adopt(c);
}

const char* name(OpKind k) {
  constexpr const char* names[] = {"pointwise", "reduction", "view",
                                   "library",   "random",    "composite"};
  return names[static_cast<int>(k)];
}

// --- registry ---------------------------------------------------------------------------------------

static std::vector<const OpDef*>& rows() {
  static std::vector<const OpDef*> all;
  return all;
}
const std::vector<const OpDef*>& registry() { return rows(); }

void OpDef::register_row() {
  index = static_cast<uint32_t>(rows().size());
  rows().push_back(this);
}

const OpDef* find_op(const std::string& n) {
  for (const OpDef* op : rows()) {
    if (n == op->name) return op;
  }
  return nullptr;
}

// --- tape -------------------------------------------------------------------------------------------

static void clear(NodeInput& slot, Node*& dying) noexcept {
  slot.saved.reset();
  slot.edge.leaf.reset();
  if (Node* n = slot.edge.node.detach(); n && n->refs.release()) {
    n->next = dying;
    dying = n;
  }
}

// Nodes that die release their inputs' nodes; the worklist keeps a chain of a million ops from
// recursing a million deep. Destroying a saved tensor may come back here: it has its own list.
static void free_nodes(Node* dying) noexcept {
  while (dying) {
    Node* n = std::exchange(dying, dying->next);
    for (int i = 0; i < n->n_in; ++i) clear(n->in[i], dying);
    for (NodeInput& o : n->out) o.saved.reset();
    if (n->in != n->inline_in) delete[] n->in;
    n->~Node();
    FreeList<Node>::give(n);
  }
}

// A saved tensor may hold the last handle of its own history (a long chain of exps does), so
// destruction could still recurse through TensorImpl; nodes met while one is being freed queue up.
static thread_local constinit Node* pending = nullptr;
static thread_local constinit bool draining = false;

void destroy(Node* n) noexcept {
  n->next = pending;
  pending = n;
  if (draining) return;
  draining = true;
  while (pending) {
    Node* one = std::exchange(pending, pending->next);
    one->next = nullptr;
    free_nodes(one);
  }
  draining = false;
}

void release_node(Node& n) noexcept {
  Node* dying = nullptr;
  for (int i = 0; i < n.n_in; ++i) clear(n.in[i], dying);
  for (NodeInput& o : n.out) o.saved.reset();
  n.released = true;
  while (dying) destroy(std::exchange(dying, dying->next));
}

static Tensor unpack(const Node& n, const NodeInput& slot, const char* role, int i) {
  BRRR_CHECK(slot.saved, "backward: {} was run through before and its saved tensors are gone; pass "
             "retain_graph to the first backward", n.op->name);
  const Storage& s = *slot.saved->storage;
  BRRR_CHECK(s.version == slot.version, "backward: {} {} of {}, {}, was changed in place after it "
             "was saved (version {}, now {}); clone it before the in-place op", role, i, n.op->name,
             describe(slot.saved.get()), slot.version, s.version);
  return Tensor(slot.saved);
}

Tensor VjpCall::input(int i) const { return unpack(node, node.in[i], "input", i); }

Tensor VjpCall::output(int k) const {
  Tensor t = unpack(node, node.out[k], "output", k);
  // The saved output is an alias without history, or node and output would keep each other alive.
  if (context.grad_enabled) {
    Tensor alias = t.detach();
    alias.impl()->grad_fn = Ref<Node>::share(const_cast<Node*>(&node)).detach();
    alias.impl()->output = static_cast<uint8_t>(k);
    alias.impl()->flags |= kRequiresGrad;
    return alias;
  }
  return t;
}

// An input that the call itself overwrites is saved with the version it had: its gradient then
// fails with the in-place error instead of using the new values.
static void save_input(const OpCall& c, TensorImpl& t, NodeInput& slot) {
  slot.version = t.storage->version;
  for (int k = 0; c.into && k < c.n_out; ++k) {
    if (c.out[k].impl()->storage != t.storage) continue;
    // An alias without history: the tensor itself will point to this node.
    slot.saved = Ref<TensorImpl>::adopt(Tensor(Ref<TensorImpl>::share(&t)).detach().detach_impl());
    --slot.version;
    return;
  }
  slot.saved = Ref<TensorImpl>::share(&t);
}

void write_tape(OpCall& c) {
  const OpDef& op = *c.op;
  Node* n = new (FreeList<Node>::take()) Node;
  auto holder = Ref<Node>::adopt(n);
  n->op = &op;
  n->n_in = static_cast<uint8_t>(c.n_in);
  n->n_out = c.n_out;
  n->in = c.n_in <= kInlineInputs ? n->inline_in : new NodeInput[c.n_in];
  Attrs& a = n->attrs;
  std::copy_n(c.attrs.v, c.attrs.n, a.v);
  a.n = c.attrs.n;
  a.dtype = c.attrs.dtype;
  a.kinds = c.attrs.kinds;
  for (int i = 0; i < c.n_in; ++i) {
    TensorImpl* t = c.in[i];
    if (!t) continue;
    NodeInput& slot = n->in[i];
    slot.meta.sizes = t->size_list();
    slot.meta.dtype = t->dtype;
    slot.meta.device = t->device;
    if (op.saves_inputs >> std::min(i, 31) & 1) save_input(c, *t, slot);
    if (!t->requires_grad()) continue;
    if (t->grad_fn) {
      slot.edge.node = Ref<Node>::share(t->grad_fn);
      // A tape may have been begun on another thread: consumers always come later.
      context.sequence = std::max(context.sequence, t->grad_fn->sequence + 1);
      slot.edge.output = t->output;
    } else {
      slot.edge.leaf = Ref<TensorImpl>::share(t);
    }
  }
  n->sequence = context.sequence++;
  for (int k = 0; k < c.n_out; ++k) {
    TensorImpl& o = *c.out[k].impl();
    if (c.into) before_change(o, Field::History);
    if (op.saves_outputs >> k & 1) {
      n->out[k].saved = Ref<TensorImpl>::adopt(c.out[k].detach().detach_impl());
      n->out[k].version = o.storage->version;
    }
    if (!is_floating(o.dtype)) continue;
    Node* old = std::exchange(o.grad_fn, Ref<Node>(holder).detach());
    if (old && old->refs.release()) destroy(old);
    o.output = static_cast<uint8_t>(k);
    o.flags |= kRequiresGrad;
    if (op.kind == OpKind::View) {
      o.is_view = true;
      o.storage->grad_views = true;
    }
  }
}

// --- execution --------------------------------------------------------------------------------------

void make_outputs(OpCall& c) {
  for (int k = 0; k < c.n_out; ++k) {
    const OutMeta& m = c.meta[k];
    if (m.alias >= 0) {
      Storage* s = c.in[m.alias]->storage;
      s->refs.retain();
      c.out[k] = Tensor(Ref<TensorImpl>::adopt(new_impl(s, m.dtype, m.sizes, m.strides, m.offset)));
    } else {
      c.out[k] = raw_empty(m.sizes, m.dtype, m.device);
    }
  }
}

void execute(OpCall& c) {
  if (!c.into) make_outputs(c);
  if (!c.op->cpu) return;
  const TensorImpl& where = *c.out[0].impl();
  if (where.device.type == DeviceType::CPU) {
    c.op->cpu(c);
  } else {
    backend(where.device.type).launch(c);
  }
}

// What must hold before anything is written in place; nothing has changed when this throws.
static void check_in_place(const OpCall& c, bool grads) {
  for (int k = 0; k < c.n_out; ++k) {
    const TensorImpl& o = *c.out[k].impl();
    for (int i = 0; i < o.ndim; ++i) {
      BRRR_CHECK(o.strides[i] != 0 || o.sizes[i] <= 1,
                 "{}_: {} is expanded, several elements share memory; clone() it before writing",
                 c.op->name, describe(&o));
    }
    if (!context.grad_enabled) continue;
    BRRR_CHECK(!(o.requires_grad() && !o.grad_fn),
               "{}_: a leaf that requires grad is changed in place; do it under NoGradGuard",
               c.op->name);
    BRRR_CHECK(!(grads && (o.is_view || o.storage->grad_views)),
               "{}_: {} shares memory with a differentiable view; use the out-of-place op or "
               "clone() first", c.op->name, describe(&o));
  }
}

void dispatch(OpCall& c) {
  bool grads = false;
  for (int i = 0; i < c.n_in; ++i) {
    const TensorImpl* t = c.in[i];
    if (!t) continue;
    grads |= t->requires_grad();
    if (t->storage->pass != context.recorder && t->storage->pass) [[unlikely]] {
      fail("{}: operand {} is a placeholder of another step's recording", c.op->name, describe(t));
    }
    if (t->storage->lost) [[unlikely]] check_host_access(c.op->name, t);
  }
  grads = grads && context.grad_enabled && c.op->differentiable();
  if (c.into) check_in_place(c, grads);
  if (context.recorder) {
    context.recorder->op(c);
  } else {
    c.op->infer(c);
    execute(c);
  }
  if (c.into) {
    for (int k = 0; k < c.n_out; ++k) {
      TensorImpl& o = *c.out[k].impl();
      before_change(o, Field::Version);
      ++o.storage->version;
    }
  }
  if (grads) write_tape(c);
}

}  // namespace brrr
