// The backward pass: nodes in decreasing sequence, no recursion, saved tensors released on the way.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "autograd/autograd.h"
#include "autograd/paths.h"
#include "core/autocast.h"
#include "core/check.h"
#include "core/context.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/view_ops.h"

namespace brrr {

/// Gradients of a node's outputs while they are being gathered.
struct Pending {
  Tensor grad[kMaxOutputs];

  static void* operator new(size_t) { return FreeList<Pending>::take(); }
  static void operator delete(void* p) { FreeList<Pending>::give(p); }
};

namespace {

// Buffers that are reused by later passes.
struct PassBuffers {
  std::vector<Node*> heap;
  std::vector<TensorImpl*> made;
};

class Engine : NotCopied {
 public:
  /// Without `inputs` gradients go to leaves.
  Engine(GradOptions options, const Paths* inputs, Tensor* grads)
      : options_(options),
        inputs_(inputs),
        grads_(grads),
        started_(std::move(thread_own<PassBuffers>().made)),
        heap_(std::move(thread_own<PassBuffers>().heap)) {
    options_.retain_graph |= options_.create_graph;
  }
  ~Engine() {
    if (hook_ && !done_) hook_->abandoned();
    for (Node* n : heap_) {
      delete std::exchange(n->pending, nullptr);
      Ref<Node>::adopt(n).reset();
    }
    heap_.clear();
    thread_own<PassBuffers>().heap = std::move(heap_);
    started_.clear();
    thread_own<PassBuffers>().made = std::move(started_);
  }

  void seed(const Tensor& output, const Tensor& g) {
    const TensorImpl& t = *output.impl();
    Edge e{t.grad_fn, t.grad_fn ? nullptr : output.impl(), t.output};
    deliver(e, Tensor(g), false, false);
  }

  void run() {
    if (hook_) count_remaining();
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, {}, &Node::sequence);
      // The heap's reference keeps the node until it has been processed.
      auto node = Ref<Node>::adopt(heap_.back());
      heap_.pop_back();
      process(*node);
    }
    for (const Ref<TensorImpl>& leaf : counted_leaves_) {
      complete(*leaf, progress_[leaf.get()]);  // Fewer came than expected.
    }
    if (hook_) hook_->finished();
    done_ = true;
  }

 private:
  /// The gradients that a leaf has yet to receive in this pass, counted where that is needed.
  struct LeafProgress {
    int remaining = 0;
    bool received = false;
    Tensor sum;  ///< For a leaf that had a gradient before the pass.
  };

  bool wanted(const Edge& e) const { return !inputs_ || inputs_->contains(e); }
  static void add_up(Tensor& into, Tensor&& g) { into = into.defined() ? into + g : std::move(g); }

  // A locked read-modify-write costs as much as twenty other instructions: gradients are moved, and
  // the heap takes over the reference of an edge that is `spent`, of no use to a later pass.
  // `fresh`: g's memory is not shared, known from the ops that made it, never from a count.
  void deliver(Edge& e, Tensor&& g, bool fresh, bool spent) {
    if (inputs_) {
      inputs_->each_input(e, [&](size_t k) { add_up(grads_[k], Tensor(g)); });
    }
    if (e.leaf) {
      // None for a leaf whose requires_grad has been switched off since the forward pass.
      if (!inputs_ && e.leaf->requires_grad()) accumulate(*e.leaf, g, fresh);
      return;
    }
    Node* n = e.node;
    if (inputs_ && !inputs_->contains(n)) return;
    if (!n->pending) {
      n->pending = new Pending;
      if (spent) {
        e.node = nullptr;
      } else {
        n->refs.retain();
      }
      heap_.push_back(n);
      std::ranges::push_heap(heap_, {}, &Node::sequence);
    }
    add_up(n->pending->grad[e.output], std::move(g));
  }

  // A fresh gradient becomes the leaf's own; one that may be shared is copied first. To a gradient
  // from before the pass its sum is added, not its terms: passes one after the other then give the
  // same bits as passes in different processes whose gradients are added.
  void accumulate(TensorImpl& leaf, const Tensor& g, bool fresh) {
    const Borrowed t(&leaf);
    if (!leaf.grad) {
      t->set_grad(fresh && g.is_contiguous() ? g : g.clone());
      started_.push_back(&leaf);
    } else if (options_.create_graph) {
      t->set_grad(t->grad() + g);
    } else if (std::find(started_.begin(), started_.end(), &leaf) != started_.end()) {
      Borrowed(leaf.grad)->add_(g);
    } else {
      if (!counted_) count_remaining();
      add_up(progress_[&leaf].sum, Tensor(g));
    }
    if (!counted_) return;
    LeafProgress& a = progress_[&leaf];
    a.received = true;
    if (--a.remaining <= 0) complete(leaf, a);
  }

