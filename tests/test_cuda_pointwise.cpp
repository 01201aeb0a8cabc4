// Every pointwise row of the registry on the device, without naming one: the CPU's values.

#include "ops/pointwise_ops.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("cuda: tensors move to the device and back in any layout") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8, kBool}) {
    for (Layout l : kLayouts) {
      const Tensor x = laid_out(sampled({5, 7}, t), l), y = on_gpu(x);
      CHECK(y.strides() == x.strides());
      CHECK(device_difference(y, x) == "");
      CHECK(device_difference(x.to(kCUDA), x) == "");
      CHECK(device_difference(y.contiguous(), x) == "");
    }
  }
}
