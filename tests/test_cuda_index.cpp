// Indexed reads and sums, order and draws on a GPU, against the CPU's bits.

#include <cmath>
#include <cstring>
#include <numeric>

#include "brrr.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};
constexpr DType kSummed[] = {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8};
constexpr DType kFloats[] = {kFloat32, kFloat64, kBFloat16, kFloat16};

Tensor there(const Tensor& t) { return t.to(kCUDA); }
void check_equal(const Tensor& got, const Tensor& want) {
  REQUIRE(got.device() == kCUDA);
  check_same(got.to(kCPU), want);
}

/// t's elements on the GPU, in several layouts: dense, transposed, every second element of memory,
/// beginning at the fourth element of memory.
Tensors layouts_there(const Tensor& t) {
  const Tensor x = there(t);
  const int64_t last = t.dim() - 1;
  IntList twice = t.sizes();
  twice[last] *= 2;
  const Tensor sliced = zeros(twice, t.dtype(), kCUDA).slice(last, 0, twice[last], 2);
  const Tensor shifted =
      zeros({t.numel() + 3}, t.dtype(), kCUDA).narrow(0, 3, t.numel()).view(t.sizes());
  return {x, x.transpose(0, last).clone().transpose(0, last), sliced.copy_(x), shifted.copy_(x)};
}

/// n positions below `limit`, some of them repeated many times.
Tensor some_positions(int64_t n, int64_t limit, int64_t salt = 0) {
  std::vector<int64_t> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = (i * 7919 + salt * 101 + i * i % 13) % (3 * limit);
    v[static_cast<size_t>(i)] = at < limit ? at : at % (limit / 3 + 1);
  }
  return from_blob(static_cast<const void*>(v.data()), {n}, kInt64).clone();
}

/// n elements with many ties and, in floating dtypes, NaN, infinities and both zeros.
Tensor mixed(const IntList& sizes, DType dtype) {
  const int64_t n = numel_of(sizes);
  const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, -NAN};
  std::vector<double> v;
  for (int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<size_t>((i * 7919) % (n / 2 + 3));
    const bool whole = !is_floating(dtype);
    v.push_back(!whole && i % 11 == 3 ? special[k % 6]
                                      : std::floor(60 * std::sin(static_cast<double>(k))));
    if (dtype == kUInt8 || dtype == kBool) v.back() = std::fabs(v.back());
  }
  return from_blob(static_cast<const void*>(v.data()), sizes, kFloat64).to(dtype);
}

}  // namespace

/// The row behind the gradients of index_select and embedding, which is not public. Without a base
/// it starts from zeros of `sizes`.
Tensor index_add(const Tensor& base, const IntList& sizes, int64_t dim, const Tensor& index,
                 const Tensor& src, bool into = false) {
  TensorImpl* in[] = {base.impl(), index.impl(), src.impl()};
  OpCall c(*find_op("index_add"), in, 3);
  c.attrs.push(dim);
  for (int d = 0; !base.defined() && d < sizes.size(); ++d) c.attrs.push(sizes[d]);
  if (into) c.out[0] = base;
  c.into = into;
  dispatch(c);
  return c.out[0];
}

#define NEEDS_GPU \
  if (!have_device()) return

TEST_CASE("cuda: index_select and embedding pick slices of any width, dtype and layout") {
  NEEDS_GPU;
  for (DType t : kDTypes) {
    for (const IntList& s : {IntList{7, 1}, {7, 3}, {5, 16}, {9, 40}, {4, 3, 8}}) {
      const Tensor x = sampled(s, t);
      for (int dim = 0; dim < s.size(); ++dim) {
        for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{11}}) {
          const Tensor at = some_positions(n, s[dim]);
          const Tensor want = index_select(x, dim, at);
          for (const Tensor& y : layouts_there(x)) {
            check_equal(index_select(y, dim, there(at)), want);
          }
        }
      }
      if (s.size() != 2) continue;
      const Tensor ids = some_positions(6, s[0]).view({2, 3});
      check_equal(embedding(there(x), there(ids)), embedding(x, ids));
      check_equal(embedding(there(x), there(ids).t()), embedding(x, ids.t()));
      check_equal(embedding(there(x), there(ids).to(kInt32)), embedding(x, ids));
      check_equal(embedding(there(x), there(tensor(Scalar(3)))), embedding(x, tensor(Scalar(3))));
    }
  }
  const Tensor row = sampled({1, 24}, kFloat32).expand({5, 24});
  check_equal(index_select(there(row.narrow(0, 0, 1)).expand({5, 24}), 0, there(tensor({4, 0}))),
              index_select(row, 0, tensor({4, 0})));
  const Tensor large = sampled({300, 257}, kFloat32), at = some_positions(1000, 300);
  check_equal(index_select(there(large), 0, there(at)), index_select(large, 0, at));
}

