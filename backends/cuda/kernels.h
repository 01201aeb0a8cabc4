#pragma once
// Kernels from text: compiled once, through the disk cache, kept for the life of the process.

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "backends/cuda/driver.h"
#include "core/device_kernel.h"

namespace brrr::cuda {

/// What a kernel is found by. Two texts have different keys: the caller sees to that.
struct KernelKey {
  const void* owner;  ///< A row, or a DeviceKernel.
  uint64_t variant;
  uint64_t reaches = 0, dtypes = 0;  ///< Of a call's operands.
  auto operator<=>(const KernelKey&) const = default;
};

/// The kernel of that key, made from `text()` (without the prelude) when it is first asked for.
/// `name` is the kernel's in the text. Safe from any thread. Throws brrr::Error with the compiler's
/// words when the text does not compile; the next call tries again.
Function* find_kernel(const KernelKey& key, const char* name, size_t shared_bytes,
                      const std::function<std::string()>& text);
/// From then on find_kernel answers with this one: tests build many as one program.
void keep_kernel(const KernelKey& key, Function* f);

/// Machine code, loaded; `name` is for words. Throws brrr::Error where there is no memory for it.
Module* load_module(const std::string& code, const char* name);

/// What a kernel's text may use beside the prelude (support.h), and it.
std::string with_support(const std::string& text);
/// The text that a DeviceKernel is compiled from.
std::string text_of(const DeviceKernel& k, const Variant& v);
/// Backend::run_kernel.
void run_kernel(const DeviceKernel& k, const Variant& v, const Grid& g, const void* arguments,
                size_t bytes);

/// What the compiler gets: before the text what this uses of the prelude (ops/vocabulary/
/// vec_device.h, the portable parts of the CPU's and dialect.h, embedded at build time).
std::string program_of(const std::string& text);

/// Machine code of program_of(text) for an architecture; from the disk cache where it is there. No
/// device is needed.
std::string machine_code(const Driver& driver, const std::string& text, const char* name, int major,
                         int minor, bool* cached = nullptr);

}  // namespace brrr::cuda
