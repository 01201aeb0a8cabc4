#include <brrr/brrr.h>
#ifdef FMT_VERSION
#error "the public header brings {fmt} along"
#endif

#include <cstdio>

// Runs before main, in any link order.
static const brrr::Tensor early = brrr::ones({2}) + 1.0;
static brrr::models::Linear layer(2, 3);

int main() {
  if (layer(early.unsqueeze(0)).sizes() != brrr::IntList{1, 3}) return 1;
  brrr::dist::init();
  brrr::Tensor a = brrr::tensor({{1.f, 2.f}, {3.f, 4.f}});
  brrr::Tensor sum = (a + a * 2.0).sum();
  std::printf("%g\n", static_cast<double>(sum.item<float>()));
  return sum.item<float>() == 30.f ? 0 : 1;
}
