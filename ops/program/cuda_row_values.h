#pragma once
// How the text of a GPU's kernel over rows spells the values of its statements, one a line, and
// where a row is.
#include <algorithm>

#include "ops/program/cuda_rows.h"
#include "ops/program/printer.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

class RowValues : protected DeviceRowPasses, protected Printer {
 protected:
  RowValues(const Program& p, const RowWalk& walk)
      : DeviceRowPasses(p, walk.traits.split, values_kept(walk)),
        walk_(walk),
        last_(p.space.ndim - 1),
        names_(p.statements.size()) {}

  // Elements need their registers no more once a value is made of them.
  static int values_kept(const RowWalk& w) {
    return w.slots ? (w.room + 16) / (w.slots * w.group() * w.traits.item / 4) : 0;
  }
  const std::string& name(int id) const { return names_[static_cast<size_t>(id)]; }
  const std::string& named(int id) {
    return names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
  }
  const char* element(int id) const { return spelling(at(id).type).element; }
  const char* vector(int id) const { return spelling(at(id).type).vector; }
  const char* memory(int w) const { return spelling(window(w).dtype).element; }
  bool is_kept(int w) const {
    return walk_.slots && std::find(reused_.begin(), reused_.end(), w) != reused_.end();
  }
  bool split() const { return walk_.traits.split; }
  bool is_total(int id) const {
    return at(id).kind == (split() ? Statement::Fold : Statement::Total);
  }
  static bool in_row(const Statement& s) { return s.varies == Statement::InRow; }

  // An element that a row has once, or element `place` of its elements, in memory.
  std::string address(int w, const std::string& place = "") const {
    const bool varies = last_ > 0 && window(w).varies(last_ + 1);
    return fmt::format("p.a{}{}", w, varies ? fmt::format(" + o{}", w) : "") + along(w, place);
  }
  std::string along(int w, const std::string& place) const {
    if (place.empty() || !inner_stride(w)) return "";
    // A constant, so that groups lie at constant distances.
    if (window(w).reach == Window::Row) return fmt::format(" + ({}) * {}", place, window(w).item());
    return fmt::format(" + ({}) * p.s{}_{}", place, w, last_);
  }
  // The element as a register; where it is part of a group, `own` is its name.
  std::string loaded(int id, const std::string& place, const std::string& own = "") const {
    const int w = at(id).which;
    if (window(w).source == Window::Index) {
      if (at(id).varies == Statement::Never) return "i64(0l)";
      return fmt::format("i64(o{}{})", w, along(w, place));
    }
    const std::string from =
        own.empty() ? fmt::format("(const {}*)({})", memory(w), address(w, place)) : "&" + own;
    return fill(spelling(window(w).dtype).load, {fmt::format("load({})", from)});
  }
  std::string id_of(const Statement& s) const { return fmt::format("id{}", s.which); }
  std::string counts(const Statement& s) const {
    return fmt::format("counts{}_{}", s.which, s.text);
  }
  std::string number(size_t k) const {
    return fmt::format("{}p.c{}", p_.numbers[k].control ? "*" : "", k);
  }
  std::string formula(int id) const {
    std::vector<std::string> args;
    for (int a : at(id).args) args.push_back(name(a));
    return fill(at(id).text, args);
  }
  // Of a statement that is neither a fold nor a store.
  std::string value(int id, const std::string& place, const std::string& own) const {
    const Statement& s = at(id);
    switch (s.kind) {
      case Statement::Number:
        return splat(s.type, number(static_cast<size_t>(s.which)));
      case Statement::Length:
        return splat(s.type, "p.length");
      case Statement::Counts:
        return fmt::format("b16(-(int){})", counts(s));
      case Statement::IsAt:
        return fmt::format("b16(-(int)({} == {}))", place, id_of(s));
      case Statement::Pick:
        return fmt::format("{} ? {} : {}{{}}", counts(s), picked(s.args[0], id_of(s)), vector(id));
      case Statement::Load:
        return loaded(id, place, own);
      default:
        return formula(id);
    }
  }
  // An element of the row, computed where it is.
  std::string picked(int id, const std::string& place) const {
    const Statement& s = at(id);
    if (!in_row(s)) return name(id);
    if (s.kind != Statement::Formula) return value(id, place, "");
    std::vector<std::string> args;
    for (int a : s.args) args.push_back("(" + picked(a, place) + ")");
    return fill(s.text, args);
  }
  void line(int id, const std::string& place = "", const std::string& own = "") {
    if (at(id).kind == Statement::Constant)
      names_[static_cast<size_t>(id)] = splat(at(id).type, at(id).text);
    else
      print("const auto {} = {};\n", named(id), value(id, place, own));
  }
  // What a row has one of; where no row is left, the one of another row may be written meanwhile.
  void line_of_row(int id) {
    const Statement& s = at(id);
    if (s.kind != Statement::Load || !window(s.which).in_memory()) return line(id);
    print("const auto {} = on ? {} : {}{{}};\n", named(id), loaded(id, ""), vector(id));
  }
  std::string combine(int fold) const {
    return fmt::format("[]({0} a, {0} b) {{ return {1}; }}", vector(fold),
                       fill(at(fold).text, {"a", "b"}));
  }
  std::string combined(int fold, const std::string& x) const {
    return fill(at(fold).text, {x, name(at(fold).args[0])});
  }
  const std::string& init(int fold) const { return name(at(fold).args[1]); }

