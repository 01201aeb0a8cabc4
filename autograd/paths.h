#pragma once
// The part of the tape that leads to the inputs of grad(): the rest is neither run nor released.

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/context.h"

namespace brrr {

/// Whether a node is older than the step being recorded. If so, the step cannot be frozen: the next
/// call may reach another node.
inline bool predates_step(const Node& n) {
  Recorder* const r = context.recorder;
  const bool older = r && n.recorder_number != r->number;
  if (older) r->uses_older_tape = true;
  return older;
}

class Paths {
 public:
  /// Of a pass that starts from the `n` outputs.
  Paths(const std::vector<Tensor>& inputs, const Tensor* outputs, size_t n) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      const TensorImpl& t = *inputs[k].impl();
      // What leads to an input is newer than the node that made it.
      oldest_ = std::min(oldest_, t.grad_fn ? t.grad_fn->sequence + 1 : 0);
      ends_.push_back({&t, k, 0});
      if (t.grad_fn) ends_.push_back({t.grad_fn, k, t.output});
    }
    std::ranges::sort(ends_);
    find(outputs, n);
  }

  bool contains(const Node* n) const { return on_path_.contains(n); }
  bool contains(const Edge& e) const {
    bool ends = false;
    each_input(e, [&](size_t) { ends = true; });
    return ends || contains(e.node);
  }
  /// f(k) for each input that the edge ends in.
  template <class F> void each_input(const Edge& e, const F& f) const {
    const void* const place = e.leaf ? static_cast<const void*>(e.leaf) : e.node;
    auto end = std::ranges::lower_bound(ends_, place, {}, &End::place);
    for (; end != ends_.end() && end->place == place; ++end) {
      if (e.leaf || end->output == e.output) f(end->input);
    }
  }

 private:
  void find(const Tensor* outputs, size_t n) {
    std::vector<const Node*> all;
    std::unordered_set<const Node*> seen;
    const auto visit = [&](const Node* node) {
      if (node && node->sequence >= oldest_ && seen.insert(node).second) all.push_back(node);
    };
    for (size_t i = 0; i < n; ++i) {
      if (outputs[i].defined()) visit(outputs[i].impl()->grad_fn);
    }
    for (size_t k = 0; k < all.size(); ++k) {
      const Node& node = *all[k];
      predates_step(node);
      for (int i = 0; !node.released && i < node.n_in; ++i) visit(node.in[i].edge.node);
    }
    std::ranges::sort(all, {}, &Node::sequence);  // A node leads to older ones only.
    for (const Node* node : all) {
      bool leads = node->released;  // Its inputs are unknown: an error once it is reached.
      for (int i = 0; !leads && i < node->n_in; ++i) leads = contains(node->in[i].edge);
      if (leads) on_path_.insert(node);
    }
  }

  /// Where a path ends: a leaf or a node's output, which is the input of number `input`.
  struct End {
    const void* place;
    size_t input;
    decltype(TensorImpl::output) output;
    auto operator<=>(const End&) const = default;
  };
  std::vector<End> ends_;  // Sorted.
  uint64_t oldest_ = UINT64_MAX;
  std::unordered_set<const Node*> on_path_;
};

}  // namespace brrr
