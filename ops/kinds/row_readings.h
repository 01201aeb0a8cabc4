#pragma once
// A row op's lambda read as tensors, which is its differentiable form, and as numbers in double,
// which is the oracle.

#include <algorithm>
#include <vector>

#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"
#include "ops/vocabulary/row.h"
#include "ops/vocabulary/sym.h"

namespace brrr {

// --- tensors -------------------------------------------------------------------------------------

/// A tensor that broadcasts against the rows: reduced dims have size 1.
struct RowTensor {
  struct Reading;
  Tensor t;
  IntList whole;  ///< The sizes of all rows together,
  int dims = 1;   ///< of which the last so many are the row's.
  IntList row() const { return {whole.end() - dims, static_cast<size_t>(dims)}; }
  int64_t n() const { return numel_of(row()); }
  static Tensor as_large_as(const Tensor& t, const IntList& sizes) {
    return t.sizes() == sizes ? t : expand(t, sizes);
  }
  IntList along() const {
    IntList list;
    for (int64_t d = 1; d <= std::min<int64_t>(dims, t.dim()); ++d) list.push_back(-d);
    return list;
  }
};
/// The places of elements, [rows, 1], and where they count; other places are 0.
struct RowTensorIds {
  using Reading = RowTensor::Reading;
  RowTensor at, counted;
};

struct RowTensor::Reading {
  static const Tensor& term(const RowTensor& a) { return a.t; }
  static double term(double a) { return a; }
  static const RowTensor* rows(const RowTensor& a) { return &a; }
  static const RowTensor* rows(double) { return nullptr; }
  template <class F, class... A> static RowTensor lift(const A&... a) {
    const RowTensor* like = nullptr;
    ((like = like ? like : rows(a)), ...);
    return with(*like, F{}(term(a)...));
  }
  static RowTensor with(const RowTensor& like, const Tensor& t) {
    return {t, like.whole, like.dims};
  }

  // Of what does not vary along the row, or along one of its dims, as often as there are elements.
  static RowTensor sum(const RowTensor& x) {
    int64_t here = 1;
    for (int64_t d : x.along()) here *= x.t.size(d);
    const Tensor all = brrr::sum(x.t, x.along(), true);
    return with(x, here == x.n() ? all : all * (length(x) / static_cast<double>(here)));
  }
  template <class F> static RowTensor fold(const RowTensor& x, double identity) {
    if (std::is_same_v<F, lifted::Add> || x.t.numel() == 0) return sum(x);
    const auto extremum = std::is_same_v<F, lifted::Larger> ? amax : amin;
    return with(x, extremum(where(isnan(x.t), identity, x.t), x.along(), true));
  }
  static double length(const RowTensor& x) { return static_cast<double>(x.n()); }
  static RowTensor number(const RowTensor& like, double v) {
    return with(like, full({}, v, m::NumbersAs::now, like.t.device()));
  }
  static RowTensor constant(const RowTensor& x) { return with(x, x.t.detach()); }
  static RowTensor pick(const RowTensor& x, const RowTensorIds& ids) {
    IntList sizes = ids.at.t.sizes();
    Tensor all = x.t;
    if (x.n() == 0) return with(x, ids.counted.t.to(all.dtype()) * 0.0);  // None counts.
    const bool same = all.dim() == 0 || all.size(-1) != x.n();            // Along the row.
    if (same) {
      return with(x, where(ids.counted.t, all, 0.0));
    }
    sizes[sizes.size() - 1] = all.size(-1);
    if (all.dim() != sizes.size()) all = expand(all, sizes);  // What the rows share.
    return with(x, where(ids.counted.t, gather(all, -1, ids.at.t), 0.0));
  }
  static RowTensor counts(const RowTensorIds& ids) { return ids.counted; }
  static RowTensor is_at(const RowTensorIds& ids) {
    const RowTensor& id = ids.at;
    if (!id.dims) return with(id, (id.t == 0) & ids.counted.t);
    const Tensor here = id.n() > 0 ? one_hot(squeeze(id.t, -1), id.n()) != 0
                                   : expand(id.t == 0, id.whole);  // Of nothing.
    return with(id, here & ids.counted.t);
  }
  // What is the same in all rows, or along them, counts as often as it stands there.
  static RowTensor over_rows(const RowTensor& x) {
    return with(x, sum_to(as_large_as(x.t, x.whole), x.row()));
  }
  static RowTensor total(const RowTensor& x) {
    IntList numbers = x.whole;
    std::fill(numbers.end() - x.dims, numbers.end(), 1);
    return with(x, brrr::sum(as_large_as(x.t, numbers)));
  }
};

// --- numbers -------------------------------------------------------------------------------------

/// rows x columns numbers, either of which may be 1 for a value that does not vary so. Masks are 1
/// and 0.
struct RowNumbers {
  struct Reading;
  int64_t rows = 1, columns = 1, n = 1;  ///< n: of elements in a row.
  std::vector<double> v;
  double at(int64_t r, int64_t i) const {
    return v[static_cast<size_t>((rows > 1 ? r * columns : 0) + (columns > 1 ? i : 0))];
  }
};
/// Places of elements, one a row; negative: it does not count.
struct RowNumberIds {
  using Reading = RowNumbers::Reading;
  std::vector<int64_t> at;
  int64_t n = 1;
  int64_t rows() const { return static_cast<int64_t>(at.size()); }
  int64_t operator[](int64_t r) const { return at[static_cast<size_t>(r)]; }
};

struct RowNumbers::Reading {
  static RowNumbers term(const RowNumbers& a) { return a; }
  static RowNumbers term(double a) { return {.v = {a}}; }
  template <class F, class... A> static RowNumbers lift(const A&... a) {
    return elementwise<F>(term(a)...);
  }
  template <class F> static RowNumbers fold(const RowNumbers& x, double identity) {
    return each(x.rows, 1, x.n, [&](int64_t r, int64_t) {
      Num<double> all = identity;
      for (int64_t i = 0; i < x.n; ++i) all = F{}(all, Num<double>(x.at(r, i)));
      return all.v;
    });
  }
  static double length(const RowNumbers& x) { return static_cast<double>(x.n); }
  static RowNumbers number(const RowNumbers& like, double v) { return {.n = like.n, .v = {v}}; }
  static RowNumbers constant(const RowNumbers& x) { return x; }
  static RowNumbers pick(const RowNumbers& x, const RowNumberIds& ids) {
    return each(ids.rows(), 1, x.n,
                [&](int64_t r, int64_t) { return ids[r] < 0 ? 0.0 : x.at(r, ids[r]); });
  }
  static RowNumbers counts(const RowNumberIds& ids) {
    return each(ids.rows(), 1, ids.n, [&](int64_t r, int64_t) { return ids[r] >= 0; });
  }
  static RowNumbers is_at(const RowNumberIds& ids) {
    return each(ids.rows(), ids.n, ids.n, [&](int64_t r, int64_t i) { return i == ids[r]; });
  }
  static RowNumbers over_rows(const RowNumbers& x) { return down(x, x.n); }
  static RowNumbers total(const RowNumbers& x) { return down(x, 1); }

