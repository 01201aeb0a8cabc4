// Concatenation of tensors along a dim: cat and stack.
#include <cstring>

#include "core/check.h"
#include "ops/kinds/composite.h"
#include "ops/library_ops.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

constexpr int64_t kGrainBytes = 1 << 17;

void check_fits(const TensorImpl& first, const TensorImpl& t, int dim, size_t number) {
  bool fits = t.ndim == first.ndim;
  for (int d = 0; d < first.ndim && fits; ++d) fits = d == dim || t.sizes[d] == first.sizes[d];
  BRRR_CHECK(fits, "cat: sizes must agree in all dims but {}: {} and {} (tensor {})", dim,
             to_string(first.size_list()), to_string(t.size_list()), number);
}

void cat_infer(OpCall& c) {
  const TensorImpl& first = *c.in[0];
  BRRR_CHECK(first.ndim > 0, "cat: 0-d tensors have no dim to join; use stack");
  check_devices(c);
  const int dim = dim_of(c.attrs);
  set_meta(c, 0, first.dtype, first.size_list());
  OutMeta& m = c.meta[0];
  for (int i = 1; i < c.n_in; ++i) {
    const TensorImpl& t = *c.in[i];
    check_fits(first, t, dim, static_cast<size_t>(i));
    m.dtype = promote(m.dtype, t.dtype);
    m.sizes[dim] += t.sizes[dim];
    numel_of(m.sizes, c.op->name);  // Throws before the next addition could overflow.
  }
}

void copy_part(TensorImpl& out, const TensorImpl& t, int dim, int64_t begin) {
  if (t.numel == 0) return;
  const int64_t outer = lines_along(t, dim).outer;
  // Many runs of one element, as from stack(), are faster as one strided copy.
  constexpr int64_t many = 32;
  if (t.dtype != out.dtype || !t.contiguous() || (t.numel == outer && outer >= many)) {
    return copy_into_part(out, t, dim, begin);
  }
  const auto size = static_cast<int64_t>(itemsize(t.dtype));
  const int64_t bytes = t.numel / outer * size;   // Of one run of t.
  const int64_t step = out.numel / outer * size;  // From one run to the next in out.
  char* to = out.data() + begin * (step / out.sizes[dim]);
  const char* from = t.data();
  parallel_for(outer, std::max<int64_t>(1, kGrainBytes / bytes), [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      std::memcpy(to + i * step, from + i * bytes, static_cast<size_t>(bytes));
    }
  });
}

void cat_cpu(OpCall& c) {
  const int dim = dim_of(c.attrs);
  int64_t at = 0;
  for (int i = 0; i < c.n_in; ++i) {
    copy_part(*c.out[0].impl(), *c.in[i], dim, at);
    at += c.in[i]->sizes[dim];
  }
}

// One kernel copies all parts that are contiguous and of the result's dtype.
//
// `begin`, in units: where each part begins within a row of the result, and where the last one
// ends. Parts with a null address are copied separately.
BRRR_DEVICE_STRUCT(CatArguments, {
  char* to;
  long units, row, parts;
  const char* from[128];
  long begin[129];
});

