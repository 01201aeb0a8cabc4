// The CPU driver of pointwise rows: strides, broadcasts and dtypes are brought to what a loop
// takes, which is dense runs or splats of one compute type.
#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "ops/convert.h"
#include "ops/pointwise.h"

namespace brrr {

namespace {

constexpr int64_t kTile = 512;       // Elements converted at a time: operands stay in L1.
constexpr int64_t kGrain = 1 << 15;  // Elements worth a thread.
constexpr int kMost = kMaxOperands + kMaxOutputs;

struct Operand {
  char* base;
  DType dtype;
  int64_t stride[kMaxDims];
  alignas(16) int64_t scalar;  // Storage of a scalar operand.
};

struct Iteration {
  const PointwiseInfo* info;
  PointwiseLoop loop;
  DType compute;
  int n_out, n_in, ndim;
  int64_t size[kMaxDims];
  Operand operands[kMost];  // Outputs, then inputs.
  int count() const { return n_out + n_in; }
};

void set_scalar(Operand& o, const Attrs& a, int operand, int word) {
  o.base = reinterpret_cast<char*>(&o.scalar);
  o.scalar = a.v[word];
  o.dtype = a.kind(operand) == 3 ? kFloat64 : kInt64;
  std::fill_n(o.stride, kMaxDims, 0);
}

void set_tensor(Operand& o, const TensorImpl& t, int ndim) {
  o.base = t.data();
  o.dtype = t.dtype;
  const int shift = ndim - t.ndim;
  for (int d = 0; d < ndim; ++d) {
    o.stride[d] = d < shift || t.sizes[d - shift] == 1 ? 0 : t.strides[d - shift];
  }
}

// Larger strides of the output go outside, then neighbours that every operand walks alike merge.
void collapse(Iteration& it) {
  for (int i = 1; i < it.ndim; ++i) {
    for (int j = i; j > 0; --j) {
      const int64_t* s = it.operands[0].stride;
      if (s[j - 1] >= s[j] || it.size[j] == 1) break;
      std::swap(it.size[j - 1], it.size[j]);
      for (int k = 0; k < it.count(); ++k) {
        std::swap(it.operands[k].stride[j - 1], it.operands[k].stride[j]);
      }
    }
  }
  int last = 0;
  for (int d = 1; d < it.ndim; ++d) {
    bool merge = true;
    for (int k = 0; k < it.count() && merge; ++k) {
      const int64_t* s = it.operands[k].stride;
      merge = it.size[last] == 1 || it.size[d] == 1 || s[last] == s[d] * it.size[d];
    }
    if (merge) {
      for (int k = 0; k < it.count(); ++k) {
        int64_t* s = it.operands[k].stride;
        if (it.size[d] != 1) s[last] = s[d];
      }
      it.size[last] *= it.size[d];
    } else {
      ++last;
      it.size[last] = it.size[d];
      for (int k = 0; k < it.count(); ++k) {
        it.operands[k].stride[last] = it.operands[k].stride[d];
      }
    }
  }
  it.ndim = last + 1;
}

// How the loop sees one operand in the innermost dim.
enum class Way : uint8_t { Direct, Splat, Tile };

struct Buffers {
  alignas(64) char data[kMost][kTile * 8];
};

// One run along the innermost dim, from the addresses `at`, in tiles where a conversion is needed.
void run_inner(const Iteration& it, char* const* at, int64_t n, const Way* way, Buffers* buf) {
  const int inner = it.ndim - 1;
  char* out[kMaxOutputs];
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  bool tiled = false;
  for (int k = 0; k < it.count(); ++k) tiled |= way[k] == Way::Tile;
  for (int k = it.n_out; k < it.count(); ++k) {
    const Operand& o = it.operands[k];
    step[k - it.n_out] = way[k] == Way::Splat ? 0 : 1;
    if (way[k] == Way::Splat) load_tile(it.compute, buf->data[k], o.dtype, at[k], 0, 16);
  }
  const int64_t tile = tiled ? kTile : n;
  for (int64_t begin = 0; begin < n; begin += tile) {
    const int64_t m = std::min(tile, n - begin);
    for (int k = 0; k < it.count(); ++k) {
      const Operand& o = it.operands[k];
      char* p = at[k] + begin * o.stride[inner] * static_cast<int64_t>(itemsize(o.dtype));
      if (way[k] == Way::Tile && k >= it.n_out) {
        load_tile(it.compute, buf->data[k], o.dtype, p, o.stride[inner], m);
      }
      char* use = way[k] == Way::Direct ? p : buf->data[k];
      if (k < it.n_out)
        out[k] = use;
      else
        in[k - it.n_out] = use;
    }
    it.loop(out, in, step, m);
    for (int k = 0; k < it.n_out; ++k) {
      if (way[k] != Way::Tile) continue;
      const Operand& o = it.operands[k];
      char* p = at[k] + begin * o.stride[inner] * static_cast<int64_t>(itemsize(o.dtype));
      store_tile(o.dtype, p, o.stride[inner], it.info->mask_out[k] ? kBool : it.compute,
                 buf->data[k], m);
    }
  }
}

void choose_ways(const Iteration& it, Way* way) {
  const int inner = it.ndim - 1;
  for (int k = 0; k < it.count(); ++k) {
    const Operand& o = it.operands[k];
    const bool dense = o.stride[inner] == 1 || it.size[inner] == 1;
    if (k < it.n_out) {
      const DType loop_type = it.info->mask_out[k] ? kBool : it.compute;
      way[k] = dense && o.dtype == loop_type ? Way::Direct : Way::Tile;
    } else if (o.stride[inner] == 0) {
      way[k] = Way::Splat;
    } else {
      way[k] = dense && o.dtype == it.compute ? Way::Direct : Way::Tile;
    }
  }
}

// Walks the outer dims; `at` has the operands' addresses in the row.
class Rows {
 public:
  Rows(const Iteration& it, int64_t row) : it_(it), outer_(it.ndim - 1) {
    for (int d = outer_ - 1; d >= 0; --d) {
      index_[d] = row % it.size[d];
      row /= it.size[d];
    }
    for (int k = 0; k < it.count(); ++k) {
      const Operand& o = it.operands[k];
      at[k] = o.base;
      for (int d = 0; d < outer_; ++d) {
        bytes_[d][k] = o.stride[d] * static_cast<int64_t>(itemsize(o.dtype));
        at[k] += index_[d] * bytes_[d][k];
      }
    }
  }
  void next() {
    const int n = it_.count();
    for (int d = outer_ - 1; d >= 0; --d) {
      const int64_t* bytes = bytes_[d];
      if (++index_[d] < it_.size[d]) {
        for (int k = 0; k < n; ++k) at[k] += bytes[k];
        return;
      }
      index_[d] = 0;
      for (int k = 0; k < n; ++k) at[k] -= (it_.size[d] - 1) * bytes[k];
    }
  }
  char* at[kMost];

