#pragma once
// The reduction row: init, map, combine and finish yield the eager kernels, the float64 oracle and
// the source text; the gradient is a function of tensors.
//
//   const ReductionOp mean{"mean", "Arithmetic mean", kFloats, {}, [] { return 0.0; }, Keep{},
//                          [](auto a, auto b) { return a + b; },
//                          [](auto a, auto n) { return a / n; },
//                          [](const ReductionGrad& r) { return r.g / r.count; }};
//
// THE ORDER is a function of the logical shape and the reduced dims only. Dims of size 1 are
// dropped and neighbours that are both reduced or both kept are merged; what remains decides:
//
// 1. (reduced) and (kept, reduced), "rows": a row's n elements are cut into chunks of 4096. Within
//    a chunk, element i goes to lane i % 16 of accumulator (i / 16) % 4; all start from init, and
//    lanes beyond the end take init. A chunk's result is (a0 + a1) + (a2 + a3), then the tree
//    vx::reduce over the lanes, where + stands for combine. The results of several chunks are
//    reduced as a row of their own (without map), and so on.
// 2. (reduced, kept) and (kept, reduced, kept), "columns": per output, each block of 64 rows is
//    combined row by row from init, then the blocks' results in order. So is a call that reduces
//    only dims of size 1: one row.
// 3. Anything else: as 1, over the elements permuted to (kept, reduced).
//
// Inputs of other dtypes are converted to the compute type first, the result at the end. `init`
// must be an exact identity of combine for everything combine(init, x) can give: kernels may then
// skip accumulators that no element reaches.

#include <bit>
#include <limits>

#include "core/call.h"
#include "ops/vocabulary/scalar_math.h"
#include "ops/vocabulary/vec_fold.h"

namespace brrr {

inline constexpr int64_t kReduceChunk = vx::kFoldChunk;
inline constexpr int64_t kReduceBlock = 64;  ///< Rows of a column per accumulator.

/// The result's dtype: the input's; the input's, but int64 for integers and bool; bool.
enum class ReductionResult : uint8_t { Same, Wide, Bool };

struct ReductionTraits {
  ReductionResult result = ReductionResult::Same;
  bool needs_elements = false;  ///< An empty reduction is an error, not init.
  bool saves_input = false;     ///< The gradient reads x.
  bool saves_output = false;    ///< The gradient reads y.
};

/// What a gradient sees. y and g have the reduced dims kept with size 1; the result may be of any
/// shape that broadcasts to x. x and y are undefined unless the traits say they are saved.
struct ReductionGrad {
  Tensor x, y, g;
  IntList sizes;  ///< Of x.
  IntList dims;   ///< The reduced ones.
  double count;   ///< Elements per output.
};

/// Folds for one compute type. Strides are in elements; innermost elements are adjacent.
struct ReductionFolds {
  /// out[r] = the fold of row r of n <= kReduceChunk elements, without finish.
  void (*rows)(const void* in, int64_t stride, int64_t n, int64_t rows, void* out) = nullptr;
  /// Folds `rows` rows of `cols` columns into out[cols], starting from init if `first`.
  void (*columns)(const void* in, int64_t stride, int64_t rows, int64_t cols, bool first,
                  void* out) = nullptr;
};
struct ReductionKernels {
  ReductionFolds elements;  ///< Of input elements, mapped first.
  ReductionFolds results;   ///< Of the results of chunks and blocks.
  /// acc[i] = finish(acc[i], count); null when that changes nothing.
  void (*finish)(void* acc, int64_t n, int64_t count) = nullptr;
};

struct ReductionInfo {
  ReductionTraits traits;
  ReductionKernels kernels[4] = {};  ///< By compute_index; null if not instantiated.
  /// Adds the statements to the current SymScope: x mapped, folded by a statement of kind `fold`,
  /// finished with the count. Returns the result's id.
  int (*symbols)(int x, Statement::Kind fold, const Statement& count, bool map,
                 bool finish) = nullptr;
  double (*oracle)(const double* x, int64_t n) = nullptr;  ///< Sequential, in double.
  Tensor (*gradient)(const ReductionGrad&) = nullptr;
};

struct ReductionAttrs {
  int64_t mask;     ///< Bit d: dim d is reduced...
  int64_t keepdim;  ///< ...and kept with size 1.
};

// Functions that do not depend on the lambdas: reduction.cpp, reduction_run.cpp.
void reduction_infer(OpCall& c);
void reduction_run(OpCall& c);
int64_t reduction_scratch(const OpCall& c);
void reduction_vjp(VjpCall& v);
/// The single dim in the mask.
inline int reduced_dim(const Attrs& a) {
  return std::countr_zero(static_cast<uint64_t>(a.as<ReductionAttrs>().mask));
}
/// The dtype a row computes in for the input x; throws when it has no kernel for it.
DType reduction_compute_dtype(const OpDef& op, const TensorImpl& x);
/// The mask of `dims` of x (of all dims if empty); throws on repeated and out-of-range dims.
int64_t reduction_mask(const char* op, const Tensor& x, const IntList& dims);
/// x's sizes with those in the mask set to 1, or dropped.
IntList reduced_sizes(const IntList& sizes, const ReductionAttrs& a);
/// The number of elements in the dims of the mask.
int64_t reduced_count(const IntList& sizes, int64_t mask);
/// The entry point of the public functions.
Tensor reduce(const OpDef& op, const Tensor& x, const IntList& dims, bool keepdim);

/// The identity: map or finish of rows that have none.
struct Keep {
  template <class T, class... N> T operator()(T x, N...) const { return x; }
};

/// The map of a fold over partial results: none, unless Map declares `Idempotent`, which says that
/// it leaves its own results unchanged; then Map itself.
template <class Map> struct ResultMap { using type = Keep; };
template <class Map>
requires requires { typename Map::Idempotent; }
struct ResultMap<Map> {
  using type = Map;
};

/// Compute types to instantiate a row for.
template <class... V> struct KernelTypes {};
inline constexpr KernelTypes<vx::f32, vx::f64> kFloats;
inline constexpr KernelTypes<vx::f32, vx::f64, vx::i64> kFloatsAndInt64;  // int32 is widened
inline constexpr KernelTypes<vx::f32, vx::f64, vx::i64, vx::i32> kNumbers;

template <class T> constexpr T reduction_init(double init) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_integral_v<T>) {
    if (init <= static_cast<double>(Limits::min())) return Limits::min();
    if (init >= static_cast<double>(Limits::max())) return Limits::max();
  }
  return static_cast<T>(init);
}

