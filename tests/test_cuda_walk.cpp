// How pointwise kernels walk: the access chosen for each layout, values in layouts that use every
// kind of access, and the instructions in PTX.

#include "ops/pointwise_ops.h"
#include "graph/step.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

using W = program::Window;

// The walk of the last pointwise call that `call` makes on the CPU, and its operands' reaches.
template <class Call> cuda::PointwiseCall call_of(const Call& call) {
  KernelsNeeded needed;
  call();
  REQUIRE(!needed.calls.empty());
  return needed.calls.back();
}
std::vector<int> reaches(const cuda::PointwiseCall& f) {
  std::vector<int> all;
  for (int w = 0; w < f.n_windows; ++w) all.push_back(f.windows[w].reach);
  return all;
}

Tensor of(const IntList& sizes, DType t = kFloat32) {
  return sampled(sizes, t, -2, 2, static_cast<uint64_t>(sizes[0]));
}

// Calls with the operands x (any layout) and y of its shape, or broadcast to it.
void check_on_device(const Tensor& x, const Tensor& y) {
  const Tensor dx = on_gpu(x), dy = on_gpu(y);
  CHECK(device_difference(dx + dy, x + y) == "");
  CHECK(device_difference(dx.contiguous(), x.contiguous()) == "");
  if (!is_floating(x.dtype())) return;
  const Tensor to = x.clone(), from = on_gpu(to);
  to.add_(y);
  from.add_(dy);
  CHECK(device_difference(from, to) == "");
}

size_t count_of(const std::string& text, const std::string& word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++n;
  return n;
}

std::string ptx_of_call(const cuda::PointwiseCall& f) { return ptx_of(kernels_of({f}).front()); }
bool reads_before_it_writes(const std::string& ptx) {
  const size_t read = ptx.rfind("ld.global"), write = ptx.find("st.global");
  return read != ptx.npos && write != ptx.npos && read < write;
}

}  // namespace

TEST_CASE("cuda walk: rows that are dense are moved 16 bytes at a time") {
  const Tensor x = of({20, 48}), b = of({48}), column = of({20, 1});
  auto f = call_of([&] { x + b; });
  CHECK(f.walk.vector == 4);
  CHECK(f.walk.in_rows);
  CHECK(reaches(f) == std::vector<int>{W::Dense, W::Dense, W::Row});
  f = call_of([&] { x* column; });
  CHECK(f.walk.vector == 4);
  CHECK(reaches(f) == std::vector<int>{W::Dense, W::Dense, W::Held});
  f = call_of([&] { x.slice(1, 4, 24) * x.slice(1, 8, 28); });
  CHECK(f.walk.vector == 4);
  CHECK(reaches(f) == std::vector<int>{W::Dense, W::Row, W::Row});
  // 8 bytes where the addresses are aligned to no more; one by one where they are not even to that.
  f = call_of([&] { x.slice(1, 2, 22) * x.slice(1, 6, 26); });
  CHECK(f.walk.vector == 2);
  f = call_of([&] { x.slice(1, 1, 20) * x.slice(1, 2, 21); });
  CHECK(f.walk.vector == 1);
  // A row is not a whole number of vectors, but the dense operands are.
  f = call_of([&] { of({20, 13}) + of({13}); });
  CHECK(f.walk.vector == 4);
  CHECK(!f.walk.in_rows);
  CHECK(reaches(f) == std::vector<int>{W::Dense, W::Dense, W::Strided});
  f = call_of([&] { of({20, 48}, kBFloat16) + of({48}, kBFloat16); });
  CHECK(f.walk.vector == 8);
}

TEST_CASE("cuda walk: operands that are dense along another dim are read by tiles") {
  const Tensor x = of({40, 24}), y = of({24, 40});
  auto f = call_of([&] { x.t().contiguous(); });
  CHECK(f.walk.turned == 0);
  CHECK(reaches(f) == std::vector<int>{W::Strided, W::Turned});
  f = call_of([&] { x.t() + y; });
  CHECK(reaches(f) == std::vector<int>{W::Strided, W::Turned, W::Strided});
  f = call_of([&] { y.t().add_(x); });  // The output decides the order.
  CHECK(reaches(f) == std::vector<int>{W::Strided, W::Strided, W::Turned});
  f = call_of([&] { of({3, 40, 24}).permute({2, 0, 1}).contiguous(); });
  CHECK(f.walk.turned == 0);
  f = call_of([&] { of({40, 3}).t().contiguous(); });  // Too narrow.
  CHECK(f.walk.turned == -1);
  f = call_of([&] { of({4, 20, 3, 32}).transpose(1, 2).contiguous(); });  // Heads: dense rows.
  CHECK(f.walk.turned == -1);
  CHECK(f.walk.vector == 4);
}

TEST_CASE("cuda walk: values in every layout are the CPU's") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kBFloat16, kFloat64, kUInt8}) {
    CAPTURE(std::string(name(t)));
    for (int64_t rows : {1, 3, 33, 40}) {
      for (int64_t columns : {1, 13, 16, 31, 48, 64}) {
        CAPTURE(rows);
        CAPTURE(columns);
        const Tensor x = of({rows, columns}, t), turned = of({columns, rows}, t).t();
        const Tensor wide = of({rows, columns + 9}, t);
        check_on_device(x, of({columns}, t));
        check_on_device(x, of({rows, 1}, t));
        check_on_device(x, turned);
        check_on_device(turned, x);
        check_on_device(wide.slice(1, 1, columns + 1), x);
        check_on_device(wide.slice(1, 8, columns + 8), of({columns}, t));
        check_on_device(x, wide.slice(1, 4, columns + 4));
      }
    }
  }
}

