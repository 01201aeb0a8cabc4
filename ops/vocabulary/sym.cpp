#include "ops/vocabulary/sym.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"
#include "ops/vocabulary/spelling.h"

namespace brrr {

int append(Statements& list, Statement s) {
  for (int a : s.args) s.varies = std::max(s.varies, list[static_cast<size_t>(a)].varies);
  if (s.kind == Statement::Fold || s.kind == Statement::Pick) s.varies = Statement::WithRow;
  if (s.kind == Statement::Total) s.varies = Statement::Never;
  if (s.kind == Statement::FoldRows) s.varies = Statement::InRow;  // A value per position.
  list.push_back(std::move(s));
  return static_cast<int>(list.size()) - 1;
}

// Matches the two forms in use: the reductions' maximum, which keeps NaN, and the rows', which
// ignores it.
bool is_largest_of(const Statement& s, int x) {
  if (s.kind != Statement::Fold || s.args[0] != x) return false;
  return s.text == "max($0, $1)" || s.text == "where((lt($0, $1)), $1, $0)";
}

Sym::Sym(double v) {
  SymScope& s = SymScope::current();
  id = s.add({Statement::Constant, s.compute(), -1, literal(v)});
}

std::string pattern(const Statements& list, int id) {
  const Statement& s = list[static_cast<size_t>(id)];
  if (s.kind == Statement::Operand) return fmt::format("${}", s.which);
  if (s.kind != Statement::Formula) fail("a pattern is made of operands alone");
  std::vector<std::string> args;
  for (int a : s.args) {
    const bool whole = list[static_cast<size_t>(a)].kind == Statement::Operand;
    args.push_back(fmt::format(fmt::runtime(whole ? "{}" : "({})"), pattern(list, a)));
  }
  return fill(s.text, args);
}

uint64_t operands_used(const Statements& list, int id) {
  std::vector<uint64_t> used;
  for (int at = 0; at <= id; ++at) {
    const Statement& s = list[static_cast<size_t>(at)];
    const bool reads = s.kind == Statement::Operand || reads_id(s);
    used.push_back(reads ? uint64_t{1} << s.which : 0);
    for (int a : s.args) used.back() |= used[static_cast<size_t>(a)];
  }
  return used.back();
}

// Infinities and NaNs have no literal without headers, and NVRTC lacks some built-in functions of
// the host's compilers.
std::string literal(double v) {
  if (std::isnan(v)) return "__builtin_bit_cast(double, 0x7ff8000000000000l)";
  if (std::isinf(v)) {
    return std::string(v < 0 ? "-" : "") + "__builtin_bit_cast(double, 0x7ff0000000000000l)";
  }
  char text[32];  // Independent of the locale, unlike printf.
  const auto end = std::to_chars(text, text + sizeof text, std::abs(v), std::chars_format::hex);
  return (std::signbit(v) ? "-0x" : "0x") + std::string(text, end.ptr);
}

std::string literal(int64_t v) {
  return v == INT64_MIN ? "-9223372036854775807l - 1" : fmt::format("{}l", v);
}

}  // namespace brrr