  void complete(TensorImpl& leaf, LeafProgress& a) {
    if (a.sum.defined()) Borrowed(leaf.grad)->add_(std::exchange(a.sum, {}));
    if (hook_ && std::exchange(a.received, false)) hook_->ready(leaf);
  }

  // How many gradients each leaf has yet to receive: edges of the nodes in the heap, of the node
  // that is being processed, and of all that they lead to.
  void count_remaining() {
    counted_ = true;
    std::vector<const Node*> all(heap_.begin(), heap_.end());
    std::unordered_set<const Node*> seen(all.begin(), all.end());
    const auto follow = [&](const Edge& e) {
      if (e.leaf && ++progress_[e.leaf].remaining == 1)
        counted_leaves_.push_back(Ref<TensorImpl>::share(e.leaf));
      if (e.node && seen.insert(e.node).second) all.push_back(e.node);
    };
    if (current_) {
      for (int i = next_; i < current_->n_in; ++i) follow(current_->in[i].edge);
    }
    while (!all.empty()) {
      const Node* n = all.back();
      all.pop_back();
      // (Nothing passes a released node, though a recorded step keeps it until its end.)
      for (int i = 0; !n->released && i < n->n_in; ++i) follow(n->in[i].edge);
    }
  }

  void process(Node& n) {
    const std::unique_ptr<Pending> pending(std::exchange(n.pending, nullptr));
    BRRR_CHECK(!n.released,
               "backward: the graph behind {} has been used and released; pass "
               "retain_graph to the first backward, or detach() tensors of an earlier step",
               n.op->name);
    uint64_t mask = 0;
    for (int i = 0; i < n.n_in; ++i) {
      if (n.in[i].edge && wanted(n.in[i].edge)) mask |= uint64_t{1} << std::min(i, 63);
    }
    if (!mask) return;
    Tensor few[kInlineInputs];
    std::vector<Tensor> many(n.n_in > kInlineInputs ? static_cast<size_t>(n.n_in) : 0);
    Tensor* gin = many.empty() ? few : many.data();
    const Tensor& g = pending->grad[0];
    const DType g_dtype = g.defined() ? g.impl()->dtype : kFloat32;
    const int64_t g_numel = g.defined() ? g.numel() : 0;
    VjpCall v{n, pending->grad, gin, mask};
    if (n.op->vjp) n.op->vjp(v);
    bool left = !n.op->vjp;
    for (int k = 0; k < n.n_out; ++k) left |= v.gout[k].defined() && !(n.op->vjp_outputs >> k & 1);
    if (left) differentiate_decomposition(v);
    const bool older = predates_step(n);
    const bool spent = !options_.retain_graph && !older;
    // Edges are still needed below, saved tensors are not: free them before memory is allocated.
    if (spent) release_saved(n);
    current_ = &n;
    for (int i = 0; i < n.n_in; ++i) {
      next_ = i;
      if (!v.needs(i) || !gin[i].defined()) continue;
      // A pointwise gradient that is g itself, converted or reduced, has memory of its own.
      const TensorImpl& made = *gin[i].impl();
      const bool own = n.op->pointwise && (made.dtype != g_dtype || made.numel != g_numel);
      const bool shared = (n.op->grad_aliases >> std::min(i, 31) & 1) && !own;
      deliver(n.in[i].edge, std::move(gin[i]), !shared, spent);
      gin[i] = Tensor();
    }
    current_ = nullptr;
    if (options_.retain_graph) return;
    older ? context.recorder->journal(n) : release_node(n);
  }

  static void differentiate_decomposition(VjpCall& v);

  AutocastGuard no_autocast_{kFloat32};  // The forward pass has decided what is rounded.
  GradOptions options_;
  const Paths* const inputs_;
  Tensor* const grads_;  // Of the inputs.
  GradientHook* const hook_ = inputs_ ? nullptr : context.gradients;
  std::vector<TensorImpl*> started_;  // Leaves that got their grad in this pass.
  std::unordered_map<TensorImpl*, LeafProgress> progress_;
  std::vector<Ref<TensorImpl>> counted_leaves_;  // Kept alive: the last edge to one may be dropped.
  bool counted_ = false, done_ = false;
  const Node* current_ = nullptr;  // Being processed, up to its input next_.
  int next_ = 0;
  std::vector<Node*> heap_;  // Each with a counted reference.
};

void run_engine(const Tensor* outputs, const Tensor* seeds, size_t n, GradOptions options,
                const Paths* inputs = nullptr, Tensor* grads = nullptr) {
  const Held recorded(context.grad_enabled, options.create_graph);
  Engine engine(options, inputs, grads);
  for (size_t i = 0; i < n; ++i) {
    if (seeds[i].defined() && outputs[i].requires_grad()) engine.seed(outputs[i], seeds[i]);
  }
  engine.run();
}

// The device of a node's operands: that of its first tensor.
Device device_of(const Node& n) {
  int i = 0;
  while (n.attrs.kind(i)) ++i;
  return n.in[i].meta.device;
}

