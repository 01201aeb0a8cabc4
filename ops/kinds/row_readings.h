#pragma once
// A row op's lambda instantiated on tensors (its differentiable form), on doubles (the oracle) and
// on symbols (source text).

#include <algorithm>
#include <vector>

#include "ops/kinds/row_info.h"
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
  const RowShape* rows;
  static Tensor expanded_to(const Tensor& t, const IntList& sizes) {
    return t.sizes() == sizes ? t : expand(t, sizes);
  }
  IntList along() const {
    IntList list;
    for (int64_t d = 1; d <= std::min<int64_t>(rows->dims, t.dim()); ++d) list.push_back(-d);
    return list;
  }
};
/// The indices of elements, [rows, 1], and whether they count; indices that do not are 0.
struct RowTensorIds {
  using Reading = RowTensor::Reading;
  RowTensor at, counted;
};

struct RowTensor::Reading {
  static const Tensor& term(const RowTensor& a) { return a.t; }
  static double term(double a) { return a; }
  static const RowShape* rows(const RowTensor& a) { return a.rows; }
  static const RowShape* rows(double) { return nullptr; }
  template <class F, class... A> static RowTensor lift(const A&... a) {
    const RowShape* all = nullptr;
    ((all = all ? all : rows(a)), ...);
    return {F{}(term(a)...), all};
  }

  // A value that is constant along the row, or along one of its dims, counts once per element.
  static RowTensor sum(const RowTensor& x) {
    int64_t here = 1;
    for (int64_t d : x.along()) here *= x.t.size(d);
    const Tensor all = brrr::sum(x.t, x.along(), true);
    // Not `all` times 0: it may be infinite.
    if (x.rows->n == 0) return {where(full(all.sizes(), 0, kBool, all.device()), all, 0.0), x.rows};
    return {here == x.rows->n ? all : all * (length(x) / static_cast<double>(here)), x.rows};
  }
  template <class F> static RowTensor fold(const RowTensor& x, double identity) {
    if (std::is_same_v<F, lifted::Add>) return sum(x);
    if (x.t.numel() == 0 || x.rows->n == 0) return {sum(x).t + identity, x.rows};
    const auto extremum = std::is_same_v<F, lifted::Larger> ? amax : amin;
    return {extremum(where(isnan(x.t), identity, x.t), x.along(), true), x.rows};
  }
  static double length(const RowTensor& x) { return static_cast<double>(x.rows->n); }
  static RowTensor number(const RowTensor& like, double v) {
    return {full({}, v, m::LiteralDTypeScope::now, like.t.device()), like.rows};
  }
  static RowTensor constant(const RowTensor& x) { return {x.t.detach(), x.rows}; }
  static RowTensor pick(const RowTensor& x, const RowTensorIds& ids) {
    IntList sizes = ids.at.t.sizes();
    Tensor all = x.t;
    const int64_t n = x.rows->n;
    if (n == 0) return {ids.counted.t.to(all.dtype()) * 0.0, x.rows};  // No id counts.
    if (all.dim() > 0 && all.size(-1) == n) {                          // Else constant in a row.
      sizes[sizes.size() - 1] = n;
      if (all.dim() != sizes.size()) all = expand(all, sizes);  // Shared by the rows.
      all = gather(all, -1, ids.at.t);
    }
    return {where(ids.counted.t, all, 0.0), x.rows};
  }
  static RowTensor counts(const RowTensorIds& ids) { return ids.counted; }
  static RowTensor is_at(const RowTensorIds& ids) {
    const RowTensor& id = ids.at;
    const int64_t n = id.rows->n;
    const Tensor here = id.rows->dims == 0 ? id.t == 0
                        : n == 0           ? expand(id.t == 0, id.rows->sizes(Operand::Each))
                                           : one_hot(squeeze(id.t, -1), n) != 0;
    return {here & ids.counted.t, id.rows};
  }
  // A value that is constant over the rows, or along them, counts once per element.
  static RowTensor over_rows(const RowTensor& x) {
    const Tensor all = expanded_to(x.t, x.rows->sizes(Operand::Each));
    return {sum_to(all, x.rows->sizes(Operand::Column)), x.rows};
  }
  static RowTensor total(const RowTensor& x) {
    return {brrr::sum(expanded_to(x.t, x.rows->sizes(Operand::PerRow))), x.rows};
  }
};