constexpr DeviceKernel cat_kernel{"cat", CatArgumentsText, 256, {kUnitText, R"(
EACH_KERNEL(cat, CatArguments, 256, at, p.units) {
  using Unit = UnitOf<N>::type;
  const long row = at / p.row, i = at % p.row;
  long part = 0, end = p.parts;
  while (end - part > 1) {
    const long middle = (part + end) / 2;
    if (p.begin[middle] <= i) part = middle; else end = middle;
  }
  if (!p.from[part]) return;
  const long begin = p.begin[part], length = p.begin[part + 1] - begin;
  ((Unit*)p.to)[at] = ((const Unit*)p.from[part])[row * length + i - begin];
}
)"}};

void cat_cuda(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  if (out.numel == 0) return;
  const int dim = dim_of(c.attrs);
  const auto step = lines_along(out, dim).inner * static_cast<int64_t>(itemsize(out.dtype));
  CatArguments a{};
  a.to = out.data();
  uint64_t bits = reinterpret_cast<uint64_t>(a.to) | 16;
  bool any = false;
  int64_t at = 0;
  for (int i = 0; i < c.n_in; ++i) {
    const TensorImpl& t = *c.in[i];
    a.begin[i] = at * step;
    bits |= static_cast<uint64_t>(a.begin[i]);
    if (t.dtype == out.dtype && t.contiguous()) {
      a.from[i] = t.data();
      if (t.numel) bits |= reinterpret_cast<uint64_t>(a.from[i]);
      any |= t.numel > 0;
    } else {
      copy_into_part(out, t, dim, at);
    }
    at += t.sizes[dim];
  }
  if (!any) return;
  a.begin[c.n_in] = at * step;
  const int64_t unit = common_unit(bits | static_cast<uint64_t>(at * step));
  for (int i = 0; i <= c.n_in; ++i) a.begin[i] /= unit;
  a.parts = c.n_in;
  a.row = a.begin[c.n_in];
  a.units = out.numel * static_cast<int64_t>(itemsize(out.dtype)) / unit;
  run_kernel(cat_kernel, {.n = static_cast<int>(unit)}, {blocks_for(a.units)}, a);
}

void cat_vjp(VjpCall& v) {
  const int dim = dim_of(v.attrs());
  int64_t at = 0;
  for (int i = 0; i < v.node.n_in; ++i) {
    const int64_t length = v.meta(i).sizes[dim];
    if (v.needs(i)) v.gin[i] = v.gout[0].narrow(dim, at, length).to(v.meta(i).dtype);
    at += length;
  }
}

const OpDef cat_row{"cat",
                    "tensors concatenated along a dim",
                    {.infer = cat_infer,
                     .kernel = {{cat_cpu}, {cat_cuda}},
                     .scratch = no_scratch,
                     .cut = cut_outside_dim,
                     .vjp = cat_vjp,
                     .grad_aliases = 0xffffffff,
                     .joins = true}};

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, int64_t dim) {
  BRRR_CHECK(!tensors.empty(), "cat: the list of tensors is empty");
  for (const Tensor& t : tensors) BRRR_CHECK(t.defined(), "cat: a tensor is undefined");
  const int d = wrap_dim("cat", dim, static_cast<int>(tensors[0].dim()));
  const int n = static_cast<int>(tensors.size()), most = Inputs::kMost;
  if (n <= most) return call(cat_row, {tensors.data(), n}, DimAttrs{d});
  // Longer lists are concatenated in groups, converted to the dtype of the whole list.
  DType dtype = tensors[0].dtype();
  for (size_t i = 1; i < tensors.size(); ++i) {
    check_fits(*tensors[0].impl(), *tensors[i].impl(), d, i);
    dtype = promote(dtype, tensors[i].dtype());
  }
  std::vector<Tensor> groups;
  for (int i = 0; i < n; i += most) {
    std::vector<Tensor> group(tensors.begin() + i, tensors.begin() + std::min(n, i + most));
    for (Tensor& t : group) t = t.to(dtype);
    groups.push_back(call(cat_row, {group.data(), static_cast<int>(group.size())}, DimAttrs{d}));
  }
  return cat(groups, d);
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t dim) {
  BRRR_CHECK(!tensors.empty(), "stack: the list of tensors is empty");
  BRRR_CHECK(tensors[0].defined(), "stack: tensor 0 is undefined");
  const IntList sizes = tensors[0].sizes();
  const int d = wrap_dim("stack", dim, sizes.size() + 1);
  std::vector<Tensor> parts;
  parts.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    BRRR_CHECK(t.defined(), "stack: tensor {} is undefined", parts.size());
    BRRR_CHECK(t.sizes() == sizes, "stack: shapes must be equal: {} and {} (tensor {})",
               to_string(sizes), to_string(t.sizes()), parts.size());
    parts.push_back(t.unsqueeze(d));
  }
  return cat(parts, d);
}

}  // namespace brrr
