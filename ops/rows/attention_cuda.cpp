// Attention on a GPU, tile by tile as on the CPU; the scores never reach global memory.
#include <algorithm>

#include "ops/rows/attention_kernel.h"
#include "ops/rows/attention_tiles.h"

namespace brrr {

namespace {

using enum attention::Operand;

constexpr DeviceKernel kernel_of(const char* name, const char* text) {
  return {name,
          AttentionArgumentsText,
          128,
          {vx::kSoftmaxText, kAttentionProducts, kAttentionTiles, text}};
}

// A row's threads keep partial sums until the end, because all of them rescale alike. The last
// queries see the most keys, so their blocks start first.
constexpr DeviceKernel forward_kernel = kernel_of("attention", R"(
BLOCK_KERNEL(attention, AttentionArguments, 128, kBlocks) {
  DYNAMIC_SHARED(T, q);
  T* const tiles = q + kRows * kStride;
  float* const room = (float*)(tiles + kStages * kStage);
  const unsigned blocks = (p.queries + kRows - 1) / kRows;
  const unsigned head = blockIdx.x / blocks;
  const int first = (blocks - 1 - blockIdx.x % blocks) * kRows, mine = first + first_row();
  const Modifiers by(p, head);
  const int end = p.causal && first + kRows < p.keys ? first + kRows : p.keys;
  const auto of = places(p, head, p.q, p.k, p.v);
  load_tile<kRows>(q, (const T*)p.q.data + of.at[0], p.q, first, p.queries, p.width, p.packed);
  const Columns<false> columns{p, p.k, p.v, (const T*)p.k.data + of.at[1],
                               (const T*)p.v.data + of.at[2], tiles, head};
  columns.begin(0, end);
  if (kKept) arrived();
  Rows<kKept> rows_q(q);
  Part<kWidth> out = {};
  Softmax<f32> state[kOwn];
  for (int r = 0; r < kOwn; ++r) state[r] = {lowest<f32>(), f32(0.0f), f32(0.0f)};
  for (int col = 0; col < end; col += kCols) {
    const T *const k = columns.next(col, end), *const v = k + kTile * kStride;
    if (unseen<false>(p, mine, col)) continue;
    Part<kCols> s = {};
    multiply(s, rows_q, k);
    if (!kProducts) to_scores<false>(p, by, s, mine, col, [](int, int) { return 0.0f; });
    hide<false>(p, s, mine, col);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      f32 top = lowest<f32>();
#pragma unroll
      for (int c = 0; c < kOwnCols; ++c) top = top_of(top, s.v[at(r, c)]);
      top = row_max(top);
      if (kProducts) top *= p.unit;
      top = top_of(top, state[r].max.v);
      const f32 fade = meet(state[r], top, [](f32 x) { return weight(x); });
      f32 part(0.0f);
#pragma unroll
      for (int c = 0; c < kOwnCols; ++c) {
        float& x = s.v[at(r, c)];
        x = weight(kProducts ? f32(fused(x, p.unit, -state[r].shift.v)) : x - state[r].shift).v;
        part += x;
        if (kDropout) x *= keep(p, by, mine + row_of(r), col + col_of(c));
      }
      state[r].sum += part;
#pragma unroll
      for (int i = 0; i < kPacks * kPack; ++i) out.v[pack_at(r, i / kPack, i % kPack)] *= fade.v;
    }
    accumulate(out, s, v, room);
  }
  await_copies();
  float factor[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const f32 sum = row_sum(state[r].sum);
    const int query = mine + row_of(r);
    factor[r] = inverse(sum).v;
    if (query >= p.queries || lane() % kShare != 0) continue;
    // Minus the logarithm of the weights' sum; -infinity, and so no weights, without any key.
    f32 more = -state[r].shift;
    if (!kMasked) more = where(eq(sum, f32(0.0f)), f32(-infinity), more - log(sum) * kUnit);
    p.max[(long)head * p.queries + query] = more.v;
    p.sum[(long)head * p.queries + query] = sum.v;
  }
  store_tile(p, p.to, p.to_packs, head, out, factor, mine, p.queries, p.depth);
}
)");

// sum(g * out) per query, by eight threads for each row.
constexpr int kAlongRows = 16;
constexpr DeviceKernel along_kernel = kernel_of("attention_along", R"(
BLOCK_KERNEL(attention_along, AttentionArguments, 128) {
  const unsigned blocks = (p.queries + 15) / 16;
  const unsigned head = blockIdx.x / blocks;
  const int query = blockIdx.x % blocks * 16 + threadIdx.x / 8;
  const bool there = query < p.queries;
  const auto of = places(p, head, p.g, p.out);
  const T* const g = (const T*)p.g.data + of.at[0] + query * p.g.row;
  const T* const out = (const T*)p.out.data + of.at[1] + query * p.out.row;
  float sum = 0;
  constexpr int each = kMma ? 8 : 1;
#pragma unroll 4
  for (int i = threadIdx.x % 8 * each; i < p.depth; i += 8 * each) {
    if (!there) continue;
    const auto a = elements<each>(g + i, p.depth - i, p.packed);
    const auto b = elements<each>(out + i, p.depth - i, p.packed);
#pragma unroll
    for (int e = 0; e < each; ++e) sum += get(a.v + e).v * get(b.v + e).v;
  }
#pragma unroll
  for (int m = 1; m < 8; m *= 2) sum += shuffle_xor(sum, m);
  if (there && threadIdx.x % 8 == 0) p.along[(long)head * p.queries + query] = sum;
}
)");

constexpr DeviceKernel queries_kernel = kernel_of("attention_dq", R"(
// Without dropout nothing scales a weight's gradient: its accumulator can start at -along.
constexpr bool kAlongFirst = kRowBlocks == 2 && !kDropout;
BLOCK_KERNEL(attention_dq, AttentionArguments, 128, kBlocks) {
  DYNAMIC_SHARED(T, q);
  T *const g = q + kRows * kStride, *const tiles = g + kRows * kStride;
  float* const room = (float*)(tiles + kStages * kStage);
  const unsigned blocks = (p.queries + kRows - 1) / kRows;
  const unsigned head = blockIdx.x / blocks;
  const long rows = (long)head * p.queries;
  const int first = (blocks - 1 - blockIdx.x % blocks) * kRows, mine = first + first_row();
  const Modifiers by(p, head);
  const int end = p.causal && first + kRows < p.keys ? first + kRows : p.keys;
  const auto of = places(p, head, p.q, p.g, p.k, p.v);
  load_tile<kRows>(q, (const T*)p.q.data + of.at[0], p.q, first, p.queries, p.width, p.packed);
  load_tile<kRows>(g, (const T*)p.g.data + of.at[1], p.g, first, p.queries, p.depth, p.packed);
  const Columns<false> columns{p, p.k, p.v, (const T*)p.k.data + of.at[2],
                               (const T*)p.v.data + of.at[3], tiles, head};
  columns.begin(0, end);
  float more[kOwn], along[kOwn], scale[kOwn];
  f32 part[kOwn];  // 1 / sum: with a mask `more` does not include it.
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const int query = mine + row_of(r);
    const bool there = query < p.queries;
    more[r] = there ? p.max[rows + query] : 0;
    along[r] = there ? p.along[rows + query] : 0;
    scale[r] = p.scale;
    if (kMasked) part[r] = inverse(f32(there ? p.sum[rows + query] : 0));
  }
  if (kKept) arrived();
  Rows<kKept> rows_q(q), rows_g(g);
  Part<kWidth> dq = {};
  for (int col = 0; col < end; col += kCols) {
    const T *const k = columns.next(col, end), *const v = k + kTile * kStride;
    if (unseen<false>(p, mine, col)) continue;
    Part<kCols> s = {}, ds = {};
#pragma unroll
    for (int i = 0; kAlongFirst && i < kOwn * kOwnCols; ++i) {
      ds.v[at(i % kOwn, i / kOwn)] = -along[i % kOwn];
    }
    multiply(s, rows_q, k);
    multiply(ds, rows_g, v);
    to_scores<false>(p, by, s, mine, col, [&](int r, int) { return more[r]; });
    hide<false>(p, s, mine, col);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int c = 0; c < kOwnCols; ++c) {
        float& dx = ds.v[at(r, c)];
        if (kDropout) dx *= keep(p, by, mine + row_of(r), col + col_of(c));
        f32 w = weight(f32(s.v[at(r, c)]));
        if (kMasked) w *= part[r];
        dx = score_gradient(w, f32(dx), f32(kAlongFirst ? 0 : along[r])).v;
      }
    }
    accumulate(dq, ds, k, room);
  }
  await_copies();
  store_tile(p, p.to, p.to_packs, head, dq, scale, mine, p.queries, p.width);
}
)");

