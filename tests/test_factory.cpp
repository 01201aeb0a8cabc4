#include "ops/factory_ops.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "backends/cpu/allocator.h"
#include "core/context.h"
#include "ops/pointwise_ops.h"
#include "tests/error_text.h"

using namespace brrr;
using namespace brrr::test;

namespace {

using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

struct Moments {
  double mean = 0, variance = 0;
  explicit Moments(const std::vector<double>& v) {
    for (double x : v) mean += x;
    mean /= static_cast<double>(v.size());
    for (double x : v) variance += (x - mean) * (x - mean);
    variance /= static_cast<double>(v.size());
  }
};

// A recorder that only counts what reaches it.
struct CountingRecorder : Recorder {
  int ops = 0, host = 0;
  CountingRecorder() { context.recorder = this; }
  ~CountingRecorder() override { context.recorder = nullptr; }
  void op(OpCall& c) override {
    ++ops;
    detail::run_now(c);
  }
  Tensor host_data(const void*, const Meta& m) override {
    ++host;
    return raw_empty(m.sizes, m.dtype, m.device);
  }
  Tensor host_values(const TensorImpl& t) override {
    return Tensor(Ref<TensorImpl>::share(const_cast<TensorImpl*>(&t)));
  }
  void journal(TensorImpl&, Field) override {}
  void journal(ControlCell&) override {}
  uint32_t journalled_views(const Storage&) override { return 0; }
  void journal(Node&) override {}
};

}  // namespace

// --- values --------------------------------------------------------------------------------------

TEST_CASE("tensor: nested lists, scalars, vectors") {
  const Tensor a = tensor({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}});
  CHECK(a.sizes() == IntList{2, 3});
  CHECK(a.dtype() == kFloat32);
  CHECK(a.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});
  CHECK(tensor({1, 2}).dtype() == kInt64);
  CHECK(tensor({1, 2.5}).to_vector<float>() == Floats{1, 2.5f});
  CHECK(tensor({true, false}).dtype() == kBool);
  CHECK(tensor({true, 2}).to_vector<int64_t>() == Ints{1, 2});
  CHECK(tensor({INT64_MAX}).item<int64_t>() == INT64_MAX);
  CHECK(tensor({{{7}}}).sizes() == IntList{1, 1, 1});
  CHECK(tensor({{}, {}}).sizes() == IntList{2, 0});
  CHECK(tensor(1.0).dtype() == kFloat32);
  CHECK(tensor(1.0).dim() == 0);
  CHECK(tensor(3).item<int32_t>() == 3);
  CHECK(tensor(true).item<bool>());
  CHECK(tensor(std::vector<double>{1, 2}).dtype() == kFloat64);
  CHECK(tensor(std::vector<int32_t>{1, 2}).dtype() == kInt32);
  CHECK(tensor(Floats{}).sizes() == IntList{0});
  CHECK(contains(error_of([] { tensor({{1, 2}, {3, 4}, {5}}); }), "sub-list 2 of 3 has shape [1]"));
  CHECK(contains(error_of([] { tensor({{1, 2}, 3}); }), "sub-list 1 of 2 has shape []"));
}

TEST_CASE("from_blob copies or aliases") {
  float data[] = {1, 2, 3, 4};
  const Tensor copy = from_blob(data, {2, 2}, kFloat32);
  const Tensor alias = from_blob(data, {2, 2}, kFloat32, false);
  data[0] = 9;
  CHECK(copy.to_vector<float>() == Floats{1, 2, 3, 4});
  CHECK(alias.to_vector<float>() == Floats{9, 2, 3, 4});
  CHECK(alias.data_ptr() == data);
  alias.data<float>()[3] = 7;
  CHECK(data[3] == 7);
  CHECK(contains(error_of([] { from_blob(nullptr, {2}, kFloat32); }), "null"));
  CHECK(from_blob(nullptr, {0}, kFloat32).numel() == 0);
  char* odd = reinterpret_cast<char*>(data) + 1;
  CHECK(contains(error_of([&] { from_blob(odd, {1}, kFloat32, false); }), "not aligned"));
}

