// Matrix products. gemm reads operands in place if one of their two dims is contiguous; 16-bit
// floats are computed in float32 and rounded once; integers are exact modulo 2^bits.
#include <algorithm>
#include <type_traits>

#include "core/autocast.h"
#include "core/backend.h"
#include "core/check.h"
#include "ops/kinds/row_kernel.h"
#include "ops/kinds/view.h"
#include "ops/library_ops.h"
#include "ops/rows/product_operands.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

using namespace gemm_operands;

// --- shape rules ---------------------------------------------------------------------------------

void check_operands(const OpCall& c) {
  const TensorImpl &a = *c.in[0], &b = *c.in[1];
  BRRR_CHECK(a.dtype == b.dtype, "{}: dtypes differ: {} x {}; convert one with to(dtype)",
             c.op->name, describe(&a), describe(&b));
  BRRR_CHECK(a.dtype != kBool, "{}: no products of bool: {} x {}; convert with to(dtype)",
             c.op->name, describe(&a), describe(&b));
  check_devices(c);
}

void matmul_infer(OpCall& c) {
  const TensorImpl &a = *c.in[0], &b = *c.in[1];
  BRRR_CHECK(a.ndim > 0 && b.ndim > 0,
             "matmul: operands need at least one dim: {} x {}; use * for scalars",
             to_string(a.size_list()), to_string(b.size_list()));
  const int64_t inner = b.sizes[b.ndim == 1 ? 0 : b.ndim - 2];
  BRRR_CHECK(a.sizes[a.ndim - 1] == inner, "matmul: inner dimensions differ: {} x {}",
             to_string(a.size_list()), to_string(b.size_list()));
  check_operands(c);
  if (a.ndim == 2 && b.ndim == 2) return set_meta(c, 0, a.dtype, {a.sizes[0], b.sizes[1]});
  for (int d = 3; d <= std::min(a.ndim, b.ndim); ++d) {
    const int64_t na = a.sizes[a.ndim - d], nb = b.sizes[b.ndim - d];
    BRRR_CHECK(na == nb || na == 1 || nb == 1, "matmul: batch dims do not broadcast: {} x {}",
               to_string(a.size_list()), to_string(b.size_list()));
  }
  const IntList batch_a(a.sizes, static_cast<size_t>(std::max(a.ndim - 2, 0)));
  const IntList batch_b(b.sizes, static_cast<size_t>(std::max(b.ndim - 2, 0)));
  IntList sizes = broadcast_shapes("matmul", batch_a, batch_b);
  if (a.ndim > 1) sizes.push_back(a.sizes[a.ndim - 2]);
  if (b.ndim > 1) sizes.push_back(b.sizes[b.ndim - 1]);
  set_meta(c, 0, a.dtype, sizes);
}

void linear_infer(OpCall& c) {
  const TensorImpl &x = *c.in[0], &w = *c.in[1];
  BRRR_CHECK(x.ndim > 0 && w.ndim == 2 && x.sizes[x.ndim - 1] == w.sizes[1],
             "linear: x {} and weight {} do not match; x is [.., in] and weight is [out, in]",
             to_string(x.size_list()), to_string(w.size_list()));
  check_operands(c);
  same_infer(c);
  c.meta[0].sizes[x.ndim - 1] = w.sizes[0];
}

// --- kernels -------------------------------------------------------------------------------------

constexpr int64_t kGrain = 1 << 15;  // Work worth a thread: elements, or multiplications / 16.

/// C = A B modulo 2^bits, for integers: accumulates four vectors of columns at a time.
template <class T>
void integer_product(const Matrices& a, const Matrices& b, const T* pa, const T* pb, T* c) {
  using U = std::make_unsigned_t<T>;
  constexpr int64_t kCols = 256 / sizeof(T);
  const int64_t n = b.cols, work = std::max<int64_t>(1, a.cols * n / 16), by = b.col_stride;
  parallel_for(a.rows, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    for (int64_t j = 0; j < n; j += kCols) {
      const int64_t cols = std::min(kCols, n - j);
      for (int64_t i = begin; i < end; ++i) {
        U sum[kCols] = {};
        for (int64_t k = 0; k < a.cols; ++k) {
          const U x = static_cast<U>(pa[i * a.row_stride + k * a.col_stride]);
          const T* y = pb + k * b.row_stride + j * by;
          if (cols == kCols && by == 1) {
            for (int64_t l = 0; l < kCols; ++l) sum[l] += x * static_cast<U>(y[l]);
          } else {
            for (int64_t l = 0; l < cols; ++l) sum[l] += x * static_cast<U>(y[l * by]);
          }
        }
        std::copy_n(sum, cols, reinterpret_cast<U*>(c + i * n + j));
      }
    }
  });
}

