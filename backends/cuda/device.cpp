// Finds and opens the module that talks to the device.
#include "backends/cuda/device.h"

#include <memory>
#include <string>
#include <utility>

#include "backends/module_path.h"
#include "core/check.h"
#include "core/device_link.h"
#include "core/figures.h"

namespace brrr::cuda {

namespace {

// Least compute capability: attention's 16-bit matrix instructions and bfloat16 products need it.
constexpr int kLeastMajor = 8;

std::atomic<Clock::time_point> waiting_since{};

// Lives while a thread blocks on the device.
struct Waiting : NotCopied {
  explicit Waiting(OpenDevice& d) {
    d.waits.fetch_add(1, std::memory_order_relaxed);
    waiting_since = Clock::now();
  }
  ~Waiting() { waiting_since = Clock::time_point(); }
};

OpenDevice* open() {
  std::string why;
  const auto* const driver = static_cast<const Driver*>(
      open_boundary("libbrrr_cuda.so", "BRRR_CUDA_MODULE", "brrr_cuda_boundary", kAbi, why));
  BRRR_CHECK(driver,
             "cuda: {}; build brrr and the module together, with the CUDA Toolkit, set "
             "BRRR_CUDA_MODULE to one, or use brrr::kCPU",
             why);
  std::unique_ptr<OpenDevice> d(new OpenDevice{driver});
  const Failure failure = driver->open(&d->properties);
  if (failure) fail("cuda: {}; use brrr::kCPU", failure);
  const Properties& p = d->properties;
  BRRR_CHECK(p.major >= kLeastMajor,
             "cuda: {} has compute capability {}.{}, and brrr's kernels need {}.0 or newer; use "
             "brrr::kCPU",
             p.name, p.major, p.minor, kLeastMajor);
  check(driver->make_stream(&d->compute), "no stream");
  check(driver->make_stream(&d->capture), "no stream");
  return d.release();  // Never closed: static destructors may still use it.
}

}  // namespace

OpenDevice& device() {
  // A failure is kept and not retried: a loop may call this for every tensor.
  static const auto& result = *[] {
    auto* const made = new std::pair<OpenDevice*, std::string>;  // Never destroyed.
    auto& r = *made;
    try {
      r.first = open();
    } catch (const Error& e) {
      r.second = e.what();
    }
    return made;
  }();
  if (!result.first) throw Error(result.second);
  return *result.first;
}

void check(Failure failure, const char* what) {
  if (failure) [[unlikely]]
    fail("cuda: {}: {}", what, failure);
}

void queue_copy(void* to, const void* from, size_t bytes, Way way, Stream* s) {
  static constexpr const char* what[] = {"copy to the device", "copy to the host", "copy"};
  check(device().driver->copy(to, from, bytes, way, s), what[static_cast<int>(way)]);
}

void synchronize() {
  OpenDevice& d = device();
  const Waiting waiting(d);
  check(d.driver->synchronize(d.compute), "synchronize");
}

void wait_for(Event* e, const char* what) {
  OpenDevice& d = device();
  const Waiting waiting(d);
  check(d.driver->wait(e), what);
}

}  // namespace brrr::cuda

double brrr::device_link::waited_s() {
  const Clock::time_point since = cuda::waiting_since;
  return since == Clock::time_point() ? 0 : seconds_since(since);
}
