// The random stream on a GPU: element i is the CPU's to the last bit.
#include "core/device_kernel.h"
#include "ops/rows/factory_kernels.h"
#include "ops/rows/order.h"

namespace brrr {

namespace {

constexpr int kDrawWords = 2;

// A draw by its two words, or by a key in memory (`key` not null, its words `key_stride` apart).
BRRR_DEVICE_STRUCT(DrawArguments, {
  char* to;
  long n;
  long seed;
  long draw;
  const char* key;
  long key_stride;
  long low;
  long range;
  double limit;
  double kept;
});

DrawArguments arguments(const OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  DrawArguments a{};
  a.to = o.data();
  a.n = o.numel;
  a.seed = c.attrs.v[0];
  a.draw = c.attrs.v[1];
  a.key = c.control;  // Of a replay, whose words are on the device.
  a.key_stride = 1;
  return a;
}

// Four elements a thread: one block of Philox.
constexpr DeviceKernel rand_kernel{"rand", DrawArgumentsText, 256, R"(
KERNEL(rand, DrawArguments, 256) {
  const long first = ((long)blockIdx.x * 256 + threadIdx.x) * 4;
  if (first >= p.n) return;
  const Words4 w = draw_words(p.key, p.key_stride, p.seed, p.draw, first / 4);
  for (int u = 0; u < 4 && first + u < p.n; ++u) {
    put((T*)p.to + first + u, from_f32(uniform01(u32(w.v[u] & ~0u << N))));
  }
}
)"};

constexpr DeviceKernel randn_kernel{"randn", DrawArgumentsText, 256, R"(
KERNEL(randn, DrawArguments, 256) {
  const long first = ((long)blockIdx.x * 256 + threadIdx.x) * 4;
  if (first >= p.n) return;
  const Words4 w = draw_words(p.key, p.key_stride, p.seed, p.draw, first / 4);
  const NormalPair a = normal_pair(w.v[0], w.v[1]), b = normal_pair(w.v[2], w.v[3]);
  const f32 x[4] = {a.even, a.odd, b.even, b.odd};
  for (int u = 0; u < 4 && first + u < p.n; ++u) put((T*)p.to + first + u, from_f32(x[u]));
}
)"};

// N: the range takes more than 32 bits, element i then the words 2 i and 2 i + 1.
constexpr DeviceKernel randint_kernel{"randint", DrawArgumentsText, 256, R"(
BRRR_VX unsigned long high_product(unsigned long a, unsigned long b) {
  const unsigned long a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  const unsigned long middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffff);
  return a1 * b1 + (middle >> 32) + (other >> 32);
}
KERNEL(randint, DrawArguments, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.n) return;
  unsigned long high;
  if (N) {
    const Words4 w = draw_words(p.key, p.key_stride, p.seed, p.draw, i / 2);
    const unsigned a = i & 1 ? w.v[2] : w.v[0], b = i & 1 ? w.v[3] : w.v[1];
    high = high_product((unsigned long)b << 32 | a, p.range);
  } else {
    const Words4 w = draw_words(p.key, p.key_stride, p.seed, p.draw, i / 4);
    const unsigned a = i & 2 ? w.v[2] : w.v[0], b = i & 2 ? w.v[3] : w.v[1];
    high = (unsigned long)(i & 1 ? b : a) * (unsigned long)p.range >> 32;
  }
  ((long*)p.to)[i] = (long)((unsigned long)p.low + high);
}
)"};

constexpr auto kPermText = join_text(kEntryText, R"(
KERNEL(randperm_entries, DrawArguments, 256) {
  const long first = ((long)blockIdx.x * 256 + threadIdx.x) * 4;
  if (first >= p.n) return;
  const Words4 w = draw_words(p.key, p.key_stride, p.seed, p.draw, first / 4);
  for (int u = 0; u < 4 && first + u < p.n; ++u) {
    set_entry(((Narrow*)p.to)[first + u], w.v[u], first + u);
  }
}
)");
constexpr DeviceKernel perm_kernel{"randperm_entries", DrawArgumentsText, 256, kPermText.data()};

constexpr DeviceKernel key_kernel{"draw_key", DrawArgumentsText, 32, R"(
KERNEL(draw_key, DrawArguments, 32) {
  const long* key = (const long*)p.key;
  const long seed = key ? key[0] : p.seed, draw = key ? key[p.key_stride] : p.draw;
  if (threadIdx.x < 2) ((long*)p.to)[threadIdx.x] = threadIdx.x ? draw : seed;
}
)"};

constexpr DeviceKernel dropout_kernel{"dropout_mask", DrawArgumentsText, 256, R"(
KERNEL(dropout_mask, DrawArguments, 256) {
  const long first = ((long)blockIdx.x * 256 + threadIdx.x) * 4;
  if (first >= p.n) return;
  const Words4 w = draw_words(p.key, p.key_stride, p.seed, p.draw, first / 4);
  for (int u = 0; u < 4 && first + u < p.n; ++u) {
    const bool keep = all(ge(uniform01(u32(w.v[u])), splat((float)p.limit)));
    put((T*)p.to + first + u, splat(keep ? (TC)p.kept : (TC)0));
  }
}
)"};

void run_dropout(DrawArguments a, DType dtype, double p) {
  a.limit = p;
  a.kept = p < 1 ? 1 / (1 - p) : 0;
  run_kernel(dropout_kernel, {.t = dtype}, {blocks_for(a.n, 256, 4)}, a);
}

}  // namespace

void rand_cuda(OpCall& c) {
  const DType dtype = c.out[0].dtype();
  const int digits = dtype == kBFloat16 ? 8 : dtype == kFloat16 ? 11 : 24;
  const DrawArguments a = arguments(c);
  run_kernel(rand_kernel, {.t = dtype, .n = 32 - digits}, {blocks_for(a.n, 256, 4)}, a);
}

void randn_cuda(OpCall& c) {
  const DrawArguments a = arguments(c);
  run_kernel(randn_kernel, {.t = c.out[0].dtype()}, {blocks_for(a.n, 256, 4)}, a);
}

void randint_cuda(OpCall& c) {
  DrawArguments a = arguments(c);
  a.low = c.attrs.v[kDrawWords];
  a.range = static_cast<long>(static_cast<uint64_t>(c.attrs.v[kDrawWords + 1]) -
                              static_cast<uint64_t>(a.low));
  const bool wide = static_cast<uint64_t>(a.range) > uint64_t{1} << 32;
  run_kernel(randint_kernel, {.n = wide}, {blocks_for(a.n)}, a);
}

void randperm_cuda(OpCall& c) {
  DrawArguments a = arguments(c);
  if (a.n == 0) return;
  char* out = a.to;
  const EntryRows entries(false, 1, a.n, c.out[0].device());
  a.to = entries.data();
  run_kernel(perm_kernel, {}, {blocks_for(a.n, 256, 4)}, a);
  sort_entries(entries, a.n, out);
}

void draw_key_cuda(OpCall& c) {
  run_kernel(key_kernel, {}, {1}, arguments(c));
}

void dropout_mask_cuda(OpCall& c) {
  run_dropout(arguments(c), c.out[0].dtype(), c.attrs.d(kDrawWords));
}

void dropout_mask_at_cuda(OpCall& c) {
  const TensorImpl &o = *c.out[0].impl(), &key = *c.in[0];
  DrawArguments a{};
  a.to = o.data();
  a.n = o.numel;
  a.key = key.data();
  a.key_stride = key.strides[0];
  run_dropout(a, o.dtype, c.attrs.d(0));
}

}  // namespace brrr
