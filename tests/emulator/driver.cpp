// The device: memory, streams, events, launches.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/emulator/block.h"
#include "tests/emulator/device.h"
#include "tests/emulator/graph.h"

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
    ++s.done;  // also of work that fails
    work();
  }
}

void Device::wait(Stream& s, uint64_t until) {
  run(s, until);
  if (until <= s.known) return;
  s.known = until;
  for (const Stream::Join& j : s.joins) {
    if (j.at <= until) wait(*j.other, j.until);
  }
  std::erase_if(s.joins, [&](const Stream::Join& j) { return j.at <= until; });
}

void Device::wait_all() {
  streams.each([&](Stream& s) { wait(s, s.queued); });
}

namespace {

// --- Opening -------------------------------------------------------------------------------------

// A setting that is a number; `otherwise` when it is not set.
unsigned long number(const char* name, unsigned long otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  BRRR_CHECK(*end == 0, "{}={} is no number", name, text);
  return value;
}

Failure open(int index, Properties* p) {
  return guarded([&](Device& d) {
    BRRR_CHECK(index == 0, "no device {}: the emulator has one", index);
    d.wait_all();
    d.settings = {number("BRRR_EMULATOR_MEMORY", Settings().memory),
                  number("BRRR_EMULATOR_LAZY", 0) != 0, number("BRRR_EMULATOR_ORDER", 0),
                  number("BRRR_EMULATOR_CAPABILITY", Settings().capability)};
    d.memory.total = d.settings.memory;
    const int capability = static_cast<int>(d.settings.capability);
    *p = {"emulated device",
          capability / 10,
          capability % 10,
          4,
          most_shared_bytes,
          d.memory.total,
          0,
          12000,
          12000};
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

// As in CUDA, releasing waits for all work.
Failure release(void* p) {
  return guarded([&](Device& d) {
    d.wait_all();
    d.memory.release(p, Memory::Kind::Device);
  });
}
Failure release_pinned(void* p) {
  return guarded([&](Device& d) {
    d.wait_all();
    d.memory.release(p, Memory::Kind::Pinned);
  });
}

Failure memory(size_t* free, size_t* total) {
  return guarded([&](Device& d) {
    *total = d.memory.total;
    *free = d.memory.left();
  });
}

Failure reserve(void** range, size_t bytes) {
  return guarded([&](Device& d) { *range = d.memory.reserve(bytes); });
}
Failure map(void* range, size_t bytes, bool* done) {
  return guarded([&](Device& d) {
    ++d.counters.allocations;
    *done = d.memory.map(range, bytes);
  });
}
// Does not wait, unlike release(): nor does CUDA.
Failure release_range(void* range) {
  return guarded([&](Device& d) { d.memory.release_range(range); });
}

// --- Streams and events --------------------------------------------------------------------------

Failure make_stream(Stream** s) {
  return guarded([&](Device& d) { *s = d.streams.add(); });
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

Failure release_event(Event* e) {
  return guarded([&](Device& d) { d.events.remove(e, "event"); });
}

Failure record(Event* e, Stream* s) {
  return guarded([&](Device& d) {
    Stream& stream = d.stream(s);
    d.events.get(e, "event") = {&stream, stream.queued};
  });
}

// Work that has not run yet answers no, and runs: the caller sees both answers, and polling ends.
Failure finished(Event* e, bool* yes) {
  return guarded([&](Device& d) {
    const Event event = d.events.get(e, "event");
    *yes = !event.stream || event.stream->done >= event.until;
    if (!event.stream) return;
    if (*yes) return d.wait(*event.stream, event.until);
    d.run(*event.stream, event.until);
  });
}

Failure wait(Event* e) {
  return guarded([&](Device& d) {
    const Event event = d.events.get(e, "event");
    ++d.counters.waits;
    if (event.stream) d.wait(*event.stream, event.until);
    d.memory.check();
  });
}

Failure wait_on(Stream* s, Event* e) {
  return guarded([&](Device& d) {
    const Event event = d.events.get(e, "event");
    Stream& stream = d.stream(s);
    if (!event.stream) return;
    d.push(stream, [&d, event] { d.run(*event.stream, event.until); });
    stream.joins.push_back({stream.queued, event.stream, event.until});
  });
}

// --- Copies --------------------------------------------------------------------------------------

// What is copied when a graph runs is looked at then too: memory may have been released since.

void copy_to_device(Device& d, Stream& s, void* to, const void* from, size_t bytes) {
  const auto check = [=, &d] {
    d.memory.expect_device("copy: the target", to, bytes);
    d.memory.expect_host("copy: the source", from, bytes);
  };
  check();
  if (d.memory.holds(from, bytes, Memory::Kind::Pinned)) {
    return d.enqueue(s, d.counters.copies, [=] {
      check();
      std::memcpy(to, from, bytes);
    });
  }
  BRRR_CHECK(!s.capture, "copy: a capture takes no copy from pageable memory");
  // Pageable memory may change as soon as this returns.
  const char* first = static_cast<const char*>(from);
  d.enqueue(s, d.counters.copies, [to, staged = std::vector<char>(first, first + bytes)] {
    std::memcpy(to, staged.data(), staged.size());
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
  // Only pinned memory is written while the caller goes on.
  ++d.counters.waits;
  d.wait(s, s.queued);
}

void copy_on_device(Device& d, Stream& s, void* to, const void* from, size_t bytes) {
  const auto check = [=, &d] {
    d.memory.expect_device("copy: the source", from, bytes);
    d.memory.expect_device("copy: the target", to, bytes);
  };
  check();
  d.enqueue(s, d.counters.copies, [=] {
    check();
    std::memmove(to, from, bytes);
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
    d.enqueue(stream, d.counters.copies, [=] {
      check();
      std::memset(to, value, bytes);
    });
  });
}

// --- Programs and launches -----------------------------------------------------------------------

// Writes a file of its own, so that each program is one however often it is loaded.
void* open_image(const void* image, size_t bytes) {
  std::string path = (std::filesystem::temp_directory_path() / "brrr-program-XXXXXX").string();
  const int file = mkstemp(path.data());
  BRRR_CHECK(file >= 0, "load: cannot write {}", path);
  const bool written = write(file, image, bytes) == static_cast<ssize_t>(bytes);
  close(file);
  void* handle = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  const char* words = !written ? "cannot write it" : handle ? "" : dlerror();
  unlink(path.c_str());
  BRRR_CHECK(handle, "load: {}", words);
  return handle;
}

Failure load(const void* image, size_t bytes, Module** m) {
  *m = nullptr;
  return guarded([&](Device& d) {
    if (bytes > d.memory.left()) return;
    void* handle = open_image(image, bytes);
    const void* program = dlsym(handle, "brrr_emulated_program");
    BRRR_CHECK(program, "load: the image is no program of the emulator");
    d.memory.used += bytes;
    *m =
        d.modules.add({handle, static_cast<const brrr_emulator::Program*>(program), bytes, {}, {}});
  });
}

Failure unload(Module* m) {
  return guarded([&](Device& d) {
    const Module module = d.modules.get(m, "module");
    for (const auto& [stream, until] : module.used) {
      BRRR_CHECK(stream->known >= until, "unload: work that uses the module may still be queued");
    }
    for (Function* f : module.functions) d.functions.remove(f, "function");
    d.modules.remove(m, "module");
    d.memory.used -= module.bytes;
    dlclose(module.handle);
  });
}

Failure function(Module* m, const char* name, size_t shared_bytes, Function** f) {
  return guarded([&](Device& d) {
    Module& module = d.modules.get(m, "module");
    const auto* program = module.program;
    const auto found = std::find_if(program->kernels, program->kernels_end,
                                    [&](const auto* k) { return std::strcmp(k->name, name) == 0; });
    BRRR_CHECK(found != program->kernels_end, "function: the module has no kernel {}", name);
    BRRR_CHECK(shared_bytes <= most_shared_bytes,
               "function: {} bytes of shared memory for {}; {} at most", shared_bytes, name,
               most_shared_bytes);
    *f = d.functions.add({m, program, *found, shared_bytes});
    module.functions.push_back(*f);
  });
}

void check_launch(const Function& f, const unsigned grid[3], const unsigned block[3],
                  size_t shared_bytes, size_t bytes) {
  const auto& kernel = *f.kernel;
  const size_t threads = size_t{block[0]} * block[1] * block[2];
  const unsigned most_blocks[3] = {0x7fffffff, 65535, 65535}, most_threads[3] = {1024, 1024, 64};
  for (int i = 0; i < 3; ++i) {
    BRRR_CHECK(grid[i] > 0 && grid[i] <= most_blocks[i], "launch of {}: grid ({}, {}, {})",
               kernel.name, grid[0], grid[1], grid[2]);
    BRRR_CHECK(block[i] > 0 && block[i] <= most_threads[i], "launch of {}: block ({}, {}, {})",
               kernel.name, block[0], block[1], block[2]);
  }
  BRRR_CHECK(threads <= std::min(kernel.most_threads, 1024u),
             "launch of {}: {} threads in a block; it was compiled for {} at most", kernel.name,
             threads, kernel.most_threads);
  const size_t most_shared = std::max(f.shared_bytes, size_t{48} << 10);
  BRRR_CHECK(shared_bytes <= most_shared,
             "launch of {}: {} bytes of shared memory; {} were asked for", kernel.name,
             shared_bytes, f.shared_bytes);
  BRRR_CHECK(bytes == kernel.params_bytes, "launch of {}: {} bytes of arguments; it takes {}",
             kernel.name, bytes, kernel.params_bytes);
  constexpr size_t most_arguments = 32764;
  BRRR_CHECK(bytes <= most_arguments, "launch of {}: {} bytes of arguments; {} at most",
             kernel.name, bytes, most_arguments);
}

struct alignas(64) ArgumentLine {
  char bytes[64];
};

Failure launch(Function* f, const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
               const void* arguments, size_t bytes, Stream* s) {
  return queueing(s, [&](Device& d, Stream& stream) {
    Module* const module = d.functions.get(f, "function").module;
    check_launch(*f, grid, block, shared_bytes, bytes);
    std::vector<ArgumentLine> copied(bytes / sizeof(ArgumentLine) + 1);
    std::memcpy(copied.data(), arguments, bytes);
    Work work{
        nullptr,     nullptr, nullptr, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]},
        shared_bytes};
    d.enqueue(stream, d.counters.kernels, [&d, f, work, copied = std::move(copied)]() mutable {
      const Function& function = d.functions.get(f, "function");  // a graph may outlive it
      work.program = function.program;
      work.kernel = function.kernel;
      work.params = copied.data();
      run_blocks(work, d.settings.order);
    });
    if (stream.capture) {
      stream.capture->modules.insert(module);
    } else {
      module->used[&stream] = stream.queued;
    }
  });
}

const Driver driver = {
    .open = open,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .memory = memory,
    .make_stream = make_stream,
    .synchronize = synchronize,
    .make_event = make_event,
    .release_event = release_event,
    .record = record,
    .finished = finished,
    .wait = wait,
    .wait_on = wait_on,
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
    .graph_bytes = graph_bytes,
    .reserve = reserve,
    .map = map,
    .release_range = release_range,
};

const Boundary boundary = {kAbi, "emulator", &driver, &tools};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Boundary* brrr_cuda_boundary() {
  return &boundary;
}

}  // namespace brrr::emulator