// Transposed: rows are keys, columns queries.
constexpr DeviceKernel keys_kernel = kernel_of("attention_dkv", R"(
BLOCK_KERNEL(attention_dkv, AttentionArguments, 128, kKeysBlocks) {
  DYNAMIC_SHARED(T, k);
  T *const v = k + kRows * kStride, *const tiles = v + kRows * kStride;
  float* const room = (float*)(tiles + kStages * kStage);
  const unsigned blocks = (p.keys + kRows - 1) / kRows;
  const unsigned head = blockIdx.x / blocks;
  const int first = blockIdx.x % blocks * kRows, mine = first + first_row();
  const int begin = p.causal ? first : 0;
  const Modifiers by(p, head);
  const auto of = places(p, head, p.k, p.v, p.q, p.g);
  load_tile<kRows>(k, (const T*)p.k.data + of.at[0], p.k, first, p.keys, p.width, p.packed);
  load_tile<kRows>(v, (const T*)p.v.data + of.at[1], p.v, first, p.keys, p.depth, p.packed);
  const Columns<true> columns{p, p.q, p.g, (const T*)p.q.data + of.at[2],
                              (const T*)p.g.data + of.at[3], tiles, head};
  columns.begin(begin, p.queries);
  Rows<false> rows_k(k), rows_v(v);
  Part<kWidth> dk = {}, dv = {};
  for (int col = begin; col < p.queries; col += kCols) {
    const T *const q = columns.next(col, p.queries), *const g = q + kTile * kStride;
    const float *const more = columns.more(col), *const along = more + kTile;
    if (unseen<true>(p, mine, col)) continue;
    Part<kCols> s = {}, ds = {};
    multiply(s, rows_k, q);
    multiply(ds, rows_v, g);
    to_scores<true>(p, by, s, mine, col, [&](int, int c) { return more[col_of(c)]; });
    hide<true>(p, s, mine, col);
#pragma unroll
    for (int c = 0; c < kOwnCols; ++c) {
      const int i = col_of(c);
      const f32 part = kMasked ? inverse(f32(along[kTile + i])) : f32(1.0f);
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        float &x = s.v[at(r, c)], &dx = ds.v[at(r, c)];
        f32 w = weight(f32(x));
        if (kMasked) w *= part;
        const float kept = kDropout ? keep(p, by, col + i, mine + row_of(r)) : 1.0f;
        x = kDropout ? w.v * kept : w.v;
        dx = score_gradient(w, f32(kDropout ? dx * kept : dx), f32(along[i])).v;
      }
    }
    accumulate(dv, s, g, room);
    accumulate(dk, ds, q, room);
  }
  await_copies();
  float scale[kOwn], one[kOwn];
  for (int r = 0; r < kOwn; ++r) scale[r] = p.scale, one[r] = 1;
  store_tile(p, p.dk, p.dk_packs, head, dk, scale, mine, p.keys, p.width);
  store_tile(p, p.dv, p.dv_packs, head, dv, one, mine, p.keys, p.depth);
}
)");