TEST_CASE("full, zeros, ones in every dtype") {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    CAPTURE(name(t));
    CHECK(ones({3}, t).dtype() == t);
    CHECK(ones({100003}, t).to_vector<double>() == std::vector<double>(100003, 1.0));
    CHECK(zeros({100003}, t).to_vector<double>() == std::vector<double>(100003, 0.0));
    CHECK(full_like(ones({2, 3}, t), 1).to_vector<int32_t>() == std::vector<int32_t>(6, 1));
  }
  CHECK(full({3}, 2).dtype() == kInt64);
  CHECK(full({3}, 2.0).dtype() == kFloat32);
  CHECK(full({3}, true).dtype() == kBool);
  CHECK(full({1}, INT64_MIN).item<int64_t>() == INT64_MIN);
  CHECK(std::isnan(full({1}, NAN).item<float>()));
  CHECK(full({1}, INFINITY, kBFloat16).item<float>() == INFINITY);
  CHECK(full({300000}, 1.5).to_vector<float>() == Floats(300000, 1.5f));
  CHECK(zeros({0, 3}).numel() == 0);
  CHECK(empty({2, 3}, kInt32).sizes() == IntList{2, 3});
  CHECK(empty_like(tensor({1, 2})).dtype() == kInt64);
  CHECK(contains(error_of([] { full({1}, NAN, kInt64); }), "non-finite"));
  CHECK(contains(error_of([] { full({1}, 300, kUInt8); }), "out of the range of uint8"));
  CHECK(contains(error_of([] { full({1}, UINT64_MAX, kInt64); }), "out of the range of int64"));
  CHECK(full({1}, UINT64_MAX).item<double>() == 0x1p64);
  CHECK(contains(error_of([] { zeros({2, -1}); }), "sizes must not be negative: [2, -1]"));
  CHECK(contains(error_of([] { zeros_like(Tensor()); }), "zeros_like: the tensor is undefined"));
}

TEST_CASE("arange, linspace, eye") {
  CHECK(arange(5).to_vector<int64_t>() == Ints{0, 1, 2, 3, 4});
  CHECK(arange(5).dtype() == kInt64);
  CHECK(arange(5, 0, -2).to_vector<int64_t>() == Ints{5, 3, 1});
  CHECK(arange(0, 1, 0.25).to_vector<float>() == Floats{0, 0.25f, 0.5f, 0.75f});
  CHECK(arange(1.0).dtype() == kFloat32);
  CHECK(arange(3, 3).sizes() == IntList{0});
  CHECK(arange(INT64_MAX - 1, INT64_MAX, 5).to_vector<int64_t>() == Ints{INT64_MAX - 1});
  CHECK(arange(100000).to_vector<int64_t>()[99999] == 99999);
  CHECK(contains(error_of([] { arange(0, 5, 0); }), "step must not be 0"));
  CHECK(contains(error_of([] { arange(0, 5, -1); }), "leads away from end"));
  CHECK(contains(error_of([] { arange(-1); }), "leads away from end"));
  CHECK(contains(error_of([] { arange(INT64_MAX, INT64_MAX - 1); }), "leads away from end"));
  CHECK(arange(INT64_MIN, INT64_MAX, int64_t{1} << 62).to_vector<int64_t>().back() == int64_t{1}
                                                                                          << 62);
  CHECK(contains(error_of([] { arange(0.0, NAN); }), "must be finite"));
  CHECK(contains(error_of([] { arange(INT64_MIN, INT64_MAX); }), "too many elements"));

  CHECK(linspace(0, 1, 5).to_vector<float>() == Floats{0, 0.25f, 0.5f, 0.75f, 1});
  CHECK(linspace(3, -3, 3).to_vector<float>() == Floats{3, 0, -3});
  CHECK(linspace(2, 7, 1).to_vector<float>() == Floats{2});
  CHECK(linspace(0, 1, 0).numel() == 0);
  CHECK(linspace(0, 0.1, 7).to_vector<float>().back() == 0.1f);
  CHECK(contains(error_of([] { linspace(0, 1, -1); }), "steps must not be negative"));

  CHECK(eye(2).to_vector<float>() == Floats{1, 0, 0, 1});
  CHECK(eye(2, 3).to_vector<float>() == Floats{1, 0, 0, 0, 1, 0});
  CHECK(eye(0).sizes() == IntList{0, 0});
  CHECK(contains(error_of([] { eye(-1); }), "must not be negative"));
}