 private:
  template <bool mask> static auto element(const RowNumbers& x, int64_t r, int64_t i) {
    if constexpr (mask)
      return Mask<double>{x.at(r, i) != 0};
    else
      return Num<double>(x.at(r, i));
  }
  /// f(row, column) of all.
  template <class F> static RowNumbers each(int64_t rows, int64_t columns, int64_t n, const F& f) {
    RowNumbers y{.rows = rows, .columns = columns, .n = n, .v = {}};
    for (int64_t k = 0; k < rows * columns; ++k) y.v.push_back(f(k / columns, k % columns));
    return y;
  }
  // The first operand of a choice is a mask, and so are both of & and |.
  template <class F, class... A> static RowNumbers elementwise(const A&... a) {
    return each(std::max({a.rows...}), std::max({a.columns...}), std::max({a.n...}),
                [&](int64_t r, int64_t i) { return one<F>(r, i, a...); });
  }
  template <class F, class A, class... B>
  static double one(int64_t r, int64_t i, const A& a, const B&... b) {
    constexpr bool logic = std::is_same_v<F, lifted::And> || std::is_same_v<F, lifted::Or>;
    constexpr bool first = logic || std::is_same_v<F, lifted::where>;
    const auto y = F{}(element<first>(a, r, i), element<logic>(b, r, i)...);
    if constexpr (requires { y.m; })
      return y.m;
    else
      return y.v;
  }
  static RowNumbers down(const RowNumbers& x, int64_t columns) {
    return each(1, columns, x.n, [&](int64_t, int64_t i) {
      double sum = 0;
      for (int64_t r = 0; r < x.rows; ++r) sum += x.at(r, i);
      return sum;
    });
  }
};

// --- symbols -------------------------------------------------------------------------------------

struct RowSym {
  struct Reading;
  Sym s;
};
struct RowSymMask {
  using Reading = RowSym::Reading;
  SymMask s;
};
struct RowSymIds {
  using Reading = RowSym::Reading;
  int which;
};

struct RowSym::Reading {
  static Sym term(const RowSym& a) { return a.s; }
  static SymMask term(const RowSymMask& a) { return a.s; }
  static Sym term(double a) { return a; }
  template <class F, class... A> static auto lift(const A&... a) {
    const auto y = F{}(term(a)...);
    if constexpr (std::is_same_v<decltype(y), const SymMask>)
      return RowSymMask{y};
    else
      return RowSym{y};
  }
  template <class F>
  static RowSym fold(const RowSym& x, double identity, Statement::Kind kind = Statement::Fold) {
    return {fold_emit(kind, F{}, x.s, literal(identity))};
  }
  static RowSym length(const RowSym&) { return add({Statement::Length, type()}); }
  static RowSym constant(const RowSym& x) { return x; }
  static RowSym pick(const RowSym& x, const RowSymIds& ids) {
    return add({Statement::Pick, type(), ids.which, {}, {x.s.id}});
  }
  static RowSymMask counts(const RowSymIds& ids) {
    return mask({Statement::Counts, kBool, ids.which}, Statement::WithRow);
  }
  static RowSymMask is_at(const RowSymIds& ids) {
    return mask({Statement::IsAt, kBool, ids.which}, Statement::InRow);
  }
  static RowSym over_rows(const RowSym& x) {
    return fold<lifted::Add>(x, 0.0, Statement::FoldRows);
  }
  static RowSym total(const RowSym& x) { return fold<lifted::Add>(x, 0.0, Statement::Total); }

 private:
  static DType type() { return SymScope::current().compute(); }
  static RowSym add(Statement s) { return {Sym(SymScope::current().add(std::move(s)))}; }
  static RowSymMask mask(Statement s, Statement::Varies v) {
    s.varies = v;
    return {{SymScope::current().add(std::move(s))}};
  }
};

}  // namespace brrr