// --- calls ---------------------------------------------------------------------------------------

constexpr int64_t kWidest = 128, kLongest = 1 << 30;
constexpr int64_t kManyBlocks = 256;  // Two for each multiprocessor of a large GPU.

// One call's operands as the kernels take them, with the packed copies of those that need one.
class DeviceOperands {
 public:
  explicit DeviceOperands(const OpCall& c) : dtype_(c.in[Q]->dtype), o_(c, dtype_) {
    AttentionArguments& a = arguments;
    a.dims = c.in[Q]->ndim - 2;
    for (int d = 0; d < a.dims; ++d) a.sizes[d] = static_cast<int>(c.in[Q]->sizes[d]);
    a.queries = static_cast<int>(o_.queries);
    a.width = static_cast<int>(o_.width);
    a.keys = static_cast<int>(o_.keys);
    a.depth = static_cast<int>(o_.depth);
    a.causal = o_.attrs.causal != 0;
    a.scale = static_cast<float>(o_.attrs.scale);
    a.unit = static_cast<float>(o_.attrs.scale * 1.4426950408889634);
    a.bool_mask = o_.bool_mask;
    a.q = matrix(o_.q);
    a.k = matrix(o_.k);
    a.v = matrix(o_.v);
    a.mask = matrix(o_.mask);
    a.g = matrix(o_.g);
    a.out = matrix(o_.out);
    const int64_t each = 16 / static_cast<int64_t>(itemsize(dtype_));
    a.packed = in_packs(a.q, a.width, each) && in_packs(a.k, a.width, each) &&
               in_packs(a.v, a.depth, each) && in_packs(a.g, a.depth, each) &&
               in_packs(a.out, a.depth, each);
    if (const TensorImpl* key = c.in[Key]) {
      const DropoutRate rate(o_.attrs.dropout);
      a.key = key->data();
      a.key_stride = key->strides[0];
      a.limit = rate.limit;
      a.kept = static_cast<float>(rate.kept);
    }
  }