TEST_CASE("arange, linspace, eye, rand, randn in a dtype of choice") {
  for (const DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    CAPTURE(name(t));
    for (const Tensor& x : {arange(0, 4, 1, t), arange(0, 0.5, 0.25, t), linspace(-1, 1, 3, t),
                            eye(2, -1, t), rand({3}, t), randn({3}, t)}) {
      CHECK(x.dtype() == t);
    }
    CHECK(arange(0, 4, 1, t).to(kInt64).to_vector<int64_t>() == Ints{0, 1, 2, 3});
    manual_seed(3);
    const Tensor x = rand({40}, t), y = randn({40}, t);
    manual_seed(3);
    CHECK(same_bits(x, rand_like(x)));
    CHECK(same_bits(y, randn_like(y)));
  }
  CHECK(arange(0, 1, 0.1, kFloat64).to_vector<double>()[3] == 3 * 0.1);
  CHECK(linspace(0, 0.1, 7, kFloat64).to_vector<double>().back() == 0.1);
  CHECK(arange(252, 256, 1, kUInt8).to(kInt64).to_vector<int64_t>() == Ints{252, 253, 254, 255});
  CHECK(arange(5, 0, -2, kInt32).to_vector<int32_t>() == std::vector<int32_t>{5, 3, 1});
  CHECK(error_of([] { arange(0, 5, 0.5, kInt32); }) ==
        "arange: start 0, end 5 and step 0.5 cannot give int32; use integers");
}

TEST_CASE("full, arange, linspace: values at the limits of a dtype") {
  CHECK(full({2}, 0.5, kBool).all().item<bool>());
  CHECK(contains(error_of([] { arange(250, 260, 1, kUInt8); }), "arange: 259 is out of the range"));
  CHECK(contains(error_of([] { linspace(-1e308, 1e308, 3, kFloat64); }), "their distance"));
}

TEST_CASE("item, to_vector, data") {
  const Tensor a = tensor({{1.5f, 2.f}, {-3.f, 0.f}});
  CHECK(a.to_vector<int64_t>() == Ints{1, 2, -3, 0});
  CHECK(a.to_vector<bool>() == std::vector<bool>{true, true, true, false});
  CHECK(a.t().to_vector<float>() == Floats{1.5f, -3, 2, 0});
  CHECK(a.t().to_vector<double>() == std::vector<double>{1.5, -3, 2, 0});
  CHECK(a.select(0, 1).select(0, 0).item<float>() == -3);
  CHECK(full({1, 1}, 2.5, kBFloat16).item<double>() == 2.5);
  CHECK(full({}, 2.5, kFloat16).item<float>() == 2.5f);
  CHECK(a.data<float>()[1] == 2);
  CHECK(a.to(kCPU).is_same(a));
  CHECK(contains(error_of([&] { a.item<float>(); }), "item: float32[2, 2] has 4 elements"));
  CHECK(contains(error_of([&] { a.data<double>(); }),
                 "asked for float64, the tensor is float32[2, 2]"));
  CHECK(contains(error_of([&] { Tensor().item<float>(); }), "undefined"));
}