// --- doubles -------------------------------------------------------------------------------------

struct RowNumbersReading;
/// rows x columns doubles, or bools of a mask; either extent is 1 if the value does not vary in
/// that direction.
template <class T> struct RowNumbersOf {
  using Reading = RowNumbersReading;
  int64_t rows = 1, columns = 1, n = 1;  ///< n: elements in a row.
  std::vector<T> v;
  T at(int64_t r, int64_t i) const {
    return v[static_cast<size_t>((rows > 1 ? r * columns : 0) + (columns > 1 ? i : 0))];
  }
};
/// Indices of elements, one per row; negative: ignored.
struct RowNumberIds {
  using Reading = RowNumbersReading;
  std::vector<int64_t> at;
  int64_t n = 1;
  int64_t rows() const { return static_cast<int64_t>(at.size()); }
  int64_t operator[](int64_t r) const { return at[static_cast<size_t>(r)]; }
};

struct RowNumbersReading {
  template <class F, class... A> static auto lift(const A&... a) { return map<F>(term(a)...); }
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
  static auto counts(const RowNumberIds& ids) {
    return each(ids.rows(), 1, ids.n, [&](int64_t r, int64_t) { return ids[r] >= 0; });
  }
  static auto is_at(const RowNumberIds& ids) {
    return each(ids.rows(), ids.n, ids.n, [&](int64_t r, int64_t i) { return i == ids[r]; });
  }
  static RowNumbers over_rows(const RowNumbers& x) { return down(x, x.n); }
  static RowNumbers total(const RowNumbers& x) { return down(x, 1); }

 private:
  template <RowValue A> static const A& term(const A& a) { return a; }
  static RowNumbers term(double a) { return {.v = {a}}; }
  static Num<double> value(double x) { return x; }
  static Mask<double> value(bool m) { return {m}; }
  static double raw(Num<double> x) { return x.v; }
  static bool raw(Mask<double> x) { return x.m; }
  /// f(row, column) for all of them.
  template <class F, class T = std::invoke_result_t<F, int64_t, int64_t>>
  static RowNumbersOf<T> each(int64_t rows, int64_t columns, int64_t n, const F& f) {
    RowNumbersOf<T> y{.rows = rows, .columns = columns, .n = n, .v = {}};
    for (int64_t k = 0; k < rows * columns; ++k) y.v.push_back(f(k / columns, k % columns));
    return y;
  }
  template <class F, class... A> static auto map(const A&... a) {
    return each(std::max({a.rows...}), std::max({a.columns...}), std::max({a.n...}),
                [&](int64_t r, int64_t i) { return raw(F{}(value(a.at(r, i))...)); });
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

struct RowSymReading;
/// A Sym or a SymMask.
template <class S> struct RowSymOf {
  using Reading = RowSymReading;
  S s;
};
template <class S> RowSymOf(S) -> RowSymOf<S>;
using RowSym = RowSymOf<Sym>;
struct RowSymIds {
  using Reading = RowSymReading;
  int which;
};

struct RowSymReading {
  template <class S> static S term(const RowSymOf<S>& a) { return a.s; }
  static Sym term(double a) { return a; }
  template <class F, class... A> static auto lift(const A&... a) {
    return RowSymOf{F{}(term(a)...)};
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
  static auto counts(const RowSymIds& ids) {
    return mask({Statement::Counts, kBool, ids.which}, Statement::WithRow);
  }
  static auto is_at(const RowSymIds& ids) {
    return mask({Statement::IsAt, kBool, ids.which}, Statement::InRow);
  }
  static RowSym over_rows(const RowSym& x) {
    return fold<lifted::Add>(x, 0.0, Statement::FoldRows);
  }
  static RowSym total(const RowSym& x) { return fold<lifted::Add>(x, 0.0, Statement::Total); }

 private:
  static DType type() { return SymScope::current().compute(); }
  static RowSym add(Statement s) { return {Sym(SymScope::current().add(std::move(s)))}; }
  static RowSymOf<SymMask> mask(Statement s, Statement::Varies v) {
    s.varies = v;
    return {{SymScope::current().add(std::move(s))}};
  }
};

}  // namespace brrr
