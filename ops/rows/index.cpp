// gather, scatter_add, index_select, embedding and one_hot: shape rules, gradients and rows.
#include "core/call.h"
#include "core/check.h"
#include "ops/kinds/row_kernel.h"
#include "ops/rows/index_kernels.h"
#include "ops/library_ops.h"

namespace brrr {

namespace {

// --- shape rules ---------------------------------------------------------------------------------

void check_fits(const OpCall& c, const TensorImpl& index, const IntList& sizes) {
  bool fits = index.ndim == sizes.size();
  for (int d = 0; d < index.ndim && fits; ++d) {
    fits = d == dim_of(c.attrs) || index.sizes[d] <= sizes[d];
  }
  BRRR_CHECK(fits,
             "{}: index {} does not fit {}: it needs as many dims and may be larger along dim "
             "{} only",
             c.op->name, to_string(index.size_list()), to_string(sizes), dim_of(c.attrs));
}

void gather_infer(OpCall& c) {
  check_devices(c);
  check_fits(c, *c.in[1], c.in[0]->size_list());
  set_meta(c, 0, c.in[0]->dtype, c.in[1]->size_list());
}

void select_infer(OpCall& c) {
  const TensorImpl &x = *c.in[0], &index = *c.in[1];
  BRRR_CHECK(x.ndim > 0 && index.ndim == 1,
             "index_select: x {} needs at least one dim and index {} exactly one",
             to_string(x.size_list()), to_string(index.size_list()));
  check_devices(c);
  same_infer(c);
  c.meta[0].sizes[dim_of(c.attrs)] = index.numel;
}

void embedding_infer(OpCall& c) {
  const TensorImpl &weight = *c.in[0], &ids = *c.in[1];
  BRRR_CHECK(weight.ndim == 2, "embedding: weight must be [n, width], got {}",
             to_string(weight.size_list()));
  BRRR_CHECK(ids.ndim < kMaxDims, "embedding: ids {} leave no dim for the width; flatten some",
             to_string(ids.size_list()));
  check_devices(c);
  set_meta(c, 0, weight.dtype, ids.size_list());
  c.meta[0].sizes.push_back(weight.sizes[1]);
}

/// Sizes of the tensor that is read or added to: input 0's or, for a sum that starts from zeros,
/// those that follow DimAttrs.
IntList indexed_sizes(const OpCall& c) {
  return c.in[0] ? c.in[0]->size_list() : c.attrs.after<DimAttrs>();
}

/// The result has the dtype of src.
void sum_infer(OpCall& c) { set_meta(c, 0, c.in[2]->dtype, indexed_sizes(c), c.in[2]->device); }

void scatter_add_infer(OpCall& c) {
  const TensorImpl &index = *c.in[1], &src = *c.in[2];
  check_devices(c);
  BRRR_CHECK(src.dtype != kBool, "{}: no sums of bool; convert with to(dtype)", c.op->name);
  BRRR_CHECK(!c.in[0] || c.in[0]->dtype == src.dtype,
             "{}: dtypes differ: {} and src {}; convert one with to(dtype)", c.op->name,
             describe(c.in[0]), describe(&src));
  check_fits(c, index, indexed_sizes(c));
  BRRR_CHECK(index.same_shape(src), "scatter_add: index {} and src {} must have the same shape",
             to_string(index.size_list()), to_string(src.size_list()));
  sum_infer(c);
}

// Throws unless the index, input `operand`, is in [0, size); `dim` is for the message.
void check_index(const OpCall& c, int operand, int dim, int64_t size) {
  const DenseInput dense(c.in[operand], kInt64);
  const auto* const index = dense.as<int64_t>();
  const int64_t n = c.in[operand]->numel;
  const auto inside = [=](int64_t i) { return static_cast<uint64_t>(i) < uint64_t(size); };
  // An index is out of range if it, or size - 1 minus it, is negative.
  vx::i64 signs = {};
  int64_t i = 0;
  for (; i + vx::lanes <= n; i += vx::lanes) {
    const vx::i64 at = vx::load(reinterpret_cast<const long*>(index + i));
    signs |= at | (size - 1 - (at & INT64_MAX));
  }
  bool all = true;
  for (int k = 0; k < vx::lanes; ++k) all &= signs[k] >= 0;
  for (; i < n; ++i) all &= inside(index[i]);
  for (i = 0; !all; ++i) {
    BRRR_CHECK(inside(index[i]),
               "{}: index {} is out of range: dim {} has size {}, so indices are in [0, {})",
               c.op->name, index[i], dim, size, size);
  }
}

void check_positions(const OpCall& c) {
  const IntList sizes = indexed_sizes(c);
  const int dim = dim_of(c.attrs);
  check_index(c, 1, dim, sizes.size() ? sizes[dim] : 1);
}

// --- rows and gradients --------------------------------------------------------------------------

// The gradient of src is picked from g at the index.
template <Tensor (*kPick)(const Tensor&, int64_t, const Tensor&)> void sum_vjp(VjpCall& v) {
  if (v.needs(0)) v.gin[0] = v.gout[0];
  if (v.needs(2)) v.gin[2] = kPick(v.gout[0], dim_of(v.attrs()), v.input(1));
}
// Picking reads only the elements picked, or the whole table if that is less. Sums read and write
// all of the result; in place, as many elements as there are terms.
Work pick_work(const OpCall& c) {
  const double picked = memory_bytes(*c.out[0].impl());
  return {0, std::min(picked, memory_bytes(*c.in[0])) + memory_bytes(*c.in[1]) + picked};
}
Work sum_work(const OpCall& c) {
  const auto terms = static_cast<double>(c.in[2]->numel);
  const double all = memory_bytes(*c.out[0].impl()),
               named = static_cast<double>(itemsize(c.out[0].dtype())) * terms;
  return {terms, operand_bytes(c) - (c.into ? 2 * std::max(0.0, all - named) : 0)};
}

// Scratch memory: a dense index and, for sums, copies of operands that have another dtype than the
// arithmetic or may share memory with the result.
int64_t pick_scratch(const OpCall& c) {
  const TensorImpl& at = *c.in[1];
  return at.contiguous() && !c.into ? 0 : scratch_for(at.numel, sizeof(int64_t));
}
int64_t sum_scratch(const OpCall& c) {
  const TensorImpl& out = *c.out[0].impl();
  int64_t bytes = pick_scratch(c);
  if (itemsize(out.dtype) == 2) bytes += scratch_for(out.numel, 4) + scratch_for(c.in[2]->numel, 4);
  if (!c.into) return bytes;
  for (const TensorImpl* t : {c.in[0], c.in[2]}) bytes += t ? scratch_for(t->numel, 8) : 0;
  return bytes;
}

OpSpec sum_spec(void (*infer)(OpCall&), void (*vjp)(VjpCall&), bool gradient_row) {
  return {.infer = infer,
          .check_values = check_positions,
          .kernel = {{accumulate}, {accumulate}},
          .scratch = sum_scratch,
          .work = sum_work,
          .vjp = vjp,
          .saves_inputs = 0b010,
          .grad_aliases = 0b001,
          .gradient_row = gradient_row};
}

const OpDef scatter_add_row{"scatter_add",
                            "src added at the positions that index names along a dim",
                            sum_spec(scatter_add_infer, sum_vjp<gather>, false)};
const OpDef index_add_row{"index_add",
                          "slices of src added to the slices that index names along a dim",
                          sum_spec(sum_infer, sum_vjp<index_select>, true)};

// The gradient of x: zeros with g added at the picked positions.
void gather_vjp(VjpCall& v) {
  if (!v.needs(0)) return;
  v.gin[0] = call(scatter_add_row, {Tensor(), v.input(1), v.gout[0]}, DimAttrs{dim_of(v.attrs())},
                  v.meta(0).sizes);
}
// Flattens the index, which has any shape for an embedding.
void slices_vjp(VjpCall& v) {
  if (!v.needs(0)) return;
  const int dim = dim_of(v.attrs());
  const Tensor index = v.input(1).reshape({v.input(1).numel()});
  IntList sizes = v.meta(0).sizes, picked = sizes;
  picked[dim] = index.numel();
  v.gin[0] =
      call(index_add_row, {Tensor(), index, v.gout[0].reshape(picked)}, DimAttrs{dim}, sizes);
}
// Every part has its own ids and the whole table; a 0-d id cannot be cut.
int embedding_cut(const OpCall& c, int operand) {
  if (c.in[1]->ndim == 0) return kUncut;
  return operand == 0 ? kWhole : 0;
}

OpSpec pick_spec(void (*infer)(OpCall&), void (*vjp)(VjpCall&),
                 decltype(OpSpec::cut) cut = nullptr) {
  return {.infer = infer,
          .check_values = check_positions,
          .kernel = {{pick}, {pick}},
          .scratch = pick_scratch,
          .cut = cut,
          .work = pick_work,
          .vjp = vjp,
          .saves_inputs = 0b10};
}

const OpDef gather_row{"gather", "the elements that index names along a dim",
                       pick_spec(gather_infer, gather_vjp)};
const OpDef index_select_row{"index_select", "the slices that index names along a dim",
                             pick_spec(select_infer, slices_vjp)};
const OpDef embedding_row{"embedding", "the rows of a table that ids name",
                          pick_spec(embedding_infer, slices_vjp, embedding_cut)};

// An id out of range equals no position: a GPU records the error and writes zeros.
const NumberOp one_hot_row{
    "one_hot",
    "a 1 at the position of each id, else 0",
    {.check = [](const OpCall& c) { check_index(c, 0, c.in[0]->ndim - 1, c.attrs.v[0]); }},
    Integers<0, 1>{},
    [](auto id, auto classes, auto place) {
      return m::where(m::checked(id, classes) == m::like(id, place), 1.0, 0.0);
    }};

Tensor index64(const char* op, const Tensor& index) {
  const DType dtype = defined(op, index).dtype();
  BRRR_CHECK(dtype == kInt64 || dtype == kInt32,
             "{}: indices must be int64 or int32, got {}; convert with to(kInt64)", op,
             describe(index));
  return index.to(kInt64);
}

/// The part of src that the index covers.
Tensor covered(const Tensor& src, const Tensor& index) {
  Tensor part = defined("scatter_add", src);
  for (int d = 0; d < part.dim() && part.dim() == index.dim(); ++d) {
    if (index.size(d) < part.size(d)) part = part.narrow(d, 0, index.size(d));
  }
  return part;
}

}  // namespace

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const int d = dim_arg("gather", x, dim);
  return call(gather_row, {x, index64("gather", index)}, DimAttrs{d});
}