TEST_CASE("inside a step creation is recorded and host reads throw") {
  const Tensor outside = ones({2});
  float data[2] = {1, 2};
  CountingRecorder r;
  zeros_like(outside);
  rand({3});
  arange(4);
  empty({2});
  CHECK(r.ops == 4);
  tensor({1.f, 2.f});
  from_blob(data, {2}, kFloat32);
  CHECK(r.host == 2);
  CHECK(contains(error_of([&] { outside.to_vector<float>(); }),
                 "to_vector: float32[2] cannot be read"));
  CHECK(contains(error_of([&] { outside.item<float>(); }), "item:"));
  CHECK(contains(error_of([&] { outside.data_ptr(); }), "data_ptr:"));
  CHECK(contains(error_of([&] { outside.to_string(); }), "to_string:"));
  CHECK(contains(error_of([&] { from_blob(data, {2}, kFloat32, false); }), "from_blob:"));
  CHECK(contains(error_of([&] { manual_seed(1); }), "manual_seed:"));
}

// --- printing: the strings are PyTorch's ---------------------------------------------------------

TEST_CASE("print: numbers") {
  CHECK(tensor({{1.f, 2.f}, {3.f, 4.f}}).to_string() == "tensor([[1., 2.],\n        [3., 4.]])");
  CHECK(tensor({1.5f, -2.f}).to_string() == "tensor([ 1.5000, -2.0000])");
  CHECK(tensor({1e-4f, 1.f}).to_string() == "tensor([1.0000e-04, 1.0000e+00])");
  CHECK(tensor({0.f, 1e5f}).to_string() == "tensor([     0., 100000.])");
  CHECK(tensor({1.f, 1e5f}).to_string() == "tensor([1.0000e+00, 1.0000e+05])");
  CHECK(tensor({1.f, NAN, INFINITY}).to_string() == "tensor([1., nan, inf])");
  CHECK(tensor({1.5f, -NAN, -INFINITY}).to_string() == "tensor([1.5000,    nan,   -inf])");
  CHECK(tensor({0.f, -0.f}).to_string() == "tensor([0., -0.])");
  CHECK(tensor({NAN}).to_string() == "tensor([nan])");
  CHECK(tensor(3.14159).to_string() == "tensor(3.1416)");
  CHECK(tensor(2).to_string() == "tensor(2)");
  CHECK(tensor({1, -20, 300}).to_string() == "tensor([  1, -20, 300])");
  CHECK(tensor({true, false}).to_string() == "tensor([ True, False])");
  CHECK(tensor({INT64_MIN}).to_string() == "tensor([-9223372036854775808])");
  CHECK(tensor({{1.f, 2.f}, {3.f, 4.f}}).t().to_string() ==
        "tensor([[1., 3.],\n        [2., 4.]])");
}

TEST_CASE("print: suffixes") {
  CHECK(zeros({2}, kFloat64).to_string() == "tensor([0., 0.], dtype=float64)");
  CHECK(full({1}, 1.5, kBFloat16).to_string() == "tensor([1.5000], dtype=bfloat16)");
  CHECK(ones({2}, kInt32).to_string() == "tensor([1, 1], dtype=int32)");
  CHECK(zeros({0}).to_string() == "tensor([])");
  CHECK(zeros({0}, kInt64).to_string() == "tensor([], dtype=int64)");
  CHECK(zeros({0, 3}).to_string() == "tensor([], size=(0, 3))");
  const Tensor leaf = ones({2}).set_requires_grad();
  CHECK(leaf.to_string() == "tensor([1., 1.], requires_grad=True)");
  CHECK(mul(leaf, leaf).to_string() == "tensor([1., 1.], grad_fn=<mul>)");
  CHECK(Tensor().to_string() == "tensor(undefined)");
  std::ostringstream os;
  os << tensor({1});
  CHECK(os.str() == "tensor([1])");
}

