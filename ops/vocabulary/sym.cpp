#include "ops/vocabulary/sym.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

namespace brrr {

int SymText::add(std::string name, uint64_t uses, bool unit) {
  names_.push_back(std::move(name));
  uses_.push_back(uses);
  unit_.push_back(unit);
  return static_cast<int>(names_.size()) - 1;
}

int SymText::operand(const std::string& name, int operand, bool unit) {
  return add(name, operand < 0 ? 0 : uint64_t{1} << operand, unit);
}

int SymText::constant(double v) {
  // Hex floats keep every bit; infinities and NaNs have no literal without headers, and NVRTC has
  // not all built-in functions of the host's compilers.
  std::string text;
  if (std::isnan(v)) {
    text = "__builtin_bit_cast(double, 0x7ff8000000000000l)";
  } else if (std::isinf(v)) {
    text = v < 0 ? "-" : "";
    text += "__builtin_bit_cast(double, 0x7ff0000000000000l)";
  } else {
    text = fmt::format("{:a}", v);
  }
  return add(fmt::format("splat(({})({}))", lane_, text), 0);
}

int SymText::emit(const char* text, std::initializer_list<int> args) {
  std::string line;
  uint64_t uses = 0;
  for (int a : args) uses |= uses_[a];
  for (const char* p = text; *p; ++p) {
    if (*p == '$') {
      line += names_[args.begin()[*++p - '0']];
    } else {
      line += *p;
    }
  }
  const std::string id = fmt::format("{}{}", prefix_, names_.size());
  text_ += fmt::format("{}const auto {} = {};\n", indent_, id, line);
  return add(id, uses);
}

}  // namespace brrr