  // --- a row -------------------------------------------------------------------------------------

  // Where it is, `o<w>` bytes into window w, and how many elements it has: none if no row is left,
  // as others may be writing to the one that stands for it.
  void find_row(const std::string& row, const std::string& matrix, const char* on = "on",
                const char* n = "n", const char* o = "o") {
    print("{} r = {};\n", rows_type(), row);
    if (walk_.ragged()) {
      print(
          "const long left = p.length - (long)({1} % ({3})p.pieces) * p.size{0};\n"
          "const {2} {5} = !({4}) ? 0 : left < p.size{0} ? left : p.size{0};\n",
          last_, matrix, length(), rows_type(), on, n);
    } else {
      print("const {} {} = {} ? p.size{} : 0;\n", length(), n, on, last_);
    }
    text_ += take_apart({.ndim = last_, .wide = walk_.wide}, rows_type());
    for (int w = 0; w < static_cast<int>(p_.windows.size()); ++w) {
      if (!window(w).touched()) continue;
      print("const long {}{} = {};\n", o, w, offset_of(w, last_));
    }
  }
  // Division in 64 bits is a function of a hundred instructions.
  const char* rows_type() const { return walk_.wide ? "long" : "unsigned"; }
  std::string walkers() const {
    return fmt::format("const {0} walkers = ({0})(p.matrix + p.steps - 1) / ({0})p.steps",
                       rows_type());
  }
  const char* length() const { return walk_.wide ? "long" : "int"; }
  // The positions that it names, and whether they count.
  void find_ids() {
    std::vector<std::string> ids, all;
    for (int id = 0; id < count(); ++id) {
      const Statement& s = at(id);
      if (!of(id).live || !reads_id(s)) continue;
      if (std::find(ids.begin(), ids.end(), id_of(s)) == ids.end()) {
        ids.push_back(id_of(s));
        print("const long {} = on ? *(const long*)({}) : 0;\n", ids.back(), address(s.which));
      }
      if (std::find(all.begin(), all.end(), counts(s)) == all.end()) {
        all.push_back(counts(s));
        print("const bool {0} = on && {1} != {2} && in_range(p.fault, {1}, n, p.op);\n", all.back(),
              ids.back(), number(static_cast<size_t>(p_.ignored(s))));
      }
    }
  }

  const RowWalk& walk_;
  const int last_;
  std::vector<std::string> names_;  // By statement: what it is called in the text.
};

}  // namespace brrr::program
