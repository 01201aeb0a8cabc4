// Files: safetensors and checkpoints, hostile ones too.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "backends/cpu/allocator.h"
#include "core/error.h"
#include "core/rng.h"
#include "models/checkpoint.h"
#include "models/counter_rng.h"
#include "models/data.h"
#include "models/file.h"
#include "models/mlp.h"
#include "models/text/text.h"
#include "ops/factory_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "tests/op_cases.h"
#include "tests/sanitizer.h"
#include "tests/temp_dir.h"

using namespace brrr;
using namespace brrr::test;
namespace fs = std::filesystem;

namespace {

// A safetensors file with this header and `data` bytes of zeros.
std::string safetensors(const std::string& header, size_t data) {
  const uint64_t n = header.size();
  std::string s(reinterpret_cast<const char*>(&n), 8);
  return s + header + std::string(data, '\0');
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return false;
  const Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(),
                     static_cast<size_t>(a.numel()) * itemsize(a.dtype())) == 0;
}

}  // namespace

// --- safetensors --------------------------------------------------------------------------------

TEST_CASE("safetensors: every dtype, shape and layout comes back") {
  TemporaryDirectory dir;
  StateDict dict;
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType t = static_cast<DType>(i);
    dict[std::string("t.") + name(t)] = (randn({3, 5}) * 3.0).to(t);
  }
  dict["scalar"] = full({}, 2.5);
  dict["empty"] = zeros({0, 7});
  dict["transposed"] = randn({4, 6}).t();
  dict["slice"] = randn({4, 6}).slice(1, 1, 5, 2);
  dict["naïve \"name\"\n"] = ones({1});
  const std::string path = dir.file("all.safetensors");
  save(path, dict, {{"author", "brrr"}});
  Metadata metadata;
  const StateDict back = load(path, metadata);
  CHECK(metadata == Metadata{{"author", "brrr"}});
  REQUIRE(back.size() == dict.size());
  for (const auto& item : dict) {
    CAPTURE(item.first);
    CHECK(same_bytes(item.second, back.at(item.first)));
  }
  CHECK(read(path)[8] == '{');
  uint64_t header = 0;
  std::memcpy(&header, read(path).data(), 8);
  CHECK(header % 8 == 0);
  CHECK(dir.count() == 1);
  // Tensors with larger elements come first, so that all are aligned.
  save(path, {{"a", ones({3}).to(kBool)}, {"b", ones({2}, kFloat64)}});
  CHECK(read(path).find(R"("data_offsets":[0,16])") != std::string::npos);
  save(path, {});
  CHECK(load(path).empty());
}

TEST_CASE("safetensors: a file as other tools write it") {
  TemporaryDirectory dir;
  const std::string path = dir.file("other.safetensors");
  std::string bytes = safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      12);
  const float a = 1.5f;
  const int32_t b[] = {7, -3};
  std::memcpy(bytes.data() + bytes.size() - 12, &a, 4);
  std::memcpy(bytes.data() + bytes.size() - 8, b, 8);
  write(path, bytes);
  const StateDict dict = load(path);
  CHECK(dict.at("a").item<float>() == 1.5f);
  CHECK(dict.at("b").to_vector<int32_t>() == std::vector<int32_t>{7, -3});
}

