// Which ops are fused: as much as fits into a kernel, whatever the number of ops in between.
#include <doctest/doctest.h>

#include "brrr.h"
#include "tests/fuzz_steps.h"
#include "tests/kernels.h"
#include "tests/op_cases.h"
#include "tests/temp_cache.h"
#include "tests/threads.h"

using namespace brrr;
using brrr::test::check_same;

namespace {

using Tensors = std::vector<Tensor>;
using test::kernels;
using test::Threads;

Tensors many(int n, const IntList& sizes) {
  Tensors list;
  for (int k = 0; k < n; ++k) list.push_back(randn(sizes));
  return list;
}

// The peak of the third call of `fn`, in bytes above those live before it.
template <class F> size_t peak(const F& fn, Mode mode) {
  auto step = brrr::step(fn, {.mode = mode, .require_graph = mode == Mode::Graph});
  for (int k = 0; k < 2; ++k) step();
  const Device device = default_device();
  const size_t before = memory_stats(device).live;
  reset_peak_memory(device);
  step();
  return memory_stats(device).peak - before;
}
template <class F> void check_peak(const F& fn) {
  CHECK(kernels(fn) > 0);  // Also compares the bits with eager's.
  const size_t eager = peak(fn, Mode::Eager), graph = peak(fn, Mode::Graph);
  INFO("eager " << eager << ", graph " << graph << " bytes");
  CHECK(static_cast<double>(graph) <= 1.1 * static_cast<double>(eager));
}

}  // namespace

TEST_CASE("fusion: a chain is one kernel, however many registers its values pass through") {
  const test::TempCache cache;
  const Tensor x = randn({3, 19}), a = randn({19}), b = randn({3, 1});
  const auto chain = [&](int n) {
    return kernels([&] {
      Tensor y = x;
      for (int k = 0; k < n; ++k) y = y * 0.999;
      return Tensors{y};
    });
  };
  CHECK(chain(12) == 1);
  CHECK(chain(200) == 1);
  CHECK(chain(300) == 2);
  CHECK(kernels([&] {
          Tensor y = x;
          for (int k = 0; k < 60; ++k) y = y * a + b;
          return Tensors{y};
        }) == 1);
}

TEST_CASE("fusion: the number of operands and results in memory limits a kernel") {
  const test::TempCache cache;
  const Tensors in = many(100, {19});
  const uint64_t sum = kernels([&] {
    Tensor y = in[0];
    for (const Tensor& t : in) y = y * 0.5 + t;
    return Tensors{y};
  });
  CHECK(sum > 1);
  CHECK(sum <= 5);
  const uint64_t copies = kernels([&] {
    Tensors out;
    for (int k = 0; k < 100; ++k) out.push_back(in[0] * (k + 1.0));
    return out;
  });
  CHECK(copies > 1);
  CHECK(copies <= 5);
}

TEST_CASE("fusion: separate chains are one kernel where nothing stands between") {
  const test::TempCache cache;
  const Tensor a = randn({16, 16}), b = randn({16, 16}), w = randn({16, 16});
  CHECK(kernels([&] { return Tensors{a * 2.0 + b * 3.0}; }) == 1);
  CHECK(kernels([&] {
          const Tensor x = a * 2.0, m = a.matmul(w), y = b * 3.0;
          return Tensors{x + y, m};
        }) == 2);
  CHECK(kernels([&] {  // The product needs x before the sum can run.
          const Tensor x = a * 2.0, m = x.matmul(w), y = b * 3.0;
          return Tensors{x + y + m};
        }) == 3);
}

TEST_CASE("fusion: disjoint windows of one buffer are written without a copy") {
  const test::TempCache cache;
  const Tensor buffer = randn({4, 1024});
  const auto row = [&](int64_t k) { return buffer.select(0, k); };
  const Tensor last = row(3), alone = randn({1024}), from = randn({1024});
  const auto update = [&](const Tensor& p, const Tensor& g) {
    return [=] {
      p.copy_((from - g.sigmoid() * 0.1) * 0.5);
      return Tensors{p + 1.0};
    };
  };
  CHECK(kernels(update(row(0), row(1))) == kernels(update(alone, row(1))));
  CHECK(peak([&] { return row(0).add_(last); }, Mode::Eager) == 0);
  // Overlapping windows read the values from before the write.
  const Tensor flat = buffer.view({4096}), before = flat.clone();
  flat.slice(0, 1, 4096).add_(flat.slice(0, 0, 4095));
  check_same(flat.slice(0, 1, 4096), before.slice(0, 1, 4096) + before.slice(0, 0, 4095));
  const Tensor columns = buffer.slice(1, 0, 2), pairs = columns.clone();
  columns.select(1, 0).sub_(columns.select(1, 1));
  check_same(columns.select(1, 0), pairs.select(1, 0) - pairs.select(1, 1));
}

