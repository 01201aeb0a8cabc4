// Data sets: IDX files, hostile ones too; digits; the loader.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "graph/compare.h"
#include "models/counter_rng.h"
#include "models/data.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"
#include "tests/op_cases.h"
#include "tests/temp_dir.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("IDX: round trips and the other element types") {
  TemporaryDirectory dir;
  const std::string path = dir.file("t");
  for (DType t : {kUInt8, kInt32, kFloat32, kFloat64}) {
    const Tensor x = (rand({2, 3, 4}) * 100.0).to(t);
    data::write_idx(path, x);
    CHECK(same_bits(x, data::read_idx(path)));
  }
  write(path, std::string("\0\0\x09\x01\0\0\0\x02\xff\x05", 10));
  CHECK(data::read_idx(path).to_vector<int32_t>() == std::vector<int32_t>{-1, 5});
  write(path, std::string("\0\0\x0b\x01\0\0\0\x01\xff\xfe", 10));
  CHECK(data::read_idx(path).to_vector<int32_t>() == std::vector<int32_t>{-2});
  CHECK_THROWS_AS(data::write_idx(path, zeros({2}, kInt64)), Error);
  CHECK_THROWS_AS(data::write_idx(path, full({}, 1.0)), Error);
  CHECK(std::filesystem::file_size(path) == 10);
}

TEST_CASE("IDX: malformed files give errors") {
  TemporaryDirectory dir;
  const std::string path = dir.file("bad.idx");
  const std::pair<std::string, const char*> cases[] = {
      {"", "too few"},
      {std::string("\0\0\x08", 3), "too few"},
      {std::string("\x1f\x8b\x08\0\0", 5), "gunzip"},
      {"PNG\1....", "not an IDX file"},
      {std::string("\0\0\x07\1\0\0\0\1\1", 9), "unknown element type 0x07"},
      {std::string("\0\0\x08\0", 4), "0 dims"},
      {std::string("\0\0\x08\x09", 4), "9 dims"},
      {std::string("\0\0\x08\x02\0\0\0\1", 8), "ends at byte"},
      {std::string("\0\0\x08\1\0\0\0\3ab", 10), "take 3 bytes, but the file has 2"},
      {std::string("\0\0\x08\1\0\0\0\1ab", 10), "take 1 bytes, but the file has 2"},
      {std::string("\0\0\x0e\x08", 4) + std::string(32, '\xff'), "too many"},
      {std::string("\0\0\x08\1\xff\xff\xff\xff", 8), "take 4294967295 bytes"},
  };
  for (const auto& bad : cases) {
    CAPTURE(bad.second);
    write(path, bad.first);
    const std::string text = error_of([&] { data::read_idx(path); });
    CAPTURE(text);
    CHECK(text.find(bad.second) != std::string::npos);
    CHECK(text.find("bad.idx") != std::string::npos);
  }
}

TEST_CASE("IDX: a directory with MNIST's files") {
  TemporaryDirectory dir;
  CHECK_THROWS_AS(data::read_idx_dataset(dir.path.string(), true), Error);
  write(dir.file("train-images-idx3-ubyte.gz"), "x");
  CHECK(error_of([&] { data::read_idx_dataset(dir.path.string(), true); }).find("gunzip") !=
        std::string::npos);
  const Tensor images = (rand({5, 2, 3}) * 255.0).to(kUInt8);
  const Tensor labels = tensor({3, 1, 4, 1, 5}).to(kUInt8);
  data::write_idx(dir.file("train-images-idx3-ubyte"), images);
  data::write_idx(dir.file("train-labels-idx1-ubyte"), labels);
  const data::Dataset set = data::read_idx_dataset(dir.path.string(), true);
  CHECK(set.images.sizes() == IntList{5, 6});
  CHECK(set.images.max().item<float>() <= 1.0f);
  CHECK(set.labels.to_vector<int64_t>() == std::vector<int64_t>{3, 1, 4, 1, 5});
  CHECK(set.classes == 10);
  CHECK_THROWS_AS(data::read_idx_dataset(dir.path.string(), false), Error);
  // The other spelling is accepted too, next to a folder or a packed file of the first.
  for (const char* const end : {"images%idx3-ubyte", "labels%idx1-ubyte"}) {
    std::string dash = std::string("train-") + end, dot = dash;
    std::ranges::replace(dash, '%', '-');
    std::ranges::replace(dot, '%', '.');
    std::filesystem::rename(dir.file(dash), dir.file(dot));
  }
  std::filesystem::create_directory(dir.file("train-images-idx3-ubyte"));
  write(dir.file("train-labels-idx1-ubyte.gz"), "x");
  CHECK(data::read_idx_dataset(dir.path.string(), true).images.sizes() == IntList{5, 6});
  std::filesystem::remove(dir.file("train-labels.idx1-ubyte"));
  data::write_idx(dir.file("train-labels-idx1-ubyte"), labels.slice(0, 0, 4));
  CHECK_THROWS_AS(data::read_idx_dataset(dir.path.string(), true), Error);
}

