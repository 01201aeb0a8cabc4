#include "ops/rows/index_kernels.h"

#include <cstring>
#include <type_traits>

#include "ops/kinds/merge_dims.h"
#include "ops/kinds/row_kernel.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

/// The Walk of a call. An index of the small tensor's shape selects elements; any other selects
/// slices along `dim`, which then may be several dims of the small tensor: those of an embedding's
/// index.
Walk walk_of(const TensorImpl& big, const TensorImpl& small, const TensorImpl& index,
             const int64_t* positions, int dim) {
  Walk w{};
  w.at = positions;
  w.dim = -1;
  const auto push = [&w](int64_t n, int64_t b, int64_t s, int64_t i, bool indexed) {
    const int last = w.ndim - 1;
    if (!indexed && n == 1) return;
    if (indexed) {
      w.dim = w.ndim;
    } else if (w.ndim > 0 && w.dim != last && w.big[last] == b * n && w.small[last] == s * n &&
               w.index[last] == i * n) {
      n *= w.size[--w.ndim];
    }
    w.size[w.ndim] = n;
    w.big[w.ndim] = b;
    w.small[w.ndim] = s;
    w.index[w.ndim++] = i;
  };
  const bool elements = index.same_shape(small);
  const IntList steps = contiguous_strides(small.size_list());
  const int extra = small.ndim - big.ndim;  // The small tensor is contiguous if there are any.
  for (int d = 0; d < big.ndim; ++d) {
    const int own = d < dim ? d : d + extra;
    if (d != dim) {
      push(small.sizes[own], big.strides[d], small.strides[own], elements ? steps[own] : 0, false);
    } else {
      push(elements ? small.sizes[d] : index.numel, big.strides[d],
           own < dim ? 0 : small.strides[own], elements ? steps[d] : 1, true);
    }
  }
  if (big.ndim == 0) push(1, 1, 1, 1, true);
  return w;
}

/// small = big.
struct Move {
  template <class T> static void one(const T& big, T& small) { small = big; }
  template <class T> static void run(const T* big, T* small, int64_t n) {
    std::memcpy(small, big, static_cast<size_t>(n) * sizeof(T));
  }
};

/// big += small.
struct Add {
  template <class T> static void one(T& big, const T& small) { big = wrapping_sum(big, small); }
  template <class T> static void run(T* big, const T* small, int64_t n) {
    int64_t i = 0;
    if constexpr (std::is_floating_point_v<T>) {
      for (; i + vx::lanes <= n; i += vx::lanes) {
        vx::store(big + i, vx::load(big + i) + vx::load(small + i));
      }
    }
    for (; i < n; ++i) one(big[i], small[i]);
  }
};

/// Runs the innermost dim from the given addresses on.
template <class Op, class T> void run_row(const Walk& w, T* big, T* small, const int64_t* at) {
  const int last = w.ndim - 1;
  const int64_t n = w.size[last], s = w.small[last], i = w.index[last], step = w.big[w.dim];
  const int64_t b = w.dim == last ? 0 : w.big[last];
  if (i == 1 && s == 1 && step == 1 && b == 0) {  // Along the last dim: no multiplications.
    for (int64_t j = 0; j < n; ++j) Op::one(big[at[j]], small[j]);
    return;
  }
  if (i != 0) {
    for (int64_t j = 0; j < n; ++j) Op::one(big[at[j * i] * step + j * b], small[j * s]);
    return;
  }
  big += *at * step;
  if (b == 1 && s == 1) return Op::run(big, small, n);
  for (int64_t j = 0; j < n; ++j) Op::one(big[j * b], small[j * s]);
}

/// Runs rows [begin, end); a row is the innermost dim.
template <class Op, class T>
void run_rows(const Walk& w, T* big, T* small, int64_t begin, int64_t end) {
  int64_t outside[kMaxDims];  // Strides of the big tensor, 0 along the indexed dim.
  std::copy_n(w.big, w.ndim, outside);
  outside[w.dim] = 0;
  DimWalk<3> walk(w.ndim - 1, w.size, {outside, w.small, w.index}, begin);
  for (; begin < end; ++begin, walk.next()) {
    run_row<Op>(w, big + walk.at[0], small + walk.at[1], w.at + walk.at[2]);
  }
}

