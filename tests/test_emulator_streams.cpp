// Several streams of the emulated device, and the stand-in for NCCL on them.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backends/nccl/collective.h"
#include "tests/emulator_device.h"

using namespace brrr::test;

namespace {

constexpr int n = 64;
constexpr size_t bytes = n * sizeof(float);

}  // namespace

TEST_CASE("emulator streams: a second stream is part of a capture between two events") {
  Device d;
  float* const x = d.device(std::vector<float>(n));
  float* const y = d.device(std::vector<float>(n));
  Stream* side = nullptr;
  Event *fork = nullptr, *join = nullptr;
  GOOD(driver().make_stream(&side));
  for (Event** e : {&fork, &join}) GOOD(driver().make_event(e));
  const auto capture = [&](bool joined, size_t* nodes, Graph** g) {
    GOOD(driver().begin_capture(d.stream));
    GOOD(driver().fill(x, 1, bytes, d.stream));
    CHECK_FAILS(driver().fill(y, 1, bytes, side), "captures another stream");
    CHECK(driver().end_capture(d.stream, g, nodes));
    GOOD(driver().begin_capture(d.stream));
    GOOD(driver().fill(x, 1, bytes, d.stream));
    GOOD(driver().record(fork, d.stream));
    GOOD(driver().await(side, fork));
    GOOD(driver().copy(y, x, bytes, Way::OnDevice, side));
    GOOD(driver().record(join, side));
    GOOD(driver().fill(x, 3, bytes, d.stream));  // Too early: the copy may still run.
    if (joined) GOOD(driver().await(d.stream, join));
    return driver().end_capture(d.stream, g, nodes);
  };
  Graph* g = nullptr;
  size_t nodes = 0;
  CHECK_FAILS(capture(false, &nodes, &g), "not awaited all of another");
  GOOD(driver().fill(y, 0, bytes, side));  // The stream is usable again.
  CHECK_FAILS(driver().await(side, join), "recorded in a capture");
  CHECK_FAILS(driver().wait(join), "recorded in a capture");
  GOOD(capture(true, &nodes, &g));
  CHECK(nodes == 3);
  bool done = false;
  size_t taken = 0;
  GOOD(driver().upload(g, d.stream, &done, &taken));
  CHECK(done);
  GOOD(driver().launch_graph(g, d.stream));
  // A branch runs only when it is awaited, so that a write that comes too early shows.
  float three = 0;
  std::memset(&three, 3, sizeof three);
  CHECK(d.host(y, n) == std::vector<float>(n, three));
  GOOD(driver().release_graph(g));
}

TEST_CASE("emulator streams: one awaits another's event, eagerly and on a lazy device") {
  for (const char* lazy : {"0", "1"}) {
    Device d("BRRR_EMULATOR_LAZY", lazy);
    Stream* other = nullptr;
    Event* e = nullptr;
    bool reached = false;
    GOOD(driver().make_stream(&other));
    GOOD(driver().make_event(&e));
    float* x = d.device(std::vector<float>(n, 1));
    float* y = d.device(std::vector<float>(n, 2));
    GOOD(driver().await(d.stream, e));  // Not recorded yet: waits for nothing.
    GOOD(driver().synchronize(d.stream));
    GOOD(driver().copy(x, y, bytes, Way::OnDevice, other));
    GOOD(driver().record(e, other));
    GOOD(driver().await(d.stream, e));
    GOOD(driver().copy(y, x, bytes, Way::OnDevice, d.stream));
    GOOD(driver().reached(e, &reached));
    CHECK(reached);
    CHECK(d.host(x, n) == std::vector<float>(n, 2));
  }
}

TEST_CASE("emulator streams: what the stand-in for NCCL requires") {
  Device d;
  const auto& nccl = *exported<const brrr::nccl::Boundary*()>("brrr_nccl_boundary")();
  CHECK(nccl.abi == brrr::nccl::kAbi);
  char id[brrr::nccl::kIdBytes];
  static brrr::nccl::Communicator* c = nullptr;  // Kept until the process ends.
  GOOD(nccl.make_id(id));
  GOOD(nccl.join(id, 0, 1, &c));
  float* x = d.device(std::vector<float>(n));
  float host[n];
  CHECK_FAILS(nccl.send(c, x, bytes, 0, d.stream), "outside of a group");
  CHECK_FAILS(nccl.end_group(), "not begun");
  for (const auto& [at, said] : {std::pair{static_cast<void*>(host), "not within device memory"},
                                 {static_cast<void*>(x), "there is no other rank 1"}}) {
    GOOD(nccl.begin_group());
    CHECK_FAILS(nccl.begin_group(), "a group within a group");
    CHECK_FAILS(nccl.receive(c, at, bytes, 1, d.stream), said);
    CHECK_FAILS(nccl.end_group(), said);
  }
}
