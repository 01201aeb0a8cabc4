// Finds and opens the module that talks to the device.
#include "backends/cuda/device.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "backends/module_path.h"
#include "core/check.h"
#include "core/device_link.h"

namespace brrr::cuda {

namespace {

// Of the compute capability: 16-bit attention's matrix instructions and bfloat16 products.
constexpr int kLeastMajor = 8;

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::atomic<int64_t> waiting_since_ns{0};

// While a thread waits for the device.
struct Waiting : NotCopied {
  explicit Waiting(OpenDevice& d) {
    d.waits.fetch_add(1, std::memory_order_relaxed);
    waiting_since_ns = now_ns();
  }
  ~Waiting() { waiting_since_ns = 0; }
};

OpenDevice* open() {
  std::string why;
  const auto* const b = static_cast<const Boundary*>(
      open_boundary("libbrrr_cuda.so", "BRRR_CUDA_MODULE", "brrr_cuda_boundary", kAbi, why));
  BRRR_CHECK(b,
             "cuda: {}; build brrr and the module together, with the CUDA Toolkit, set "
             "BRRR_CUDA_MODULE to one, or use brrr::kCPU",
             why);
  std::unique_ptr<OpenDevice> d(new OpenDevice{b->driver, b->tools, b->name});
  const Failure failure = d->driver->open(0, &d->properties);
  if (failure) fail("cuda: {}; use brrr::kCPU", failure);
  const Properties& p = d->properties;
  BRRR_CHECK(p.major >= kLeastMajor,
             "cuda: {} has compute capability {}.{}, and brrr's kernels need {}.0 or newer; use "
             "brrr::kCPU",
             p.name, p.major, p.minor, kLeastMajor);
  check(d->driver->make_stream(&d->compute), "no stream");
  check(d->driver->make_stream(&d->capture), "no stream");
  return d.release();  // Never closed: what is destroyed last may still ask for it.
}

}  // namespace

OpenDevice& device() {
  // What failed once fails alike ever after: a loop may ask for every tensor.
  static const auto result = [] {
    std::pair<OpenDevice*, std::string> r{};
    try {
      r.first = open();
    } catch (const Error& e) {
      r.second = e.what();
    }
    return r;
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
  const int64_t since = cuda::waiting_since_ns;
  return since ? 1e-9 * static_cast<double>(cuda::now_ns() - since) : 0;
}