TEST_CASE("print: long lines, many dims, summaries") {
  CHECK(arange(30).to_string() ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"
        "        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])");
  CHECK(zeros({2, 2, 1}).to_string() ==
        "tensor([[[0.],\n         [0.]],\n\n        [[0.],\n         [0.]]])");
  CHECK(arange(1001).to_string() == "tensor([   0,    1,    2,  ...,  998,  999, 1000])");
  CHECK(arange(2000).view({1000, 2}).to_string() ==
        "tensor([[   0,    1],\n        [   2,    3],\n        [   4,    5],\n        ...,\n"
        "        [1994, 1995],\n        [1996, 1997],\n        [1998, 1999]])");
  CHECK(ones({1000, 1000}).to_string() ==
        "tensor([[1., 1., 1.,  ..., 1., 1., 1.],\n        [1., 1., 1.,  ..., 1., 1., 1.],\n"
        "        [1., 1., 1.,  ..., 1., 1., 1.],\n        ...,\n"
        "        [1., 1., 1.,  ..., 1., 1., 1.],\n        [1., 1., 1.,  ..., 1., 1., 1.],\n"
        "        [1., 1., 1.,  ..., 1., 1., 1.]])");
  CHECK(ones({22}, kFloat64).to_string() ==
        "tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.,\n"
        "        1., 1., 1., 1.], dtype=float64)");
  CHECK(ones({16}, kFloat64).to_string() ==
        "tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.],\n"
        "       dtype=float64)");
}

// --- random --------------------------------------------------------------------------------------

TEST_CASE("random: a seed repeats the stream, a draw never repeats") {
  auto draw = [] {
    Floats all = rand({100}).to_vector<float>();
    for (float x : randn({33}).to_vector<float>()) all.push_back(x);
    for (float x : randperm(50).to_vector<float>()) all.push_back(x);
    for (float x : randint(0, 1000, {7}).to_vector<float>()) all.push_back(x);
    for (float x : dropout_mask(ones({40}), 0.5).to_vector<float>()) all.push_back(x);
    return all;
  };
  manual_seed(7);
  const Floats first = draw(), second = draw();
  manual_seed(7);
  CHECK(draw() == first);
  CHECK(first != second);
  CHECK(rng_state().draw == 5);
}

TEST_CASE("random: an element depends on its index alone") {
  manual_seed(3);
  const Floats big = randn({300000}).to_vector<float>();
  for (int64_t n : {1, 15, 16, 17, 255, 257, 100001}) {
    manual_seed(3);
    const Floats small = randn({n}).to_vector<float>();
    CHECK(std::equal(small.begin(), small.end(), big.begin()));
  }
  manual_seed(3);
  const Ints wide = randint(INT64_MIN, INT64_MAX, {1000}).to_vector<int64_t>();
  manual_seed(3);
  const Ints few = randint(INT64_MIN, INT64_MAX, {21}).to_vector<int64_t>();
  CHECK(std::equal(few.begin(), few.end(), wide.begin()));
}

TEST_CASE("random: moments and ranges") {
  manual_seed(1);
  const int64_t n = 1 << 18;
  const auto u = rand({n}).to_vector<double>();
  CHECK(std::abs(Moments(u).mean - 0.5) < 0.003);
  CHECK(std::abs(Moments(u).variance - 1.0 / 12) < 0.001);
  CHECK(*std::min_element(u.begin(), u.end()) >= 0);
  CHECK(*std::max_element(u.begin(), u.end()) < 1);
  const auto z = randn({n}).to_vector<double>();
  CHECK(std::abs(Moments(z).mean) < 0.01);
  CHECK(std::abs(Moments(z).variance - 1) < 0.015);
  const auto k = randint(-3, 5, {n}).to_vector<double>();
  CHECK(std::abs(Moments(k).mean - 0.5) < 0.03);
  CHECK(*std::min_element(k.begin(), k.end()) == -3);
  CHECK(*std::max_element(k.begin(), k.end()) == 4);
  const Ints huge = randint(INT64_MIN, INT64_MAX, {n}).to_vector<int64_t>();
  CHECK(std::set<int64_t>(huge.begin(), huge.end()).size() == huge.size());
  // A range that does not divide 2^32: no remainder is likelier than another.
  std::array<int64_t, 3> remainders{};
  for (int64_t v : randint(0, int64_t{3} << 30, {n}).to_vector<int64_t>()) ++remainders[v % 3];
  for (int64_t c : remainders) CHECK(std::abs(static_cast<double>(c) / n - 1.0 / 3) < 0.005);
  for (DType t : {kBFloat16, kFloat16, kFloat64}) {
    const auto v = rand_like(empty({n}, t)).to_vector<double>();
    CHECK(*std::max_element(v.begin(), v.end()) < 1);
    CHECK(std::abs(Moments(v).mean - 0.5) < 0.005);
    CHECK(std::abs(Moments(randn_like(empty({n}, t)).to_vector<double>()).variance - 1) < 0.015);
  }
}

