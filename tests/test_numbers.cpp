// Integer tensors with scalars that their dtype cannot hold, powers, and subtraction of bools. Each
// in eager mode, on the walker and in generated kernels; ctest also runs the file on a device.
#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

using Ints = std::vector<int64_t>;

struct Case {
  const char* what;
  std::function<Tensor()> run;
  DType dtype;
  Ints want;
};

void check_cases(const std::vector<Case>& cases) {
  const auto all = [&] {
    Tensors results;
    for (const Case& c : cases) results.push_back(c.run());
    return results;
  };
  auto graph = step(all, StepOptions{.require_graph = true, .build_at_first_call = true});
  auto walked = step(all, StepOptions{});
  const std::vector<std::pair<const char*, Tensors>> runs = {
      {"eager", all()}, {"graph", graph()}, {"replay", graph()}, {"walker", walked()}};
  for (const auto& run : runs) {
    const Tensors& results = run.second;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string what = std::string(cases[i].what) + ", " + run.first;
      CHECK_MESSAGE(results[i].dtype() == cases[i].dtype, what, ": ",
                    std::string(name(results[i].dtype())));
      const Ints got = results[i].to_vector<int64_t>();
      CHECK_MESSAGE(got == cases[i].want, what, ": ", results[i].to_string());
    }
  }
}

constexpr int64_t kFar = 3000000000, kTwo32 = int64_t{1} << 32;
constexpr int64_t kLow = INT32_MIN, kHigh = INT32_MAX;

struct Operands {
  Tensor u = tensor({0, 7, 255}).to(kUInt8);
  Tensor i = tensor({kLow, int64_t{-5}, kHigh}).to(kInt32);
  Tensor far = full({}, kFar), alias = full({}, kTwo32 - 5);  // 0-d; its low 32 bits are -5.
  Tensor yes = tensor({true, false, true});
};

// Every way to subtract bools; each must give the same error.
std::vector<std::function<void()>> bool_differences(const Tensor& m, const Tensor& x) {
  return {[=] { -m; },      [=] { neg(m); },    [=] { m - m; },        [=] { 1 - m; },
          [=] { 1.0 - m; }, [=] { m - 1; },     [=] { m - true; },     [=] { x - m; },
          [=] { m - x; },   [=] { m.sub_(m); }, [=] { m.sub_(true); }, [=] { x.sub_(m); }};
}

}  // namespace

TEST_CASE("scalars beyond a dtype: bounds saturate") {
  const Operands o;
  const Tensor &u = o.u, &i = o.i;
  check_cases({
      {"clamp(u, -5, 300)", [&] { return clamp(u, -5, 300); }, kUInt8, {0, 7, 255}},
      {"clamp(u, 300, 400)", [&] { return clamp(u, 300, 400); }, kUInt8, {255, 255, 255}},
      {"clamp(u, -9, -3)", [&] { return clamp(u, -9, -3); }, kUInt8, {0, 0, 0}},
      {"clamp(u, 5, far)", [&] { return clamp(u, 5, kFar); }, kUInt8, {5, 7, 255}},
      {"clamp(i, -far, far)", [&] { return clamp(i, -kFar, kFar); }, kInt32, {kLow, -5, kHigh}},
      {"clamp(i, 0, far)", [&] { return clamp(i, 0, kFar); }, kInt32, {0, 0, kHigh}},
      {"clamp(i, far, far)", [&] { return clamp(i, kFar, kFar); }, kInt32, {kHigh, kHigh, kHigh}},
      {"clamp_(i, -far, 0)", [&] { return i.clone().clamp_(-kFar, 0); }, kInt32, {kLow, -5, 0}},
      {"clamp of int64", [&] { return clamp(i.to(kInt64), 0, kFar); }, kInt64, {0, 0, kHigh}},
      {"maximum(u, 300)", [&] { return maximum(u, 300); }, kUInt8, {255, 255, 255}},
      {"maximum(u, -1)", [&] { return maximum(u, -1); }, kUInt8, {0, 7, 255}},
      {"minimum(u, -1)", [&] { return minimum(u, -1); }, kUInt8, {0, 0, 0}},
      {"minimum(i, far)", [&] { return minimum(i, kFar); }, kInt32, {kLow, -5, kHigh}},
      {"maximum(i, -far)", [&] { return maximum(i, -kFar); }, kInt32, {kLow, -5, kHigh}},
      {"minimum(i, 0-d)", [&] { return minimum(i, o.far); }, kInt32, {kLow, -5, kHigh}},
  });
}

