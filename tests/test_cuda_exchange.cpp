// The parts of an exchange between GPUs, on one GPU: sums of shares, the queue parallel to the
// computation, pinned memory. tests/dist runs whole exchanges on several emulated devices.
#include "ops/kinds/device_exchange.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("exchange: any number of shares is added in order, rounded as by add_()") {
  if (!have_device()) return;
  constexpr int64_t n = 1000;
  for (const DType t : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8}) {
    for (const int shares : {1, 2, 32, 33, 70}) {
      CAPTURE(name(t));
      CAPTURE(shares);
      Tensor sum;
      std::vector<Tensor> there;
      dist::SumPlan::Addition all{nullptr, {}, n};
      for (int k = 0; k < shares; ++k) {
        const Tensor x = ((arange(double{n}) * 0.37 + k * 1.7).sin() * 100.0).to(t);
        k == 0 ? void(sum = x.clone()) : void(sum.add_(x));
        there.push_back(x.to(kCUDA));
        all.from.push_back(there.back().impl()->data());
      }
      // In place in the last share, as in a rank's own; the sum begins with the first.
      all.to = all.from.back();
      dist::add_on_device(all, t);
      CHECK(same_bits(there.back().to(kCPU), sum));
    }
  }
}

TEST_CASE("exchange: work on the second queue runs between two points, eagerly and captured") {
  if (!have_device()) return;
  const Backend& gpu = backend(DeviceType::CUDA);
  const Tensor x = arange(4096.0).to(kCUDA), y = zeros_like(x), z = zeros_like(x);
  const size_t bytes = 4096 * sizeof(float);
  const device_link::Point end;
  const auto work = [&] {
    gpu.copy(y.impl()->data(), x.impl()->data(), bytes);
    device_link::beside(end, [&] { gpu.copy(z.impl()->data(), y.impl()->data(), bytes); });
    device_link::await(end.get());
    gpu.copy(y.impl()->data(), z.impl()->data(), bytes);
  };
  CHECK(device_link::capture() == 0);
  work();
  CHECK(same_bits(z, x));
  device_queue::begin_capture();
  CHECK(device_link::capture() > 0);
  work();
  size_t nodes = 0;
  DeviceGraph* const g = device_queue::end_capture(&nodes);
  CHECK(nodes == 3);
  for (int i = 1; i < 4; ++i) {
    x.add_(1.0);
    device_queue::launch(g);
    CHECK(same_bits(z, x));
    CHECK(same_bits(y, x));
  }
  device_queue::release(g);
}

TEST_CASE("exchange: pinned memory is filled on the second queue, and kept for the next exchange") {
  if (!have_device()) return;
  const Tensor x = arange(1000.0).to(kCUDA), y = zeros_like(x);
  const size_t bytes = 1000 * sizeof(float);
  char* const pinned = device_link::take_pinned(bytes);
  const device_link::Point end;
  device_link::beside(end, [&] { device_link::to_pinned(pinned, x.impl()->data(), bytes); });
  device_link::await(end.get());
  synchronize(kCUDA);
  CHECK(device_link::reached(end.get()));
  CHECK(reinterpret_cast<const float*>(pinned)[999] == 999.0f);
  device_link::from_pinned(y.impl()->data(), pinned, bytes);
  CHECK(same_bits(x, y));
  device_link::give_pinned(pinned);
  CHECK(device_link::take_pinned(bytes - 8) == pinned);
  device_link::give_pinned(pinned);
}