TEST_CASE("cuda: gather takes elements along any dim") {
  NEEDS_GPU;
  for (DType t : kDTypes) {
    for (const IntList& s : {IntList{6}, {5, 7}, {3, 4, 5}}) {
      const Tensor x = sampled(s, t);
      for (int dim = 0; dim < s.size(); ++dim) {
        IntList sizes = s;
        sizes[dim] = 9;
        if (dim != 0) sizes[0] -= 1;  // Smaller than x there.
        const Tensor at = some_positions(numel_of(sizes), s[dim]).view(sizes);
        const Tensor want = gather(x, dim, at);
        for (const Tensor& y : layouts_there(x)) check_equal(gather(y, dim, there(at)), want);
        check_equal(gather(there(x), dim, layouts_there(at)[1]), want);
        check_equal(gather(there(x), dim, layouts_there(at)[2]), want);
      }
    }
  }
  check_equal(gather(there(tensor(Scalar(2.5f))), 0, there(tensor(Scalar(0)))),
              gather(tensor(Scalar(2.5f)), 0, tensor(Scalar(0))));
  const Tensor none = zeros({3, 0}, kInt64);
  check_equal(gather(there(sampled({3, 4}, kFloat32)), 1, there(none)), zeros({3, 0}));
}

TEST_CASE("cuda: one_hot") {
  NEEDS_GPU;
  for (const IntList& s : {IntList{}, {0}, {1}, {3, 5}, {700}}) {
    const Tensor ids = some_positions(numel_of(s), 7).view(s);
    check_equal(one_hot(there(ids), 7), one_hot(ids, 7));
  }
  const Tensor ids = some_positions(12, 4).view({3, 4});
  check_equal(one_hot(there(ids).t(), 4), one_hot(ids.t(), 4));
}

// Few positions are searched; more are sorted, in one tile or in several that are merged.
TEST_CASE("cuda: index_add sums in index order, to the last bit") {
  NEEDS_GPU;
  for (DType t : kSummed) {
    for (int64_t n : {0, 1, 13, 64, 65, 700, 2048, 5000, 9000}) {
      if (n > 700 && t != kFloat32 && t != kBFloat16) continue;
      for (int64_t width : {1, 3, 8}) {
        const Tensor base = sampled({9, width}, t), src = sampled({n, width}, t, -2, 2, 3);
        const Tensor at = some_positions(n, 9), want = index_add(base, {}, 0, at, src);
        check_equal(index_add(there(base), {}, 0, there(at), there(src)), want);
        check_equal(index_add(there(base).t(), {}, 1, there(at), there(src).t()).t(), want);
        check_equal(index_add({}, {9, width}, 0, there(at), there(src)),
                    index_add({}, {9, width}, 0, at, src));
        if (n == 0) continue;
        for (const Tensor& y : layouts_there(src)) {
          check_equal(index_add(there(base), {}, 0, there(at), y), want);
        }
        for (const Tensor& y : layouts_there(base)) {
          check_equal(index_add(y, {}, 0, there(at), there(src), true), want);
        }
      }
    }
  }
}

