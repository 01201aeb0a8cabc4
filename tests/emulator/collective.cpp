// A replacement for NCCL: backends/nccl/collective.h on emulated streams. It has NCCL's
// requirements: messages in groups, device memory, receives of the same size as their sends.

#include "tests/emulator/collective.h"

#include <unistd.h>

#include <atomic>
#include <cstring>

#include "backends/nccl/collective.h"
#include "tests/emulator/device.h"

namespace brrr::nccl {

struct Communicator {
  std::unique_ptr<emulator::Mesh> mesh;
  std::string failure;  // After the first failure nothing works, as with NCCL.
};

}  // namespace brrr::nccl

namespace brrr::emulator {

using namespace cuda;
using nccl::Communicator;
using nccl::kIdBytes;

namespace {

// The group that this thread is adding messages to.
thread_local struct {
  bool open = false;
  std::string failure;  // The first failure to add a message.
  Communicator* communicator = nullptr;
  Stream* stream = nullptr;
  std::vector<Message> messages;
} group;

Failure make_id(char id[kIdBytes]) {
  static std::atomic<int> number{0};
  std::memset(id, 0, kIdBytes);
  fmt::format("{}.{}", getpid(), number++).copy(id, kIdBytes - 1);
  return nullptr;
}

Failure join(const char id[kIdBytes], int rank, int ranks, Communicator** c) {
  return guarded([&] {
    BRRR_CHECK(!captured(), "join: not while this thread captures");
    *c = new Communicator{std::make_unique<Mesh>(id, rank, ranks), ""};
  });
}

Failure begin_group() {
  return guarded([] {
    BRRR_CHECK(!group.open, "a group within a group");
    group = {};
    group.open = true;
  });
}

void check_and_add(Communicator* c, const Message& m, Stream* s) {
  const char* const what = m.sends ? "send" : "receive";
  BRRR_CHECK(group.open, "{}: outside of a group two ranks may wait for each other", what);
  BRRR_CHECK(c->mesh, "an earlier group failed: {}", c->failure);
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  d.memory.expect_device(what, m.at, m.bytes);
  BRRR_CHECK(m.peer >= 0 && m.peer < c->mesh->ranks() && m.peer != c->mesh->rank(),
             "{}: there is no other rank {}", what, m.peer);
  BRRR_CHECK(!group.stream || (group.stream == s && group.communicator == c),
             "{}: a group of two streams", what);
  group.communicator = c;
  group.stream = s;
  group.messages.push_back(m);
}

Failure add(Communicator* c, const Message& m, Stream* s) {
  return guarded([&] {
    try {
      check_and_add(c, m, s);
    } catch (const std::exception& e) {
      if (group.failure.empty()) group.failure = e.what();
      throw;
    }
  });
}

Failure send(Communicator* c, const void* at, size_t bytes, int peer, Stream* s) {
  return add(c, {const_cast<char*>(static_cast<const char*>(at)), bytes, peer, true}, s);
}
Failure receive(Communicator* c, void* at, size_t bytes, int peer, Stream* s) {
  return add(c, {static_cast<char*>(at), bytes, peer, false}, s);
}

void run(Device& d, Communicator& c, const std::vector<Message>& messages) {
  for (const Message& m : messages) d.memory.expect_device("a message", m.at, m.bytes);
  BRRR_CHECK(c.failure.empty(), "an earlier group failed: {}", c.failure);
  try {
    c.mesh->exchange(messages);
    for (const Message& m : messages) {
      if (!m.sends) d.memory.marks.set(reinterpret_cast<uintptr_t>(m.at), m.bytes, true);
    }
  } catch (const std::exception& e) {
    c.failure = e.what();
    c.mesh.reset();  // Closes the sockets, so that the other ranks fail, too.
    throw;
  }
}

Failure end_group() {
  const auto ended = std::exchange(group, {});
  if (!ended.open) return store_failure("the end of a group that was not begun");
  if (!ended.failure.empty()) return store_failure(ended.failure.c_str());
  if (ended.messages.empty()) return nullptr;
  return queueing(ended.stream, [&](Device& d, Stream& stream) {
    d.enqueue(stream, d.counters.groups,
              [&d, c = ended.communicator, all = ended.messages] { run(d, *c, all); });
  });
}

// There are no asynchronous errors: queueing a group, or waiting for it, returns the failure.
Failure state(Communicator*) { return nullptr; }

const nccl::Boundary nccl_boundary = {nccl::kAbi, make_id, join,      begin_group,
                                      send,       receive, end_group, state};

}  // namespace

extern "C" __attribute__((visibility("default"))) const nccl::Boundary* brrr_nccl_boundary() {
  return &nccl_boundary;
}

}  // namespace brrr::emulator
