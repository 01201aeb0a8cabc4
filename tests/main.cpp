// The entry point of brrr_tests; the cases are in the other files of this folder.
//
// BRRR_TEST_DEVICE=cuda runs the cases that do not name a device with tensors created on the GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/tensor_impl.h"
#include "tests/cuda_cases.h"

int main(int argc, char** argv) {
  const char* device = std::getenv("BRRR_TEST_DEVICE");
  if (device && std::string_view(device) == "cuda") {
    try {
      brrr::set_default_device(brrr::kCUDA);
    } catch (const brrr::Error& e) {
      std::printf("skipped: no device (%s)\n", e.what());
      return 0;
    }
  }
  doctest::Context context(argc, argv);
  const int status = context.run();
  if (context.shouldExit()) return status;
  if (const char* op = brrr::scratch_shortage()) {
    std::printf("FAILED: %s took more scratch memory than its row says\n", op);
    return 1;
  }
  return brrr::test::compile_what_ran() ? status : 1;
}