 private:
  const Iteration& it_;
  int outer_;
  int64_t index_[kMaxDims], bytes_[kMaxDims][kMost];
};

// Rows [begin, end) of the outer dims, each a run of the innermost one.
void run_rows(const Iteration& it, int64_t begin, int64_t end) {
  Way way[kMost];
  choose_ways(it, way);
  const int64_t n = it.size[it.ndim - 1];
  Rows rows(it, begin);
  if (std::all_of(way, way + it.count(), [](Way w) { return w == Way::Direct; })) {
    // The heads of an attention have rows of 16 elements: what happens between rows counts.
    static constexpr auto steps = [] {
      std::array<int64_t, kMaxOperands> a{};
      a.fill(1);
      return a;
    }();
    for (int64_t row = begin; row < end; ++row, rows.next()) {
      it.loop(rows.at, rows.at + it.n_out, steps.data(), n);
    }
    return;
  }
  Buffers buf;  // Uninitialised: only touched parts cost.
  for (int64_t row = begin; row < end; ++row, rows.next()) run_inner(it, rows.at, n, way, &buf);
}

// A part of a one-dimensional iteration.
void run_flat(const Iteration& it, int64_t begin, int64_t end) {
  Way way[kMost];
  choose_ways(it, way);
  Buffers buf;
  char* at[kMost];
  for (int k = 0; k < it.count(); ++k) {
    const Operand& o = it.operands[k];
    at[k] = o.base + begin * o.stride[0] * static_cast<int64_t>(itemsize(o.dtype));
  }
  run_inner(it, at, end - begin, way, &buf);
}

bool same_layout(const TensorImpl& a, const TensorImpl& b) {
  return a.offset == b.offset && a.dtype == b.dtype && a.same_shape(b) &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
}

// An input that shares memory with an output written in another layout is copied first, so that
// x[1:].copy_(x[:-1]) reads what was there.
Tensor private_copy(const TensorImpl& t) {
  Tensor copy = raw_empty(t.size_list(), t.dtype, t.device);
  copy_now(*copy.impl(), t);
  return copy;
}

}  // namespace

void pointwise_run(OpCall& c) {
  const TensorImpl& first = *c.out[0].impl();
  if (first.numel == 0) return;
  Iteration it;
  it.info = c.op->pointwise;
  it.n_out = c.n_out;
  it.n_in = c.n_in;
  it.ndim = std::max<int>(first.ndim, 1);
  it.size[0] = 1;
  std::copy_n(first.sizes, first.ndim, it.size);
  it.compute = pointwise_compute_dtype(c);
  it.loop = it.info->loops[compute_index(it.compute)];
  Tensor copies[kMaxOperands];
  for (int k = 0; k < c.n_out; ++k) {
    set_tensor(it.operands[k], *c.out[k].impl(), it.ndim);
  }
  for (int i = 0, word = 0; i < c.n_in; ++i) {
    Operand& o = it.operands[c.n_out + i];
    const TensorImpl* t = c.in[i];
    if (!t) {
      set_scalar(o, c.attrs, i, word++);
      continue;
    }
    for (int k = 0; c.into && k < c.n_out; ++k) {
      const TensorImpl& out = *c.out[k].impl();
      if (out.storage == t->storage && !same_layout(out, *t)) {
        copies[i] = private_copy(*t);
        t = copies[i].impl();
        break;
      }
    }
    set_tensor(o, *t, it.ndim);
  }
  collapse(it);
  if (it.ndim == 1) {
    parallel_for(it.size[0], kGrain, [&](int64_t b, int64_t e) { run_flat(it, b, e); });
    return;
  }
  const int64_t rows = first.numel / it.size[it.ndim - 1];
  const int64_t grain = std::max<int64_t>(1, kGrain / it.size[it.ndim - 1]);
  parallel_for(rows, grain, [&](int64_t b, int64_t e) { run_rows(it, b, e); });
}

}  // namespace brrr