// One product of integer matrices on a GPU, modulo 2^bits. Strides are in elements.
BRRR_DEVICE_STRUCT(IntegerProduct, {
  const char *a, *b;
  char* c;
  long m, n, k, a_row, a_col, b_row, b_col;
});

constexpr DeviceKernel integer_product_kernel{"integer_product", IntegerProductText, 256, {R"(
EACH_KERNEL(integer_product, IntegerProduct, 256, at, p.m * p.n) {
  const T* a = (const T*)p.a + at / p.n * p.a_row;
  const T* b = (const T*)p.b + at % p.n * p.b_col;
  unsigned long sum = 0;
  for (long k = 0; k < p.k; ++k) {
    sum += (unsigned long)a[k * p.a_col] * (unsigned long)b[k * p.b_row];
  }
  ((T*)p.c)[at] = (T)sum;
}
)"}};

/// The right operand; that of linear is the transposed weight.
Matrices right_of(const OpCall& c) {
  Matrices b(*c.in[1], false);
  if (c.op->infer == linear_infer) b.set_own(transposed(*b.t));
  return b;
}

Gemm gemm_of(const Matrices& a, const Matrices& b, DType dtype, char* c) {
  // The planner asks about operands that have no memory yet.
  const auto at = [](const Matrices& o) { return o.t->storage->data ? o.t->data() : nullptr; };
  const Layout la = gemm_layout(a), lb = gemm_layout(b);
  return {dtype, la.trans, lb.trans, a.rows, b.cols, a.cols, at(a), la.ld, at(b), lb.ld, c, b.cols};
}

/// The product of one pair of integer matrices, `at` and `bt` elements into the operands.
void integers(const Matrices& a, const Matrices& b, int64_t at, int64_t bt, DType dtype, char* c) {
  if (a.t->device.type == DeviceType::CUDA) {
    const auto size = static_cast<int64_t>(itemsize(dtype));
    return run_kernel(
        integer_product_kernel, {.t = dtype}, {blocks_for(a.rows * b.cols)},
        IntegerProduct{a.t->data() + at * size, b.t->data() + bt * size, c, a.rows, b.cols, a.cols,
                       a.row_stride, a.col_stride, b.row_stride, b.col_stride});
  }
  const auto run = [&](auto number) {
    using T = decltype(number);
    integer_product(a, b, reinterpret_cast<const T*>(a.t->data()) + at,
                    reinterpret_cast<const T*>(b.t->data()) + bt, reinterpret_cast<T*>(c));
  };
  dtype == kInt64 ? run(int64_t{}) : run(int32_t{});
}

// Whether parts of the product are ranges of the inner dim (terms of its sums), not of its rows.
bool is_cut_by_terms(const TensorImpl& left) {
  return left.ndim == 2 && left.strides[0] < left.strides[1];
}

void product(const Matrices& a, const Matrices& b, DType dtype, char* c, Share share, void* kept) {
  if (!is_floating(dtype)) return integers(a, b, 0, 0, dtype, c);
  Gemm g = gemm_of(a, b, dtype, c);
  g.chain = share != Share::All;
  g.add = share == Share::Later && is_cut_by_terms(*a.t);
  if (kept && share == Share::First) host::pack_right(g, kept);
  g.packed = kept;
  constexpr int64_t at[3] = {};
  backend(a.t->device.type).gemm(g, 1, at);
}

/// Products [begin, end) of a batch.
void products(const Matrices& a, const Matrices& b, const TensorImpl& out, int dims, DType dtype,
              char* c, int64_t begin, int64_t end) {
  constexpr int64_t kAtOnce = 1024;
  const int64_t area = a.rows * b.cols;
  DimWalk<2> walk(dims, out.sizes, {a.batch_stride, b.batch_stride}, begin);
  if (!is_floating(dtype)) {
    const int64_t step = area * static_cast<int64_t>(itemsize(dtype));
    for (; begin < end; ++begin, walk.next()) {
      integers(a, b, walk.at[0], walk.at[1], dtype, c + begin * step);
    }
    return;
  }
  const auto gemm = backend(out.device.type).gemm;
  const Gemm g = gemm_of(a, b, dtype, c);
  int64_t at[3 * kAtOnce];
  while (begin < end) {
    int64_t n = 0;
    for (; n < kAtOnce && begin < end; ++n, ++begin, walk.next()) {
      at[3 * n] = walk.at[0];
      at[3 * n + 1] = walk.at[1];
      at[3 * n + 2] = begin * area;
    }
    gemm(g, n, at);
  }
}

/// Whether the left operand's batch is flattened into rows, as the right one has none.
bool flattens_rows(const OpCall& c) { return c.in[1]->ndim <= 2 && c.in[0]->ndim > 2; }

/// Whether the left operand must be copied. With flattens_rows() also flattens it where possible.
bool is_copied(const OpCall& c, Matrices& left) {
  if (!flattens_rows(c)) return !readable(left);
  return left.t->dtype != product_dtype(*c.out[0].impl()) || !flatten_rows(left);
}

/// The product of padded operands into `out`.
void multiply_padded(Matrices& a, Matrices& b, const Padding& to, DType dtype, TensorImpl& out) {
  const int64_t m = a.rows, n = b.cols;
  pad(a, to.m, to.k);
  pad(b, to.k, to.n);
  const int64_t pitch = out.storage->gaps ? out.strides[out.ndim - 2] : n;
  const IntList steps{to.n, 1};
  if (!to.result || (pitch == to.n && has_room(out, to.m, to.n, steps))) {
    return product(a, b, dtype, out.data(), Share::All, nullptr);
  }
  const Tensor whole = raw_empty({to.m, to.n}, dtype, out.device);
  product(a, b, dtype, whole.impl()->data(), Share::All, nullptr);
  copy_now(*memory_view(out, {m, n}, {pitch, 1}, out.offset).impl(),
           *memory_view(*whole.impl(), {m, n}, {to.n, 1}, 0).impl());
}

void multiply(OpCall& call) {
  const TensorImpl &left = *call.in[0], &right = *call.in[1];
  TensorImpl& out = *call.out[0].impl();
  if (out.numel == 0) return;
  Matrices a(left, true), b = right_of(call);
  const DType dtype = product_dtype(out);
  const int batch_dims = right.ndim <= 2 ? 0 : out.ndim - (left.ndim > 1) - 1;
  if (!readable(b)) make_copy(b);
  if (is_copied(call, a)) {
    make_copy(a, !flattens_rows(call));
    if (flattens_rows(call)) flatten_rows(a);
  }
  if (const Padding to(a, b, dtype, out.device); batch_dims == 0 && to.any) {
    return multiply_padded(a, b, to, dtype, out);
  }
  DenseOutput result(call.out[0], dtype);
  char* const c = result.as<char>();
  if (batch_dims == 0) {
    product(a, b, dtype, c, call.share, call.kept);
  } else {
    broadcast_batch(a, out, batch_dims);
    broadcast_batch(b, out, batch_dims);
    const int64_t area = a.rows * b.cols, work = std::max<int64_t>(1, area * a.cols / 16);
    const bool alone = out.device.type == DeviceType::CUDA;  // The CPU only queues.
    const int64_t n = out.numel / area, grain = alone ? n : std::max<int64_t>(1, kGrain / work);
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      products(a, b, out, batch_dims, dtype, c, begin, end);
    });
  }
  result.finish();
}

