#include "graph/recording.h"

#include <fmt/format.h>

#include <algorithm>

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
  std::string s = paths[i.path].empty() ? "" : paths[i.path] + ": ";
  s += fmt::format("{}{}(", i.op->name, i.into ? "_" : "");
  for (int k = 0; k < i.n_in; ++k) s += (k ? ", " : "") + describe(in(i)[k]);
  s += ") -> ";
  for (int k = 0; k < i.n_out; ++k) s += (k ? ", " : "") + describe(out(i)[k]);
  return s;
}

bool Recording::survives(uint32_t storage) const {
  return std::binary_search(survivors.begin(), survivors.end(), storage);
}

}  // namespace brrr::graph
