// The entry point of brrr_tests; the cases are in the other files of this folder.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/cuda_cases.h"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int status = context.run();
  if (context.shouldExit()) return status;
  return brrr::test::compile_what_ran() ? status : 1;
}