/// Bytes of the copies that multiply() makes on the CPU.
int64_t product_scratch(const OpCall& c) {
  const TensorImpl &left = *c.in[0], &right = *c.in[1], &out = *c.out[0].impl();
  auto copy_of = [](const TensorImpl& t) {
    return scratch_for(t.numel, static_cast<int64_t>(itemsize(product_dtype(t))));
  };
  Matrices a(left, true), b = right_of(c);
  return (readable(b) ? 0 : copy_of(right)) + (is_copied(c, a) ? copy_of(left) : 0) +
         (out.dtype != product_dtype(out) ? copy_of(out) : 0);
}

// Cut by rows of the left operand or, if that is a transposed matrix, along the inner dim.
int product_cut(const OpCall& c, int operand) {
  const TensorImpl &left = *c.in[0], &right = *c.in[1], &out = *c.out[0].impl();
  Matrices a(left, true), b = right_of(c);
  if (left.device != kCPU || left.ndim < 2 || right.ndim != 2 || out.numel == 0) return kUncut;
  const bool terms = is_cut_by_terms(left);
  if (!readable(b) || (terms ? !readable(a) || out.dtype != left.dtype : !flatten_rows(a))) {
    return kUncut;
  }
  if (!host::is_chain(gemm_of(a, b, product_dtype(out), nullptr))) return kUncut;
  const int by_rows[] = {0, kWhole, 0}, by_terms[] = {1, c.op->infer == linear_infer, kSum};
  return (terms ? by_terms : by_rows)[operand];
}

// The packed right operand, if parts are rows of the left one.
int64_t product_keeps(const OpCall& c) {
  const TensorImpl &left = *c.in[0], &out = *c.out[0].impl();
  Matrices a(left, true), b = right_of(c);
  if (is_cut_by_terms(left) || !readable(b) || !flatten_rows(a)) return 0;
  return host::packed_right_bytes(gemm_of(a, b, product_dtype(out), nullptr));
}