TEST_CASE("digits: a function of seed and index") {
  const RngState before = rng_state();
  const data::Dataset a = data::digits(200, 1), b = data::digits(50, 1), c = data::digits(50, 2);
  CHECK(rng_state().draw == before.draw);
  CHECK(same_bits(a.images.slice(0, 0, 50), b.images));
  CHECK_FALSE(same_bits(b.images, c.images));
  CHECK(a.images.min().item<float>() >= 0.0f);
  CHECK(a.images.max().item<float>() <= 1.0f);
  std::vector<int> count(10);
  for (int64_t l : a.labels.to_vector<int64_t>()) ++count.at(static_cast<size_t>(l));
  CHECK(*std::min_element(count.begin(), count.end()) > 5);
  CHECK_THROWS_AS(data::digits(0), Error);
}

TEST_CASE("loader: every example once an epoch, in a seeded order that can be resumed") {
  data::Dataset set{arange(10).to(kFloat32).reshape({10, 1}), arange(10), 10};
  data::Loader one(set, {.batch = 4, .seed = 3}), two(set, {.batch = 4, .seed = 3});
  CHECK(one.batches_per_epoch() == 3);
  std::vector<std::vector<int64_t>> epochs;
  for (int e = 0; e < 2; ++e) {
    std::vector<int64_t> seen;
    for (int i = 0; i < 3; ++i) {
      const data::Batch b = one.next();
      CHECK(b.x.size(0) == (i < 2 ? 4 : 2));
      for (int64_t v : b.y.to_vector<int64_t>()) seen.push_back(v);
      CHECK(b.x.to_vector<int64_t>() == b.y.to_vector<int64_t>());
    }
    epochs.push_back(seen);
    std::sort(seen.begin(), seen.end());
    CHECK(seen == arange(10).to_vector<int64_t>());
  }
  CHECK(epochs[0] != epochs[1]);
  one.next();
  CHECK(one.position() == 7);
  two.load_state_dict(one.state_dict());
  CHECK(two.position() == 7);
  for (int i = 0; i < 5; ++i) {
    CHECK(one.next().y.to_vector<int64_t>() == two.next().y.to_vector<int64_t>());
  }
  data::Loader other(set, {.batch = 4, .seed = 4});
  CHECK_THROWS_AS(other.load_state_dict(one.state_dict()), Error);
  CHECK_THROWS_AS(data::Loader(set, {.batch = 0}), Error);
  const auto refused = [&](const data::LoaderOptions& options, StateDict dict) {
    data::Loader loader(set, options);
    return error_of([&] { loader.load_state_dict(dict); });
  };
  StateDict state = two.state_dict();
  CHECK(refused({.batch = 4, .shuffle = false, .seed = 3}, state).find("shuffle") !=
        std::string::npos);
  CHECK(refused({.batch = 4, .seed = 3, .drop_last = true}, state).find("drop_last") !=
        std::string::npos);
  for (const int64_t position : {-4, 3, 10, 12}) {
    state["position"] = full({}, position, kInt64);
    CHECK(refused({.batch = 4, .seed = 3}, state).find("position") != std::string::npos);
  }
  state["position"] = full({}, 8, kInt64);
  CHECK(refused({.batch = 4, .seed = 3}, state) == "");
  state["epoch"] = full({}, INT64_MAX / 2, kInt64);  // More batches than an int64 can count.
  CHECK(refused({.batch = 4, .seed = 3}, state).find("epoch") != std::string::npos);
  state = two.state_dict();
  state.erase("shuffle");  // As in older files.
  CHECK(refused({.batch = 4, .seed = 3}, state) == "");
  CHECK_THROWS_AS(data::Loader(set, {.batch = 11, .drop_last = true}), Error);
  const Tensor four = ones({4, 1});
  CHECK_THROWS_AS(data::Loader({four, arange(5), 10}, {.batch = 2}), Error);
  data::Loader dropping(set, {.batch = 4, .shuffle = false, .drop_last = true});
  state = dropping.state_dict();
  state["position"] = full({}, 8, kInt64);  // Two examples are left, too few for a batch.
  CHECK_THROWS_AS(dropping.load_state_dict(state), Error);
  data::Loader halves(set, {.batch = 5, .shuffle = false, .drop_last = true});
  halves.next();
  CHECK(halves.next().y.to_vector<int64_t>() == std::vector<int64_t>{5, 6, 7, 8, 9});
  dropping.next();
  CHECK(dropping.next().y.to_vector<int64_t>() == std::vector<int64_t>{4, 5, 6, 7});
  CHECK(dropping.next().y.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 3});
}