/// The first `lanes` elements of a vector.
template <class V> [[gnu::always_inline]] inline V take(const Lane<V>* p, int lanes) {
  vx::Parts<V> v = V{};
  if (lanes == 16)
    v = vx::load(p);
  else
    v = vx::load_n(p, lanes);
  return v.get();
}
template <class V> [[gnu::always_inline]] inline void put(Lane<V>* p, V v, int lanes) {
  if (lanes == 16)
    vx::store(p, v);
  else
    vx::store_n(p, v, lanes);
}

/// f(i, lanes) for every vector of a row.
template <class F> void map_row(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, 16);
  if (i < n) f(i, static_cast<int>(n - i));
}

// flatten: where a vector takes several registers g++ 12 would not inline a long combine, such as
// that of amax, and pass vectors in memory, which takes thirty times as long.
template <class Init, class Map, class Combine, class V>
[[gnu::flatten]] void reduce_rows(const void* in, int64_t stride, int64_t n, int64_t rows,
                                  void* out) {
  using N = Num<V>;
  using T = Lane<V>;
  const T* p = static_cast<const T*>(in);
  T* o = static_cast<T*>(out);
  const N init = reduction_init<T>(Init{}());
  const auto combine = [](V a, V b) __attribute__((always_inline)) {
    return Combine{}(N(a), N(b)).v;
  };
  const auto elements = [](const T* from) {
    return [from](long i, int lanes) { return Map{}(N(take<V>(from + i, lanes))).v; };
  };
  // (For wider elements too, it would double g++'s compile time.)
  if constexpr (sizeof(T) == 4) {
    if (stride == n && vx::packs_rows(rows, n))
      return vx::fold_together(rows, n, init.v, combine, elements(p), o);
  }
  for (int64_t r = 0; r < rows; ++r, p += stride)
    o[r] = vx::fold_chunk_inline(0L, n, init.v, combine, elements(p));
}