TEST_CASE("fusion: indices and draws are computed in the kernel that uses them") {
  const Tensor a = randn({33, 40});
  // Ops of several shapes are fused, each with the indices of its own shape.
  CHECK(kernels([&] { return Tensors{tril((a + 1.0).exp(), 2) * 3.0}; }) == 1);
  CHECK(kernels([&] { return Tensors{(a * 2.0).view({40, 33}).triu() + eye(40, 33)}; }) == 1);
  CHECK(kernels([&] { return Tensors{a.view({1320}) + arange(1320) * 0.5}; }) == 1);
  // The draw counter goes on from one call to the next.
  const auto fn = [&] {
    const Tensor noise = rand_like(a);
    return Tensors{(a + noise) * dropout(a.exp(), 0.3, true)};
  };
  const auto noisy = [&] {
    manual_seed(5);
    auto step = brrr::step(fn, StepOptions{.require_graph = true, .build_at_first_call = true});
    Tensors all;
    for (int call = 0; call < 3; ++call) all.push_back(step()[0]);
    CHECK(step.stats().kernels_per_replay == 1);
    return all;
  };
  const Tensors got = noisy();
  manual_seed(5);
  for (const Tensor& t : got) check_same(t, fn()[0]);
}

TEST_CASE("fusion: a dropout mask is never in memory, its gradient recomputes it") {
  Tensor x = randn({50, 40});
  x.set_requires_grad(true);
  const auto fn = [&] {
    const Tensor y = (dropout(x * 2.0, 0.4, true) + 1.0).square().sum();
    return Tensors{y, grad({y}, {x})[0]};
  };
  auto step = brrr::step(fn, StepOptions{.require_graph = true, .build_at_first_call = true});
  manual_seed(6);
  Tensors got;
  for (int call = 0; call < 3; ++call) {
    for (const Tensor& t : step()) got.push_back(t);
  }
  step.freeze();
  for (const Tensor& t : step()) got.push_back(t);
  manual_seed(6);
  for (size_t call = 0; call < 4; ++call) {
    const Tensors want = fn();
    check_same(got[2 * call], want[0]);
    check_same(got[2 * call + 1], want[1]);
  }
  // Of both orders: the gradient is linear in g.
  const auto r = gradcheck(
      [&](const Tensors& in) {
        manual_seed(7);
        return dropout(in[0], 0.4, true);
      },
      {randn({4, 5}).to(kFloat64)}, {.second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
}

TEST_CASE("fusion: a temporary that a kernel still stores keeps its memory") {
  const test::TempCache cache;
  const Tensor a = randn({16, 16}), b = randn({16, 16}), w = randn({16, 16});
  kernels([&] {
    const Tensor y = a.matmul(w), z = b * 2.0;
    y.add_(1.0);
    return Tensors{y + z, z.matmul(w)};
  });
  kernels([&] {
    const Tensor y = a.softmax(1), z = b.cos();
    y.mul_(z);
    return Tensors{y + 1.0, z.matmul(w)};
  });
}

TEST_CASE("fusion: sums of products need no more memory than eager mode") {
  const test::TempCache cache;
  const Tensor h = randn({96, 96}), v = randn({96, 96}), out = zeros({96, 96});
  check_peak([&] {
    Tensor y = h;
    for (int k = 0; k < 12; ++k) y = y + h.matmul(v);
    return Tensors{y};
  });
  check_peak([&] {
    Tensor y = h;
    for (int k = 0; k < 12; ++k) y = y + (h * (k + 1.0)).matmul(v);
    return Tensors{y};
  });
  check_peak([&] {
    const Tensor a = h * 2.0;
    Tensor y = h;
    for (int k = 0; k < 12; ++k) y = y + (a + v * (k + 3.0)).matmul(v);
    return Tensors{y};
  });
  check_peak([&] {
    for (int k = 0; k < 12; ++k) out.mul_(0.5).add_(h.matmul(v) * (k + 1.0));
    return Tensors{};
  });
}

TEST_CASE("fusion: long polynomials and conversions limit a kernel") {
  const test::TempCache cache;
  const Tensor x = randn({19}), half = randn({19}).to(kFloat16);
  CHECK(kernels([&] {
          Tensor y = x;
          for (int k = 0; k < 20; ++k) y = y.cos();
          return Tensors{y};
        }) > 1);
  CHECK(kernels([&] {
          Tensor y = half;
          for (int k = 0; k < 20; ++k) y = y * 0.98;
          return Tensors{y};
        }) > 1);
}

TEST_CASE("fusion: strided operands with scalars of their own fit a kernel's arguments") {
  const test::TempCache cache;
  const Tensors in = many(60, {5, 4, 3, 2});
  const uint64_t n = kernels([&] {
    Tensor y = zeros({2, 3, 4, 5});
    for (size_t k = 0; k < in.size(); ++k) {
      const double low = -1.0 - static_cast<double>(k);
      y = (y + in[k].permute({3, 2, 1, 0}).clamp(low, 2.0)) * 0.5;
    }
    return Tensors{y};
  });
  CHECK(n > 1);
  CHECK(n <= 5);
}

TEST_CASE("fusion: operands of many dims fit a kernel's arguments") {
  const test::TempCache cache;
  const Tensors in = many(30, {2, 2, 2, 2, 2, 2, 2});
  kernels([&] {
    Tensor y = zeros({2, 2, 2, 2, 2, 2, 2});
    for (size_t k = 0; k < in.size(); ++k) {
      Tensor t = in[k].permute({6, 5, 4, 3, 2, 1, 0});
      for (int j = 0; j < 4; ++j) t = t.clamp(-1.0 - static_cast<double>(k) - 0.01 * j, 2.0 + j);
      y = y + t;
    }
    return Tensors{y};
  });
}

// An operand may be contiguous along another dim than the kernel's rows: a CPU's generated kernels
// transpose it by blocks, as the library's loops do.
TEST_CASE("fusion: transposed operands, in any order of dims, of any dtype, and slices of them") {
  const test::TempCache cache;
  const Threads restore;
  const auto chain = [](const IntList& sizes, const IntList& order, DType t, int64_t without) {
    const Tensor whole = (rand(sizes) * 100.0).to(t);
    const Tensor x = whole.permute(order).narrow(0, without, whole.size(order[0]) - without);
    const Tensor y = x.clone() + x, row = y.narrow(0, 0, 1), column = y.narrow(-1, 0, 1);
    CAPTURE(to_string(sizes));
    CAPTURE(to_string(order));
    CAPTURE(std::string(name(t)));
    return kernels([&] { return Tensors{where(x == row, column, (x + y) * x)}; });
  };
  for (int threads : {1, 3}) {
    cpu::set_num_threads(threads);
    for (DType t : {kFloat32, kFloat64, kBFloat16, kInt64, kUInt8}) {
      if (threads > 1 && t != kFloat32) continue;
      for (const IntList& sizes : {IntList{9, 16}, {8, 17}, {64, 40}, {65, 300}, {130, 1000}}) {
        CHECK(chain(sizes, {1, 0}, t, 0) == 1);
        CHECK(chain(sizes, {1, 0}, t, 3) == 1);
      }
      CHECK(chain({2, 3, 72, 80}, {0, 2, 3, 1}, t, 1) == 1);
      CHECK(chain({10, 3, 5, 40}, {3, 2, 1, 0}, t, 0) == 1);
      CHECK(chain({10, 3, 5, 40}, {2, 3, 1, 0}, t, 1) == 1);
    }
  }
  CHECK(chain({300, 512}, {1, 0}, kFloat32, 0) == 1);  // Cache lines that map to few sets.
  CHECK(chain({300, 2048}, {1, 0}, kUInt8, 0) == 1);
  // Together with other operands, indices and broadcasts each row gets only its own elements.
  const Tensor a = randn({90, 70}), b = randn({70, 90}), c = randn({90, 2, 70});
  CHECK(kernels([&] { return Tensors{tril(a + b.t()) * 2.0, a * b.t()}; }) == 1);
  kernels([&] { return Tensors{a.t() + b * 2.0, exp(a.t() + b.t().contiguous().t())}; });
  CHECK(kernels([&] { return Tensors{c.select(1, 1) * b.t() + c.select(1, 0)}; }) == 1);
  // A row kernel does not transpose blocks: such an op is not fused into it.
  const int kernels_of_rows = default_device() == kCPU ? 2 : 1;
  CHECK(kernels([&] { return Tensors{softmax(b.t() * 2.0, -1)}; }) == kernels_of_rows);
  // By itself such an op runs as the library's kernel.
  auto step = brrr::step([&] { return b.t() * 2.0; }, StepOptions{.build_at_first_call = true});
  CHECK(same_bits(step(), b.t() * 2.0));
  CHECK(step.stats().fused_kernels == (default_device() == kCPU ? 0 : 1));
}

// A CPU makes random words for whole vectors of elements, which rows of other lengths would split.
TEST_CASE("fusion: random draws are not fused into rows whose length is not whole vectors") {
  const test::TempCache cache;
  const auto noise = [](int64_t width) {
    const Tensor x = randn({24, width}), bias = randn({width});
    return kernels([&] {
      const RngScope same_draws(7);
      return Tensors{dropout(x + bias, 0.5, true), x + bias * randn_like(x)};
    });
  };
  const bool apart = default_device() == kCPU;
  for (int64_t width : {1, 16, 48}) CHECK(noise(width) == noise(32));
  for (int64_t width : {2, 7, 10, 17, 33}) CHECK(noise(width) == noise(32) + 2 * apart);
  // They may be split where the operand that they multiply is a slice of rows.
  for (int64_t from : {0, 3}) {
    const Tensor x = randn({24, 37}).slice(1, from, from + 21);
    CHECK(kernels([&] {
            const RngScope same_draws(7);
            return Tensors{dropout(x, 0.5, true) + 1.0};
          }) == 1);
  }
}

TEST_CASE("fusion: an expanded scalar that all parameters share keeps their tables of operands") {
  const auto launches = [](int parameters) {
    std::vector<Tensor> all;
    for (int k = 0; k < parameters; ++k) all.push_back(randn({16, 4}).set_requires_grad());
    const auto opt = std::make_shared<optim::AdamW>(all, optim::AdamWOptions{});
    auto step = brrr::step(
        [=] {
          Tensor loss = zeros({});
          for (const Tensor& p : all) loss = loss + p.square().sum();
          opt->zero_grad();
          loss.backward();
          opt->step();
          return loss.detach();
        },
        StepOptions{.build_at_first_call = true});
    step();
    return step.stats().kernels_per_replay;
  };
  CHECK(launches(160) <= 16);
}

TEST_CASE("fusion: a live range may be extended where less memory is live than at the peak") {
  const test::TempCache cache;
  const Tensor x = randn({64, 256}), w = randn({256, 256});
  const auto generated = [&](int64_t most) {
    const Tensor wide = randn({256, most}), back = randn({most, 256});
    auto step = brrr::step([&] {
      const Tensor y = relu(matmul(matmul(x, wide), back)), z = matmul(y, w);
      return Tensors{z, matmul(y * 2.0, w)};
    });
    for (int call = 0; call < 3; ++call) step();
    return step.stats().fused_kernels;
  };
  CHECK(generated(4096) == 1);
  CHECK(generated(64) == 2);
}

// The first product uses memory of a result that is not written yet; where the value's live range
// would be extended, the result has been written.
TEST_CASE("fusion: no live range is extended where results have been written") {
  const test::TempCache cache;
  const Tensor x = randn({64, 1024}), w = randn({1024, 2048}), to_result = randn({2048, 6400});
  const Tensor between = randn({2048, 2048}), narrow = randn({2048, 16}), last = randn({2048, 16});
  for (const int64_t early : {64, 6300}) {
    const Tensor wide = randn({1024, early}), back = randn({early, 16});
    check_peak([&] {
      const Tensor first = matmul(matmul(x, wide), back), y = relu(matmul(x, w));
      const Tensor result = matmul(y, to_result), other = matmul(matmul(y, between), narrow);
      return Tensors{first, result, other, matmul(y * 2.0, last)};
    });
  }
}

TEST_CASE("fusion: no live range is extended across the memory that a library kernel takes") {
  const test::TempCache cache;
  const Tensor x = randn({64, 1024}), w = randn({1024, 1024}), last = randn({1024, 16});
  for (const int64_t early : {64, 6144}) {
    const Tensor wide = randn({1024, early}), back = randn({early, 16});
    check_peak([&] {
      const Tensor first = matmul(matmul(x, wide), back), y = relu(matmul(x, w));
      const Tensor sorted = matmul(sort(y, 1).first, last);
      return Tensors{first, sorted, matmul(y * 2.0, last)};
    });
  }
}
