// What runs for a group: a program per part if it is fused, else a library call, or in a strip a
// call per part.

#include <algorithm>
#include <bit>
#include <set>

#include "graph/schedule.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row.h"

namespace brrr::graph {

namespace {

DType compute_dtype(const Recording& r, const Instr& i) {
  if (!i.op->pointwise) {  // The folded operand is the first floating one.
    int k = 0;
    while (r.in(i)[k] == kNone || !is_floating(r.value(r.in(i)[k]).dtype)) ++k;
    return compute_type(r.value(r.in(i)[k]).dtype);
  }
  return pointwise_compute_dtype(make_call(r, i, {})->call);
}

class Builder {
 public:
  Builder(const Recording& r, const Part& g, const Schedule& s) : r_(r), g_(g), s_(s) {
    const IntList& space = g.domain.space;
    out_.program.row = g.domain.row;
    out_.program.space.ndim = space.size();
    std::copy_n(space.begin(), space.size(), out_.program.space.size);
  }

  GroupProgram run() {
    for (uint32_t at : g_.instrs) add(r_.instrs[at]);
    merge_dims(out_.program);
    append_steps(out_.program, steps_, s_.fast);
    return std::move(out_);
  }

 private:
  void add(const Instr& i) {
    program::Step step{i.op, compute_dtype(r_, i), {}, {}, {}};
    if (i.op->row) {
      for (const RowOperand& o : i.op->row->operands) {
        step.ignored.push_back(o.kind == Operand::Id ? add_scalar(i, kInt64, o.word) : 0);
        if (o.kind == Operand::Scalar)
          step.in.push_back(~add_scalar(i, kFloat64, o.word));
        else
          step.in.push_back(r_.in(i)[o.input] == kNone ? program::Step::kAbsent : read(i, o.input));
      }
    } else {
      for (int k = 0, word = 0; k < i.n_in; ++k) {
        const bool given = r_.in(i)[k] != kNone;
        const DType type = i.attrs.kind(k) == 3 ? kFloat64 : kInt64;
        step.in.push_back(given ? read(i, k) : ~add_scalar(i, type, word++));
      }
    }
    for (int k = 0; i.op->pointwise && k < i.op->pointwise->n_made; ++k) {
      step.in.push_back(index_window(i.op->pointwise->place[k]));
    }
    for (int k = 0; k < i.n_out; ++k) {
      step.out.push_back(window(i, i.n_in + k));
      written_.insert(step.out.back());
      // Not stored if no later group reads it, even if the storage was written before.
      const uint32_t st = r_.value(r_.out(i)[k]).storage;
      at(step.out.back()).stored =
          r_.lasting[st] || s_.life(r_, st).second > s_.group_of[g_.instrs[0]];
    }
    steps_.push_back(std::move(step));
  }

  int read(const Instr& i, int k) {
    const int w = window(i, k);
    if (!written_.count(w)) at(w).loaded = true;
    return w;
  }

  int add_scalar(const Instr& i, DType type, int word) {
    program::Number n{type, i.attrs.v[word]};
    n.control = i.attrs.dynamic >> word & 1;
    if (n.control) n.bits = i.control + std::popcount(i.attrs.dynamic & ((1u << word) - 1));
    out_.program.numbers.push_back(n);
    return static_cast<int>(out_.program.numbers.size()) - 1;
  }

  program::Window& at(int w) { return out_.program.windows[static_cast<size_t>(w)]; }

  // A window of integers: the position of an element along a dim, or its linear index (Integers).
  int index_window(int place) {
    program::Window w{.dtype = kInt64, .loaded = true, .index = true};
    const IntList strides = contiguous_strides(g_.domain.space);
    if (place == kNumber) std::copy(strides.begin(), strides.end(), w.stride);
    if (place != kNumber) w.stride[g_.domain.space.size() - place] = 1;
    return find_or_add(w, kNone, [](uint32_t known) { return known == kNone; });
  }