// Threads split dims other than the indexed one, so that no two of them write the same element and
// each element receives its terms in index order.
template <class Op, class T> void run(const Walk& w, char* big_data, char* small_data) {
  auto* big = reinterpret_cast<T*>(big_data);
  auto* small = reinterpret_cast<T*>(small_data);
  const int last = w.ndim - 1;
  int64_t rows = 1;
  for (int d = 0; d < last; ++d) rows *= w.size[d];
  if (last == 0) return run_rows<Op>(w, big, small, 0, 1);
  if (w.dim > 0 || std::is_same_v<Op, Move>) {
    const int64_t slices = w.dim > 0 ? w.size[0] : rows, inside = rows / slices;
    const int64_t grain = std::max<int64_t>(1, kRowGrain / (inside * w.size[last]));
    return parallel_for(slices, grain, [&](int64_t b, int64_t e) {
      run_rows<Op>(w, big, small, b * inside, e * inside);
    });
  }
  const int64_t grain = std::max<int64_t>(64, kRowGrain / rows);
  parallel_for(w.size[last], grain, [&](int64_t b, int64_t e) {
    Walk part = w;
    part.size[last] = e - b;
    part.at += b * w.index[last];
    run_rows<Op>(part, big + b * w.big[last], small + b * w.small[last], 0, rows);
  });
}

void move(const Walk& w, const TensorImpl& big, TensorImpl& small) {
  const size_t item = itemsize(big.dtype);
  const auto kernel = item == 8   ? run<Move, int64_t>
                      : item == 4 ? run<Move, int32_t>
                      : item == 2 ? run<Move, int16_t>
                                  : run<Move, int8_t>;
  kernel(w, big.data(), small.data());
}

void add(const Walk& w, TensorImpl& big, const TensorImpl& small) {
  const auto kernel = big.dtype == kFloat32   ? run<Add, float>
                      : big.dtype == kFloat64 ? run<Add, double>
                      : big.dtype == kInt64   ? run<Add, int64_t>
                      : big.dtype == kInt32   ? run<Add, int32_t>
                                              : run<Add, uint8_t>;
  kernel(w, big.data(), small.data());
}

// Whether two tensors of one shape are the same elements in memory.
bool same_memory(const TensorImpl& a, const TensorImpl& b) {
  return a.data() == b.data() && a.dtype == b.dtype &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
}

// For slices without elements a GPU's kernels still check the positions, which nothing has checked.
bool is_empty_walk(const OpCall& c, const TensorImpl& small) {
  return small.numel == 0 && (small.device == kCPU || c.in[1]->numel == 0);
}

DenseInput index_of(const OpCall& c) {
  const bool overwritten = c.into && c.out[0].impl()->storage == c.in[1]->storage;
  return {c.in[1], kInt64, overwritten};
}

}  // namespace

void pick(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  TensorImpl& out = *c.out[0].impl();
  if (is_empty_walk(c, out)) return;
  const DenseInput index = index_of(c);
  const Walk w = walk_of(x, out, *c.in[1], index.as<int64_t>(), dim_of(c.attrs));
  out.device == kCPU ? move(w, x, out) : pick_cuda(c, w);
}

void accumulate(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  const TensorImpl *base = c.in[0], *src = c.in[2];
  const DenseInput index = index_of(c);
  const bool on_cpu = out.device == kCPU;
  const bool narrow = on_cpu && itemsize(out.dtype) == 2;  // 16-bit floats are summed in float32.
  Tensor total, source;
  if (narrow) total = raw_empty(out.size_list(), kFloat32, out.device);
  TensorImpl& sum = narrow ? *total.impl() : out;
  if (narrow || (c.into && src->storage == out.storage)) {
    source = copied(*src, sum.dtype);
    src = source.impl();
  }
  if (!base) {
    fill_zero(sum);
  } else if (!same_memory(sum, *base)) {
    copy_now(sum, *base);
  }
  if (!is_empty_walk(c, *src)) {
    const Walk w = walk_of(sum, *src, *c.in[1], index.as<int64_t>(), dim_of(c.attrs));
    on_cpu ? add(w, sum, *src) : add_cuda(c, w, *src);
  }
  if (narrow) copy_now(out, sum);
}

}  // namespace brrr