TEST_CASE("cuda: index_add into its own operands, between other dims, from one slice") {
  NEEDS_GPU;
  const Tensor x = sampled({6, 100, 8}, kFloat32), at = some_positions(100, 100);
  const Tensor y = there(x), z = x.clone();
  index_add(z, {}, 1, at, z, true);
  check_equal(index_add(y, {}, 1, there(at), y, true), z);
  const Tensor one = sampled({6, 1, 8}, kFloat32), wide = one.expand({6, 300, 8});
  const Tensor many = some_positions(300, 100, 5);
  check_equal(index_add(there(x), {}, 1, there(many), there(one).expand({6, 300, 8})),
              index_add(x, {}, 1, many, wide));
  const Tensor counts = arange(200);  // The index is also the destination.
  const Tensor counted = there(counts);
  const Tensor list = there(counts).slice(0, 0, 100);
  index_add(counts, {}, 0, counts.slice(0, 0, 100), arange(100), true);
  check_equal(index_add(counted, {}, 0, counted.slice(0, 0, 100), there(arange(100)), true),
              counts);
}

TEST_CASE("cuda: scatter_add sums along each line in index order, to the last bit") {
  NEEDS_GPU;
  for (DType t : kSummed) {
    for (int64_t n : {1, 30, 65, 300, 3000}) {
      if (n == 3000 && t != kFloat32 && t != kFloat16) continue;
      const Tensor base = sampled({4, 9, 3}, t), src = sampled({3, n, 2}, t, -2, 2, 3);
      const Tensor at = some_positions(3 * n * 2, 9).view({3, n, 2});
      const Tensor want = scatter_add(base, 1, at, src);
      for (const Tensor& y : layouts_there(src)) {
        check_equal(scatter_add(there(base), 1, there(at), y), want);
      }
      check_equal(scatter_add(there(base), 1, layouts_there(at)[1], there(src)), want);
      check_equal(scatter_add(there(base).transpose(0, 1), 0, there(at).transpose(0, 1),
                              there(src).transpose(0, 1))
                      .transpose(0, 1),
                  want);
      const NoGradGuard guard;
      for (const Tensor& y : layouts_there(base)) {
        y.scatter_add_(1, there(at), there(src));
        check_equal(y, want);
      }
    }
  }
  const Tensor zero = tensor(Scalar(0));
  check_equal(scatter_add(there(tensor(Scalar(2.5f))), 0, there(zero), there(tensor(Scalar(1.f)))),
              scatter_add(tensor(Scalar(2.5f)), 0, zero, tensor(Scalar(1.f))));
}

TEST_CASE("cuda: gradients of embedding, index_select and gather") {
  NEEDS_GPU;
  for (DType t : {kFloat32, kBFloat16}) {
    const Tensor weight = sampled({65, 48}, t), ids = some_positions(8 * 96, 65).view({8, 96});
    const Tensor g = sampled({8, 96, 48}, t, -1, 1, 4);
    const auto gradient = [&](const Tensor& w, const Tensor& at, const Tensor& go, int way) {
      const Tensor x = w.detach().set_requires_grad(true);
      const Tensor y = way == 0   ? embedding(x, at)
                       : way == 1 ? index_select(x, 1, at)
                                  : gather(x, 0, at);
      return grad({y}, {x}, {}, {go})[0];
    };
    check_equal(gradient(there(weight), there(ids), there(g), 0), gradient(weight, ids, g, 0));
    const Tensor columns = some_positions(400, 48), h = sampled({65, 400}, t);
    check_equal(gradient(there(weight), there(columns), there(h), 1),
                gradient(weight, columns, h, 1));
    const Tensor at = some_positions(200 * 48, 65).view({200, 48}), k = sampled({200, 48}, t);
    check_equal(gradient(there(weight), there(at), there(k), 2), gradient(weight, at, k, 2));
  }
}

