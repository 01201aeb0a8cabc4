#include "backends/cuda/marks.h"

#include <mutex>
#include <vector>

#include "backends/cuda/device.h"

namespace brrr {

struct DeviceMark {
  cuda::Event* event;
};

namespace cuda {

namespace {

// Events are kept for the next profile: a driver makes them slowly.
struct Spare {
  std::mutex mutex;
  std::vector<DeviceMark*> marks;
};
Spare& spare() {
  static Spare& s = *new Spare;
  return s;
}

}  // namespace

DeviceMark* mark() {
  const OpenDevice& d = device();
  DeviceMark* m = nullptr;
  {
    const std::lock_guard lock(spare().mutex);
    if (!spare().marks.empty()) {
      m = spare().marks.back();
      spare().marks.pop_back();
    }
  }
  if (!m) {
    Event* event = nullptr;
    check(d.driver->make_timer(&event), "timer");
    m = new DeviceMark{event};
  }
  check(d.driver->record(m->event, d.compute), "timer");
  return m;
}

double between(DeviceMark* from, DeviceMark* to) {
  const Driver& d = *device().driver;
  check(d.wait(from->event), "timer");
  check(d.wait(to->event), "timer");
  float milliseconds = 0;
  check(d.elapsed(from->event, to->event, &milliseconds), "timer");
  return 1e3 * static_cast<double>(milliseconds);
}

void drop_mark(DeviceMark* m) noexcept {
  if (!m) return;
  const std::lock_guard lock(spare().mutex);
  spare().marks.push_back(m);
}

}  // namespace cuda

}  // namespace brrr