  // `row_tiles`: the tiles of rows that a block keeps in shared memory beside two tiles of columns,
  // and the tiles of scores and of results, as many of each, in a thread's registers. Warps are
  // tall where registers suffice, a block takes no more than the 99 KB of shared memory that the
  // smallest GPUs have, and there are still enough blocks.
  void run(const DeviceKernel& kernel, int64_t length, int row_tiles) const {
    const AttentionArguments& a = arguments;
    const int width = std::max(32, (std::max(a.width, a.depth) + 31) / 32 * 32);
    const bool single = dtype_ == kFloat32;
    const bool tall = !single && !a.key && row_tiles * width <= 128 &&
                      o_.heads * blocks_for(length, 128) >= kManyBlocks;
    const int cols = std::min(64, 128 >> (width > 64) >> (single || tall) >> (row_tiles - 1));
    // Scores that are not products times a positive factor are treated as masked ones.
    const bool masked = a.mask.data || !(a.unit > 0);
    const AttentionTile tile{width, cols, a.key != nullptr, masked, dtype_ == kFloat16, tall};
    const int64_t row = width * static_cast<int64_t>(itemsize(dtype_)) + 16;
    const int64_t weights = single ? tile.rows() * (cols + 8) : 0, stages = single ? 1 : 2;
    run_kernel(
        kernel, {.t = dtype_, .n = tile.bits()},
        {.x = o_.heads * blocks_for(length, tile.rows()),
         .shared_bytes = row_tiles * tile.rows() * row +
                         stages * tile.copied() * (2 * row + 4 * tile.numbers()) + 4 * weights},
        a);
  }

  using Matrix = AttentionArguments::Matrix;
  // Where result k is written, which may be anywhere in a wider tensor, so not aligned to packs.
  Matrix result(const OpCall& c, int k, int& packs) const {
    const Tensor t = heads_view(*c.out[k].impl(), o_.attrs);
    const Matrix m = matrix(MatrixInput(t.impl(), dtype_));
    packs = in_packs(m, static_cast<int>(t.size(-1)), dtype_ == kFloat32 ? 4 : 2);
    return m;
  }

  AttentionArguments arguments{};

 private:
  static Matrix matrix(const MatrixInput& m) {
    Matrix to{};
    const TensorImpl* t = m.tensor();
    if (!t) return to;
    to.data = t->data();
    to.row = m.row();
    to.col = m.col();
    for (int d = 0; d < t->ndim - 2; ++d) to.head[d] = t->strides[d];
    return to;
  }
  // Whether `each` elements at a time can be read or written.
  bool in_packs(const Matrix& m, int columns, int64_t each) const {
    const size_t bytes = static_cast<size_t>(each) * itemsize(dtype_);
    const auto whole = [=](int64_t stride) { return stride % each == 0; };
    return reinterpret_cast<uintptr_t>(m.data) % bytes == 0 && whole(columns) && whole(m.row) &&
           std::ranges::all_of(m.head, whole);
  }

  DType dtype_;
  AttentionOperands o_;
};

float* floats(const TensorImpl* t) { return reinterpret_cast<float*>(t->data()); }

}  // namespace

bool attention_on_cuda(const OpCall& c) {
  const AttentionSizes s(c);
  return c.in[Q]->dtype != kFloat64 && s.width <= kWidest && s.depth <= kWidest &&
         s.queries <= kLongest && s.keys <= kLongest;
}

void attention_cuda(OpCall& c) {
  DeviceOperands o(c);
  o.arguments.to = o.result(c, 0, o.arguments.to_packs);
  o.arguments.max = floats(c.out[1].impl());
  o.arguments.sum = floats(c.out[2].impl());
  o.run(forward_kernel, o.arguments.queries, 1);
}

void attention_backward_cuda(OpCall& c) {
  DeviceOperands o(c);
  const DenseInput max(c.in[Max], kFloat32), sum(c.in[Sum], kFloat32);
  AttentionArguments& a = o.arguments;
  a.max = const_cast<float*>(max.as<float>());
  a.sum = const_cast<float*>(sum.as<float>());
  a.to = o.result(c, 0, a.to_packs);
  a.dk = o.result(c, 1, a.dk_packs);
  a.dv = o.result(c, 2, a.dv_packs);
  a.along = floats(c.out[3].impl());
  run_kernel(along_kernel,
             {.t = c.in[Q]->dtype, .n = AttentionTile{.width = 32, .cols = 32}.bits()},
             {.x = AttentionSizes(c).heads * blocks_for(a.queries, kAlongRows)}, a);
  o.run(queries_kernel, a.queries, 2);
  o.run(keys_kernel, a.keys, 2);
}

}  // namespace brrr
