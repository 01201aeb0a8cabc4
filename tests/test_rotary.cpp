// Rotary embedding: values, gradients, far positions, layouts, errors. And batched products.

#include <cmath>

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

Tensor normal(const IntList& sizes, DType t = kFloat32) { return randn(sizes).to(t); }

}  // namespace

TEST_CASE("rotary: values, and gradients are the way back") {
  manual_seed(11);
  for (int64_t width : {2, 6, 16, 40}) {
    const int64_t half = width / 2;
    const Tensor x = normal({3, 4, width}, kFloat64), at = tensor({0, 5, 100000, -7});
    const Tensor y = rotary_embedding(x, at, 500.0);
    const auto from = x.to_vector<double>(), to = y.to_vector<double>();
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const double frequency =
              std::pow(500.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
          const double angle = at.select(0, t).item<double>() * frequency;
          const auto k = static_cast<size_t>((m * 4 + t) * width + i),
                     l = k + static_cast<size_t>(half);
          const double c = std::cos(angle), s = std::sin(angle);
          CHECK(std::fabs(to[k] - (from[k] * c - from[l] * s)) < 1e-12);
          CHECK(std::fabs(to[l] - (from[l] * c + from[k] * s)) < 1e-12);
        }
      }
    }
    const auto r = gradcheck([&](const Tensors& in) { return rotary_embedding(in[0], at, 500.0); },
                             {x}, {.tolerance = 5e-6, .second_order = true});
    CHECK_MESSAGE(r.ok, r.report);
    // Float32 is as good at far positions as at near ones.
    const Tensor far = tensor({0, 1000000, int64_t{1} << 40, -123456789});
    check_close(rotary_embedding(x.to(kFloat32), far), rotary_embedding(x, far), 1e-6);
    check_close(rotary_embedding(x.to(kBFloat16), far), rotary_embedding(x, far), 2e-2);
  }
}

TEST_CASE("rotary: products depend on the distance of positions alone") {
  manual_seed(12);
  const Tensor q = normal({1, 64}), k = normal({1, 64});
  auto product = [&](int64_t i, int64_t j) {
    auto at = [](int64_t p) { return tensor(std::vector<int64_t>{p}); };
    return (rotary_embedding(q, at(i)) * rotary_embedding(k, at(j))).sum().item<double>();
  };
  for (int64_t distance : {0, 1, 17, 1000}) {
    const double near = product(distance, 0);
    for (int64_t shift : {3, 4095, 1000000}) {
      CHECK(std::fabs(product(distance + shift, shift) - near) < 2e-5);
    }
  }
}

TEST_CASE("rotary: layouts") {
  manual_seed(13);
  const Tensor x = normal({2, 7, 3, 8}), at = arange(14).slice(0, 0, 14, 2);
  const Tensor heads = x.transpose(1, 2);
  const Tensor want = rotary_embedding(heads.contiguous(), at.contiguous());
  check_same(rotary_embedding(heads, at), want);
  const Tensor columns = heads.transpose(-2, -1).contiguous().transpose(-2, -1);
  check_same(rotary_embedding(columns, at), want);
  CHECK(want.is_contiguous());
  CHECK(rotary_embedding(zeros({2, 0, 4}), zeros({0}, kInt64)).numel() == 0);
}

TEST_CASE("rotary: errors name the op, the shapes and the mend") {
  const Tensor x = zeros({2, 4, 6});
  CHECK(error_of([&] {
          rotary_embedding(zeros({2, 3, 5}), arange(3));
        }) ==
        "rotary_embedding: takes [.., length, width] with an even width, got float32[2, 3, 5]");
  CHECK(error_of([&] { rotary_embedding(x, arange(5)); }) ==
        "rotary_embedding: positions are int64[5], but float32[2, 4, 6] needs int64[4], one for "
        "each row");
  CHECK(error_of([&] { rotary_embedding(x, arange(4), 0); }) ==
        "rotary_embedding: base must be positive and finite, got 0");
}

TEST_CASE("matmul: a batch has the bits of its matrices one by one") {
  manual_seed(14);
  struct Sizes {
    IntList a, b;
    int64_t m, n, k;
  };
  // One, some and more products than are planned at once; broadcast to either side.
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

TEST_CASE("matmul: integers, modulo their width, whatever lies how") {
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
