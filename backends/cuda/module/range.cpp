// Ranges of addresses that memory is mapped to piece by piece, by the driver's functions.

#include <map>
#include <mutex>

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

namespace {

struct DriverCalls {
  decltype(&::cuMemGetAllocationGranularity) granularity;
  decltype(&::cuMemAddressReserve) reserve;
  decltype(&::cuMemAddressFree) free;
  decltype(&::cuMemCreate) create;
  decltype(&::cuMemRelease) release;
  decltype(&::cuMemMap) map;
  decltype(&::cuMemUnmap) unmap;
  decltype(&::cuMemSetAccess) set_access;
};

struct Range {
  size_t reserved = 0, mapped = 0;  // in whole steps
};

// How memory is made, and what is known of it.
struct Ranges {
  DriverCalls calls;
  CUmemAllocationProp kind{};
  size_t step = 0;
  std::mutex mutex;
  std::map<void*, Range> all;

  Ranges() {
    look_up(calls.granularity, "cuMemGetAllocationGranularity");
    look_up(calls.reserve, "cuMemAddressReserve");
    look_up(calls.free, "cuMemAddressFree");
    look_up(calls.create, "cuMemCreate");
    look_up(calls.release, "cuMemRelease");
    look_up(calls.map, "cuMemMap");
    look_up(calls.unmap, "cuMemUnmap");
    look_up(calls.set_access, "cuMemSetAccess");
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, open_device()};
    check(calls.granularity(&step, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
  }
  size_t whole(size_t bytes) const { return (bytes + step - 1) / step * step; }
  Range& at(void* range) {
    const auto found = all.find(range);
    if (found == all.end()) fail("{} is no range, or was released before", range);
    return found->second;
  }
};

// Never destroyed: at the end of the process the driver may be gone first.
Ranges& ranges() {
  static Ranges& made = *new Ranges;
  return made;
}

CUdeviceptr address_of(void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

// Maps `bytes` of new memory to `at`; false when there is not enough. All or nothing.
bool map_more(const Ranges& r, CUdeviceptr at, size_t bytes) {
  CUmemGenericAllocationHandle memory{};
  if (!enough(r.calls.create(&memory, bytes, &r.kind, 0), "cuMemCreate")) return false;
  const CUresult mapped = r.calls.map(at, bytes, 0, memory, 0);
  r.calls.release(memory);  // it lives as long as it is mapped
  check(mapped, "cuMemMap");
  CUmemAccessDesc access{};
  access.location = r.kind.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult usable = r.calls.set_access(at, bytes, &access, 1);
  if (usable != CUDA_SUCCESS) r.calls.unmap(at, bytes);
  return enough(usable, "cuMemSetAccess");
}

}  // namespace

Failure reserve(void** range, size_t bytes) {
  *range = nullptr;
  return on_device([&] {
    Ranges& r = ranges();
    const std::lock_guard lock(r.mutex);
    if (bytes == 0) fail("reserve: a range of 0 bytes");
    CUdeviceptr found = 0;
    check(r.calls.reserve(&found, r.whole(bytes), 0, 0, 0), "cuMemAddressReserve");
    *range = reinterpret_cast<void*>(found);
    r.all[*range].reserved = r.whole(bytes);
  });
}

Failure map(void* range, size_t bytes, bool* done) {
  *done = false;
  return on_device([&] {
    Ranges& r = ranges();
    const std::lock_guard lock(r.mutex);
    Range& found = r.at(range);
    if (bytes > found.reserved) fail("map: {} bytes of a range of {}", bytes, found.reserved);
    const size_t wanted = r.whole(bytes);
    if (wanted > found.mapped) {
      if (!map_more(r, address_of(range) + found.mapped, wanted - found.mapped)) return;
      found.mapped = wanted;
    }
    *done = true;
  });
}

Failure release_range(void* range) {
  return on_device([&] {
    Ranges& r = ranges();
    const std::lock_guard lock(r.mutex);
    const Range found = r.at(range);
    if (found.mapped > 0) check(r.calls.unmap(address_of(range), found.mapped), "cuMemUnmap");
    r.all.erase(range);
    check(r.calls.free(address_of(range), found.reserved), "cuMemAddressFree");
  });
}

}  // namespace brrr::cuda
