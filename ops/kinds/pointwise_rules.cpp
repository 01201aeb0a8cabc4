// Shape and dtype rules that all pointwise rows share.
#include <bit>
#include <optional>

#include "core/check.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

static int category(DType t) { return is_floating(t) ? 2 : t == kBool ? 0 : 1; }

// The dtype that a call's operands promote to, by PyTorch's rule: tensors with dims decide within
// their category; 0-d tensors, then scalars, only raise the category (bool < integer < floating).
static DType common_dtype(const OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  std::optional<DType> best[3], result;  // Of tensors with dims, 0-d ones, scalars.
  for (int i = 0; i < c.n_in; ++i) {
    if ((info.traits.condition | info.integers) >> i & 1) continue;
    constexpr DType kinds[] = {kFloat32, kBool, kInt64, kFloat32};
    const TensorImpl* t = c.in[i];
    const DType own = t ? t->dtype : kinds[c.attrs.kind(i)];
    std::optional<DType>& level = best[!t ? 2 : t->ndim > 0 ? 0 : 1];
    level = level ? promote(*level, own) : own;
  }
  // A call on scalars alone computes in the dtype of its result; one that writes into a tensor
  // (fill_) only for float64 and integers: float32 holds neither all doubles nor all integers.
  const auto made = static_cast<DType>(c.attrs.dtype);
  const bool exact = c.attrs.dtype != 0xff && (!c.into || made == kFloat64 || is_integer(made));
  if (exact && !best[0] && !best[1]) return made;
  for (const std::optional<DType>& b : best) {
    if (b && (!result || category(*b) > category(*result))) result = b;
  }
  return result.value_or(kFloat32);
}

DType pointwise_dtype(const OpCall& c) {
  const DType common = common_dtype(c);
  return is_floating(common) || c.op->pointwise->loop(kInt64) ? common : kFloat32;
}

// Whether an operand of integer arithmetic may exceed int32: a scalar, one that varies in a step, a
// 0-d tensor, a condition.
static bool exceeds_int32(const OpCall& c) {
  const uint32_t exact = c.op->pointwise->integers;
  for (int i = 0, words = 0; i < c.n_in; ++i) {
    const TensorImpl* t = c.in[i];
    const int word = t ? 0 : words++;
    const bool large =
        t ? t->dtype == kInt64
          : c.attrs.kind(i) != 3 && (c.attrs.dynamic >> word & 1 ||
                                     c.attrs.v[word] != static_cast<int32_t>(c.attrs.v[word]));
    if (large && !(exact >> i & 1)) return true;
  }
  return false;
}

DType pointwise_compute_dtype(const OpCall& c) {
  const DType t = compute_type(pointwise_dtype(c));
  if (c.op->pointwise->traits.wide) return is_floating(t) ? kFloat64 : kInt64;
  return t == kInt32 && exceeds_int32(c) ? kInt64 : t;
}

void fit_integer_scalars(OpCall& c) {
  const Beyond rule = c.op->pointwise->traits.beyond;
  if (rule == Beyond::Exact || !c.attrs.kinds) return;
  const DType t = common_dtype(c);
  if (!is_integer(t)) return;  // Otherwise every word is an integer.
  for (int word = 0; word < c.attrs.n; ++word) {
    int64_t& v = c.attrs.v[word];
    if (rule == Beyond::Refuse) check_holds(c.op->name, v, t);
    v = nearest_integer(v, t);
  }
}

void pointwise_infer(OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  BRRR_CHECK(c.n_in == info.n_in, "{}: takes {} operands, got {}", c.op->name, info.n_in, c.n_in);
  IntList shape;
  const TensorImpl* first = nullptr;
  for (int i = 0; i < c.n_in; ++i) {
    const TensorImpl* t = c.in[i];
    if (!t) continue;
    shape = first ? broadcast_shapes(c.op->name, shape, t->size_list()) : t->size_list();
    if (!first) first = t;
  }
  const Device made{static_cast<DeviceType>(c.attrs.device), 0};
  const Device where = c.into ? c.out[0].device() : first ? first->device : made;
  // The words after the scalars hold the sizes that the call is to make.
  const int numbers = std::popcount((c.attrs.kinds | c.attrs.kinds >> 1) & 0x55555555u);
  if (c.attrs.n > numbers) shape = c.attrs.list(numbers);
  check_devices(c, where);
  const DType dtype = pointwise_dtype(c);
  for (int i = 0; info.traits.no_bool && i < c.n_in; ++i) {
    BRRR_CHECK(!c.in[i] || c.in[i]->dtype != kBool, "{}: operand {} is {}; {}", c.op->name, i,
               describe(c.in[i]), info.traits.no_bool);
  }
  for (int k = 0; k < c.n_out; ++k) {
    OutMeta& m = c.meta[k];
    m.sizes = shape;
    m.device = where;
    m.dtype = info.mask_out[k] ? kBool : dtype;
    if (c.attrs.dtype != 0xff) m.dtype = static_cast<DType>(c.attrs.dtype);
    if (!c.into) continue;
    const TensorImpl& o = *c.out[k].impl();
    if (first) shape = broadcast_shapes(c.op->name, shape, o.size_list());
    BRRR_CHECK(!first || shape == o.size_list(),
               "{}_: the result has shape {}, which does not fit into {}", c.op->name,
               to_string(shape), describe(&o));
    BRRR_CHECK(c.attrs.dtype != 0xff || category(m.dtype) <= category(o.dtype),
               "{}_: a {} result cannot be written into {}; convert with to(dtype)", c.op->name,
               name(m.dtype), describe(&o));
  }
}

}  // namespace brrr
