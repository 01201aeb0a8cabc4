#include "core/dtype.h"

#include <fmt/format.h>

#include <algorithm>

namespace brrr {

const char* name(DType t) {
  constexpr const char* names[] = {"float32", "float64", "bfloat16", "float16",
                                   "int64",   "int32",   "uint8",    "bool"};
  return names[static_cast<int>(t)];
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (a == kFloat64 || b == kFloat64) return kFloat64;
    return kFloat32;  // bfloat16 with float16, or either with float32.
  }
  // Bool < UInt8 < Int32 < Int64, which is falling enumerator order.
  return std::min(a, b);
}

std::string name(Device d) {
  const bool cpu = d.type == DeviceType::CPU;
  return cpu && d.index == 0 ? "cpu" : fmt::format("{}:{}", cpu ? "cpu" : "cuda", d.index);
}

}  // namespace brrr