TEST_CASE("scalars beyond a dtype: comparisons are right") {
  const Operands o;
  const Tensor &u = o.u, &i = o.i;
  check_cases({
      {"u < 300", [&] { return u < 300; }, kBool, {1, 1, 1}},
      {"u >= -1", [&] { return u >= -1; }, kBool, {1, 1, 1}},
      {"u == 263", [&] { return u == 263; }, kBool, {0, 0, 0}},
      {"u < far", [&] { return u < kFar; }, kBool, {1, 1, 1}},
      {"u != 2^32 + 7", [&] { return u != kTwo32 + 7; }, kBool, {1, 1, 1}},
      {"i < far", [&] { return i < kFar; }, kBool, {1, 1, 1}},
      {"far > i", [&] { return kFar > i; }, kBool, {1, 1, 1}},
      {"i <= high", [&] { return i <= kHigh; }, kBool, {1, 1, 1}},
      {"i >= -far", [&] { return i >= -kFar; }, kBool, {1, 1, 1}},
      {"i == 2^32 - 5", [&] { return i == kTwo32 - 5; }, kBool, {0, 0, 0}},
      {"i != 2^32 - 5", [&] { return i != kTwo32 - 5; }, kBool, {1, 1, 1}},
      {"i < 0-d", [&] { return i < o.far; }, kBool, {1, 1, 1}},
      {"i == 0-d", [&] { return i == o.alias; }, kBool, {0, 0, 0}},
  });
}

TEST_CASE("scalars beyond a dtype: arithmetic is that of integers, and keeps the low bits") {
  const Operands o;
  const Tensor &u = o.u, &i = o.i;
  const auto wrapped = [](int64_t v) { return int64_t{static_cast<int32_t>(v)}; };
  check_cases({
      {"u + 300", [&] { return u + 300; }, kUInt8, {44, 51, 43}},
      {"u - 1", [&] { return u - 1; }, kUInt8, {255, 6, 254}},
      {"u * 300", [&] { return u * 300; }, kUInt8, {0, 2100 % 256, 76500 % 256}},
      {"i + far",
       [&] { return i + kFar; },
       kInt32,
       {wrapped(kLow + kFar), wrapped(kFar - 5), wrapped(kHigh + kFar)}},
      {"i * far",
       [&] { return i * kFar; },
       kInt32,
       {wrapped(kLow * kFar), wrapped(-5 * kFar), wrapped(kHigh * kFar)}},
      {"far - i",
       [&] { return kFar - i; },
       kInt32,
       {wrapped(kFar - kLow), wrapped(kFar + 5), wrapped(kFar - kHigh)}},
      {"floor_div(u, 300)", [&] { return floor_div(u, 300); }, kUInt8, {0, 0, 0}},
      {"floor_div(i, far)", [&] { return floor_div(i, kFar); }, kInt32, {-1, -1, 0}},
      {"remainder(u, 300)", [&] { return remainder(u, 300); }, kUInt8, {0, 7, 255}},
      {"remainder(i, far)",
       [&] { return remainder(i, kFar); },
       kInt32,
       {kLow + kFar, wrapped(kFar - 5), kHigh}},
      {"u.add_(300)", [&] { return u.clone().add_(300); }, kUInt8, {44, 51, 43}},
  });
}

