#pragma once
// Kernels from source text: compiled once, through the disk cache, and kept until the process ends.

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "backends/cuda/driver.h"
#include "core/device_kernel.h"

namespace brrr::cuda {

/// Identifies a kernel. The caller guarantees that different texts have different keys.
struct KernelKey {
  const void* owner;  ///< A row, or a DeviceKernel.
  uint64_t variant;
  uint64_t reaches = 0, dtypes = 0;  ///< Of a call's operands, packed; see WalkedCall::key.
  auto operator<=>(const KernelKey&) const = default;
};

/// The kernel of that key, compiled from `text()` (without the prelude) on first use. `name` is its
/// name in the text. Thread-safe. Throws brrr::Error with the compiler's message if the text does
/// not compile; the next call tries again.
Function* find_kernel(const KernelKey& key, const char* name, size_t shared_bytes,
                      const std::function<std::string()>& text);
/// Makes find_kernel return `f` for the key: tests build many kernels as one program.
void register_kernel(const KernelKey& key, Function* f);

/// Loads machine code; `name` is for messages. Throws brrr::Error if there is no memory for it.
Module* load_module(const std::string& code, const char* name);

/// `text` preceded by what it may use besides the prelude (support.h).
std::string with_support(const std::string& text);
/// The text that a DeviceKernel is compiled from.
std::string text_of(const DeviceKernel& k, const Variant& v);
/// Implements Backend::run_kernel.
void run_kernel(const DeviceKernel& k, const Variant& v, const Grid& g, const void* arguments,
                size_t bytes);

/// The compiler's input: `text` preceded by the parts of the prelude that it uses. The prelude is
/// cuda_prelude (CMakeLists.txt) and dialect.h, embedded at build time.
std::string program_of(const std::string& text);

/// Machine code of program_of(text) for an architecture, from the disk cache if it is there. Needs
/// no device.
std::string machine_code(const Driver& driver, const std::string& text, const char* name, int major,
                         int minor, bool* cached = nullptr);

}  // namespace brrr::cuda