TEST_CASE("cuda: an index out of range is raised at the next read, and the process goes on") {
  NEEDS_GPU;
  const Tensor x = sampled({5, 8}, kFloat32), y = there(x);
  const Tensor bad = tensor({1, 5, -1});
  const auto good = [&] {
    check_equal(index_select(y, 0, there(tensor({4, 0}))), index_select(x, 0, tensor({4, 0})));
  };
  const std::string what = " is out of range: the dim has size 5, so indices are in [0, 5)";
  struct Case {
    const char* op;
    std::function<Tensor()> run;
  };
  const Tensor long_bad = cat({bad, zeros({197}, kInt64)});
  const Case cases[] = {
      {"index_select", [&] { return index_select(y, 0, there(bad)); }},
      {"embedding", [&] { return embedding(y, there(bad)); }},
      {"gather",
       [&] {
         return gather(y, 0, there(bad).view({3, 1}).expand({3, 8}).contiguous());
       }},
      {"one_hot", [&] { return one_hot(there(bad), 5); }},
      {"index_add",
       [&] {
         return index_add(y, {}, 0, there(bad), there(ones({3, 8})));
       }},
      {"index_add",
       [&] {
         return index_add(y, {}, 0, there(long_bad), there(ones({200, 8})));
       }},
      {"scatter_add",
       [&] {
         return scatter_add(y, 0, there(bad.view({3, 1})), there(ones({3, 1})));
       }},
      {"scatter_add",
       [&] {
         return scatter_add(y, 0, there(long_bad.view({200, 1})), there(ones({200, 1})));
       }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.op);
    const auto check_raised = [&](const std::function<void()>& read) {
      const std::string said = error_of(read);
      CHECK_MESSAGE(said.find(std::string(c.op) + ": index ") == 0, said);
      CHECK_MESSAGE(said.find(what) != std::string::npos, said);
      const bool named =
          said.find("index 5 ") != std::string::npos || said.find("index -1 ") != std::string::npos;
      CHECK_MESSAGE(named, said);
      good();  // Raised once.
    };
    Tensor r = c.run();
    check_raised([&] { r.to_vector<float>(); });
    r = c.run();
    check_raised([&] { y.narrow(0, 0, 1).narrow(1, 0, 1).item<float>(); });
    r = c.run();
    check_raised([&] { synchronize(kCUDA); });
    // Indices in range have taken effect; for the others the result is 0, or nothing was added.
    const std::string op = c.op;
    if (op == "index_select" || op == "embedding") {
      check_equal(r, cat({x.narrow(0, 1, 1), zeros({2, 8})}));
    }
    if (op == "one_hot") {
      check_equal(r, cat({one_hot(tensor({1}), 5), zeros({2, 5}, kInt64)}));
    }
    if (op == "index_add" || op == "scatter_add") {
      const Tensor row0 = x.narrow(0, 0, 1), rest = x.narrow(0, 2, 3);
      check_equal(r.narrow(0, 2, 3), rest);
      const Tensor row1 = x.narrow(0, 1, 1).clone();
      const int64_t width = op == "index_add" ? 8 : 1;
      row1.narrow(1, 0, width).copy_(row1.narrow(1, 0, width) + 1.0f);
      check_equal(r.narrow(0, 1, 1), row1);
    }
  }
  const Tensor none = zeros({0, 4}, kFloat32, kCUDA);
  const Tensor r = embedding(none, there(tensor({0, 0})));
  CHECK(error_of([&] { synchronize(kCUDA); }).find("in [0, 0)") != std::string::npos);
  check_equal(r, zeros({2, 4}));
  // Indices of slices without elements are checked too.
  const Tensor flat = zeros({5, 0}, kFloat32, kCUDA);
  const std::function<void()> nothing[] = {
      [&] { index_select(flat, 0, there(bad)); },
      [&] { embedding(flat, there(bad)); },
      [&] {
        index_add(flat, {}, 0, there(bad), zeros({3, 0}, kFloat32, kCUDA));
      },
  };
  for (const auto& call : nothing) {
    call();
    const std::string said = error_of([&] { synchronize(kCUDA); });
    CHECK_MESSAGE(said.find(what) != std::string::npos, said);
  }
}

