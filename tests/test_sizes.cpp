// Sizes whose product overflows: an immediate Error, eagerly and in a recorded step, and the
// process continues.
#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr int64_t kHuge = int64_t{1} << 40;
const IntList huge = {kHuge, kHuge}, with_zero = {kHuge, kHuge, 0};

struct Wrong {
  std::string op;  // The beginning of the message.
  std::function<void()> call;
};

std::vector<Wrong> wrong_factories() {
  static float memory[1];
  return {
      {"empty", [] { empty(huge); }},
      {"empty", [] { empty(with_zero); }},
      {"zeros", [] { zeros(huge); }},
      {"full", [] { full(huge, 1, kUInt8); }},
      {"rand", [] { rand(huge); }},
      {"randn", [] { randn(with_zero); }},
      {"randint", [] { randint(0, 5, huge); }},
      {"dropout_mask_at", [] { dropout_mask_at(draw_key(), 0.5, huge, kFloat32); }},
      {"eye", [] { eye(kHuge); }},
      {"eye", [] { eye(INT64_MAX, INT64_MAX); }},
      {"arange", [] { arange(int64_t{1} << 62); }},
      {"arange", [] { arange(INT64_MIN, INT64_MAX); }},
      {"arange", [] { arange(0, 1, 1e-300); }},
      {"arange", [] { arange(0, 1, 5e-324); }},
      {"arange", [] { arange(-1e308, 1e308, 1.0); }},
      {"arange", [] { arange(0.0, INFINITY); }},
      {"arange", [] { arange(0, 1, NAN); }},
      {"linspace", [] { linspace(0, 1, INT64_MAX); }},
      {"linspace", [] { linspace(-1e308, 1e308, 3); }},
      {"linspace", [] { linspace(NAN, 1, 3); }},
      {"randperm", [] { randperm(INT64_MAX); }},
      {"from_blob", [] { from_blob(memory, huge, kFloat32); }},
      {"from_blob", [] { from_blob(memory, with_zero, kFloat32, false); }},
      {"CausalSelfAttention",
       [] { models::CausalSelfAttention({.width = INT64_MAX, .heads = 1}); }},
  };
}

std::vector<Wrong> wrong_calls(const Tensor& one) {
  const Tensor row = one.expand({1, kHuge}), column = one.expand({kHuge, 1});
  const Tensor most = one.expand({int64_t{1} << 57});
  const Tensor ids = zeros({1}, kInt64).expand({kHuge});
  const Tensor image = one.view({1, 1});
  return {
      {"expand",
       [=] {
         one.expand({kHuge, kHuge});
       }},
      {"expand",
       [=] {
         one.expand({kHuge, kHuge, 0, 1});
       }},
      {"expand",
       [=] {
         row.expand({kHuge, -1});
       }},
      {"view",
       [=] {
         one.view({kHuge, kHuge});
       }},
      {"view",
       [=] {
         one.view({kHuge, kHuge, -1});
       }},
      {"view",
       [=] {
         one.view({INT64_MAX, INT64_MAX});
       }},
      {"reshape",
       [=] {
         one.reshape({kHuge, -1, kHuge});
       }},
      {"reshape",
       [=] {
         one.slice(0, 0, 0).reshape({kHuge, kHuge, 0});
       }},
      {"as_strided",
       [=] {
         as_strided(one, {kHuge, kHuge}, {0, 0}, 0);
       }},
      {"add", [=] { row + column; }},
      {"lt", [=] { row < column; }},
      {"where",
       [=] {
         where(zeros({1}, kBool).expand({1, kHuge}), column, 0.0);
       }},
      {"matmul", [=] { matmul(column, row); }},
      {"linear",
       [=] {
         linear(column, one.expand({kHuge, 1}));
       }},
      {"mul",
       [=] {
         einsum("i,j->ij", {column.select(1, 0), column.select(1, 0)});
       }},
      {"cat",
       [=] {
         cat({most, most, most});
       }},
      {"cat", [=] { cat(std::vector<Tensor>(64, most)); }},
      {"cat",
       [=] {
         stack({most, most});
       }},
      {"one_hot", [=] { one_hot(ids, kHuge); }},
      {"one_hot", [=] { one_hot(ids.slice(0, 0, 1), INT64_MAX); }},
      {"embedding",
       [=] {
         embedding(one.expand({1, kHuge}), ids);
       }},
      {"index_select",
       [=] {
         index_select(one.expand({1, kHuge}), 0, ids);
       }},
      {"multinomial", [=] { multinomial(one, INT64_MAX, true); }},
      {"scaled_dot_product_attention", [=] { scaled_dot_product_attention(column, image, row); }},
  };
}

