#pragma once
// Points in the device's queue that know their time.

namespace brrr {

struct DeviceMark;

namespace cuda {

DeviceMark* mark();
/// Microseconds.
double between(DeviceMark* from, DeviceMark* to);
void drop_mark(DeviceMark* m) noexcept;

}  // namespace cuda

}  // namespace brrr
