// The device: memory, streams, events, copies.

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/emulator/block.h"
#include "tests/emulator/device.h"
#include "tests/emulator/gemm.h"
#include "tests/emulator/graph.h"
#include "tests/emulator/program.h"
#include "tests/emulator/ptx.h"

namespace brrr::emulator {

using namespace cuda;

Device& device() {
  static Device& d = *new Device;
  return d;
}

void Device::run(Stream& s, uint64_t until) {
  while (s.done < until && !s.queue.empty()) {
    const auto work = std::move(s.queue.front());
    s.queue.pop_front();
    ++s.done;  // even if the work fails
    work();
  }
}

void Device::wait(Stream& s, uint64_t until) {
  run(s, until);
  s.known = std::max(s.known, until);
}

void Device::wait_all() {
  streams.each([&](Stream& s) { wait(s, s.queued); });
}

namespace {

// --- Opening -------------------------------------------------------------------------------------

// The value of a numeric setting; `otherwise` if it is not set.
unsigned long number(const char* name, unsigned long otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  BRRR_CHECK(*end == 0, "{}={} is no number", name, text);
  return value;
}

Failure open(Properties* p) {
  return guarded([&](Device& d) {
    if (ptx::wanted()) ptx::expect_compiler();
    d.wait_all();
    d.settings = {number("BRRR_EMULATOR_MEMORY", Settings().memory),
                  number("BRRR_EMULATOR_LAZY", 0), number("BRRR_EMULATOR_ORDER", 0),
                  number("BRRR_EMULATOR_CAPABILITY", Settings().capability)};
    d.memory.total = d.settings.memory;
    const int capability = static_cast<int>(d.settings.capability);
    *p = {"emulated device",
          capability / 10,
          capability % 10,
          4,
          static_cast<int>(shared_bytes_of(d.settings.capability)),
          d.memory.total,
          0,
          {},
          12000,
          12000};
    // Every process has its own device, unless a test makes them report the same one.
    const auto id = static_cast<uint64_t>(std::getenv("BRRR_EMULATOR_SHARED") ? 0 : getpid());
    std::memcpy(p->uuid, &id, sizeof id);
  });
}

// --- Memory --------------------------------------------------------------------------------------

Failure allocate(void** p, size_t bytes) {
  return guarded([&](Device& d) {
    ++d.counters.allocations;
    *p = d.memory.allocate(bytes, Memory::Kind::Device);
  });
}
Failure allocate_pinned(void** p, size_t bytes) {
  return guarded([&](Device& d) {
    ++d.counters.allocations;
    *p = d.memory.allocate(bytes, Memory::Kind::Pinned);
  });
}

// Waits for all work, as in CUDA.
Failure release(void* p) {
  return guarded([&](Device& d) {
    d.wait_all();
    d.memory.release(p, Memory::Kind::Device);
  });
}
Failure memory(size_t* free, size_t* total) {
  return guarded([&](Device& d) {
    *total = d.memory.total;
    *free = d.memory.left();
  });
}

Failure arena(size_t bytes, void** begin, bool* done) {
  return guarded([&](Device& d) {
    const size_t before = d.memory.used;
    *begin = d.memory.arena();
    *done = d.memory.grow_arena(bytes);
    d.counters.allocations += d.memory.used > before;
  });
}

// --- Streams and events --------------------------------------------------------------------------

Failure make_stream(Stream** s) {
  return guarded([&](Device& d) {
    bool first = true;
    d.streams.each([&](Stream&) { first = false; });
    *s = d.streams.add();
    (*s)->first = first;
  });
}

Failure synchronize(Stream* s) {
  return guarded([&](Device& d) {
    Stream& stream = d.stream(s);
    ++d.counters.waits;
    d.wait(stream, stream.queued);
    d.memory.check();
  });
}

Failure make_event(Event** e) {
  return guarded([&](Device& d) { *e = d.events.add(); });
}

Failure wait(Event* e) {
  return guarded([&](Device& d) {
    const Event event = d.events.get(e, "event");
    ++d.counters.waits;
    BRRR_CHECK(!event.captured, "wait: the event was recorded in a capture");
    if (event.stream) d.wait(*event.stream, event.until);
    d.memory.check();
  });
}

// Always answers yes: lazy work runs now, since callers poll until the event is reached.
Failure reached(Event* e, bool* yes) {
  return guarded([&](Device& d) {
    const Event event = d.events.get(e, "event");
    BRRR_CHECK(!event.captured, "reached: the event was recorded in a capture");
    if (event.stream) d.run(*event.stream, event.until);
    *yes = true;
  });
}

Failure make_timer(Event** e) {
  return guarded([&](Device& d) {
    *e = d.events.add();
    d.events.get(*e, "event").timer = true;
  });
}

Failure elapsed(Event* from, Event* to, float* milliseconds) {
  return guarded([&](Device& d) {
    const Event a = d.events.get(from, "event"), b = d.events.get(to, "event");
    BRRR_CHECK(a.timer && b.timer, "elapsed: an event without a time");
    BRRR_CHECK(a.stream && b.stream, "elapsed: an event that was not recorded");
    BRRR_CHECK(a.stream->done >= a.until && b.stream->done >= b.until,
               "elapsed: an event that has not been reached; wait for it");
    *milliseconds = static_cast<float>(b.at_ms - a.at_ms);
  });
}

// --- Copies --------------------------------------------------------------------------------------

// Ranges are checked again when a graph runs: memory may have been released since the capture.

void copy_to_device(Device& d, Stream& s, void* to, const void* from, size_t bytes) {
  const auto check = [=, &d] {
    d.memory.expect_device("copy: the target", to, bytes);
    d.memory.expect_host("copy: the source", from, bytes);
  };
  check();
  if (d.memory.holds(from, bytes, Memory::Kind::Pinned)) {
    return d.enqueue(s, d.counters.copies, [=, &d] {
      check();
      std::memcpy(to, from, bytes);
      d.memory.marks.set(reinterpret_cast<uintptr_t>(to), bytes, true);
    });
  }
  BRRR_CHECK(!s.capture, "copy: a capture takes no copy from pageable memory");
  // Staged, because pageable memory may change as soon as this returns.
  const char* first = static_cast<const char*>(from);
  d.enqueue(s, d.counters.copies, [&d, to, staged = std::vector<char>(first, first + bytes)] {
    std::memcpy(to, staged.data(), staged.size());
    d.memory.marks.set(reinterpret_cast<uintptr_t>(to), staged.size(), true);
  });
}

void copy_to_host(Device& d, Stream& s, void* to, const void* from, size_t bytes) {
  const auto check = [=, &d] {
    d.memory.expect_device("copy: the source", from, bytes);
    d.memory.expect_host("copy: the target", to, bytes);
  };
  check();
  const bool pinned = d.memory.holds(to, bytes, Memory::Kind::Pinned);
  BRRR_CHECK(pinned || !s.capture, "copy: a capture takes no copy to pageable memory");
  if (!s.capture) ++d.counters.copies_to_host;
  d.enqueue(s, d.counters.copies, [=] {
    check();
    std::memcpy(to, from, bytes);
  });
  if (pinned) return;
  // Only copies to pinned memory are asynchronous.
  ++d.counters.waits;
  d.wait(s, s.queued);
}

void copy_on_device(Device& d, Stream& s, void* to, const void* from, size_t bytes) {
  const auto check = [=, &d] {
    d.memory.expect_device("copy: the source", from, bytes);
    d.memory.expect_device("copy: the target", to, bytes);
  };
  check();
  d.enqueue(s, d.counters.copies, [=, &d] {
    check();
    std::memmove(to, from, bytes);
    d.memory.marks.set(reinterpret_cast<uintptr_t>(to), bytes, true);
  });
}

Failure copy(void* to, const void* from, size_t bytes, Way way, Stream* s) {
  return queueing(s, [&](Device& d, Stream& stream) {
    if (bytes == 0) return;
    switch (way) {
      case Way::ToDevice:
        return copy_to_device(d, stream, to, from, bytes);
      case Way::ToHost:
        return copy_to_host(d, stream, to, from, bytes);
      case Way::OnDevice:
        return copy_on_device(d, stream, to, from, bytes);
    }
    fail("copy: no way {}", static_cast<int>(way));
  });
}

Failure fill(void* to, unsigned char value, size_t bytes, Stream* s) {
  return queueing(s, [&](Device& d, Stream& stream) {
    if (bytes == 0) return;
    const auto check = [=, &d] { d.memory.expect_device("fill", to, bytes); };
    check();
    d.enqueue(stream, d.counters.copies, [=, &d] {
      check();
      std::memset(to, value, bytes);
      d.memory.marks.set(reinterpret_cast<uintptr_t>(to), bytes, true);
    });
  });
}

const Driver driver = {
    .abi = kAbi,
    .name = "emulator",
    .open = open,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned,
    .memory = memory,
    .make_stream = make_stream,
    .synchronize = synchronize,
    .make_event = make_event,
    .record = record,
    .wait = wait,
    .reached = reached,
    .await = await,
    .make_timer = make_timer,
    .elapsed = elapsed,
    .copy = copy,
    .fill = fill,
    .load = load,
    .unload = unload,
    .function = function,
    .launch = launch,
    .begin_capture = begin_capture,
    .end_capture = end_capture,
    .upload = upload,
    .launch_graph = launch_graph,
    .release_graph = release_graph,
    .arena = arena,
    .compile = compile,
    .compiler_version = compiler_version,
    .choose = choose,
    .multiply = multiply,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Driver* brrr_cuda_boundary() {
  return &driver;
}

}  // namespace brrr::emulator