std::vector<Wrong> without_memory(const Tensor& one) {
  const Tensor x = one.expand({int64_t{1} << 50});
  return {{"out of memory", [=] { x.clone(); }},
          {"out of memory", [=] { x * 2.0; }},
          {"out of memory", [=] { x.to_vector<float>(); }},
          {"out of memory",
           [=] {
             cat({x, x});
           }},
          {"out of memory", [=] { zeros({int64_t{1} << 50}); }}};
}

void check_errors(const std::vector<Wrong>& all) {
  for (const Wrong& w : all) {
    const std::string error = error_of(w.call);
    CHECK_MESSAGE(error.find(w.op) == 0, w.op, ": ", error);
  }
}

}  // namespace

TEST_CASE("sizes: products that overflow are errors that name the op") {
  const Tensor one = ones({1});
  check_errors(wrong_factories());
  check_errors(wrong_calls(one));
  CHECK(error_of([&] {
          one.expand({kHuge, kHuge});
        }) == "expand: too many elements, 2^58 or more, of sizes: [1099511627776, 1099511627776]");
  // Large ones that do not overflow are ordinary views.
  const Tensor x = one.expand({kHuge, int64_t{1} << 17});
  CHECK(x.numel() == int64_t{1} << 57);
  CHECK(x.select(0, kHuge - 1).slice(0, 5, 8).to_vector<float>() == std::vector<float>(3, 1));
  CHECK(zeros({0, kHuge}).expand({0, kHuge}).numel() == 0);
}

TEST_CASE("sizes: a tensor beyond any memory is an error") {
  if (kAddressSanitizer || kThreadSanitizer) return;  // Their allocators end the process.
  check_errors(without_memory(ones({1})));
}

TEST_CASE("sizes: products that overflow are errors in a recorded step too") {
  const Tensor one = ones({1});
  bool computed = false;
  auto s = step([&] {
    const Tensor y = one + 1.0;
    check_errors(wrong_calls(computed ? y : one));
    return y * 3.0;
  });
  for (const bool c : {false, true, false, true}) {
    computed = c;
    CHECK(s().item<float>() == 6.0f);
  }
}

TEST_CASE("sizes: counts at the end of the integers") {
  const Tensor x = arange(5);
  CHECK(x.chunk(INT64_MAX).size() == 5);
  CHECK(zeros({0, 3}).chunk(4).size() == 4);
  CHECK_THROWS_WITH_AS(zeros({0, 3}).chunk(int64_t{1} << 40), doctest::Contains("ask for at most"),
                       Error);
  CHECK(x.split(INT64_MAX).size() == 1);
  const std::vector<Tensor> wide(128, ones({1}).expand({int64_t{1} << 57}));  // 2^64 in all.
  CHECK(error_of([&] { cat(wide); }).find("cat") == 0);
  CHECK(error_of([&] { x.narrow(0, 1, INT64_MAX); }).find("narrow") == 0);
  CHECK(error_of([&] { x.narrow(0, INT64_MAX, 1); }).find("narrow") == 0);
  // Without elements: strides as PyTorch's, and always contiguous.
  const Tensor none = zeros({2, 0, 3});
  CHECK(none.strides() == IntList{3, 3, 1});
  CHECK(none.view({3, 0, 2}).strides() == IntList{2, 2, 1});
  CHECK(none.transpose(0, 2).is_contiguous());
  const data::Dataset set{ones({5, 2}), zeros({5}, kInt64)};
  CHECK(data::Loader(set, {.batch = INT64_MAX, .drop_last = false}).batches_per_epoch() == 1);
}