TEST_CASE("scalars beyond a dtype: one that would become an element is refused") {
  const Operands o;
  const auto all = [&] {
    for (const auto& f : std::vector<std::function<void()>>{
             [&] { o.u.fill_(300); },
             [&] { o.u.fill_(-1); },
             [&] { o.u.fill_(256.0); },
             [&] { o.u.fill_(NAN); },
             [&] { o.i.fill_(kFar); },
             [&] { o.i.fill_(-INFINITY); },
             [&] { o.i.to(kInt64).fill_(1e30); },
             [&] { full({2}, 300, kUInt8); },
             [&] { full_like(o.i, kFar); },
             [&] { full_like(o.i, 0x1p31); },
             [&] { where(o.yes, o.u, 300); },
             [&] { where(o.yes, -1, o.u); },
             [&] { where(o.yes, o.i, kFar); },
         }) {
      const std::string error = error_of(f);
      CHECK_MESSAGE((contains(error, "out of the range of") || contains(error, "non-finite")),
                    error);
    }
    return o.u + 0;
  };
  CHECK(all().to_vector<int64_t>() == Ints{0, 7, 255});
  auto graph = step(all);
  CHECK(graph().to_vector<int64_t>() == Ints{0, 7, 255});
  CHECK(error_of([&] { o.u.fill_(300); }) ==
        "fill_: 300 is out of the range of uint8; use another dtype, or clamp the number");
  check_cases({
      {"fill_(2.7)", [&] { return o.u.clone().fill_(2.7); }, kUInt8, {2, 2, 2}},
      {"fill_(255.9)", [&] { return o.u.clone().fill_(255.9); }, kUInt8, {255, 255, 255}},
      {"fill_(-0.9)", [&] { return o.u.clone().fill_(-0.9); }, kUInt8, {0, 0, 0}},
      {"fill_ of bool", [&] { return o.yes.clone().fill_(NAN); }, kBool, {1, 1, 1}},
      {"where(yes, 300, -1)", [&] { return where(o.yes, 300, -1); }, kInt64, {300, -1, 300}},
      {"where(yes, u, 255)", [&] { return where(o.yes, o.u, 255); }, kUInt8, {0, 255, 255}},
  });
}

TEST_CASE("scalars beyond float32: filled into a tensor they keep every digit") {
  const Operands o;
  const Tensor far = o.i.to(kInt64), no = zeros({3}, kBool);
  const int64_t odd = (int64_t{1} << 53) - 1;
  check_cases({
      {"int32", [&] { return o.i.clone().fill_(16777217.0); }, kInt32, Ints(3, 16777217)},
      {"the last int32", [&] { return o.i.clone().fill_(kHigh + 0.5); }, kInt32, Ints(3, kHigh)},
      {"int64", [&] { return far.clone().fill_(double(odd)); }, kInt64, Ints(3, odd)},
      {"below zero", [&] { return far.clone().fill_(-double(odd)); }, kInt64, Ints(3, -odd)},
      {"bool", [&] { return no.clone().fill_(1e-50); }, kBool, {1, 1, 1}},
  });
  double v = 0;  // Also one that varies.
  auto filled = step([&] { return far.clone().fill_(v); });
  for (int call = 1; call <= 5; ++call) {
    v = double(odd) - 2 * call;
    CHECK(filled().to_vector<int64_t>() == Ints(3, odd - 2 * call));
  }
}

TEST_CASE("where: a condition is true unless it is 0, whatever the dtype of the choice") {
  const Operands o;
  const Tensor wide = tensor({kTwo32, int64_t{0}, int64_t{-1}}), part = tensor({0.5, 0.0, NAN});
  check_cases({
      {"int64", [&] { return where(wide, o.i, 1); }, kInt32, {kLow, 1, kHigh}},
      {"float", [&] { return where(part, o.i, 1); }, kInt32, {kLow, 1, kHigh}},
      {"bytes", [&] { return where(o.u, o.i, 1); }, kInt32, {1, -5, kHigh}},
  });
}

