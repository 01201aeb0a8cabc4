// The module brrr_nccl by itself: that it loads without a GPU; on one, messages to itself.

#include "backends/nccl/collective.h"

#include <doctest/doctest.h>

#ifdef BRRR_NCCL_MODULE

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/cuda_module.h"

using namespace brrr::test::cuda;

namespace {

const brrr::nccl::Boundary& messages() {
  void* module = dlopen(BRRR_NCCL_MODULE, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(module, dlerror());
  void* get = dlsym(module, "brrr_nccl_boundary");
  REQUIRE(get);
  return *reinterpret_cast<const brrr::nccl::Boundary* (*)()>(get)();
}

}  // namespace

TEST_CASE("nccl module: it loads without a driver, is of this build and has all functions") {
  const auto& nccl = messages();
  CHECK(nccl.abi == brrr::nccl::kAbi);
  void* entries[sizeof nccl / sizeof(void*)];
  std::memcpy(entries, &nccl, sizeof entries);
  CHECK(std::find(std::begin(entries) + 1, std::end(entries), nullptr) == std::end(entries));
}

TEST_CASE("nccl module: on a GPU, messages to itself on a second stream, eagerly and captured") {
  Properties properties;
  std::string words;
  const auto& nccl = messages();
  brrr::nccl::Communicator* c = nullptr;
  char id[brrr::nccl::kIdBytes] = {};
  if (!open_device(properties, words)) {
    const Failure failure = nccl.join(id, 0, 1, &c);
    REQUIRE(failure);
    CHECK_MESSAGE(contains(failure, "cudaSetDevice"), std::string(failure));
    MESSAGE("skipped: " << words);
    return;
  }
  REQUIRE_DONE(nccl.make_id(id));
  REQUIRE_DONE(nccl.join(id, 0, 1, &c));
  Device device;
  const Driver& driver = device.driver;
  Stream* beside = nullptr;
  Event *fork = nullptr, *join = nullptr;
  REQUIRE_DONE(driver.make_stream(&beside));
  for (Event** e : {&fork, &join}) REQUIRE_DONE(driver.make_event(e));
  const size_t bytes = size_t{1} << 20;
  void* const x = device.allocate(bytes);
  void* const y = device.allocate(bytes);
  const auto queue = [&](unsigned char value) {
    REQUIRE_DONE(driver.fill(x, value, bytes, device.stream));
    REQUIRE_DONE(driver.record(fork, device.stream));
    REQUIRE_DONE(driver.await(beside, fork));
    REQUIRE_DONE(nccl.begin_group());
    REQUIRE_DONE(nccl.send(c, x, bytes, 0, beside));
    REQUIRE_DONE(nccl.receive(c, y, bytes, 0, beside));
    REQUIRE_DONE(nccl.end_group());
    REQUIRE_DONE(driver.record(join, beside));
    REQUIRE_DONE(driver.await(device.stream, join));
  };
  queue(3);
  CHECK(device.get(y, bytes) == std::string(bytes, 3));
  Graph* g = nullptr;
  size_t nodes = 0;
  bool done = false;
  size_t taken = 0;
  REQUIRE_DONE(driver.begin_capture(device.stream));
  queue(4);
  REQUIRE_DONE(driver.end_capture(device.stream, &g, &nodes));
  REQUIRE_DONE(driver.upload(g, device.stream, &done, &taken));
  REQUIRE_DONE(driver.fill(y, 0, bytes, device.stream));
  REQUIRE_DONE(driver.launch_graph(g, device.stream));
  CHECK(device.get(y, bytes) == std::string(bytes, 4));
  REQUIRE_DONE(nccl.state(c));
  REQUIRE_DONE(driver.release_graph(g));
}

#else

TEST_CASE("nccl module") { MESSAGE("the module brrr_nccl was not built"); }

#endif
