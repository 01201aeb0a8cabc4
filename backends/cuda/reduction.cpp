#include "backends/cuda/reduction.h"

#include <algorithm>

#include "ops/kinds/reduction_layout.h"
#include "ops/program/program.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::cuda {

namespace {

constexpr int64_t kWarpRow = 1024, kChunk = 16384, kColumnRows = 256;
constexpr int kThreads = 256;

BRRR_DEVICE_STRUCT(ReductionArguments, {
  const char* x;
  char* y;
  long outer;
  long rows;
  long cols;
  long outer_stride;
  long row_stride;
  long chunks;
  long count;
});

// Elements first, first + step, ... below n of the row at x, from init.
constexpr char kTake[] = R"(
BRRR_VX TCV take(const T* x, long first, long step, long stride, long n) {
  TCV a = init();
  long i = first;
  for (; i + 7 * step < n; i += 8 * step) {
    TCV v[8];
    for (int u = 0; u < 8; ++u) v[u] = map(get(x + (i + u * step) * stride));
    for (int u = 0; u < 8; ++u) a = combine(a, v[u]);
  }
  for (; i < n; i += step) a = combine(a, map(get(x + i * stride)));
  return a;
}
BRRR_VX TCV across_warp(TCV a) {
  for (int d = 16; d > 0; d /= 2) a = combine(a, splat(shuffle_down(a[0], d)));
  return a;
}
)";

constexpr char kWarps[] = R"(
BLOCK_KERNEL(k, ReductionArguments, 256) {
  const long row = (long)blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= p.outer) return;
  const T* x = (const T*)p.x + row * p.outer_stride;
  const TCV a = across_warp(take(x, threadIdx.x % 32, 32, 1, p.rows));
  if (threadIdx.x % 32 == 0) put_u((U*)p.y + row, finish(a, p.count));
}
)";

constexpr char kBlocks[] = R"(
BLOCK_KERNEL(k, ReductionArguments, 256) {
  __shared__ TC partial[8];
  const long row = blockIdx.x / p.chunks, begin = blockIdx.x % p.chunks * 16384;
  const long n = p.rows - begin < 16384 ? p.rows - begin : 16384;
  const T* x = (const T*)p.x + row * p.outer_stride + begin;
  TCV a = across_warp(take(x, threadIdx.x, 256, 1, n));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = a[0];
  __syncthreads();
  if (threadIdx.x >= 32) return;
  a = threadIdx.x < 8 ? splat(partial[threadIdx.x]) : init();
  for (int d = 4; d > 0; d /= 2) a = combine(a, splat(shuffle_down(a[0], d)));
  if (threadIdx.x == 0) put_u((U*)p.y + blockIdx.x, finish(a, p.count));
}
)";

constexpr char kColumns[] = R"(
BLOCK_KERNEL(k, ReductionArguments, 256) {
  __shared__ TC partial[8][32];
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  const unsigned across = (p.cols + 31) / 32, chunk = blockIdx.x / across;
  const long c = (long)(blockIdx.x % across) * 32 + tx, begin = (long)chunk * 256;
  const long n = p.rows - begin < 256 ? p.rows - begin : 256;
  for (long o = blockIdx.y; o < p.outer; o += gridDim.y) {
    if (c < p.cols) {
      const T* x = (const T*)p.x + o * p.outer_stride + begin * p.row_stride + c;
      partial[ty][tx] = take(x, ty, 8, p.row_stride, n)[0];
    }
    for (int d = 4; d > 0; d /= 2) {
      __syncthreads();
      if (ty < d && c < p.cols) {
        partial[ty][tx] = combine(splat(partial[ty][tx]), splat(partial[ty + d][tx]))[0];
      }
    }
    if (ty == 0 && c < p.cols) {
      put_u((U*)p.y + (o * p.chunks + chunk) * p.cols + c,
            finish(splat(partial[0][tx]), p.count));
    }
    __syncthreads();
  }
}
)";

std::string init_text(const ReductionForm& f) {
  const double init = f.op->reduction->init;
  const std::string value = f.compute == kInt64   ? literal(reduction_init<int64_t>(init))
                            : f.compute == kInt32 ? literal(int64_t{reduction_init<int32_t>(init)})
                                                  : literal(init);
  return program::splat(f.compute, value);
}

// TCV name(TCV a, ...) { statements; return result; }
template <class F>
std::string function_text(const ReductionForm& f, const char* name, int operands, const F& emit) {
  Statements list;
  int result;
  {
    SymScope scope(list, f.compute);
    Sym in[2];
    for (int i = 0; i < operands; ++i) in[i] = Sym(scope.operand(i));
    result = emit(in);
  }
  std::vector<std::string> names;
  const std::string body = program::lines(
      list, "  ", [](const Statement& s) { return s.which ? "b" : "a"; }, names);
  return fmt::format("BRRR_VX TCV {}(TCV a{}) {{\n{}  return {};\n}}\n", name,
                     operands == 2 ? ", TCV b" : "", body, names[static_cast<size_t>(result)]);
}

