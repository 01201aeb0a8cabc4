// Tensors that share memory without being views of each other, and overlapping layouts.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <vector>

using namespace brrr;

namespace {

using Floats = std::vector<float>;

// Two blobs over one buffer, `shift` elements apart, written and read by each of six steps.
Floats run_blobs(StepOptions options, int64_t shift, int64_t& fallbacks) {
  Floats memory(64, 1.0f);
  const Tensor a = from_blob(memory.data(), {32}, kFloat32, false);
  const Tensor b = from_blob(memory.data() + shift, {32}, kFloat32, false);
  auto s = step(
      [&] {
        a.add_(b * 0.5);
        b.mul_(1.25);
        return (a + b).sum();
      },
      options);
  for (int k = 0; k < 6; ++k) s();
  fallbacks = static_cast<int64_t>(s.stats().fallbacks);
  return memory;
}

}  // namespace

TEST_CASE("pitfall A7: blobs in the same memory give eager's results") {
  int64_t fallbacks = 0;
  for (const int64_t shift : {1, 31}) {
    const Floats eager = run_blobs({.mode = Mode::Eager}, shift, fallbacks);
    CHECK(run_blobs({.mode = Mode::Graph}, shift, fallbacks) == eager);
    CHECK(fallbacks > 0);
  }
  const Floats eager = run_blobs({.mode = Mode::Eager}, 32, fallbacks);
  CHECK(run_blobs({.mode = Mode::Graph}, 32, fallbacks) == eager);
  CHECK(fallbacks == 0);
}

TEST_CASE("pitfall A7: a blob in a tensor's own memory gives eager's results") {
  const auto run = [](Mode mode) {
    const Tensor own = ones({8});
    const Tensor blob = from_blob(own.data<float>() + 2, {6}, kFloat32, false);
    auto s = step(
        [&] {
          own.add_(0.5);
          blob.mul_(1.25);
          return own.sum();
        },
        mode);
    for (int call = 0; call < 4; ++call) s();
    CHECK((s.stats().fallbacks > 0) == (mode == Mode::Graph));
    return own.to_vector<float>();
  };
  CHECK(run(Mode::Graph) == run(Mode::Eager));
}

TEST_CASE("pitfall A7: an index in memory that the step writes is checked when used") {
  std::vector<int64_t> memory{0, 1, 2};
  const Tensor index = from_blob(memory.data(), {3}, kInt64, false);
  const Tensor same = from_blob(memory.data(), {3}, kInt64, false);
  const Tensor table = randn({6, 4});
  auto s = step([&] {
    index.add_(1);
    return embedding(table, same);
  });
  for (int k = 0; k < 3; ++k) s();
  CHECK(memory == std::vector<int64_t>{3, 4, 5});
  CHECK_THROWS_AS(s(), Error);
  CHECK(memory == std::vector<int64_t>{3, 4, 5});
}

TEST_CASE("in place: a layout whose elements share memory is refused") {
  const Tensor h = zeros({100});
  CHECK_THROWS_WITH_AS(as_strided(h, {40, 40}, {1, 1}, 0).add_(1.0),
                       doctest::Contains("share memory"), Error);
  CHECK_THROWS_AS(as_strided(h, {8, 8}, {1, 2}, 0).copy_(ones({8, 8})), Error);
  CHECK_THROWS_AS(h.unsqueeze(0).expand({3, 100}).zero_(), Error);
  CHECK_NOTHROW(as_strided(h, {8, 8}, {1, 8}, 0).add_(1.0));
  CHECK_NOTHROW(as_strided(h, {8, 1, 4}, {12, 0, 3}, 0).add_(1.0));
  CHECK(h.sum().item<float>() == doctest::Approx(64 + 32));
}

TEST_CASE("graph: an operation that checks values does so even if nobody uses its result") {
  const Tensor acc = zeros({4}), table = randn({3, 2});
  auto s = step([&](const Tensor& ids) {
    embedding(table, ids);
    acc.add_(1.0);
  });
  for (int k = 0; k < 4; ++k) s(tensor({0, 1, 2}));
  CHECK_THROWS_AS(s(tensor({0, 1, 3})), Error);
  CHECK(acc.to_vector<float>() == Floats(4, 4.0f));
}

TEST_CASE("autocast: attention and einsum take operands of both widths") {
  const AutocastGuard guard(kBFloat16);
  const Tensor q = randn({2, 3, 4}), k = q.to(kBFloat16);
  CHECK(scaled_dot_product_attention(q, k, q).dtype() == kBFloat16);
  CHECK(einsum("bid,bjd->bij", {q, k}).dtype() == kBFloat16);
}