TEST_CASE("pow: integers stay integers") {
  const Tensor x = tensor({2, -3, 0}), u = tensor({2, 3}).to(kUInt8);
  const Tensor base = tensor({1, -1, -1, 0, 2, 7, -2, 3}),
               exponent = tensor({-1, -2, -3, -1, -1, 0, 5, 45});
  int64_t wraps = 1;
  for (int k = 0; k < 45; ++k) wraps = static_cast<int64_t>(static_cast<uint64_t>(wraps) * 3);
  check_cases({
      {"x^3", [&] { return pow(x, 3); }, kInt64, {8, -27, 0}},
      {"x^2", [&] { return x.pow(2); }, kInt64, {4, 9, 0}},
      {"x^0", [&] { return x.pow(0); }, kInt64, {1, 1, 1}},
      {"x^true", [&] { return x.pow(true); }, kInt64, {2, -3, 0}},
      {"uint8", [&] { return pow(u, 7); }, kUInt8, {128, 139}},
      {"int32",
       [&] { return pow(x.to(kInt32), 31); },
       kInt32,
       {kLow, int64_t{static_cast<int32_t>(-617673396283947)}, 0}},
      {"exponents", [&] { return pow(base, exponent); }, kInt64, {1, 1, -1, 0, 0, 1, -32, wraps}},
      {"exponents, int32",
       [&] { return pow(base.to(kInt32), exponent.to(kInt32)); },
       kInt32,
       {1, 1, -1, 0, 0, 1, -32, int64_t{static_cast<int32_t>(wraps)}}},
      {"x^far",
       [&] {
         return pow(tensor({1, -1, 2}).to(kInt32), kFar);
       },
       kInt32,
       {1, 1, 0}},
      {"bool^2",
       [&] {
         return pow(tensor({true, false}), 2);
       },
       kInt64,
       {1, 0}},
      {"bool^bool",
       [&] {
         return pow(tensor({true, false, false}), tensor({true, true, false}));
       },
       kBool,
       {1, 0, 1}},
      {"x^2.0", [&] { return pow(x, 2.0); }, kFloat32, {4, 9, 0}},
      {"4^0.5",
       [&] {
         return pow(tensor({4, 9}), 0.5);
       },
       kFloat32,
       {2, 3}},
      {"x^-1.0",
       [&] {
         return pow(tensor({1, -1}), -1.0);
       },
       kFloat32,
       {1, -1}},
      {"float^-1",
       [&] {
         return pow(tensor({0.5, 1.0}), -1);
       },
       kFloat32,
       {2, 1}},
      {"int^float",
       [&] {
         return pow(x, tensor({1.0, 2.0, 3.0}));
       },
       kFloat32,
       {2, 9, 0}},
  });
  for (const Tensor& t : {x, u, tensor({true})}) {
    CHECK(
        contains(error_of([&] { pow(t, -1); }), "pow: integers to the negative integer power -1"));
    CHECK(contains(error_of([&] { t.pow(-2); }), "give -2.0"));
  }
}

TEST_CASE("bool: subtraction is refused, with an error that names the alternatives") {
  const Tensor m = tensor({true, false}), x = ones({2});
  auto s = step([&] {
    for (const auto& f : bool_differences(m, x)) CHECK(contains(error_of(f), "logical_not"));
    return x * 1.0;
  });
  for (const auto& f : bool_differences(m, x)) {
    const std::string error = error_of(f);
    for (const char* part : {"logical_not", "logical_xor", "to(dtype)", "bool[2]"}) {
      CHECK_MESSAGE(contains(error, part), part, " in ", error);
    }
  }
  CHECK(s().to_vector<float>() == std::vector<float>{1, 1});
  CHECK(m.to_vector<int64_t>() == Ints{1, 0});
  check_cases({
      {"!m", [&] { return !m; }, kBool, {0, 1}},
      {"m xor m", [&] { return logical_xor(m, m); }, kBool, {0, 0}},
      {"1 - m.to", [&] { return 1 - m.to(kInt64); }, kInt64, {0, 1}},
      {"x - true", [&] { return x - true; }, kFloat32, {0, 0}},
      {"m + m", [&] { return m + m; }, kBool, {1, 0}},
  });
}

TEST_CASE("dtypes and values that differ from PyTorch's on purpose: ops/DIFFERENCES.md") {
  const Operands o;
  check_cases({
      {"any of bytes", [&] { return o.u.any(); }, kBool, {1}},
      {"all of bytes", [&] { return o.u.all(); }, kBool, {0}},
      {"square of bool", [&] { return o.yes.square(); }, kBool, {1, 0, 1}},
      {"floor of bool", [&] { return o.yes.floor(); }, kBool, {1, 0, 1}},
      {"division by 0", [&] { return floor_div(o.i, 0) + remainder(o.i, 0); }, kInt32, {0, 0, 0}},
      {"einsum of int32", [&] { return einsum("i->", {o.i}); }, kInt32, {-6}},
      {"1e300", [&] { return full({1}, 1e300, kFloat32) == INFINITY; }, kBool, {1}},
      {"sign of NaN", [&] { return isnan(sign(full({1}, NAN))); }, kBool, {1}},
      {"gelu of infinity", [&] { return gelu(full({8}, INFINITY)).min() == INFINITY; }, kBool, {1}},
      {"max of a 0-d tensor", [&] { return maximum(o.u, full({}, 300)); }, kUInt8, {44, 44, 44}},
  });
}
