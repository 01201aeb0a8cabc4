// Calls of library kernels, and of parts of them.
#include "graph/schedule.h"

namespace brrr::graph {

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
    for (int64_t& stride : strides) stride = info.laid(stride);
    int64_t offset = info.laid(v.offset);
    if (const int dim = whole ? i.op->cut(whole->call, k, of.parts) : kWhole; dim >= 0) {
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
