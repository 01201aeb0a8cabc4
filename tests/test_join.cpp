// Concatenation of strided tensors: runs that are dense on both sides, of every length and dtype.
#include <doctest/doctest.h>

#include "tests/op_cases.h"
#include "tests/pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// The heads of attention: [batch, heads, time, width] seen as [batch, time, heads, width].
Tensor heads(DType t, int64_t width, int salt) {
  return sampled({2, 3, 5, width}, kFloat64, -100, 100, salt).to(t).transpose(1, 2);
}

}  // namespace

TEST_CASE("join: transposed, sliced or expanded parts give the result of dense copies") {
  for (const DType t : {kFloat32, kFloat64, kBFloat16, kInt64, kUInt8}) {
    for (const int64_t width : {1, 7, 16, 33, 300}) {
      const Tensor a = heads(t, width, 1), b = heads(t, width, 2);
      const std::vector<std::pair<Tensor, Tensor>> pairs = {
          {a, b},
          {a.slice(1, 1, 4), b.slice(1, 2, 5)},
          {a.transpose(0, 3), b.transpose(0, 3)},
          {a.select(0, 1).unsqueeze(0).expand({4, 5, 3, width}),
           b.narrow(0, 0, 1).expand({4, 5, 3, width})},
          {a.slice(3, 0, width, 2), b.slice(3, 0, width, 2)},
      };
      for (const auto& [x, y] : pairs) {
        for (int64_t dim = 0; dim < 4; ++dim) {
          CAPTURE(width);
          CAPTURE(dim);
          const Tensor dense_x = x.clone(), dense_y = y.clone();
          CHECK(same_bits(cat({x, y}, dim), cat({dense_x, dense_y}, dim)));
          CHECK(same_bits(stack({x, y}, dim), stack({dense_x, dense_y}, dim)));
          const Tensor joined = cat({x, y}, dim);
          CHECK(same_bits(joined.narrow(dim, 0, x.size(dim)), dense_x));
          CHECK(same_bits(joined.narrow(dim, x.size(dim), y.size(dim)), dense_y));
        }
      }
    }
  }
}

TEST_CASE("join: many threads copy the same rows as one thread") {
  const Tensor x = randn({16, 8, 128, 16}).transpose(1, 2);  // 1 MB: enough for several threads
  const Tensor joined = cat({x, x}, 1);
  CHECK(same_bits(joined.narrow(1, 0, 128), x.clone()));
  CHECK(same_bits(joined.narrow(1, 128, 128), x.clone()));
}
