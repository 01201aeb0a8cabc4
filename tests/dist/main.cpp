// Cases that several processes run together: each rank runs them all, in the same order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <brrr/brrr.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  brrr::dist::init();
  // BRRR_TEST_DEVICE=cuda: what cases make is made there.
  const char* device = std::getenv("BRRR_TEST_DEVICE");
  if (device && std::string_view(device) == "cuda") brrr::set_default_device(brrr::kCUDA);
  doctest::Context context(argc, argv);
  context.setOption("order-by", "name");
  if (brrr::dist::rank() > 0) context.setOption("minimal", true);  // Failures only.
  const int failed = context.run();
  return failed;
}
