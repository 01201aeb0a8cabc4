// Matrix products: batches, and integers.

#include <array>

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("matmul: a batch has the bits of its matrices one by one") {
  manual_seed(14);
  struct Sizes {
    IntList a, b;
    int64_t m, n, k;
  };
  // One, some and more products than are planned at once; either side broadcast.
  for (const Sizes& s : {Sizes{{8, 4}, {8, 4}, 32, 32, 16}, Sizes{{5, 31}, {5, 31}, 32, 16, 32},
                         Sizes{{3, 1, 7}, {5, 1}, 17, 20, 9}, Sizes{{1, 70}, {2, 1}, 16, 48, 40},
                         Sizes{{2}, {2}, 1, 5, 3}, Sizes{{1}, {1}, 33, 33, 33}}) {
    for (int layout = 0; layout < 4; ++layout) {
      for (DType t : {kFloat32, kFloat64, kInt32}) {
        IntList sa = s.a, sb = s.b;
        const bool ta = layout & 1, tb = layout & 2;
        sa.push_back(ta ? s.k : s.m);
        sa.push_back(ta ? s.m : s.k);
        sb.push_back(tb ? s.n : s.k);
        sb.push_back(tb ? s.k : s.n);
        Tensor a = (randn(sa) * 4.0).to(t), b = (randn(sb) * 4.0).to(t);
        if (ta) a = a.transpose(-2, -1);
        if (tb) b = b.transpose(-2, -1);
        const Tensor c = matmul(a, b);
        IntList wide_a = c.sizes(), wide_b = c.sizes();
        wide_a[wide_a.size() - 1] = s.k;
        wide_b[wide_b.size() - 2] = s.k;
        const Tensor x = a.expand(wide_a), y = b.expand(wide_b);
        const int64_t count = c.numel() / (s.m * s.n);
        for (int64_t i = 0; i < count; ++i) {
          Tensor u = x, v = y, w = c;
          int64_t rest = i, dims = c.dim() - 2;
          for (int64_t d = 0; d < dims; ++d) {
            int64_t below = 1;
            for (int64_t e = d + 1; e < dims; ++e) below *= c.size(e);
            const int64_t at = rest / below;
            rest %= below;
            u = u.select(0, at), v = v.select(0, at), w = w.select(0, at);
          }
          check_same(w, matmul(u, v));
        }
      }
    }
  }
}

TEST_CASE("matmul: integers, modulo their width, in every layout") {
  manual_seed(15);
  const int64_t big = int64_t{1} << 62;
  for (DType t : {kUInt8, kInt32, kInt64}) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{3, 1, 5},
                                  {5, 31, 4},
                                  {4, 64, 7},
                                  {2, 131, 3},
                                  {1, 97, 0},
                                  {70, 33, 65}}) {
      for (int layout = 0; layout < 4; ++layout) {
        const bool ta = layout & 1, tb = layout & 2;
        Tensor a = randint(-big, big, ta ? IntList{k, m} : IntList{m, k}).to(t);
        Tensor b = randint(-big, big, tb ? IntList{n, k} : IntList{k, n}).to(t);
        if (ta) a = a.t();
        if (tb) b = b.t();
        const auto x = a.to_vector<int64_t>(), y = b.to_vector<int64_t>();
        std::vector<int64_t> c;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            uint64_t sum = 0;
            for (int64_t l = 0; l < k; ++l) {
              sum += static_cast<uint64_t>(x[static_cast<size_t>(i * k + l)]) *
                     static_cast<uint64_t>(y[static_cast<size_t>(l * n + j)]);
            }
            c.push_back(t == kUInt8   ? static_cast<uint8_t>(sum)
                        : t == kInt32 ? static_cast<int32_t>(sum)
                                      : static_cast<int64_t>(sum));
          }
        }
        CHECK(matmul(a, b).to_vector<int64_t>() == c);
      }
    }
  }
}
