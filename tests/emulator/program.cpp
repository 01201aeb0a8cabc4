// Programs and the launch of their kernels.

#include "tests/emulator/program.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/emulator/block.h"
#include "tests/emulator/device.h"
#include "tests/emulator/ptx.h"

namespace brrr::emulator {

using namespace cuda;

namespace {

// Writes the image to a new file for each load, so that dlopen gives each its own variables.
void* open_image(const void* image, size_t bytes) {
  std::string path = (std::filesystem::temp_directory_path() / "brrr-program-XXXXXX").string();
  const int file = mkstemp(path.data());
  BRRR_CHECK(file >= 0, "load: cannot write {}", path);
  const bool written = write(file, image, bytes) == static_cast<ssize_t>(bytes);
  close(file);
  void* handle = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  const char* error = !written ? "cannot write it" : handle ? "" : dlerror();
  unlink(path.c_str());
  BRRR_CHECK(handle, "load: {}", error);
  return handle;
}

void check_launch(const Device& d, const Function& f, const unsigned grid[3],
                  const unsigned block[3], size_t shared_bytes, size_t bytes) {
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
  const size_t all_shared = shared_bytes_of(d.settings.capability);
  BRRR_CHECK(shared_bytes <= all_shared, "launch of {}: {} bytes of shared memory; {} at most",
             kernel.name, shared_bytes, all_shared);
  const size_t most_shared = std::max(f.shared_bytes, size_t{48} << 10);
  BRRR_CHECK(shared_bytes <= most_shared,
             "launch of {}: {} bytes of shared memory; {} were asked for", kernel.name,
             shared_bytes, f.shared_bytes);
  BRRR_CHECK(bytes == kernel.params_bytes, "launch of {}: {} bytes of arguments; it takes {}",
             kernel.name, bytes, kernel.params_bytes);
  constexpr size_t most_arguments = 4096;  // The limit that all GPUs support.
  BRRR_CHECK(bytes <= most_arguments, "launch of {}: {} bytes of arguments; {} at most",
             kernel.name, bytes, most_arguments);
}

struct alignas(64) ArgumentLine {
  char bytes[64];
};

}  // namespace

Failure load(const void* image, size_t bytes, Module** m) {
  *m = nullptr;
  return guarded([&](Device& d) {
    if (bytes > d.memory.left()) return;
    if (ptx::is_ptx(image, bytes)) {
      auto program = ptx::parse(image, bytes);
      d.memory.used += bytes;
      *m = d.modules.add({nullptr, nullptr, std::move(program), bytes, {}, {}});
      return;
    }
    void* handle = open_image(image, bytes);
    const void* program = dlsym(handle, "brrr_emulated_program");
    BRRR_CHECK(program, "load: the image is no program of the emulator");
    d.memory.used += bytes;
    *m = d.modules.add(
        {handle, static_cast<const brrr_emulator::Program*>(program), nullptr, bytes, {}, {}});
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
    if (module.handle) dlclose(module.handle);
  });
}

Failure function(Module* m, const char* name, size_t shared_bytes, Function** f) {
  return guarded([&](Device& d) {
    Module& module = d.modules.get(m, "module");
    const auto* program = module.program;
    const brrr_emulator::Kernel* kernel = nullptr;
    const ptx::Kernel* parsed = nullptr;
    if (module.ptx) {
      parsed = ptx::find_kernel(*module.ptx, name);
      if (parsed) kernel = &ptx::description(*parsed);
    } else {
      const auto found = std::find_if(program->kernels, program->kernels_end, [&](const auto* k) {
        return std::strcmp(k->name, name) == 0;
      });
      if (found != program->kernels_end) kernel = *found;
    }
    BRRR_CHECK(kernel, "function: the module has no kernel {}", name);
    const size_t most = shared_bytes_of(d.settings.capability);
    BRRR_CHECK(shared_bytes <= most, "function: {} bytes of shared memory for {}; {} at most",
               shared_bytes, name, most);
    *f = d.functions.add({m, program, kernel, parsed, shared_bytes});
    module.functions.push_back(*f);
  });
}

Failure launch(Function* f, const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
               const void* arguments, size_t bytes, Stream* s) {
  return queueing(s, [&](Device& d, Stream& stream) {
    Module* const module = d.functions.get(f, "function").module;
    check_launch(d, *f, grid, block, shared_bytes, bytes);
    std::vector<ArgumentLine> copied(bytes / sizeof(ArgumentLine) + 1);
    std::memcpy(copied.data(), arguments, bytes);
    Work work{nullptr,
              nullptr,
              nullptr,
              {grid[0], grid[1], grid[2]},
              {block[0], block[1], block[2]},
              shared_bytes,
              shared_bytes_of(d.settings.capability)};
    d.enqueue(stream, d.counters.kernels, [&d, f, work, copied = std::move(copied)]() mutable {
      const Function& function = d.functions.get(f, "function");  // fails if a graph outlived it
      work.program = function.program;
      work.kernel = function.kernel;
      work.params = copied.data();
      if (function.ptx) {
        ptx::run(*function.ptx, work, d.memory, d.settings.order);
      } else {
        run_blocks(work, d.settings.order);
      }
    });
    if (stream.capture) {
      stream.capture->modules.insert(module);
    } else {
      module->used[&stream] = stream.queued;
    }
  });
}

}  // namespace brrr::emulator