TEST_CASE("safetensors: malformed files give errors that name file and tensor") {
  TemporaryDirectory dir;
  const std::string path = dir.file("bad.safetensors");
  struct Case {
    const char* header;
    size_t data;
    const char* expected;
  };
  const Case cases[] = {
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "\"w\": bytes 0 to 8"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 12, "12 bytes of data"},
      {R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "takes 12"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "outside"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "not a pair"},
      {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "whole number"},
      {R"({"w":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "whole number"},
      {R"({"w":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})", 8, "not a list"},
      {R"({"w":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}})", 8, "dtype Q4"},
      {R"({"w":{"dtype":4,"shape":[2],"data_offsets":[0,8]}})", 8, "dtype is not a string"},
      {R"({"w":{"dtype":"F32","shape":[2]}})", 8, "is not an object of"},
      {R"({"w":[1]})", 0, "is not an object"},
      {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {R"({"w":{"dtype":"F64","shape":[0,4611686018427387904],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {R"({"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, "9 dims"},
      {R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
       R"("v":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})",
       12, "\"v\": overlaps"},
      {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("v":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}})",
       12, "gap"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "\"w\" appears twice"},
      {R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "twice"},
      {R"({"__metadata__":{"a":1}})", 0, "not a string"},
      {R"({"__metadata__":7})", 0, "not an object"},
      {R"({"w":{"dtype":"F32","shape":[[[2]]],"data_offsets":[0,8]}})", 8, "nests"},
      {R"({"w":)", 0, "not JSON"},
      {"{}{}", 0, "not JSON"},
      {"[1]", 0, "does not start"},
      {"", 0, "does not start"},
      {"{\"\xff\":1}", 0, "not JSON"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.header);
    write(path, safetensors(c.header, c.data));
    const std::string text = error_of([&] { load(path); });
    CAPTURE(text);
    CHECK(text.find(c.expected) != std::string::npos);
    CHECK(text.find("bad.safetensors") != std::string::npos);
  }
  write(path, safetensors(std::string("{}\0{\"a\":", 8), 0));
  CHECK(error_of([&] { load(path); }).find("a byte 0") != std::string::npos);
  write(path, "");
  CHECK_THROWS_AS(load(path), Error);
  write(path, std::string(8, '\xff'));
  CHECK_THROWS_AS(load(path), Error);
  write(path, safetensors("{" + std::string(100000, '['), 0));
  CHECK_THROWS_AS(load(path), Error);
  write(path, safetensors(R"({"w":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 0) + '\2');
  CHECK_THROWS_AS(load(path), Error);
  CHECK_THROWS_AS(load(dir.file("none")), Error);
  CHECK_THROWS_AS(load(dir.path.string()), Error);
  CHECK_THROWS_AS(load("/dev/zero"), Error);
}

TEST_CASE("safetensors: a file of a hundred thousand tensors") {
  TemporaryDirectory dir;
  const std::string path = dir.file("many.safetensors");
  StateDict all;  // Each takes constant time: loading was once quadratic in their number.
  for (int k = 0; k < 100000; ++k) all.emplace(std::to_string(k), full({1}, k, kInt32));
  save(path, all);
  const StateDict back = load(path);
  REQUIRE(back.size() == all.size());
  for (int k = 0; k < 100000; k += 9999) {
    CHECK(back.at(std::to_string(k)).item<int>() == k);
  }
}

TEST_CASE("safetensors: no cut and no changed byte of a file crashes the reader") {
  TemporaryDirectory dir;
  const std::string path = dir.file("fuzz.safetensors");
  save(path, {{"a", ones({3})}, {"b", zeros({2, 2}, kInt64)}}, {{"k", "v"}});
  const std::string whole = read(path);
  for (size_t n = 0; n < whole.size(); ++n) {
    write(path, whole.substr(0, n));
    CHECK_THROWS_AS(load(path), Error);
  }
  data::CounterRng rng(1, 2);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    for (int k = 0; k < 3; ++k) bytes[rng.below(bytes.size())] = static_cast<char>(rng.next());
    write(path, bytes);
    try {
      load(path);
    } catch (const Error&) {}
  }
}

TEST_CASE("safetensors: a failed save leaves the old file and nothing else") {
  TemporaryDirectory dir;
  const std::string path = dir.file("model.safetensors");
  save(path, {{"w", ones({4})}});
  const std::string before = read(path);
  CHECK_THROWS_AS(save(path, {{"w", Tensor()}}), Error);
  CHECK_THROWS_AS(save(path, {{"__metadata__", ones({1})}}), Error);
  CHECK_THROWS_AS(save(path, {{"\xff", ones({1})}}), Error);
  {
    // A limit on file sizes stands for a full disk: the write fails half way.
    rlimit old;
    ::getrlimit(RLIMIT_FSIZE, &old);
    auto* handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{8192, old.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    const std::string text = error_of([&] { save(path, {{"w", zeros({100000})}}); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    CHECK(text.find("unchanged") != std::string::npos);
  }
  CHECK(read(path) == before);
  CHECK(dir.count() == 1);
  fs::permissions(path, fs::perms(0600));  // A private file stays private.
  save(path, {{"w", ones({4})}});
  CHECK(fs::status(path).permissions() == fs::perms(0600));
  fs::create_directory(dir.file("sub"));
  CHECK_THROWS_AS(save(dir.file("sub"), {{"w", ones({1})}}), Error);
  CHECK_THROWS_AS(save(dir.file("none/model"), {{"w", ones({1})}}), Error);
  CHECK_THROWS_AS(save("", {{"w", ones({1})}}), Error);
  CHECK(dir.count() == 2);
  fs::create_symlink(path, dir.file("link"));
  save(dir.file("link"), {{"w", zeros({2})}});
  CHECK(fs::is_symlink(dir.file("link")));
  CHECK(load(path).at("w").numel() == 2);
  fs::create_symlink("sub/later", dir.file("early"));
  save(dir.file("early"), {{"w", zeros({3})}});
  CHECK(fs::is_symlink(dir.file("early")));
  CHECK(load(dir.file("sub/later")).at("w").numel() == 3);
  fs::create_symlink("loop", dir.file("loop"));
  CHECK(error_of([&] { save(dir.file("loop"), {}); }).find("lead to no file") != std::string::npos);
}

// A system may overcommit memory, and kill the process that uses it.
TEST_CASE("files: one that is larger than memory is named, with the part that was asked for") {
  if (kAddressSanitizer || kThreadSanitizer) return;  // They have terabytes of addresses.
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 40;
  TemporaryDirectory dir;
  const std::string path = dir.file("large"), is = path + ": ";
  write(
      path,
      safetensors(
          R"({"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})", 0));
  fs::resize_file(path, fs::file_size(path) + (uint64_t{1} << 42));
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  const std::string tensor = error_of([&] { load(path); }),
                    text = error_of([&] { data::load_bytes(path); });
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK_MESSAGE(tensor.find(is + "tensor \"w\": 4398046511104 of the file's ") == 6, tensor);
  CHECK_MESSAGE(tensor.find("out of memory on cpu") != std::string::npos, tensor);
  CHECK_MESSAGE(text.find("cannot read " + is + "out of memory for 43980465") == 0, text);
}

TEST_CASE("files: one that is protected is not replaced, though its folder allows it") {
  TemporaryDirectory dir;
  const std::string path = dir.file("best");
  save(path, {{"w", ones({4})}});
  fs::permissions(path, fs::perms(0444));
  fs::permissions(fs::path(path).parent_path(), fs::perms::all);
  const bool root = ::geteuid() == 0;  // Root may write anywhere.
  if (root) REQUIRE(::seteuid(65534) == 0);
  const std::string text = error_of([&] { save(path, {{"w", zeros({4})}}); });
  if (root) REQUIRE(::seteuid(0) == 0);
  CHECK(text ==
        "cannot write " + path + ": Permission denied; it is protected, and would be replaced");
  CHECK(load(path).at("w").sum().item<float>() == 4);
}

TEST_CASE("files: temporary files of killed writers are removed, those of live ones are not") {
  TemporaryDirectory dir;
  const std::string path = dir.file("ck"), live = dir.file(".ck.77-1.tmp");
  write(dir.file(".ck.4194305-0.tmp"), "half");
  write(live, "half");
  // Not made by save(), or for another file.
  const std::vector<std::string> others = {".ck.notes.tmp",   ".ck.12-.tmp", ".ck.-1.tmp",
                                           ".ck.1-2.tmp.old", "ck.1-2.tmp",  ".ckk.1-2.tmp"};
  for (const std::string& name : others) write(dir.file(name), "mine");
  const int fd = ::open(live.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(::flock(fd, LOCK_EX | LOCK_NB) == 0);
  save(path, {{"w", ones({4})}});
  CHECK_FALSE(fs::exists(dir.file(".ck.4194305-0.tmp")));
  CHECK(fs::exists(live));
  ::close(fd);
  save(path, {{"w", ones({4})}});
  CHECK_FALSE(fs::exists(live));
  CHECK(dir.count() == others.size() + 1);
  CHECK(load(path).at("w").numel() == 4);
}

TEST_CASE("files: a name may be as long as the file system takes") {
  TemporaryDirectory dir;
  const std::string path = dir.file(std::string(255, 'n'));
  for (int64_t n : {4, 5}) save(path, {{"w", ones({n})}});
  CHECK(load(path).at("w").numel() == 5);
  CHECK(dir.count() == 1);
  const auto refused = [&](const auto& f) {
    return error_of(f).find("File name too long") != std::string::npos;
  };
  CHECK(refused([&] { save(path + "n", {}); }));
  CHECK(refused([&] { check_replaceable(path + "n"); }));
}

// --- checkpoints --------------------------------------------------------------------------------

namespace {

struct Run {
  models::MLP model{{.sizes = {784, 16, 10}, .dropout = 0.2}};
  optim::AdamW optimizer{model.parameters(), {.lr = 3e-3}};
  optim::WarmupCosineLR schedule{optimizer, 3, 40};
  data::Loader loader;
  TrainingState state{&model, &optimizer, &schedule, &loader, 0, {}};
  explicit Run(const data::Dataset& set) : loader(set, {.batch = 24, .seed = 5}) {}

  std::vector<float> train(int steps) {
    std::vector<float> losses;
    for (int i = 0; i < steps; ++i, ++state.step) {
      const data::Batch b = loader.next();
      const Tensor loss = cross_entropy(model(b.x), b.y);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      schedule.step();
      losses.push_back(loss.item<float>());
    }
    return losses;
  }
};

}  // namespace

TEST_CASE("checkpoint: a resumed run continues to the last bit") {
  TemporaryDirectory dir;
  const std::string path = dir.file("run.safetensors");
  const data::Dataset set = data::digits(100, 3);
  manual_seed(11);
  Run one(set);
  one.train(7);
  one.state.metadata["model"] = "mlp";
  save_checkpoint(path, one.state);
  const std::vector<float> expected = one.train(9);

  manual_seed(99);
  Run two(set);
  two.train(2);
  load_checkpoint(path, two.state);
  CHECK(two.state.step == 7);
  CHECK(two.state.metadata == Metadata{{"model", "mlp"}});
  CHECK(two.train(9) == expected);
  for (size_t i = 0; i < one.model.parameters().size(); ++i) {
    CHECK(same_bytes(one.model.parameters()[i], two.model.parameters()[i]));
  }
  CHECK(load(path).count("model.fc1.weight") == 1);
}

TEST_CASE("checkpoint: where memory runs out, weights and moments stay those of one step" *
          doctest::test_suite("host")) {
  TemporaryDirectory dir;
  const std::string path = dir.file("run.safetensors");
  const data::Dataset set = data::digits(60, 3);
  Run from(set);
  from.train(2);
  save_checkpoint(path, from.state);
  Run run(set);
  std::string text;
  for (int k = 0; k == 0 || !text.empty(); ++k) {
    const Tensor weight = run.model.parameters()[0].clone();
    const Tensor moment = run.optimizer.state_dict().at("0.exp_avg").clone();
    cpu::fail_after(k);
    text = error_of([&] { load_checkpoint(path, run.state); });
    cpu::fail_after(-1);
    if (text.empty()) break;
    CHECK(same_bytes(weight, run.model.parameters()[0]));
    CHECK(same_bytes(moment, run.optimizer.state_dict().at("0.exp_avg")));
    REQUIRE(k < 400);
  }
  CHECK(same_bytes(from.model.parameters()[0], run.model.parameters()[0]));
}

TEST_CASE("checkpoint: one that does not fit changes nothing") {
  TemporaryDirectory dir;
  const std::string path = dir.file("run.safetensors");
  const data::Dataset set = data::digits(60, 3);
  Run one(set);
  save_checkpoint(path, one.state);
  models::MLP other({.sizes = {784, 16, 10}});
  optim::SGD sgd(other.parameters(), {.lr = 0.5});
  const Tensor before = other.parameters()[0].clone();
  const RngState rng = rng_state();
  TrainingState state{&other, &sgd, nullptr, nullptr, 3, {}};
  const std::string text = error_of([&] { load_checkpoint(path, state); });
  CHECK(text.find("the optimizer does not fit") != std::string::npos);
  CHECK(same_bytes(before, other.parameters()[0]));
  CHECK((state.step == 3 && sgd.lr() == 0.5 && rng_state().draw == rng.draw));
  // With another model the optimiser does not fit either, but the model is what is reported.
  models::MLP small({.sizes = {784, 8, 10}});
  optim::AdamW of_small(small.parameters(), {});
  TrainingState smaller{&small, &of_small, nullptr, nullptr, 0, {}};
  CHECK(error_of([&] { load_checkpoint(path, smaller); }).find("the model does not fit") !=
        std::string::npos);
  data::Loader loader(set, {.batch = 7, .seed = 5});
  TrainingState only_loader{nullptr, nullptr, nullptr, &loader, 0, {}};
  CHECK_THROWS_AS(load_checkpoint(path, only_loader), Error);
  TrainingState only_model{&other, nullptr, nullptr, nullptr, 0, {}};
  load_checkpoint(path, only_model);
  CHECK(same_bytes(one.model.parameters()[0], other.parameters()[0]));
  save(path, one.model.state_dict());
  CHECK_THROWS_AS(load_checkpoint(path, only_model), Error);
  TrainingState nothing;
  for (const char* const step : {"", "7x", "-1", "9223372036854775808"}) {
    save(path, {}, {{"brrr.step", step}, {"brrr.rng_seed", "0"}, {"brrr.rng_draw", "0"}});
    CHECK(error_of([&] { load_checkpoint(path, nothing); }).find("step is ") != std::string::npos);
  }
  one.state.metadata = {{"brrr.step", "7"}};
  const std::string own = error_of([&] { save_checkpoint(path, one.state); });
  CHECK(own.find("\"brrr.step\", a name of") != std::string::npos);
  one.state.metadata.clear();
  one.state.step = -1;  // Refused when saved, not when loaded.
  CHECK_THROWS_AS(save_checkpoint(path, one.state), Error);
}
