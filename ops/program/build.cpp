// Builds a program: merges dims and turns op rows into statements.
#include <algorithm>
#include <bit>
#include <set>

#include "ops/kinds/merge_dims.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row.h"
#include "ops/program/program.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

namespace {

class Builder {
 public:
  Builder(Program& p, bool fast) : p_(p), fast_(fast), current_(p.windows.size(), -1) {}

  void run(const std::vector<Step>& steps) {
    for (size_t w = 0; w < current_.size(); ++w) {
      if (p_.windows[w].loaded) current_[w] = load(static_cast<int>(w));
    }
    for (const Step& s : steps) {
      s.op->pointwise ? pointwise(s) : s.op->row ? row(s) : reduction(s);
    }
    for (size_t w = 0; w < current_.size(); ++w) {
      if (p_.windows[w].stored && current_[w] >= 0) store(static_cast<int>(w));
    }
  }

 private:
  const Statement& at(int id) const { return p_.at(id); }
  int& current(int w) { return current_[static_cast<size_t>(w)]; }
  int add(Statement s) { return append(p_.statements, std::move(s)); }

  Statement::Varies of_window(int which) const {
    const Window& w = p_.window(which);
    const int last = p_.space.ndim - 1;
    if (w.stride[last] != 0) return Statement::InRow;
    return w.varies(last) ? Statement::WithRow : Statement::Never;
  }

  // Two conversions of 16-bit floats cost as much as a polynomial.
  static uint8_t conversion_cost(DType t) { return t == kFloat16 || t == kBFloat16; }

  int load(int w) {
    const DType t = p_.window(w).dtype;
    return add({.kind = Statement::Load,
                .type = t == kBool ? kBool : compute_type(t),
                .which = w,
                .cost = conversion_cost(t),
                .varies = of_window(w)});
  }
  void store(int w) {
    const DType t = p_.window(w).dtype;
    int id = current(w);
    const bool rounded = conversion_cost(t) && at(id).text == from_compute(kFloat32, t, false);
    if (rounded) id = at(id).args[0];  // Storing rounds anyway.
    add({.kind = Statement::Store,
         .type = t,
         .which = w,
         .args = {id},
         .cost = conversion_cost(t),
         .varies = Statement::InRow});
  }

  int convert(int id, const std::string& pattern, DType type, DType rounded) {
    if (pattern == "$0") return id;
    const bool keeps = is_floating(rounded);  // uint8 would wrap around.
    return add({.kind = Statement::Formula,
                .type = type,
                .text = pattern,
                .args = {id},
                .cost = conversion_cost(rounded),
                .known = keeps ? at(id).known : Statement::Anything});
  }

  // Operand k in compute type `type`.
  int operand(const Step& s, size_t k, DType type) {
    const int from = s.in[k];
    if (from < 0) return add({.kind = Statement::Number, .type = type, .which = ~from});
    const DType dtype = p_.window(from).dtype;
    return convert(current(from), to_compute(dtype, type), type, type);
  }
  // Result k, computed in type `from`.
  void result(const Step& s, size_t k, int id, DType from) {
    const DType t = p_.window(s.out[k]).dtype;
    current(s.out[k]) =
        convert(id, from_compute(from, t, fast_), t == kBool ? kBool : compute_type(t), t);
  }
  void pointwise(const Step& s) {
    const PointwiseInfo& info = *s.op->pointwise;
    Sym in[kMaxOperands];
    for (size_t i = 0; i < s.in.size(); ++i) {
      in[i] = Sym(operand(s, i, info.integers >> i & 1 ? kInt64 : s.compute));
    }
    int out[kMaxOutputs];
    {
      SymScope scope(p_.statements, s.compute);
      info.emit(in, out);
    }
    for (size_t k = 0; k < s.out.size(); ++k) {
      result(s, k, out[k], info.mask_out[k] ? kBool : s.compute);
    }
  }

  void row(const Step& s) {
    const RowInfo& info = *s.op->row;
    int in[kMaxRowOperands];
    for (size_t k = 0; k < s.in.size(); ++k) {
      const Operand kind = info.operands[k].kind;
      if (s.in[k] == Step::kAbsent)  // Absent: weight 1, bias -0.0 (x + -0.0 is x for both zeros).
        in[k] = add({Statement::Constant, s.compute, -1, kind == Operand::Weight ? "1" : "-0.0"});
      else
        in[k] = kind == Operand::Id ? s.in[k] : operand(s, k, s.compute);
    }
    const size_t first = p_.statements.size();
    std::vector<int> out;
    {
      SymScope scope(p_.statements, s.compute);
      out = info.symbols(in);
    }
    for (size_t id = first; id < p_.statements.size(); ++id) {
      Statement& x = p_.statements[id];
      for (size_t k = 0; k < s.in.size(); ++k) {
        if (reads_id(x) && info.operands[k].kind == Operand::Id && x.which == s.in[k]) {
          x.text = std::to_string(s.ignored[k]);
        }
      }
    }
    for (size_t k = 0; k < s.out.size(); ++k) result(s, k, out[k], s.compute);
  }

