// Building a program: dims are merged, rows become statements.
#include <algorithm>
#include <bit>

#include "ops/kinds/merge_dims.h"
#include "ops/program/program.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

namespace {

class Builder {
 public:
  Builder(Program& p, bool fast) : p_(p), fast_(fast), now_(p.windows.size(), -1) {}

  void run(const std::vector<Step>& steps) {
    for (size_t w = 0; w < now_.size(); ++w) {
      if (p_.windows[w].loaded) now_[w] = load(static_cast<int>(w));
    }
    for (const Step& s : steps) step(s);
    for (size_t w = 0; w < now_.size(); ++w) {
      if (p_.windows[w].stored) store(static_cast<int>(w));
    }
  }

 private:
  const Statement& at(int id) const { return p_.statements[static_cast<size_t>(id)]; }
  int add(Statement s) { return append(p_.statements, std::move(s)); }

  Statement::Varies of_window(int which) const {
    const Window& w = p_.windows[static_cast<size_t>(which)];
    const int last = p_.space.ndim - 1;
    if (w.stride[last] != 0) return Statement::InRow;
    const bool rows = std::any_of(w.stride, w.stride + last, [](int64_t s) { return s != 0; });
    return rows ? Statement::WithRow : Statement::Never;
  }

  // Two conversions of 16-bit floats cost what a polynomial does.
  static uint8_t conversion_cost(DType t) { return t == kFloat16 || t == kBFloat16; }

  int load(int w) {
    const DType t = p_.windows[static_cast<size_t>(w)].dtype;
    return add({.kind = Statement::Load,
                .type = t == kBool ? kBool : compute_type(t),
                .which = w,
                .cost = conversion_cost(t),
                .varies = of_window(w)});
  }
  void store(int w) {
    const DType t = p_.windows[static_cast<size_t>(w)].dtype;
    add({.kind = Statement::Store,
         .type = t,
         .which = w,
         .args = {now_[static_cast<size_t>(w)]},
         .cost = conversion_cost(t),
         .varies = Statement::InRow});
  }

  int convert(int id, const std::string& pattern, DType type, DType rounded) {
    if (pattern == "$0") return id;
    const bool keeps = at(id).unit && is_floating(rounded);  // uint8 would wrap around.
    return add({.kind = Statement::Formula,
                .type = type,
                .text = pattern,
                .args = {id},
                .cost = conversion_cost(rounded),
                .unit = keeps});
  }

  void step(const Step& s) {
    const PointwiseInfo& info = *s.op->pointwise;
    Sym in[kMaxOperands];
    for (size_t i = 0; i < s.in.size(); ++i) {
      const int from = s.in[i];
      const DType type = info.integers >> i & 1 ? kInt64 : s.compute;
      if (from < 0) {
        in[i] = Sym(add({.kind = Statement::Number, .type = type, .which = ~from}));
        continue;
      }
      const int id = now_[static_cast<size_t>(from)];
      const DType dtype = p_.windows[static_cast<size_t>(from)].dtype;
      in[i] = Sym(convert(id, to_compute(dtype, type), type, type));
    }
    int out[kMaxOutputs];
    {
      SymScope scope(p_.statements, s.compute);
      info.emit(in, out);
    }
    for (size_t k = 0; k < s.out.size(); ++k) {
      const DType t = p_.windows[static_cast<size_t>(s.out[k])].dtype;
      const DType from = info.mask_out[k] ? kBool : s.compute;
      now_[static_cast<size_t>(s.out[k])] =
          convert(out[k], from_compute(from, t, fast_), t == kBool ? kBool : compute_type(t), t);
    }
  }

  Program& p_;
  const bool fast_;
  std::vector<int> now_;  // By window: the statement that holds its value.
};

}  // namespace

void merge_dims(Program& p) {
  const auto all = p.windows.begin();
  const auto written = std::find_if(all, p.windows.end(), [](const Window& w) { return w.stored; });
  p.space.ndim =
      brrr::merge_dims(p.space.ndim, p.space.size, static_cast<int>(p.windows.size()),
                       written == p.windows.end() ? -1 : static_cast<int>(written - all),
                       [&](int k) { return all[k].touched() ? all[k].stride : nullptr; });
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

std::string lines(const Statements& list, const std::string& indent,
                  const std::function<std::string(const Statement&)>& leaf,
                  std::vector<std::string>& names) {
  std::string text;
  for (const Statement& s : list) {
    std::vector<std::string> args;
    for (int a : s.args) args.push_back(names[static_cast<size_t>(a)]);
    std::string name = fmt::format("v{}", names.size());
    if (s.kind == Statement::Store) {
      text += indent + fill(leaf(s), args) + ";\n";
    } else if (s.kind == Statement::Formula || s.kind == Statement::Load) {
      const std::string what = s.kind == Statement::Load ? leaf(s) : fill(s.text, args);
      text += fmt::format("{}const auto {} = {};\n", indent, name, what);
    } else {
      name = s.kind == Statement::Constant ? splat(s.type, s.text) : leaf(s);
    }
    names.push_back(std::move(name));
  }
  return text;
}

}  // namespace brrr::program