  // Adds the window, unless there is one with equal strides whose value is `same`; its index.
  template <class Same> int find_or_add(const program::Window& w, uint32_t id, const Same& same) {
    std::vector<program::Window>& all = out_.program.windows;
    for (size_t n = 0; n < all.size(); ++n) {
      const bool is = same(out_.values[n]) && std::ranges::equal(w.stride, all[n].stride);
      if (is) return static_cast<int>(n);
    }
    all.push_back(w);
    out_.values.push_back(id);
    return static_cast<int>(all.size()) - 1;
  }

  // Sets the window's strides over the space by the value's role.
  void set_strides(program::Window& w, const Value& v, Role role) const {
    const IntList &space = g_.domain.space, dense = contiguous_strides(space);
    const int last = space.size() - 1;
    if (role == Role::Each) {
      const StorageInfo& info = r_.storages[v.storage];
      for (int d = 0; d <= last; ++d) w.stride[d] = info.padded(dense[d]);
    }
    if (role == Role::PerRow || role == Role::Id) {
      for (int d = 0; d < last; ++d) w.stride[d] = dense[d] / space[last];
    }
    if (role == Role::Shared || role == Role::Sum) w.stride[last] = v.numel > 1;
    if (role != Role::Other) return;  // Role::One: all strides are 0.
    for (int d = 0; d <= last; ++d) w.stride[d] = v.stride_along(d, space.size());
  }

  // The window of operand k, where results follow the inputs.
  int window(const Instr& i, int k) {
    const uint32_t id = r_.all(i)[k];
    const Role as = role(r_, i, k, g_.domain);
    const Value& v = r_.values[id];
    program::Window w{.dtype = v.dtype};
    w.address = static_cast<uintptr_t>(v.offset * w.item());  // Storages begin at multiples of 16.
    set_strides(w, v, as);
    return find_or_add(w, id, [&](uint32_t known) {
      if (known == kNone) return false;
      const Value& o = r_.values[known];
      return o.storage == v.storage && o.offset == v.offset && o.dtype == v.dtype;
    });
  }

  const Recording& r_;
  const Part& g_;
  const Schedule& s_;
  GroupProgram out_;
  std::vector<program::Step> steps_;
  std::set<int> written_;
};

}  // namespace

GroupProgram program_of(const Recording& r, const Part& g, const Schedule& s) {
  return Builder(r, g, s).run();
}

std::unique_ptr<LibraryCall> make_call(const Recording& r, const Instr& i, const Storages& storages,
                                       const PartOf& of) {
  const auto whole = of.strips ? make_call(r, i, storages) : nullptr;
  auto bound = std::make_unique<LibraryCall>(*i.op, i.n_in, i.n_out);
  LibraryCall& c = *bound;
  if (whole) c.call.share = of.part ? Share::Later : Share::First;
  const auto tensor = [&](uint32_t id, int k) {
    const Value& v = r.values[id];
    const StorageInfo& info = r.storages[v.storage];
    IntList sizes = v.size_list(), strides = v.stride_list();
    for (int64_t& stride : strides) stride = info.padded(stride);
    int64_t offset = info.padded(v.offset);
    if (const int dim = whole ? i.op->cut(whole->call, k) : kWhole; dim >= 0) {
      sizes[dim] /= of.parts;
      const bool own = of.strips->parts(v.storage) > 1;
      if (!own) offset += of.part * sizes[dim] * v.strides[dim];
    }
    Ref<Storage> s = storages.empty() ? Ref<Storage>() : storages[v.storage];
    if (!s) s = Ref<Storage>::adopt(new_storage(info.device, 0));
    return c.keep.emplace_back(tensor_on(*s, v.dtype, sizes, strides, offset));
  };
  c.keep.reserve(static_cast<size_t>(i.n_in) + i.n_out);
  c.call.attrs = i.attrs;
  for (int k = 0; k < i.n_in; ++k) {
    const uint32_t id = r.in(i)[k];
    c.in[static_cast<size_t>(k)] = id == kNone ? nullptr : tensor(id, k).impl();
  }
  c.call.into = i.into;
  for (int k = 0; k < i.n_out; ++k) c.call.out[k] = tensor(r.out(i)[k], i.n_in + k);
  c.call.infer();
  uint32_t control = i.control;
  i.attrs.each_dynamic([&](int w) { c.dynamic.emplace_back(w, control++); });
  return bound;
}

}  // namespace brrr::graph