  // Folds each row; or all rows, if the result varies along a row. The count may be an operand.
  void reduction(const Step& s) {
    const ReductionInfo& info = *s.op->reduction;
    const Window& to = p_.window(s.out[0]);
    const int x = operand(s, 0, s.compute);
    const auto fold = to.stride[p_.space.ndim - 1] ? Statement::FoldRows : Statement::Fold;
    SymScope scope(p_.statements, s.compute);
    Statement count{Statement::Length, s.compute};
    if (fold == Statement::FoldRows) {
      count = {Statement::Constant, s.compute, -1, std::to_string(p_.space.numel() / p_.row)};
    }
    if (s.in.size() > 1) count = {Statement::Number, s.compute, ~s.in[1]};
    result(s, 0, info.symbols(x, fold, count, s.map, s.finish), s.compute);
  }

  Program& p_;
  const bool fast_;
  std::vector<int> current_;  // By window: the statement that holds its value.
};

}  // namespace

void merge_dims(Program& p) {
  const auto strides = [&](int k) {
    Window& w = p.windows[static_cast<size_t>(k)];
    return w.touched() || p.row ? w.stride : nullptr;
  };
  const int outer = p.space.ndim - (p.row != 0);
  std::vector<int64_t> in_row;  // Saved: merge_dims makes an outer dim even where there is none.
  for (const Window& w : p.windows) in_row.push_back(w.stride[outer]);
  const auto begin = p.windows.begin(), end = p.windows.end();
  const auto written = p.row ? end : std::ranges::find(begin, end, true, &Window::stored);
  p.space.ndim = brrr::merge_dims(outer, p.space.size, static_cast<int>(end - begin),
                                  written == end ? -1 : static_cast<int>(written - begin), strides);
  if (!p.row) return;
  const int last = p.space.ndim++;
  p.space.size[last] = p.row;
  for (size_t w = 0; w < in_row.size(); ++w) p.windows[w].stride[last] = in_row[w];
}

int64_t Program::bytes_of(const Window& w) const {
  int64_t bytes = w.in_memory() ? w.item() : 0;
  for (int d = 0; d < space.ndim; ++d) bytes *= w.stride[d] ? space.size[d] : 1;
  return bytes;
}
int64_t Program::bytes() const {
  int64_t all = 0;
  for (const Window& w : windows) all += bytes_of(w) * (w.loaded + w.stored);
  return all;
}

std::vector<RowState> row_states(const Program& p) {
  std::vector<RowState> states(p.statements.size());
  const auto of = [&](int id) -> RowState& { return states[static_cast<size_t>(id)]; };
  for (size_t id = 0; id < states.size(); ++id) {
    const Statement& s = p.statements[id];
    RowState& state = states[id];
    state.after = s.kind == Statement::Total || s.kind == Statement::FoldRows;
    for (int a : s.args) {
      state.depth = std::max(state.depth, of(a).depth);
      state.after |= of(a).after;
    }
    state.depth += ends_pass(s);
  }
  for (size_t id = states.size(); id-- > 0;) {
    states[id].live |= p.statements[id].kind == Statement::Store;
    if (!states[id].live) continue;
    for (int a : p.statements[id].args) of(a).live = true;
  }
  return states;
}

std::vector<RowPass> row_passes(const Program& p, std::vector<RowState>& states, int deepest,
                                const std::function<bool(int id)>& keeps) {
  std::vector<RowPass> passes;
  for (int d = 0; d <= deepest; ++d) {
    RowPass& pass = passes.emplace_back();
    std::set<int> in;
    const std::function<void(int)> need = [&](int id) {
      const Statement& s = p.at(id);
      if (s.varies != Statement::InRow || !in.insert(id).second) return;
      RowState& state = states[static_cast<size_t>(id)];
      const bool again = state.pass >= 0 && state.pass < d;
      if (!again) state.pass = d;
      if (again) state.kept = state.kept || keeps(id);
      if (!again || !state.kept) std::ranges::for_each(s.args, need);
    };
    for (int id = 0; id < static_cast<int>(states.size()); ++id) {
      const Statement& s = p.at(id);
      const RowState& state = states[static_cast<size_t>(id)];
      if (!state.live) continue;
      if (ends_pass(s) && state.depth == d + 1) {
        (s.kind == Statement::Fold ? pass.folds : pass.picks).push_back(id);
        if (s.kind == Statement::Fold) need(s.args[0]);
      }
      // Stores come last: they may overwrite memory that a pass reads again.
      const bool last = is_element_store(p, s, state) || s.kind == Statement::FoldRows;
      if (d == deepest && last) need(id);
    }
    pass.list.assign(in.begin(), in.end());
  }
  return passes;
}

void append_steps(Program& p, const std::vector<Step>& steps, bool fast) {
  Builder(p, fast).run(steps);
}

std::string literal(const Number& n) {
  return n.dtype == kFloat64 ? brrr::literal(std::bit_cast<double>(n.bits)) : brrr::literal(n.bits);
}

std::string splat(DType type, const std::string& value) {
  return fmt::format("splat(({})({}))", spelling(type).element, value);
}

}  // namespace brrr::program
