#include "graph/recording.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace brrr::graph {

bool Value::same_elements(const Value& o) const {
  if (storage != o.storage || dtype != o.dtype || offset != o.offset || numel != o.numel) {
    return false;
  }
  if (!strided && !o.strided) return true;
  return ndim == o.ndim && std::equal(sizes, sizes + ndim, o.sizes) &&
         std::equal(strides, strides + ndim, o.strides);
}

std::string Recording::describe(uint32_t id) const {
  if (id == kNone) return "scalar";
  const Value& v = values[id];
  return fmt::format("%{} {}{}", id, name(v.dtype), to_string(v.size_list()));
}

std::string Recording::describe(const Instr& i) const {
  std::string s = paths[i.path].empty() ? "" : shown(paths[i.path], SIZE_MAX) + ": ";
  s += fmt::format("{}{}(", i.op->name, i.into ? "_" : "");
  for (int k = 0; k < i.n_in; ++k) s += (k ? ", " : "") + describe(in(i)[k]);
  s += ") -> ";
  for (int k = 0; k < i.n_out; ++k) s += (k ? ", " : "") + describe(out(i)[k]);
  return s;
}

Tensor placeholder(const Value& v, uint32_t id, Storage* storage) {
  TensorImpl* t = raw_impl(storage, v.dtype, v.ndim, storage->device);
  if (v.strided) t->flags |= kStrided;
  t->value = id;
  t->offset = v.offset;
  t->numel = v.numel;
  std::memcpy(t->sizes, v.sizes, sizeof t->sizes);
  std::memcpy(t->strides, v.strides, sizeof t->strides);
  return Tensor(Ref<TensorImpl>::adopt(t));
}

// Copies the bytes of a storage and a tensor that the ordinary constructors have made.
static void make_cue(const Recording& r, const Instr& i, uint32_t index, Cue& cue) {
  // A call without tensor operands has its device as an attribute, which no cue compares.
  const bool made = !i.into && std::ranges::count(r.in(i), kNone) == i.n_in;
  // No cue compares the number of results: ops in which it varies get no cue, nor do views, whose
  // memory is not their own (checked below; split and unbind are such views).
  if (i.n_out != 1 || i.op->n_out != 1 || i.n_in == 0 || made || i.n_in > Cue::kOperands ||
      i.attrs.dynamic || i.attrs.n > Cue::kWords) {
    return;
  }
  const Value& v = r.values[r.out(i)[0]];
  const StorageInfo& info = r.storages[v.storage];
  const bool own = info.origin == Origin::Internal && info.maker == index;
  if (!i.into && (!own || v.ndim > Cue::kDims)) return;
  cue.op = i.op;
  cue.into = i.into;
  cue.out = r.out(i)[0];
  cue.form = i.attrs.form();
  cue.n_in = i.n_in;
  std::ranges::copy(r.in(i), cue.in);
  std::copy_n(i.attrs.v, i.attrs.n, cue.words);
  if (i.into) return;
  std::copy_n(v.sizes, Cue::kDims, cue.sizes);
  std::copy_n(v.strides, Cue::kDims, cue.strides);
  Storage* storage = new_storage(info.device, info.bytes);
  storage->slot = v.storage;
  std::memcpy(cue.storage, static_cast<const void*>(storage), sizeof cue.storage);
  const Tensor tensor = placeholder(v, cue.out, storage);
  std::memcpy(cue.tensor, static_cast<const void*>(tensor.impl()), sizeof cue.tensor);
}

void Recording::complete() {
  for (size_t at = instrs.size(); at-- > 0;) {
    for (uint32_t id : out(instrs[at])) {
      StorageInfo& info = storages[values[id].storage];
      if (info.origin == Origin::Internal) info.maker = static_cast<uint32_t>(at);
    }
  }
  cues.assign(instrs.size() + 1, Cue{});
  for (uint32_t k = 0; k < instrs.size(); ++k) make_cue(*this, instrs[k], k, cues[k]);
  find_accesses();
}

Extent Recording::extent(uint32_t storage, int64_t base) const {
  Extent e;
  for (uint32_t id = 0; id < values.size(); ++id) {
    const Value& v = values[id];
    if (v.storage != storage || v.numel == 0) continue;
    const auto [low, high] = byte_span(v);
    const bool fresh = std::exchange(e.value, id) == kNone;
    e.low = std::min(fresh ? INT64_MAX : e.low, low + base * v.item());
    e.high = std::max(fresh ? INT64_MIN : e.high, high + base * v.item());
  }
  return e;
}

}  // namespace brrr::graph