// Runs the op's decomposition on aliases of the saved inputs and differentiates that. The aliases
// tell equal operands apart (x * x) and keep the history for higher orders.
void Engine::differentiate_decomposition(VjpCall& v) {
  const Node& n = v.node;
  const bool create_graph = context.grad_enabled;
  EnableGradGuard enable;
  std::vector<Tensor> in(n.n_in), aliases;
  std::vector<TensorImpl*> impls(n.n_in);
  std::vector<int> which;
  const Device device = device_of(n);
  for (int i = 0, word = 0; i < n.n_in; ++i) {
    if (n.attrs.kind(i)) {
      const bool real = n.attrs.kind(i) == 3;
      in[i] = real ? full({}, n.attrs.d(word), kFloat64, device)
                   : full({}, n.attrs.v[word], kInt64, device);
      ++word;
      continue;
    }
    if (!n.in[i].saved) continue;
    in[i] = v.input(i);
    if (v.needs(i)) {
      in[i] = alias(in[i]);
      aliases.push_back(in[i]);
      which.push_back(i);
    }
    impls[i] = in[i].impl();
  }
  OpCall c(*n.op, impls.data(), n.n_in);
  c.attrs = n.attrs;
  c.attrs.dynamic = 0;
  n.op->decompose(c, in.data());
  std::vector<Tensor> grads(aliases.size());
  const Paths inputs(aliases, c.out, c.n_out);
  run_engine(c.out, v.gout, c.n_out, {.create_graph = create_graph}, &inputs, grads.data());
  for (size_t k = 0; k < which.size(); ++k) {
    if (grads[k].defined()) add_up(v.gin[which[k]], grads[k].to(v.meta(which[k]).dtype));
  }
}

// The gradient of an output that a pass starts from: `given`, or 1 for a single element.
Tensor make_seed(const char* what, const Tensor& o, const Tensor& given) {
  if (given.defined()) {
    BRRR_CHECK(given.sizes() == o.sizes() && given.dtype() == o.dtype(),
               "{}: the gradient {} does not match the output {}", what, describe(given.impl()),
               describe(o.impl()));
    return given;
  }
  BRRR_CHECK(o.numel() == 1,
             "{}: {} has more than one element; give its gradient, or reduce it "
             "with sum() or mean()",
             what, describe(o.impl()));
  BRRR_CHECK(is_floating(o.dtype()), "{}: {} is not floating and has no gradient", what,
             describe(o.impl()));
  return full(o.sizes(), 1.0, o.dtype(), o.device());
}

void check_any_requires_grad(const char* what, bool any) {
  BRRR_CHECK(any,
             "{}: nothing requires grad; call set_requires_grad(true) on a leaf before the "
             "forward pass, outside NoGradGuard, and make gradients that are to be differentiated "
             "with create_graph",
             what);
}

std::vector<Tensor> make_seeds(const char* what, const std::vector<Tensor>& outputs,
                               const std::vector<Tensor>& given) {
  BRRR_CHECK(given.empty() || given.size() == outputs.size(),
             "{}: {} outputs but {} gradients; give one for each", what, outputs.size(),
             given.size());
  std::vector<Tensor> seeds;
  bool any = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    BRRR_CHECK(outputs[i].defined(), "{}: output {} is undefined", what, i);
    any |= outputs[i].requires_grad();
    seeds.push_back(make_seed(what, outputs[i], given.empty() ? Tensor() : given[i]));
  }
  check_any_requires_grad(what, any);
  return seeds;
}

}  // namespace

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs,
              GradOptions options) {
  const auto seeds = make_seeds("backward", outputs, grad_outputs);
  run_engine(outputs.data(), seeds.data(), outputs.size(), options);
}

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  BRRR_CHECK(defined(), "backward: the tensor is undefined");
  const Tensor seed = make_seed("backward", *this, gradient);
  check_any_requires_grad("backward", requires_grad());
  run_engine(this, &seed, 1, {.retain_graph = retain_graph});
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         GradOptions options, const std::vector<Tensor>& grad_outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    BRRR_CHECK(inputs[i].defined(), "grad: input {} is undefined", i);
    BRRR_CHECK(inputs[i].requires_grad(),
               "grad: input {} does not require grad; call set_requires_grad(true) on it", i);
  }
  const auto seeds = make_seeds("grad", outputs, grad_outputs);
  std::vector<Tensor> grads(inputs.size());
  const Paths paths(inputs, outputs.data(), outputs.size());
  run_engine(outputs.data(), seeds.data(), outputs.size(), options, &paths, grads.data());
  for (size_t i = 0; i < grads.size(); ++i) {
    BRRR_CHECK(grads[i].defined() || options.allow_unused,
               "grad: the outputs do not depend on input {}, {}; set allow_unused", i,
               describe(inputs[i].impl()));
  }
  return grads;
}

}  // namespace brrr
