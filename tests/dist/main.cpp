// Cases that several processes run together: each rank runs them all, in the same order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <brrr/brrr.h>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  brrr::dist::init();
  doctest::Context context(argc, argv);
  context.setOption("order-by", "name");
  if (brrr::dist::rank() > 0) context.setOption("minimal", true);  // Failures only.
  const int failed = context.run();
  return failed;
}
