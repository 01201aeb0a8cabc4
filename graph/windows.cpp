#include "graph/windows.h"

#include <algorithm>
#include <numeric>

#include "ops/kinds/pointwise.h"

namespace brrr::graph {

Windows::Windows(const Recording& r, const Group& g, const Schedule& s) : r_(r), g_(g), s_(s) {
  find();
  collapse();
}

size_t Windows::add(uint32_t id) {
  if (const auto it = by_value_.find(id); it != by_value_.end()) return it->second;
  Window w{};
  w.value = id;
  const Value& v = r_.values[id];
  const int64_t n = numel_of(g_.space);
  const bool dense = !v.strided && v.numel == n;
  const IntList own = dense ? contiguous_strides(g_.space) : v.stride_list();
  const IntList shape = dense ? g_.space : v.size_list();
  const int shift = g_.space.size() - shape.size();
  for (int d = 0; d < g_.space.size(); ++d) {
    // A one-element operand of a flat instruction may have more dims than the space.
    const int at = d - shift;
    w.stride[d] = at < 0 || v.numel == 1 || shape[at] == 1 ? 0 : own[at];
  }
  size_t at = 0;
  while (at < all.size() && !(r_.values[all[at].value].same_elements(v) &&
                              std::equal(w.stride, w.stride + kMaxDims, all[at].stride))) {
    ++at;
  }
  if (at == all.size()) all.push_back(w);
  return by_value_[id] = at;
}

void Windows::find() {
  std::vector<bool> written;
  for (uint32_t at : g_.instrs) {
    const Instr& i = r_.instrs[at];
    for (int k = 0; k < i.n_in; ++k) {
      if (r_.in(i)[k] == kNone) continue;
      const size_t w = add(r_.in(i)[k]);
      written.resize(all.size());
      if (!written[w]) all[w].loaded = true;
    }
    for (int k = 0; k < i.n_out; ++k) {
      const size_t w = add(r_.out(i)[k]);
      written.resize(all.size());
      written[w] = true;
      all[w].stored = s_.stored[r_.value(r_.out(i)[k]).storage];
    }
  }
}

void Windows::collapse() {
  for (int d = 0; d < g_.space.size(); ++d) {
    if (g_.space[d] == 1) continue;
    bool merge = ndim > 0;
    for (const Window& w : all) {
      if (!w.touched() || !merge) continue;
      merge = w.stride[ndim - 1] == w.stride[d] * g_.space[d];
    }
    if (!merge) size[ndim++] = 1;
    size[ndim - 1] *= g_.space[d];
    for (Window& w : all) w.stride[ndim - 1] = w.stride[d];
  }
  if (ndim == 0) {
    size[ndim++] = 1;
    for (Window& w : all) w.stride[0] = 0;
  }
}

std::vector<std::vector<uint32_t>> independent_parts(const Recording& r, const Group& g) {
  const int64_t n = numel_of(g.space);
  struct Users {
    std::vector<size_t> all;
    bool one_pass = false;
  };
  std::map<uint32_t, Users> users;  // By storage.
  for (size_t k = 0; k < g.instrs.size(); ++k) {
    const Instr& i = r.instrs[g.instrs[k]];
    for (uint32_t o = i.first_in; o < i.first_out + i.n_out; ++o) {
      if (r.operands[o] == kNone) continue;
      const Value& v = r.value(r.operands[o]);
      Users& u = users[v.storage];
      u.all.push_back(k);
      u.one_pass |= o >= i.first_out || (v.numel == n && n > 1);
    }
  }
  std::vector<size_t> part(g.instrs.size());  // Of instructions joined the first.
  std::iota(part.begin(), part.end(), size_t{0});
  for (const auto& [storage, u] : users) {
    for (size_t k = 1; u.one_pass && k < u.all.size(); ++k) {
      const size_t x = part[u.all[0]], y = part[u.all[k]];
      for (size_t& p : part) p = p == x || p == y ? std::min(x, y) : p;
    }
  }
  std::vector<std::vector<uint32_t>> parts;
  for (size_t first = 0; first < part.size(); ++first) {
    std::vector<uint32_t> instrs;
    for (size_t k = first; k < part.size(); ++k) {
      if (part[k] == first) instrs.push_back(g.instrs[k]);
    }
    if (!instrs.empty()) parts.push_back(std::move(instrs));
  }
  return parts;
}

DType compute_dtype(const Recording& r, const Instr& i) {
  // The rule looks at dtypes, dims and numbers only; a call without data is enough.
  TensorImpl fake[kMaxOperands];
  TensorImpl* in[kMaxOperands];
  for (int k = 0; k < i.n_in; ++k) {
    in[k] = nullptr;
    if (r.in(i)[k] == kNone) continue;
    in[k] = &fake[k];
    fake[k].dtype = r.value(r.in(i)[k]).dtype;
    fake[k].ndim = r.value(r.in(i)[k]).ndim;
  }
  OpCall c(*i.op, in, i.n_in);
  c.attrs = i.attrs;
  return pointwise_compute_dtype(c);
}

}  // namespace brrr::graph