// The layout of padded operands.
MatrixPadding product_room(const OpCall& c, int operand) {
  const TensorImpl &left = *c.in[0], &right = *c.in[1], &out = *c.out[0].impl();
  Matrices a(left, true), b = right_of(c);
  if (left.ndim < 2 || right.ndim != 2 || out.numel == 0 || !readable(b) || is_copied(c, a)) {
    return {};
  }
  const Padding to(a, b, product_dtype(out), out.device);
  if (!to.any) return {};
  if (operand == 2) return {to.m, to.n};
  const bool is_left = operand == 0;
  MatrixPadding room = is_left ? MatrixPadding{to.m, to.k} : MatrixPadding{to.k, to.n};
  if (gemm_layout(is_left ? a : b).trans) std::swap(room.rows, room.pitch);
  return room;
}

// A multiplication and an addition for each pair of factors.
Work product_work(const OpCall& c) {
  const TensorImpl& a = *c.in[0];
  const auto length = static_cast<double>(a.sizes[a.ndim - 1]);
  return {2 * length * static_cast<double>(c.out[0].numel()), operand_bytes(c), c.out[0].dtype(),
          true};
}

// --- gradients and rows --------------------------------------------------------------------------

/// [rows, columns], with the leading dims flattened.
Tensor as_matrix(const Tensor& t) {
  const IntList sizes = t.sizes();
  const IntList leading(sizes.data(), static_cast<size_t>(sizes.size() - 1));
  return in_sizes(t, {numel_of(leading), t.size(-1)});
}

void matmul_vjp(VjpCall& v) {
  const IntList &sa = v.meta(0).sizes, &sb = v.meta(1).sizes;
  Tensor g = v.gout[0];
  if (sb.size() == 1) g = g.unsqueeze(-1);
  if (sa.size() == 1) g = g.unsqueeze(-2);
  if (v.needs(0)) {
    Tensor b = v.input(1);
    if (sb.size() == 1) b = b.unsqueeze(-1);
    const Tensor ga = matmul(g, b.transpose(-2, -1));
    v.gin[0] = sa.size() == 1 ? sum_to(ga, {1, sa[0]}).reshape(sa) : sum_to(ga, sa);
  }
  if (v.needs(1)) {
    Tensor a = v.input(0);
    if (sa.size() == 1) a = a.unsqueeze(0);
    if (sa.size() > 2 && sb.size() <= 2) {  // One product sums over the batch as well.
      a = as_matrix(a);
      g = as_matrix(g);
    }
    const Tensor gb = matmul(a.transpose(-2, -1), g);
    v.gin[1] = sb.size() == 1 ? sum_to(gb, {sb[0], 1}).reshape(sb) : sum_to(gb, sb);
  }
}

void linear_vjp(VjpCall& v) {
  const Tensor& g = v.gout[0];
  // The weight's gradient first: it is the last reader of x, whose memory the other may then reuse.
  if (v.needs(1)) v.gin[1] = matmul(as_matrix(g).t(), as_matrix(v.input(0)));
  if (v.needs(0)) v.gin[0] = matmul(g, v.input(1));
}

OpSpec product_spec(void (*infer)(OpCall&), void (*vjp)(VjpCall&)) {
  return {.infer = infer,
          .kernel = {{multiply}, {multiply}},
          .scratch = product_scratch,
          .cut = product_cut,
          .keeps = product_keeps,
          .room = product_room,
          .work = product_work,
          .vjp = vjp,
          .saves_inputs = 0b11,
          .autocast = Autocast::Round};
}
const OpDef matmul_row{"matmul", "matrix product; batch dims broadcast",
                       product_spec(matmul_infer, matmul_vjp)};
const OpDef linear_row{"linear", "x W^T over the last dim", product_spec(linear_infer, linear_vjp)};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  BRRR_CHECK(a.defined() && b.defined(), "matmul: an operand is an undefined tensor");
  return call(matmul_row, {a, b});
}

Tensor Tensor::matmul(const Tensor& o) const { return brrr::matmul(*this, o); }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  BRRR_CHECK(x.defined() && weight.defined(), "linear: x or weight is an undefined tensor");
  const Tensor b = autocast_operand(bias);
  BRRR_CHECK(
      !bias.defined() || (bias.dim() == 1 && weight.dim() > 0 && bias.size(0) == weight.size(0)),
      "linear: bias {} does not match weight {}; weight is [out, in] and bias [out]",
      to_string(bias.sizes()), to_string(weight.sizes()));
  const Tensor y = call(linear_row, {x, weight});
  if (b.defined()) {
    BRRR_CHECK(b.dtype() == y.dtype() && b.device() == weight.device(),
               "linear: bias is {} on {}, weight {} on {}; convert one with to()", describe(bias),
               name(bias.device()), describe(weight), name(weight.device()));
    y.add_(b);  // In place: nothing else refers to the product.
  }
  return y;
}

}  // namespace brrr
