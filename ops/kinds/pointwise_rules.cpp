// Shape and dtype rules that all pointwise rows share.
#include <bit>

#include "core/check.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

static int category(DType t) { return is_floating(t) ? 2 : t == kBool ? 0 : 1; }

// The dtype that a call's operands promote to, before Result is applied. PyTorch's rule: tensors
// with dims decide within their category; 0-d tensors, then numbers, only raise the category (bool
// < integer < floating).
static DType common_dtype(const OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  const auto takes_part = [&](int i) {
    return !((info.traits.condition | info.integers) >> i & 1);
  };
  // Numbers alone are computed in what is made of them: as far as precision matters where they are
  // written into a tensor (fill_), since float32 has neither all doubles nor all integers.
  const auto made = static_cast<DType>(c.attrs.dtype);
  if (c.attrs.dtype != 0xff && (!c.into || made == kFloat64 || is_integer(made))) {
    bool numbers = true;
    for (int i = 0; i < c.n_in; ++i) numbers &= !c.in[i] || !takes_part(i);
    if (numbers) return made;
  }
  int best[3] = {-1, -1, -1};  // dtype among dims, 0-d, scalars
  auto merge = [&](int level, DType t) {
    best[level] = best[level] < 0 ? static_cast<int>(t)
                                  : static_cast<int>(promote(static_cast<DType>(best[level]), t));
  };
  for (int i = 0; i < c.n_in; ++i) {
    if (!takes_part(i)) continue;
    if (const TensorImpl* t = c.in[i]) {
      merge(t->ndim > 0 ? 0 : 1, t->dtype);
    } else {
      constexpr DType kinds[] = {kFloat32, kBool, kInt64, kFloat32};
      merge(2, kinds[c.attrs.kind(i)]);
    }
  }
  int result = -1;
  for (int b : best) {
    if (b < 0) continue;
    const DType t = static_cast<DType>(b);
    if (result < 0) {
      result = b;
    } else if (category(t) > category(static_cast<DType>(result))) {
      result = static_cast<int>(promote(t, static_cast<DType>(result)));
    }
  }
  return result < 0 ? kFloat32 : static_cast<DType>(result);
}

static DType arithmetic_dtype(const OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  const DType common = common_dtype(c);
  if (is_floating(common)) return common;
  const bool to_float = info.traits.result == Result::Float || !info.loop(kInt64);
  return to_float ? kFloat32 : common;
}

// Whether an operand of integer arithmetic may be beyond int32: a number, one that varies in a
// step, a 0-d tensor, a condition.
static bool exceeds_int32(const OpCall& c) {
  const uint32_t exact = c.op->pointwise->integers;
  for (int i = 0, word = 0; i < c.n_in; ++i) {
    if (exact >> i & 1) {
    } else if (const TensorImpl* t = c.in[i]) {
      if (t->dtype == kInt64) return true;
    } else if (c.attrs.kind(i) != 3 && ((c.attrs.dynamic >> word & 1) ||
                                        c.attrs.v[word] != static_cast<int32_t>(c.attrs.v[word]))) {
      return true;
    }
    word += !c.in[i];
  }
  return false;
}

DType pointwise_compute_dtype(const OpCall& c) {
  const DType t = compute_type(arithmetic_dtype(c));
  if (c.op->pointwise->traits.wide) return is_floating(t) ? kFloat64 : kInt64;
  return t == kInt32 && exceeds_int32(c) ? kInt64 : t;
}

void settle_numbers(OpCall& c) {
  const Beyond rule = c.op->pointwise->traits.beyond;
  if (rule == Beyond::Exact || !c.attrs.kinds) return;
  const DType t = common_dtype(c);
  if (!is_integer(t)) return;  // Else all words are integers.
  for (int word = 0; word < c.attrs.n; ++word) {
    int64_t& v = c.attrs.v[word];
    if (rule == Beyond::Refuse) check_holds(c.op->name, v, t);
    v = nearest_integer(v, t);
  }
}

// What the call is to make: the words behind its numbers.
static IntList made_sizes(const OpCall& c) {
  const uint32_t kinds = c.attrs.kinds;
  const int words = std::popcount((kinds | kinds >> 1) & 0x55555555u);
  return {c.attrs.v + words, static_cast<size_t>(c.attrs.n - words)};
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
  if (const IntList sizes = made_sizes(c); sizes.size() > 0) shape = sizes;
  check_devices(c, where);
  const DType dtype = arithmetic_dtype(c);
  for (int i = 0; info.traits.no_bool && i < c.n_in; ++i) {
    BRRR_CHECK(!c.in[i] || c.in[i]->dtype != kBool, "{}: operand {} is {}; {}", c.op->name, i,
               describe(c.in[i]), info.traits.no_bool);
  }
  for (int k = 0; k < c.n_out; ++k) {
    OutMeta& m = c.meta[k];
    m.sizes = shape;
    m.device = where;
    m.alias = -1;
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