Tensor Tensor::gather(int64_t dim, const Tensor& index) const {
  return brrr::gather(*this, dim, index);
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  const int d = dim_arg("scatter_add", x, dim);
  const Tensor at = index64("scatter_add", index);
  return call(scatter_add_row, {x, at, covered(src, at)}, DimAttrs{d});
}

const Tensor& Tensor::scatter_add_(int64_t dim, const Tensor& index, const Tensor& src) const {
  const int d = dim_arg("scatter_add", *this, dim);
  const Tensor at = index64("scatter_add", index);
  call_into(*this, scatter_add_row, {*this, at, covered(src, at)}, DimAttrs{d});
  return *this;
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const int d = dim_arg("index_select", x, dim);
  return call(index_select_row, {x, index64("index_select", index)}, DimAttrs{d});
}

Tensor Tensor::index_select(int64_t dim, const Tensor& index) const {
  return brrr::index_select(*this, dim, index);
}

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  const Tensor at = index64("embedding", ids);
  return call(embedding_row, {defined("embedding", weight), at}, DimAttrs{0});
}

Tensor one_hot(const Tensor& ids, int64_t classes) {
  BRRR_CHECK(classes > 0, "one_hot: classes must be positive, got {}", classes);
  const Tensor at = index64("one_hot", ids).unsqueeze(-1);
  IntList sizes = ids.sizes();
  sizes.push_back(classes);
  return PointwiseCall(one_hot_row).make(sizes, kInt64, ids.device()).add(at).add(classes).run();
}

}  // namespace brrr
