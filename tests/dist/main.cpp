// Cases that several processes run together: every rank runs all of them in the same order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <signal.h>

#include <cstdlib>
#include <string_view>

#include "tests/dist/dist_cases.h"
#include "tests/threads.h"

int brrr::dist_cases::threads_before_init = 0;

int main(int argc, char** argv) {
  brrr::dist_cases::threads_before_init = brrr::test::threads_taking(SIGTERM);
  brrr::dist::init();
  // Rank 1 has a batch less than the others, which do not catch the resulting error.
  if (argc == 2 && std::string_view(argv[1]) == "--leave") {
    for (int i = brrr::dist::rank() == 1; i < 4; ++i) brrr::dist::all_reduce(brrr::ones({3}));
    return 0;
  }
  // BRRR_TEST_DEVICE=cuda: tensors of the cases are created on the device.
  const char* device = std::getenv("BRRR_TEST_DEVICE");
  if (device && std::string_view(device) == "cuda") brrr::set_default_device(brrr::kCUDA);
  doctest::Context context(argc, argv);
  context.setOption("order-by", "name");
  if (brrr::dist::rank() > 0) context.setOption("minimal", true);  // Reports failures only.
  const int failed = context.run();
  return failed;
}