// "long" counts to the compute type, as a number.
std::string finish_text(const ReductionForm& f) {
  const ReductionInfo& info = *f.op->reduction;
  if (!f.finish || !info.finishes) return "BRRR_VX TCV finish(TCV a, long) { return a; }\n";
  return function_text(f, "finish_with", 2,
                       [&](Sym* in) { return info.emit_finish(in[0], in[1]); }) +
         "BRRR_VX TCV finish(TCV a, long n) { return finish_with(a, splat((TC)n)); }\n";
}

void run_pass(const ReductionForm& f, const ReductionArguments& a, const Grid& grid) {
  Function* k = find_kernel(f.key(), "k", 0, [&] { return reduction_text(f); });
  launch(k, f.op->name, grid, kThreads, &a, sizeof a);
}

// Chunks along x, where a grid has room for any number of them.
Grid columns_grid(const ReductionArguments& a) {
  return {(a.cols + 31) / 32 * a.chunks, std::min<int64_t>(a.outer, 65535)};
}

// One pass over chunks of rows or columns; their results in `partials`, to be reduced in turn.
Tensor run_chunks(ReductionForm& f, ReductionArguments& a, int64_t chunk) {
  a.chunks = (a.rows + chunk - 1) / chunk;
  const int64_t width = std::max<int64_t>(a.cols, 1);
  Tensor partials = raw_empty({a.outer * a.chunks * width}, f.compute, kCUDA);
  char* y = std::exchange(a.y, partials.impl()->data());
  const DType out = std::exchange(f.out, f.compute);
  if (a.cols) {
    run_pass(f, a, columns_grid(a));
  } else {
    run_pass(f, a, {a.outer * a.chunks});
  }
  a.x = a.y;
  a.y = y;
  f.in = f.compute;
  f.out = out;
  f.map = false;
  a.rows = a.chunks;
  a.outer_stride = a.chunks * width;
  a.row_stride = width;
  return partials;
}

}  // namespace

KernelKey ReductionForm::key() const {
  const uint64_t variant = static_cast<uint64_t>(shape) | static_cast<uint64_t>(map) << 2 |
                           static_cast<uint64_t>(finish) << 3 | static_cast<uint64_t>(in) << 4 |
                           static_cast<uint64_t>(compute) << 8 | static_cast<uint64_t>(out) << 12;
  return {op, variant};
}

std::string reduction_text(const ReductionForm& f) {
  const ReductionInfo& info = *f.op->reduction;
  // T in memory is `in`, but the arithmetic may be wider than its own compute type (int32 sums).
  std::string text = ReductionArgumentsText + element_text(f.in, f.compute, "T", "") +
                     element_text(f.out, f.compute, "U", "_u");
  text += fmt::format("BRRR_VX TCV init() {{ return {}; }}\n", init_text(f));
  text += f.map && info.maps
              ? function_text(f, "map", 1, [&](Sym* in) { return info.emit_map(in[0]); })
              : "BRRR_VX TCV map(TCV a) { return a; }\n";
  text += function_text(f, "combine", 2, [&](Sym* in) { return info.emit_combine(in[0], in[1]); });
  text += finish_text(f);
  static constexpr const char* kernels[] = {kWarps, kBlocks, kColumns};
  return text + kTake + kernels[f.shape];
}

void run_reduction(OpCall& c) {
  const TensorImpl& y = *c.out[0].impl();
  if (y.numel == 0) return;
  const ReductionLayout l = reduction_layout(c);
  ReductionForm f{c.op, ReductionForm::Warps, true, true, l.dtype, l.compute, y.dtype};
  ReductionArguments a{l.base,         y.data(),     l.outer, l.rows, l.cols,
                       l.outer_stride, l.row_stride, 1,       l.count};
  if (l.count == 0) {  // Nothing to reduce: every output is a row without elements.
    a.outer = y.numel;
    a.rows = a.cols = 0;
    f.in = f.compute;
  }
  std::vector<Tensor> partials;
  f.finish = false;
  if (a.cols) {
    f.shape = ReductionForm::Columns;
    while (a.rows > kColumnRows) partials.push_back(run_chunks(f, a, kColumnRows));
    f.finish = true;
    a.chunks = 1;
    run_pass(f, a, columns_grid(a));
    return;
  }
  f.shape = ReductionForm::Blocks;
  while (a.rows > kChunk) partials.push_back(run_chunks(f, a, kChunk));
  f.finish = true;
  a.chunks = 1;
  if (a.rows > kWarpRow) return run_pass(f, a, {a.outer});
  f.shape = ReductionForm::Warps;
  run_pass(f, a, {(a.outer + 7) / 8});
}

}  // namespace brrr::cuda
