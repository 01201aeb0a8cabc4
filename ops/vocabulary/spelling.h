#pragma once
// How generated text writes dtypes: elements, vectors, and the conversions between them.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/dtype.h"

namespace brrr {

/// How a dtype is spelled: its element in memory, the vector that holds it in a register (16-bit
/// floats as f32, uint8 as i32, bool as a mask), and the conversions between the two.
struct Spelling {
  const char* element;
  const char* vector;
  const char* load;   // "$0" is the loaded vector.
  const char* store;  // "$0" is the register.
};
inline const Spelling& spelling(DType t) {
  static constexpr Spelling table[] = {
      {"float", "f32", "$0", "$0"},
      {"double", "f64", "$0", "$0"},
      {"unsigned short", "f32", "bf16_to_f32($0)", "f32_to_bf16($0)"},
      {"unsigned short", "f32", "f16_to_f32($0)", "f32_to_f16($0)"},
      {"long", "i64", "$0", "$0"},
      {"int", "i32", "$0", "$0"},
      {"unsigned char", "i32", "u8_to_i32($0)", "i32_to_u8($0)"},
      {"unsigned char", "b16", "bool_to_b16($0)", "b16_to_bool($0)"},
  };
  return table[static_cast<int>(t)];
}

/// The pattern with args[k] for each "$k".
inline std::string fill(const std::string& pattern, const std::vector<std::string>& args) {
  std::string s;
  for (const char* p = pattern.c_str(); *p; ++p) {
    if (*p == '$')
      s += args[static_cast<size_t>(*++p - '0')];
    else
      s += *p;
  }
  return s;
}

/// The pattern that converts a register of dtype `from` to compute type `to`, as the eager driver's
/// tiles do.
inline std::string to_compute(DType from, DType to) {
  const char* vector = spelling(to).vector;
  if (from == kBool) return fmt::format("mask_to_{}($0)", vector);
  return compute_type(from) == to ? "$0" : fmt::format("to_{}($0)", vector);
}

/// The pattern that rounds a result of arithmetic in compute type `from` (kBool: a mask) to dtype
/// `to`; with `fast` 16-bit floats stay unrounded until they are stored.
inline std::string from_compute(DType from, DType to, bool fast) {
  if (fast && (to == kBFloat16 || to == kFloat16)) to = kFloat32;
  if (from == to) return "$0";
  if (from == kBool) return fmt::format("mask_to_{}($0)", spelling(to).vector);
  if (to == kBool) return "to_b16($0)";
  if (to == kBFloat16) return fill("round_bf16($0)", {to_compute(from, kFloat32)});
  if (to == kFloat16) return fill("round_f16($0)", {to_compute(from, kFloat32)});
  if (to == kUInt8) return from == kInt32 ? "($0 & 255)" : "(to_i32(to_i64($0)) & 255)";
  return fmt::format("to_{}($0)", spelling(to).vector);
}

}  // namespace brrr
