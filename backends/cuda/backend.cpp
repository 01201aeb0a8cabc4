// The GPU implementation of core's Backend.
#include "backends/cuda/backend.h"

#include <algorithm>

#include "backends/cuda/calls.h"
#include "backends/cuda/device.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/pool.h"
#include "backends/limits.h"
#include "core/check.h"
#include "core/context.h"
#include "ops/factory_ops.h"

namespace brrr {

namespace {

using namespace cuda;

void* allocate(size_t bytes) noexcept {
  try {
    return pool().allocate(bytes, context.running ? context.running->name : nullptr);
  } catch (...) {
    return nullptr;  // A device error; the caller reports it as out of memory.
  }
}
void deallocate(void* p, size_t bytes) noexcept { pool().deallocate(p, bytes); }
std::string version_text(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }
DeviceProperties properties() {
  const OpenDevice& d = device();
  const Properties& p = d.properties;
  const std::string versions =
      fmt::format("module {}, driver {}, runtime {}, compiler {}", d.driver->name,
                  version_text(p.driver_version), version_text(p.runtime_version),
                  version_text(d.driver->compiler_version()));
  return {p.name,  p.major, p.minor, p.multiprocessors, p.memory_bytes, p.memory_bandwidth,
          versions};
}

bool touches_lent(const OpCall& c) {
  for (int k = 0; k < c.n_in; ++k) {
    if (c.in[k] && is_lent(*c.in[k]->storage)) return true;
  }
  for (int k = 0; c.into && k < c.n_out; ++k) {
    if (is_lent(*c.out[k].impl()->storage)) return true;
  }
  return false;
}

// Runs a composite row as the ops it decomposes into, unrecorded: the row itself has been recorded
// already.
void run_decomposition(OpCall& c) {
  const PlainScope plain;
  std::vector<Tensor> in;
  for (int i = 0; i < c.n_in; ++i) {
    in.push_back(c.in[i] ? Tensor(Ref<TensorImpl>::share(c.in[i])) : Tensor());
  }
  OpCall inner(*c.op, c.in, c.n_in, c.n_out);
  inner.attrs = c.attrs;
  c.op->decompose(inner, in.data());
  for (int k = 0; k < c.n_out - c.op->n_scratch; ++k) {
    // Copied, not taken over: the results may be views, or the inputs themselves.
    copy_now(*c.out[k].impl(), *inner.out[k].impl());
  }
}

void launch_op(OpCall& c) {
  std::unique_lock<std::recursive_mutex> lock;
  if (touches_lent(c)) lock = std::unique_lock(lent_memory_mutex());
  const Kernel& own = c.op->on(DeviceType::CUDA);
  if (own.run && (!own.serves || own.serves(c))) return own.run(c);
  if (c.op->pointwise || c.op->reduction || c.op->row) return run_row(c);
  BRRR_CHECK(c.op->decompose, "{}: has no kernel for {}; move the operands with to(kCPU)",
             c.op->name, name(c.out[0].device()));
  run_decomposition(c);
}

// --- the GPU's limits, measured on first use -----------------------------------------------------

DeviceLimits measure(Keep&) {
  DeviceLimits l;
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    const Held products(context.tf32, 0);  // Without TF32, whatever the user has set.
    const double rate = jit::product_gflops(kCUDA, t);
    l.peaks.push_back({t, rate, rate});
  }
  const Backend& gpu = backend(kCUDA);
  const Tensor one = zeros({1}, kFloat32, kCUDA);
  float got;
  l.round_trip_ns =
      1e9 * jit::best_seconds(kCUDA, [&] { gpu.copy_to_host(&got, one.data_ptr(), sizeof got); });
  const auto most = static_cast<int64_t>(gpu.properties().memory_bytes / 8);
  for (int64_t array = 1 << 20; array <= std::min<int64_t>(256 << 20, most); array *= 4) {
    const Tensor x = zeros({array / 4}, kFloat32, kCUDA), y = x.clone();
    const auto bytes = static_cast<size_t>(array);
    const double s = jit::best_seconds(kCUDA, [&] { gpu.copy(y.data_ptr(), x.data_ptr(), bytes); });
    l.copies.push_back({2.0 * static_cast<double>(bytes), 2e-9 * static_cast<double>(bytes) / s});
  }
  return l;
}

}  // namespace

// --- marks: timing events of a profile -----------------------------------------------------------

using Timers = ObjectCache<Event>;  // Reused by the next profile.

static Event* event_of(device_queue::Mark* m) { return reinterpret_cast<Event*>(m); }

device_queue::Mark* device_queue::mark() {
  const OpenDevice& d = device();
  Event* event = process_own<Timers>().take();
  if (!event) check(d.driver->make_timer(&event), "timer");
  check(d.driver->record(event, d.compute), "timer");
  return reinterpret_cast<Mark*>(event);
}

double device_queue::between(Mark* from, Mark* to) {
  const Driver& d = *device().driver;
  check(d.wait(event_of(from)), "timer");
  check(d.wait(event_of(to)), "timer");
  float milliseconds = 0;
  check(d.elapsed(event_of(from), event_of(to), &milliseconds), "timer");
  return 1e3 * static_cast<double>(milliseconds);
}

void device_queue::drop(Mark* mark) noexcept {
  if (mark) process_own<Timers>().give(event_of(mark));
}

const Backend& cuda_backend() {
  device();  // Throws if there is no module, driver or GPU.
  static const Backend b{
      .allocate = allocate,
      .deallocate = deallocate,
      .describe_memory = [] { return pool().describe(); },
      .memory_stats = [] { return pool().stats(); },
      .reset_peak = [] { pool().reset_peak(); },
      .empty_cache = [] { pool().trim(); },
      .properties = properties,
      .limits = [](bool anew) { return jit::cached_limits(kCUDA, "", anew, measure); },
      .copy_from_host = cuda::to_device,
      .copy_to_host = cuda::to_host,
      .copy = [](void* to, const void* from,
                 size_t bytes) { queue_copy(to, from, bytes, Way::OnDevice, device().stream()); },
      .launch = launch_op,
      .gemm = cuda::gemm,
      .synchronize =
          [] {
            cuda::synchronize();
            cuda::to_host(nullptr, nullptr, 0);
          },
      .build = cuda::build,
      .symbol = cuda::symbol,
      .unload = cuda::unload,
      .run_kernel = cuda::run_kernel,
  };
  return b;
}

}  // namespace brrr