template <class Init, class Map, class Combine, class V>
[[gnu::flatten]] void reduce_columns(const void* in, int64_t stride, int64_t rows, int64_t cols,
                                     bool first, void* out) {
  using N = Num<V>;
  using T = Lane<V>;
  const N init = reduction_init<T>(Init{}());
  T* o = static_cast<T*>(out);
  // Eight rows at a time: eight streams for the prefetcher, an eighth of the accumulator traffic.
  for (int64_t r = 0; r < rows; r += 8) {
    const T* p = static_cast<const T*>(in) + r * stride;
    const int64_t m = rows - r < 8 ? rows - r : 8;
    const bool fresh = first && r == 0;
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) {
      vx::Parts<V> a = init.v;
      if (!fresh) a = vx::load(o + c);
      auto take = [&](int64_t i) {
        a = Combine{}(N(a.get()), Map{}(N(vx::load(p + c + i * stride)))).v;
      };
      if (m == 8) {
        take(0), take(1), take(2), take(3), take(4), take(5), take(6), take(7);
      } else {
        for (int64_t i = 0; i < m; ++i) take(i);
      }
      a.store(o + c);
    }
    if (c == cols) continue;
    const int lanes = static_cast<int>(cols - c);
    N a = fresh ? init : N(vx::load_n(o + c, lanes));
    for (int64_t i = 0; i < m; ++i) {
      a = Combine{}(a, Map{}(N(take<V>(p + c + i * stride, lanes))));
    }
    vx::store_n(o + c, a.v, lanes);
  }
}

template <class Finish, class V>
[[gnu::flatten]] void reduce_finish(void* acc, int64_t n, int64_t count) {
  auto* const a = static_cast<Lane<V>*>(acc);
  map_row(n, [a, elements = Num<V>(count)](int64_t i, int lanes) {
    put<V>(a + i, Finish{}(Num<V>(take<V>(a + i, lanes)), elements).v, lanes);
  });
}

template <class Init, class Map, class Combine, class Finish>
double reduction_oracle(const double* x, int64_t n) {
  using N = Num<double>;
  N acc = Init{}();
  for (int64_t i = 0; i < n; ++i) acc = Combine{}(acc, Map{}(N(x[i])));
  return Finish{}(acc, N(static_cast<double>(n))).v;
}

template <class V, class Init, class Map, class Combine, class Finish>
void add_reduction_kernels(ReductionInfo& info) {
  ReductionKernels& k = info.kernels[compute_index(DTypeOf<Lane<V>>::value)];
  k.elements = {reduce_rows<Init, Map, Combine, V>, reduce_columns<Init, Map, Combine, V>};
  using Remap = typename ResultMap<Map>::type;
  k.results = {reduce_rows<Init, Remap, Combine, V>, reduce_columns<Init, Remap, Combine, V>};
  if constexpr (!std::is_same_v<Finish, Keep>) k.finish = reduce_finish<Finish, V>;
}

/// `init` as a literal of a compute type.
std::string init_literal(double init, DType compute);

template <class Init, class Map, class Combine, class Finish>
int reduction_symbols(int x, Statement::Kind fold, const Statement& count, bool map, bool finish) {
  const Sym mapped = map ? Map{}(Sym(x)) : Sym(x);
  const std::string init = init_literal(Init{}(), SymScope::current().compute());
  const Sym y = fold_emit(fold, Combine{}, mapped, init);
  return finish ? Finish{}(y, Sym(SymScope::current().add(count))).id : y.id;
}

template <class Init, class Map, class Combine, class Finish, class... V>
ReductionInfo reduction_info(const ReductionTraits& traits,
                             Tensor (*gradient)(const ReductionGrad&)) {
  ReductionInfo info{.traits = traits,
                     .symbols = reduction_symbols<Init, Map, Combine, Finish>,
                     .oracle = reduction_oracle<Init, Map, Combine, Finish>,
                     .gradient = gradient};
  (add_reduction_kernels<V, Init, Map, Combine, Finish>(info), ...);
  return info;
}

/// A reduction row; without a gradient it is not differentiable.
class ReductionOp : public OpDef {
 public:
  template <class... V, class Init, class Map, class Combine, class Finish>
  ReductionOp(const char* n, const char* d, KernelTypes<V...>, const ReductionTraits& traits, Init,
              Map, Combine, Finish, Tensor (*gradient)(const ReductionGrad&) = nullptr)
      : ReductionOp(n, d, reduction_info<Init, Map, Combine, Finish, V...>(traits, gradient)) {}

  const ReductionInfo info;

 private:
  ReductionOp(const char* n, const char* d, const ReductionInfo& i);
};

}  // namespace brrr
