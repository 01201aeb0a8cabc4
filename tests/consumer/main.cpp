#include <brrr/brrr.h>

#include <cstdio>

int main() {
  brrr::dist::init();
  brrr::Tensor a = brrr::tensor({{1.f, 2.f}, {3.f, 4.f}});
  brrr::Tensor sum = (a + a * 2.0).sum();
  std::printf("%g\n", static_cast<double>(sum.item<float>()));
  return sum.item<float>() == 30.f ? 0 : 1;
}
