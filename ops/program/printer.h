#pragma once
// Prints the text of a program's kernel line by line: what all targets share.

#include <utility>

#include "ops/program/program.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

/// Indents each line by the number of braces open there.
inline std::string indented(const std::string& text) {
  std::string all;
  size_t depth = 0;
  bool begins = true;
  for (char c : text) {
    depth -= c == '}';
    if (begins && c != '#') all.append(2 * depth, ' ');
    depth += c == '{';
    begins = c == '\n';
    all += c;
  }
  return all;
}

/// Converts an element in memory of dtype t to a register, and back.
inline std::string from_memory(DType t, const std::string& x) {
  return fill(spelling(t).load, {x});
}
inline std::string to_memory(DType t, const std::string& x) { return fill(spelling(t).store, {x}); }

class Printer {
 protected:
  explicit Printer(const Program& p) : p_(p) {}

  const Statement& at(int id) const { return p_.at(id); }
  const Window& window(int w) const { return p_.window(w); }
  const Window& window(const Statement& s) const { return p_.window(s); }
  int statements() const { return static_cast<int>(p_.statements.size()); }
  int windows() const { return static_cast<int>(p_.windows.size()); }
  bool in_row(int id) const { return at(id).varies == Statement::InRow; }
  /// The stride along the innermost dim, in elements.
  int64_t inner_stride(const Window& w) const { return w.stride[p_.space.ndim - 1]; }
  int64_t inner_stride(int w) const { return inner_stride(window(w)); }
  int64_t inner_stride(const Statement& s) const { return inner_stride(window(s)); }
  /// Type names: of a statement's value, of one element of it, of a window's element in memory.
  const char* vector(int id) const { return spelling(at(id).type).vector; }
  const char* element(int id) const { return spelling(at(id).type).element; }
  const char* memory(int w) const { return spelling(window(w).dtype).element; }
  /// The statement's formula, its arguments spelled by `value(id)`.
  template <class F> std::string formula(int id, const F& value) const {
    std::vector<std::string> args;
    for (int a : at(id).args) args.push_back(value(a));
    return fill(at(id).text, args);
  }

  template <class... A> void print(fmt::format_string<A...> text, A&&... args) {
    // Not format_to(): every file that prints would instantiate what {fmt} has compiled already.
    text_ += fmt::format(text, std::forward<A>(args)...);
  }
  /// The text printed since the last call.
  std::string printed() { return indented(std::exchange(text_, {})); }

  const Program& p_;
  std::string text_;
};

}  // namespace brrr::program
