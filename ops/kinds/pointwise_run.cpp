// The CPU driver of pointwise rows: strides, broadcasts and dtypes are brought to what a loop
// takes, which is dense runs or splats of one compute type.
#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/pointwise_iteration.h"

namespace brrr {

namespace {

constexpr int64_t kTile = 512;       // Elements converted at a time: operands stay in L1.
constexpr int64_t kGrain = 1 << 15;  // Elements worth a thread.
constexpr int kMost = kMostPointwise;

// How the loop sees one operand in the innermost dim.
enum class Way : uint8_t { Direct, Splat, Tile, Made };

struct Buffers {
  alignas(64) char data[kMost][kTile * 8];
};

// One run along the innermost dim, from the addresses `at`, in tiles where a conversion is needed.
void run_inner(const Iteration& it, char* const* at, int64_t n, const Way* way, Buffers* buf) {
  const int inner = it.ndim - 1;
  char* out[kMaxOutputs];
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  Places places[kMost];
  bool tiled = false;
  for (int k = 0; k < it.count(); ++k) tiled |= way[k] == Way::Tile;
  for (int k = it.n_out; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    step[k - it.n_out] = way[k] == Way::Splat ? 0 : 1;
    if (way[k] == Way::Splat) load_tile(it.loop_type(k), buf->data[k], o.dtype, at[k], 0, 16);
  }
  const int64_t tile = tiled ? kTile : n;
  for (int64_t begin = 0; begin < n; begin += tile) {
    const int64_t m = std::min(tile, n - begin);
    for (int k = 0; k < it.count(); ++k) {
      const PointwiseOperand& o = it.operands[k];
      if (way[k] == Way::Made) {
        const auto& p = *reinterpret_cast<const Places*>(at[k]);
        places[k] = {p.first + begin * p.step, p.step};
        in[k - it.n_out] = reinterpret_cast<const char*>(&places[k]);
        continue;
      }
      char* p = at[k] + begin * o.stride[inner] * static_cast<int64_t>(itemsize(o.dtype));
      if (way[k] == Way::Tile && k >= it.n_out) {
        load_tile(it.loop_type(k), buf->data[k], o.dtype, p, o.stride[inner], m);
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
      const PointwiseOperand& o = it.operands[k];
      char* p = at[k] + begin * o.stride[inner] * static_cast<int64_t>(itemsize(o.dtype));
      store_tile(o.dtype, p, o.stride[inner], it.loop_type(k), buf->data[k], m);
    }
  }
}

void choose_ways(const Iteration& it, Way* way) {
  const int inner = it.ndim - 1;
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    const bool dense = o.stride[inner] == 1 || it.size[inner] == 1;
    if (o.made) {
      way[k] = Way::Made;
    } else if (k >= it.n_out && o.stride[inner] == 0) {
      way[k] = Way::Splat;
    } else {
      way[k] = dense && o.dtype == it.loop_type(k) ? Way::Direct : Way::Tile;
    }
  }
}

// Walks the outer dims; `at` has the operands' addresses in the row, or those of their Places.
class Rows {
 public:
  Rows(const Iteration& it, int64_t row)
      : it_(it), outer_(it.ndim - 1), first_made_(it.count() - it.info->n_made) {
    for (int d = outer_ - 1; d >= 0; --d) {
      index_[d] = row % it.size[d];
      row /= it.size[d];
    }
    for (int k = 0; k < it.count(); ++k) {
      const PointwiseOperand& o = it.operands[k];
      if (o.made) {
        set_places(k);
        continue;
      }
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
      const bool on = ++index_[d] < it_.size[d];
      const int64_t steps = on ? 1 : 1 - it_.size[d];
      for (int k = 0; k < n; ++k) at[k] += steps * bytes[k];
      for (int k = first_made_; k < n; ++k) {
        places_[k - first_made_].first += steps * it_.operands[k].stride[d];
      }
      if (on) return;
      index_[d] = 0;
    }
  }
  char* at[kMost];

 private:
  void set_places(int k) {
    const int64_t* stride = it_.operands[k].stride;
    Places& p = places_[k - first_made_];
    p = {0, stride[outer_]};
    for (int d = 0; d < outer_; ++d) {
      bytes_[d][k] = 0;
      p.first += index_[d] * stride[d];
    }
    at[k] = reinterpret_cast<char*>(&p);
  }
  const Iteration& it_;
  int outer_, first_made_;
  Places places_[kMaxMade];
  int64_t index_[kMaxDims], bytes_[kMaxDims][kMost];
};

// Rows [begin, end) of the outer dims, each a run of the innermost one.
void run_rows(const Iteration& it, int64_t begin, int64_t end) {
  Way way[kMost];
  choose_ways(it, way);
  const int64_t n = it.size[it.ndim - 1];
  Rows rows(it, begin);
  const auto as_it_is = [](Way w) { return w == Way::Direct || w == Way::Made; };
  if (std::all_of(way, way + it.count(), as_it_is)) {
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
  Places places[kMost];
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    if (o.made) {
      places[k] = {begin * o.stride[0], o.stride[0]};
      at[k] = reinterpret_cast<char*>(&places[k]);
      continue;
    }
    at[k] = o.base + begin * o.stride[0] * static_cast<int64_t>(itemsize(o.dtype));
  }
  run_inner(it, at, end - begin, way, &buf);
}

}  // namespace

void pointwise_run(OpCall& c) {
  Iteration it;
  Tensor copies[kMaxOperands];
  if (!pointwise_iteration(c, it, copies)) return;
  it.loop = it.info->loops[compute_index(it.compute)];
  if (it.ndim == 1) {
    parallel_for(it.size[0], kGrain, [&](int64_t b, int64_t e) { run_flat(it, b, e); });
    return;
  }
  const int64_t rows = it.numel / it.size[it.ndim - 1];
  const int64_t grain = std::max<int64_t>(1, kGrain / it.size[it.ndim - 1]);
  parallel_for(rows, grain, [&](int64_t b, int64_t e) { run_rows(it, b, e); });
}

}  // namespace brrr