TEST_CASE("cuda walk: tiles of more dims, of several operands, beyond what shared memory holds") {
  if (!have_device()) return;
  const Tensor x = of({5, 33, 3, 70});
  for (const IntList& order : {IntList{3, 2, 1, 0}, IntList{0, 3, 2, 1}, IntList{2, 3, 0, 1},
                               IntList{1, 0, 3, 2}, IntList{3, 0, 1, 2}}) {
    const Tensor there = x.permute(order);
    check_on_device(there, there.contiguous());
    check_on_device(there.contiguous(), there);
  }
  // Eight tiles of float64 would be 66 KB.
  Tensors turned, on_device;
  for (int k = 0; k < 8; ++k) turned.push_back(sampled({70, 40}, kFloat64, -2, 2, k).t());
  for (const Tensor& one : turned) on_device.push_back(on_gpu(one));
  const auto all = [](const Tensors& in) {
    Tensor y = in[0] * in[1];
    for (size_t k = 2; k < in.size(); ++k) y = y + in[k];
    return y + ones({40, 70}, kFloat64, in[0].device());
  };
  CHECK(device_difference(all(on_device), all(turned)) == "");
  const NoGradGuard guard;
  auto step = brrr::step([&] { return all(on_device); }, Mode::Graph);
  for (int call = 0; call < 4; ++call) CHECK(device_difference(step(), all(turned)) == "");
}

TEST_CASE("cuda walk: a step writes through a transposed view") {
  if (!have_device()) return;
  const NoGradGuard guard;
  const Tensor x = of({40, 50}), y = of({50, 40}), dx = on_gpu(x), dy = on_gpu(y);
  const auto write = [](const Tensor& to, const Tensor& from) {
    to.t().add_(from * 2.0);
    to.slice(1, 3, 43).copy_(from.t().slice(1, 0, 40) + 1.0);
  };
  auto step = brrr::step([&] { write(dx, dy); }, Mode::Graph);
  for (int call = 0; call < 4; ++call) {
    step();
    write(x, y);
    CHECK(device_difference(dx, x) == "");
  }
}

// Dense operands are read four at a time although one is misaligned and one needs 32 bytes.
TEST_CASE("cuda walk: rows of wide elements together with dense narrow ones") {
  if (!have_device()) return;
  const Tensor a = of({6, 16}), b = of({6, 16}), off = of({6, 17}), wide = of({6, 20}, kInt64);
  const auto sum = [](const Tensor& a, const Tensor& b, const Tensor& off, const Tensor& wide) {
    return a * b + off.slice(1, 1, 17) + wide.slice(1, 0, 16);
  };
  const Tensor on_host = sum(a, b, off, wide);
  auto step = brrr::step(sum, {.require_graph = true, .build_at_first_call = true});
  for (int call = 0; call < 2; ++call) {
    CHECK(device_difference(step(on_gpu(a), on_gpu(b), on_gpu(off), on_gpu(wide)), on_host) == "");
  }
}

TEST_CASE("cuda walk: PTX moves vectors, and reads before it writes") {
  if (!gpu_compiler()) return;
  const Tensor x = of({64, 48}), half = of({64, 48}, kBFloat16), odd = of({64, 49});
  const auto check = [&](const cuda::PointwiseCall& f, const char* read, size_t reads,
                         const char* write) {
    const std::string ptx = ptx_of_call(f);
    CHECK_MESSAGE(count_of(ptx, read) == reads, read, "\n", ptx);
    CHECK_MESSAGE(count_of(ptx, write) > 0, write, "\n", ptx);
    CHECK_MESSAGE(reads_before_it_writes(ptx), ptx);
  };
  check(call_of([&] { x + x; }), "ld.global.v4.f32", 2, "st.global.v4.f32");
  check(call_of([&] { x + x.select(0, 3); }), "ld.global.v4.f32", 2, "st.global.v4.f32");
  check(call_of([&] { x + of({64, 1}); }), "ld.global.v4.f32", 1, "st.global.v4.f32");
  check(call_of([&] { half + half; }), "ld.global.v4.u32", 2, "st.global.v4.u32");
  check(call_of([&] { half + half.select(0, 3); }), "ld.global.v4.u32", 2, "st.global.v4.u32");
  check(call_of([&] { x.to(kFloat64) + 1.0; }), "ld.global.v2.f64", 2, "st.global.v2.f64");
  check(call_of([&] { odd + odd.select(0, 3); }), "ld.global.v4.f32", 1, "st.global.v4.f32");
  // Four elements of each of two operands are in flight at once.
  check(call_of([&] { odd.slice(1, 0, 47) + odd.slice(1, 2, 49); }), "ld.global.f32", 8,
        "st.global.f32");
  const auto tiled = call_of([&] { x.t() + of({48, 64}); });
  check(tiled, "ld.global.f32", 8, "st.global.f32");
  const std::string ptx = ptx_of_call(tiled);
  CHECK(count_of(ptx, "st.shared.f32") == 4);
  CHECK(count_of(ptx, "ld.shared.f32") == 4);
  CHECK(count_of(ptx, "bar.sync") == 1);
}
