#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"

namespace brrr::cuda {

// A mark is an event. They are kept for the next profile.
static Event* event_of(DeviceMark* m) { return reinterpret_cast<Event*>(m); }
static Spares<Event>& spares() {
  static Spares<Event>& s = *new Spares<Event>;
  return s;
}

DeviceMark* mark() {
  const OpenDevice& d = device();
  Event* event = spares().take();
  if (!event) check(d.driver->make_timer(&event), "timer");
  check(d.driver->record(event, d.compute), "timer");
  return reinterpret_cast<DeviceMark*>(event);
}

double between(DeviceMark* from, DeviceMark* to) {
  const Driver& d = *device().driver;
  check(d.wait(event_of(from)), "timer");
  check(d.wait(event_of(to)), "timer");
  float milliseconds = 0;
  check(d.elapsed(event_of(from), event_of(to), &milliseconds), "timer");
  return 1e3 * static_cast<double>(milliseconds);
}

void drop_mark(DeviceMark* m) noexcept {
  if (m) spares().give(event_of(m));
}

}  // namespace brrr::cuda
