#include "graph/call.h"

namespace brrr::graph {

namespace {

// Which part of each operand a call gets.
struct Cutting {
  const Strips* strips = nullptr;
  int64_t part = 0, parts = 1;
};

std::unique_ptr<LibraryCall> made(const Recording& r, const Instr& i, const Storages& storages,
                                  const LibraryCall* whole, const Cutting& now) {
  auto bound = std::make_unique<LibraryCall>(*i.op, i.n_in, i.n_out);
  LibraryCall& c = *bound;
  if (whole) c.call.share = now.part ? Share::Later : Share::First;
  const auto tensor = [&](uint32_t id, int k) {
    const Value& v = r.values[id];
    IntList sizes = v.size_list();
    int64_t offset = v.offset;
    if (const int dim = whole ? i.op->cut(whole->call, k, now.parts) : kWhole; dim >= 0) {
      sizes[dim] /= now.parts;
      const bool own = now.strips->parts(v.storage) > 1;
      if (!own) offset += now.part * sizes[dim] * v.strides[dim];
    }
    Ref<Storage> none;
    if (storages.empty() || !storages[v.storage]) {
      none = Ref<Storage>::adopt(new_storage(r.storages[v.storage].device, 0));
    }
    Storage& s = none ? *none : *storages[v.storage];
    return c.keep.emplace_back(tensor_on(s, v.dtype, sizes, v.stride_list(), offset));
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

}  // namespace

std::unique_ptr<LibraryCall> make_call(const Recording& r, const Instr& i,
                                       const Storages& storages) {
  return made(r, i, storages, nullptr, {});
}

std::unique_ptr<LibraryCall> make_call(const Recording& r, const Instr& i, const Storages& storages,
                                       const Strips& strips, int64_t part, int64_t parts) {
  const auto whole = make_call(r, i, storages);
  return made(r, i, storages, whole.get(), {&strips, part, parts});
}

}  // namespace brrr::graph