// Rows ranked by counting; rows sorted many or one to a block; rows of several tiles, also of an
// odd number of tiles.
TEST_CASE("cuda: argsort and topk, ties, NaN and zeros as on the CPU") {
  NEEDS_GPU;
  for (DType t : kDTypes) {
    for (const IntList& s : {IntList{},
                             {1},
                             {2, 3},
                             {700, 5},
                             {3, 100},
                             {2, 2048},
                             {2, 2049},
                             {1700, 100},
                             {9, 1500},
                             {1, 6145},
                             {2, 21000}}) {
      if (numel_of(s) > 6000 && t != kFloat32 && t != kInt64 && t != kBool) continue;
      const Tensor x = mixed(s, t), y = there(x);
      for (bool descending : {false, true}) {
        check_equal(argsort(y, -1, descending), argsort(x, -1, descending));
        if (x.numel() > 100000) continue;
        const int64_t n = s.size() ? s[s.size() - 1] : 1;
        for (int64_t k : {int64_t{1}, int64_t{5}, n / 2, n - 1, n}) {
          if (k > n || k < 1) continue;
          const auto got = topk(y, k, -1, descending), want = topk(x, k, -1, descending);
          check_equal(got.first, want.first);
          check_equal(got.second, want.second);
        }
      }
      if (s.size() == 2 && x.numel() <= 100000) {
        check_equal(argsort(y, 0, true), argsort(x, 0, true));
        for (const Tensor& z : layouts_there(x)) check_equal(argsort(z), argsort(x));
        const auto got = sort(y, 0), want = sort(x, 0);
        check_equal(got.first, want.first);
        check_equal(got.second, want.second);
      }
    }
  }
  check_equal(argsort(there(zeros({3, 0}))), argsort(zeros({3, 0})));
  check_equal(topk(there(ones({3, 2})), 0).second, topk(ones({3, 2}), 0).second);
}

TEST_CASE("cuda: randperm is the CPU's") {
  NEEDS_GPU;
  for (int64_t n : {0, 1, 2, 5, 1000, 2048, 2049, 30000}) {
    manual_seed(7);
    const Tensor want = randperm(n);
    manual_seed(7);
    check_equal(randperm(n, kCUDA), want);
  }
}

TEST_CASE("cuda: multinomial draws what the CPU draws") {
  NEEDS_GPU;
  for (DType t : kFloats) {
    for (const IntList& s : {IntList{1}, {6}, {3, 40}, {2, 1000}, {1, 5003}, {300, 7}}) {
      const Tensor x = sampled(s, t).abs() + sampled(s, t).relu();
      const Tensor sparse = x * (sampled(s, t, -2, 2, 8) > 0.5).to(t) + 0.01;
      const int64_t n = s[s.size() - 1];
      for (const Tensor& w : {x, sparse}) {
        for (int64_t samples : {int64_t{1}, int64_t{3}, n}) {
          for (bool replacement : {true, false}) {
            if (!replacement && samples > n) continue;
            manual_seed(5);
            const Tensor want = multinomial(w, samples, replacement);
            manual_seed(5);
            check_equal(multinomial(there(w), samples, replacement), want);
          }
        }
        manual_seed(5);
        const Tensor want = multinomial(w, 1);
        for (const Tensor& y : layouts_there(w)) {
          manual_seed(5);
          check_equal(multinomial(y, 1), want);
        }
      }
    }
  }
  const Tensor least = full({3}, 5e-324, kFloat64);
  manual_seed(5);
  const Tensor want = multinomial(least, 1000, true);
  manual_seed(5);
  check_equal(multinomial(there(least), 1000, true), want);
}

TEST_CASE("cuda: multinomial's bad weights are raised at the next read") {
  NEEDS_GPU;
  const auto fault_of = [](const Tensor& weights, int64_t samples, bool replacement) {
    const Tensor r = multinomial(there(weights), samples, replacement);
    const std::string said = error_of([&] { synchronize(kCUDA); });
    const Tensor at = r.to(kCPU);
    for (int64_t i : at.to_vector<int64_t>()) {
      CHECK(i >= 0);
      CHECK(i < weights.size(-1));
    }
    return said;
  };
  for (float bad : {-1.0f, NAN, INFINITY}) {
    const Tensor w = ones({3, 300});
    w.narrow(0, 2, 1).narrow(1, 100, 1).fill_(bad);
    for (bool replacement : {true, false}) {
      const std::string said = fault_of(w, 2, replacement);
      CHECK_MESSAGE(said.find("multinomial: row 2 has invalid values") == 0, said);
    }
  }
  CHECK(fault_of(zeros({4}), 1, false).find("multinomial: row 0") == 0);
  const Tensor few = tensor({0.0f, 1.0f, 0.0f, 2.0f});
  CHECK(fault_of(few, 3, false).find("multinomial: row 0") == 0);
  CHECK(fault_of(few, 2, false).empty());
  CHECK(fault_of(few, 7, true).empty());
}