TEST_CASE("random: permutations") {
  manual_seed(5);
  Ints p = randperm(70000).to_vector<int64_t>();
  CHECK_FALSE(std::is_sorted(p.begin(), p.end()));
  std::sort(p.begin(), p.end());
  CHECK(p == arange(70000).to_vector<int64_t>());
  CHECK(randperm(0).sizes() == IntList{0});
}

TEST_CASE("dropout") {
  manual_seed(2);
  const Tensor x = ones({1 << 16});
  const Floats y = dropout(x, 0.25, true).to_vector<float>();
  const auto dropped = std::count(y.begin(), y.end(), 0.f);
  CHECK(dropped + std::count(y.begin(), y.end(), static_cast<float>(1 / 0.75)) == 65536);
  CHECK(std::abs(static_cast<double>(dropped) / 65536 - 0.25) < 0.01);
  CHECK(dropout(x, 0.5, false).is_same(x));
  CHECK(dropout(x, 0, true).is_same(x));
  CHECK(dropout(ones({50}), 1, true).to_vector<float>() == Floats(50, 0.f));
  const auto exact = dropout_mask(ones({64}, kFloat64), 0.1).to_vector<double>();
  for (double v : exact) CHECK((v == 0 || v == 1 / 0.9));
  CHECK(dropout_mask(ones({2}, kBFloat16), 0.5).dtype() == kBFloat16);
  // 7 * 1 / 0.9, rounded once: 1 / 0.9 in bfloat16 would make it 7.75.
  for (float v : dropout(full({64}, 7.0, kBFloat16), 0.1, true).to_vector<float>()) {
    CHECK((v == 0 || v == 7.78125f));
  }
  CHECK(contains(error_of([&] { dropout(x, 1.5, true); }), "probability in [0, 1], got 1.5"));
  CHECK(contains(error_of([&] { dropout(x, NAN, false); }), "probability"));
  CHECK(contains(error_of([] { dropout(arange(3), 0.5, true); }), "floating"));
}

TEST_CASE("factories: a second GPU is refused, not taken for the first") {
  const Device second{DeviceType::CUDA, 1};
  const auto refused = [](const auto& f) {
    const std::string said = error_of(f);
    INFO(said);
    CHECK(contains(said, "there is no cuda:1: a process has one GPU, cuda:0"));
  };
  refused([&] { zeros({2}, second); });
  refused([&] { randn({2}, second); });
  refused([&] { arange(3, second); });
  refused([&] { ones({2}).to(second); });
  refused([&] { set_default_device(second); });
  refused([&] { synchronize(second); });
  refused([&] { memory_stats(second); });
  CHECK(contains(error_of([] { zeros({2}, Device{DeviceType::CPU, 3}); }), "there is no cpu:3"));
}

TEST_CASE("random: a call that throws consumes no draw") {
  manual_seed(9);
  CHECK(contains(error_of([] { randint(5, 5, {2}); }), "low must be below high"));
  CHECK(contains(error_of([] { rand({-1}); }), "rand: sizes must not be negative"));
  CHECK(contains(error_of([] { rand_like(arange(3)); }), "rand_like: takes floating dtypes"));
  CHECK(contains(error_of([] { randperm(-1); }), "randperm"));
  cpu::fail_after(0);
  CHECK(contains(error_of([] { rand({1000, 1000}); }), "out of memory"));
  cpu::fail_after(-1);
  // Draws from the step's own stream are not the thread's.
  auto s = step([](const Tensor& x) {
    const Tensor drawn = x + randn({2});
    const RngScope own(5);
    if (randn({2}).defined()) throw std::runtime_error("user");
    return drawn;
  });
  CHECK_THROWS_AS(s(ones({2})), std::runtime_error);
  CHECK(rng_state().draw == 0);
}
