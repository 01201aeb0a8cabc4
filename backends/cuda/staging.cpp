#include "backends/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/support.h"
#include "core/check.h"
#include "core/op.h"

namespace brrr::cuda {

// The ring's next slot, after the copy that used it last.
Staging::Slot& Staging::next() {
  const Driver& driver = *device_.driver;
  Slot& s = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  if (!s.memory) {
    check(driver.allocate_pinned(&s.memory, kSlotBytes + sizeof(Fault)), "pinned memory");
    BRRR_CHECK(s.memory, "cuda: no pinned host memory left for copies ({} bytes)", kSlotBytes);
  }
  if (!s.event) check(driver.make_event(&s.event), "event");
  if (s.busy) check(driver.wait(s.event), "copy");
  s.busy = false;
  return s;
}

void Staging::to_device(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Driver& driver = *device_.driver;
  for (size_t at = 0; at < bytes; at += kSlotBytes) {
    const size_t n = std::min(kSlotBytes, bytes - at);
    Slot& s = next();
    std::memcpy(s.memory, static_cast<const char*>(from) + at, n);
    check(driver.copy(static_cast<char*>(to) + at, s.memory, n, Way::ToDevice, device_.compute),
          "copy to the device");
    check(driver.record(s.event, device_.compute), "event");
    s.busy = true;
  }
}

void Staging::to_host(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Driver& driver = *device_.driver;
  size_t at = 0;
  do {
    const size_t n = std::min(kSlotBytes, bytes - at);
    Slot& s = next();
    auto* slot = static_cast<char*>(s.memory);
    const Failure copied =
        n ? driver.copy(slot, static_cast<const char*>(from) + at, n, Way::ToHost, device_.compute)
          : nullptr;
    check(copied, "copy to the host");
    check(
        driver.copy(slot + kSlotBytes, fault_locked(), sizeof(Fault), Way::ToHost, device_.compute),
        "copy to the host");
    check(driver.record(s.event, device_.compute), "event");
    device_.counters.synchronisations.fetch_add(1, std::memory_order_relaxed);
    check(driver.wait(s.event), "copy to the host");
    check_fault(slot + kSlotBytes);
    if (n) std::memcpy(static_cast<char*>(to) + at, slot, n);
    at += n;
  } while (at < bytes);
}

// --- faults --------------------------------------------------------------------------------------

char* Staging::fault_locked() {
  if (fault_) return fault_;
  void* p = nullptr;
  check(device_.driver->allocate(&p, sizeof(Fault)), "allocate");
  BRRR_CHECK(p, "cuda: no device memory left for {} bytes", sizeof(Fault));
  check(device_.driver->fill(p, 0, sizeof(Fault), device_.compute), "fill");
  return fault_ = static_cast<char*>(p);
}

char* Staging::fault() {
  const std::lock_guard lock(mutex_);
  return fault_locked();
}

void Staging::check_fault(const char* note) {
  Fault f;
  std::memcpy(&f, note, sizeof f);
  if (!f.set) return;
  check(device_.driver->fill(fault_, 0, sizeof f, device_.compute), "fill");
  const char* op = registry().at(static_cast<size_t>(f.op))->name;
  BRRR_CHECK(f.set == 1,
             "{}: row {} has values that it cannot take (found by the device after the call; on "
             "the CPU the call says which)",
             op, f.value);
  fail(
      "{}: index {} is out of range: the dim has size {}, so indices are in [0, {}) (found by the "
      "device after the call)",
      op, f.value, f.limit, f.limit);
}

}  // namespace brrr::cuda
