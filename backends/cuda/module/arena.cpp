// The arena: a reserved virtual address range, to which memory is mapped as it grows (driver API).

#include <mutex>

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

namespace {

struct DriverCalls {
  decltype(&::cuMemGetAllocationGranularity) granularity =
      DriverFunction{"cuMemGetAllocationGranularity"};
  decltype(&::cuMemAddressReserve) reserve = DriverFunction{"cuMemAddressReserve"};
  decltype(&::cuMemCreate) create = DriverFunction{"cuMemCreate"};
  decltype(&::cuMemRelease) release = DriverFunction{"cuMemRelease"};
  decltype(&::cuMemMap) map = DriverFunction{"cuMemMap"};
  decltype(&::cuMemUnmap) unmap = DriverFunction{"cuMemUnmap"};
  decltype(&::cuMemSetAccess) set_access = DriverFunction{"cuMemSetAccess"};
};

struct Arena {
  DriverCalls calls;
  CUmemAllocationProp kind{};
  size_t step = 0;
  std::mutex mutex;
  CUdeviceptr begin = 0;
  size_t reserved = 0, mapped = 0;  // multiples of `step`

  Arena() {
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, kDevice};
    check(calls.granularity(&step, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
    size_t free = 0, total = 0;
    BRRR_CALL(cudaMemGetInfo, &free, &total);
    reserved = whole(total);
    check(calls.reserve(&begin, reserved, 0, 0, 0), "cuMemAddressReserve");
  }
  size_t whole(size_t bytes) const { return (bytes + step - 1) / step * step; }

  // Maps new memory behind the mapped part; false when there is not enough. All or nothing.
  bool grow(size_t bytes) {
    CUmemGenericAllocationHandle memory{};
    if (!enough(calls.create(&memory, bytes, &kind, 0), "cuMemCreate")) return false;
    const CUdeviceptr at = begin + mapped;
    const CUresult there = calls.map(at, bytes, 0, memory, 0);
    calls.release(memory);  // the memory lives as long as it is mapped
    check(there, "cuMemMap");
    CUmemAccessDesc access{};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult usable = calls.set_access(at, bytes, &access, 1);
    if (usable != CUDA_SUCCESS) calls.unmap(at, bytes);
    if (!enough(usable, "cuMemSetAccess")) return false;
    mapped += bytes;
    return true;
  }
};

}  // namespace

Failure arena(size_t bytes, void** begin, bool* done) {
  *begin = nullptr;
  *done = false;
  return on_device([&] {
    // Never destroyed: at process exit the driver may shut down first.
    static Arena& a = *new Arena;
    const std::lock_guard lock(a.mutex);
    *begin = reinterpret_cast<void*>(a.begin);
    *done = bytes <= a.mapped || (bytes <= a.reserved && a.grow(a.whole(bytes) - a.mapped));
  });
}

}  // namespace brrr::cuda
