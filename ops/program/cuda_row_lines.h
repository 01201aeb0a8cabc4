#pragma once
// Statements of a row op as expressions and lines of a GPU's kernel.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "ops/program/rows.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

class RowLines {
 protected:
  RowLines(const RowInfo& info, const RowProgram& p)
      : info_(info), p_(p), names_(p.statements.size()) {}

  const Statement& at(int id) const { return p_.statements[static_cast<size_t>(id)]; }
  const std::string& name(int id) const { return names_[static_cast<size_t>(id)]; }
  Operand kind(int operand) const { return info_.operands[static_cast<size_t>(operand)].kind; }

  // The statements that these ones are made of, in order; not beyond a total.
  std::vector<int> needed(const std::vector<int>& wanted) const {
    std::vector<bool> in(p_.statements.size());
    for (int id : wanted) in[static_cast<size_t>(id)] = true;
    std::vector<int> list;
    for (int id = static_cast<int>(p_.statements.size()) - 1; id >= 0; --id) {
      if (!in[static_cast<size_t>(id)]) continue;
      list.push_back(id);
      if (at(id).kind == Statement::Total) continue;
      for (int a : at(id).args) in[static_cast<size_t>(a)] = true;
    }
    std::reverse(list.begin(), list.end());
    return list;
  }
  // Operands of elements that statements load.
  std::vector<int> operands(const std::vector<int>& list) const {
    std::vector<int> found;
    for (int id : list) {
      if (at(id).kind == Statement::Load && kind(at(id).which) == Operand::Each) {
        found.push_back(at(id).which);
      }
    }
    return found;
  }
  // What `id` is made of within the row.
  std::vector<int> in_row(const std::vector<int>& wanted) const {
    std::vector<int> list = needed(wanted);
    std::erase_if(list, [&](int id) { return at(id).varies != Statement::InRow; });
    return list;
  }
  // The ids of a row, and whether they count.
  void ids(const std::vector<int>& list) {
    std::vector<bool> done(info_.operands.size());
    for (int id : list) {
      const Statement& s = at(id);
      if (s.kind != Statement::Counts && s.kind != Statement::IsAt && s.kind != Statement::Pick) {
        continue;
      }
      if (done[static_cast<size_t>(s.which)]) continue;
      done[static_cast<size_t>(s.which)] = true;
      out_ += fmt::format(
          "  const long id{0} = row < p.rows ? ((const long*)p.in[{0}])[row] : p.ignored[{0}];\n"
          "  const bool counts{0} = id{0} != p.ignored[{0}] && "
          "in_range(p.fault, id{0}, p.n, p.op);\n",
          s.which);
    }
  }
  // What the rows share, of a group.
  void shared(const std::vector<int>& list, const char* indent) {
    for (int id : list) {
      if (at(id).kind != Statement::Load || kind(at(id).which) == Operand::Each) continue;
      out_ += fmt::format(
          "{0}Group g{1} = {{}};\n{0}if constexpr (kFlags >> {1} & 1) g{1} = "
          "load_group_u((const U*)p.in[{1}] + i);\n",
          indent, at(id).which);
    }
  }
  // An expression for what is no formula.
  std::string leaf(int id, const std::string& place) const {
    const Statement& s = at(id);
    switch (s.kind) {
      case Statement::Number:
        return fmt::format("splat((TC)p.scalar[{}])", s.which);
      case Statement::Constant:
        return fmt::format("splat((TC)({}))", s.text);
      case Statement::Length:
        return "splat((TC)p.n)";
      case Statement::Counts:
        return fmt::format("b16(-(int)counts{})", s.which);
      case Statement::IsAt:
        return fmt::format("b16(-(int)({} == id{}))", place, s.which);
      default:
        break;
    }
    switch (kind(s.which)) {
      case Operand::PerRow:
        return fmt::format("row < p.rows ? load((const TC*)p.in[{}] + row) : TCV{{}}", s.which);
      case Operand::Number:
        return fmt::format("load((const TC*)p.in[{}])", s.which);
      case Operand::Weight:
      case Operand::Bias:
        return fmt::format("kFlags >> {0} & 1 ? g{0}.v[u] : splat((TC){1})", s.which,
                           kind(s.which) == Operand::Weight ? "1" : "-0.0");
      default:
        return fmt::format("g{}.v[u]", s.which);
    }
  }
  // A statement's line, by which later ones name it.
  void line(int id, const std::string& indent) {
    const Statement& s = at(id);
    if (s.kind == Statement::Total) return;
    if (s.kind == Statement::Constant) {
      names_[static_cast<size_t>(id)] = leaf(id, "");
      return;
    }
    std::string what;
    if (s.kind == Statement::Pick) {
      what = pick(s);
    } else if (s.kind == Statement::Formula) {
      std::vector<std::string> args;
      for (int a : s.args) args.push_back(name(a));
      what = fill(s.text, args);
    } else {
      what = leaf(id, "i + u");
    }
    names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
    out_ += fmt::format("{}const auto v{} = {};\n", indent, id, what);
  }
  // A lambda's parameters: the groups of the operands that it reads; and the operands themselves.
  std::string groups(const std::vector<int>& list) const {
    std::string text;
    for (int k : operands(list)) text += fmt::format(", const Group& g{}", k);
    return text;
  }
  std::string passed(const std::vector<int>& list) const {
    std::string text;
    for (int k : operands(list)) text += fmt::format(", x{}", k);
    return text;
  }

  const RowInfo& info_;
  const RowProgram& p_;
  std::vector<std::string> names_;  ///< By statement: its name in the text.
  std::string out_;                 ///< The text.

 private:
  // An element of the row, computed where it is.
  std::string pick(const Statement& s) const {
    const std::function<std::string(int)> value = [&](int id) -> std::string {
      const Statement& e = at(id);
      if (e.varies != Statement::InRow) return name(id);
      if (e.kind == Statement::Formula) {
        std::vector<std::string> args;
        for (int a : e.args) args.push_back("(" + value(a) + ")");
        return fill(e.text, args);
      }
      const std::string place = fmt::format("id{}", s.which);
      if (e.kind == Statement::Load && kind(e.which) == Operand::Each) {
        return fmt::format("get((const T*)p.in[{}] + row * p.n + {})", e.which, place);
      }
      if (e.kind == Statement::Load) {
        return fmt::format(
            "(kFlags >> {0} & 1 ? get_u((const U*)p.in[{0}] + {1}) : "
            "splat((TC){2}))",
            e.which, place, kind(e.which) == Operand::Weight ? "1" : "-0.0");
      }
      return leaf(id, place);
    };
    return fmt::format("counts{} ? {} : TCV{{}}", s.which, value(s.args[0]));
  }
};

}  // namespace brrr::program
