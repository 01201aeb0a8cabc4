#pragma once
// How generated text writes dtypes: elements, vectors, and the ways between them.

#include <fmt/format.h>

#include <string>

#include "core/dtype.h"

namespace brrr {

/// How a dtype is spelled: its element in memory, the vector that holds it in a register (16-bit
/// floats as f32, uint8 as i32, bool as a mask), and the ways between the two.
struct Spelling {
  const char* element;
  const char* vector;
  const char* load;   // "$" is the loaded vector.
  const char* store;  // "$" is the register.
};
inline const Spelling& spelling(DType t) {
  static constexpr Spelling table[] = {
      {"float", "f32", "$", "$"},
      {"double", "f64", "$", "$"},
      {"unsigned short", "f32", "bf16_to_f32($)", "f32_to_bf16($)"},
      {"unsigned short", "f32", "f16_to_f32($)", "f32_to_f16($)"},
      {"long", "i64", "$", "$"},
      {"int", "i32", "$", "$"},
      {"unsigned char", "i32", "u8_to_i32($)", "i32_to_u8($)"},
      {"unsigned char", "b16", "bool_to_b16($)", "b16_to_bool($)"},
  };
  return table[static_cast<int>(t)];
}

inline std::string fill(const char* pattern, const std::string& x) {
  std::string s;
  for (const char* p = pattern; *p; ++p) {
    if (*p == '$')
      s += x;
    else
      s += *p;
  }
  return s;
}

/// A register of dtype `from`, converted to compute type `to` as the eager driver's tiles do.
inline std::string to_compute(const std::string& x, DType from, DType to) {
  const char* vector = spelling(to).vector;
  if (from == kBool) return fmt::format("mask_to_{}({})", vector, x);
  if (compute_type(from) == to) return x;
  return fmt::format("to_{}({})", vector, x);
}

/// The result of arithmetic in compute type `from` (or a mask), rounded to dtype `to`; with `fast`
/// 16-bit floats stay as they are until they are stored.
inline std::string from_compute(const std::string& x, DType from, bool mask, DType to, bool fast) {
  if (fast && (to == kBFloat16 || to == kFloat16)) to = kFloat32;
  if (mask) return to == kBool ? x : fmt::format("mask_to_{}({})", spelling(to).vector, x);
  switch (to) {
    case kBool:
      return fmt::format("to_b16({})", x);
    case kBFloat16:
    case kFloat16: {
      const std::string f = from == kFloat32 ? x : fmt::format("to_f32({})", x);
      return fmt::format("{}({})", to == kBFloat16 ? "round_bf16" : "round_f16", f);
    }
    case kUInt8:
      if (from == kInt32) return fmt::format("({} & 255)", x);
      return fmt::format("(to_i32(to_i64({})) & 255)", x);
    default:
      return from == to ? x : fmt::format("to_{}({})", spelling(to).vector, x);
  }
}

}  // namespace brrr
