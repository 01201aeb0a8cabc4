#pragma once
// Element types, devices and PyTorch's promotion lattice.

#include <cstddef>
#include <cstdint>
#include <string>

namespace brrr {

enum class DType : uint8_t { Float32, Float64, BFloat16, Float16, Int64, Int32, UInt8, Bool };

inline constexpr DType kFloat32 = DType::Float32, kFloat64 = DType::Float64;
inline constexpr DType kBFloat16 = DType::BFloat16, kFloat16 = DType::Float16;
inline constexpr DType kInt64 = DType::Int64, kInt32 = DType::Int32;
inline constexpr DType kUInt8 = DType::UInt8, kBool = DType::Bool;
inline constexpr int kNumDTypes = 8;

/// Bytes of one element. (A shift, not a table: tensors compute addresses with it.)
constexpr size_t itemsize(DType t) {
  return size_t{1} << (0x00231132u >> (4 * static_cast<unsigned>(t)) & 7);
}
/// True for float32, float64, bfloat16 and float16.
constexpr bool is_floating(DType t) { return t <= DType::Float16; }
/// True for int64, int32 and uint8 (bool is no integer).
constexpr bool is_integer(DType t) { return t >= DType::Int64 && t <= DType::UInt8; }
/// "float32", "bfloat16", ...
constexpr const char* name(DType t) {
  constexpr const char* names[] = {"float32", "float64", "bfloat16", "float16",
                                   "int64",   "int32",   "uint8",    "bool"};
  return names[static_cast<int>(t)];
}
/// The dtype of a binary operation on two tensors of these dtypes (torch.promote_types).
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  // bfloat16 with float16, or either with float32, gives float32.
  if (is_floating(a)) return a == kFloat64 || b == kFloat64 ? kFloat64 : kFloat32;
  // Bool < UInt8 < Int32 < Int64, which is falling enumerator order.
  return a < b ? a : b;
}

/// The type that arithmetic on `t` runs in: 16-bit floats compute in float32, uint8 and bool in
/// int32. Kernels exist for these four only; everything else is a conversion at load and store.
constexpr DType compute_type(DType t) {
  constexpr DType table[] = {DType::Float32, DType::Float64, DType::Float32, DType::Float32,
                             DType::Int64,   DType::Int32,   DType::Int32,   DType::Int32};
  return table[static_cast<int>(t)];
}
/// Index 0..3 of a compute type in a kernel table: float32, float64, int64, int32.
constexpr int compute_index(DType t) {
  constexpr int8_t table[] = {0, 1, 0, 0, 2, 3, 3, 3};
  return table[static_cast<int>(t)];
}

template <class T> struct DTypeOf;
template <> struct DTypeOf<float> { static constexpr DType value = kFloat32; };
template <> struct DTypeOf<double> { static constexpr DType value = kFloat64; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = kInt64; };
template <> struct DTypeOf<long long> { static constexpr DType value = kInt64; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = kInt32; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = kUInt8; };
template <> struct DTypeOf<bool> { static constexpr DType value = kBool; };

enum class DeviceType : uint8_t { CPU, CUDA };
inline constexpr int kDeviceTypes = 2;

/// Where a tensor lives.
struct Device {
  DeviceType type = DeviceType::CPU;
  uint8_t index = 0;
  bool operator==(const Device&) const = default;
};
inline constexpr Device kCPU{DeviceType::CPU, 0}, kCUDA{DeviceType::CUDA, 0};
/// "cpu", "cuda:0".
inline std::string name(Device d) {
  if (d == kCPU) return "cpu";
  return (d.type == DeviceType::CPU ? "cpu:" : "cuda:") + std::to_string(d.index);
}

}  // namespace brrr
