// How a GPU goes through the elements of a program.
#include "ops/program/cuda.h"

#include <algorithm>
#include <bit>

#include "core/device_kernel.h"

namespace brrr::program {

namespace {

constexpr int64_t kWidest = 16;              // Bytes of one access.
constexpr int64_t kStaticShared = 48 << 10;  // Bytes that a block may have without asking.
constexpr int64_t kWorthTurning = 16;        // Elements of a dim that is walked by tiles.

// How an operand is reached, looking at it alone.
Window::Reach reach_of(const Window& o, int ndim, const int64_t* size, int64_t n) {
  bool dense = true, splat = !o.stored;
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    dense &= size[d] == 1 || o.stride[d] == step;
    splat &= size[d] == 1 || o.stride[d] == 0;
    step *= size[d];
  }
  return dense || n == 1 ? Window::Dense : splat ? Window::Splat : Window::Strided;
}

// Whether a group of the operand, which is dense along the innermost dim, is one aligned access.
bool packs(const Window& o, int64_t vector, int ndim, const int64_t* size) {
  bool aligned = o.address % static_cast<uintptr_t>(vector * o.item()) == 0;
  for (int d = 0; o.reach != Window::Dense && d < ndim - 1; ++d) {
    aligned &= size[d] == 1 || o.stride[d] % vector == 0;
  }
  return aligned;
}

// The most elements that are one aligned access of each of the operands for which `which` holds.
// Unless `row` is 0, rows of that length consist of such groups.
template <class Which>
int widest(int ndim, const int64_t* size, const Window* all, int count, int64_t row, Which which) {
  int64_t largest = kWidest;
  bool any = false;
  for (int k = 0; k < count; ++k) {
    if (!which(all[k])) continue;
    largest = any ? std::max(largest, all[k].item()) : all[k].item();
    any = true;
  }
  for (int64_t v = kWidest / largest; v > 1; v /= 2) {
    bool good = row % v == 0;
    for (int k = 0; k < count && good; ++k) good = !which(all[k]) || packs(all[k], v, ndim, size);
    if (good) return static_cast<int>(v);
  }
  return 1;
}

// Goes by tiles where an operand that is read is dense along another dim than the innermost one:
// neighbouring threads would each read a line of memory for one element.
bool turn(Walk& walk, const int64_t* size, Window* all, int count) {
  const int last = walk.ndim - 1;
  int64_t shared = 0;
  for (int k = 0; k < count && size[last] >= kWorthTurning; ++k) {
    Window& o = all[k];
    const bool walked = o.in_memory() && o.reach == Window::Strided && !o.stored;
    if (!walked || o.stride[last] == 0 || o.stride[last] == 1) continue;
    for (int d = last - 1; d >= 0 && walk.turned < 0; --d) {
      if (o.stride[d] == 1 && size[d] >= kWorthTurning) walk.turned = d;
    }
    const int64_t bytes = kDeviceTile * (kDeviceTile + 1) * o.item();
    if (walk.turned < 0 || o.stride[walk.turned] != 1 || shared + bytes > kStaticShared) continue;
    o.reach = Window::Turned;
    shared += bytes;
  }
  if (walk.turned < 0) return false;
  for (int k = 0; k < count; ++k) {
    if (all[k].reach == Window::Dense) all[k].reach = Window::Strided;
  }
  walk.wide = false;  // Tiles are numbered, not elements.
  return true;
}

}  // namespace

Walk plan_walk(const Space& space, Window* all, int count) {
  using W = Window;
  Walk walk;
  const int ndim = space.ndim;
  const int64_t* const size = space.size;
  const int64_t n = space.numel();
  bool strided = false;
  for (int k = 0; k < count; ++k) {
    all[k].reach = all[k].touched() ? reach_of(all[k], ndim, size, n) : W::Dense;
    strided |= all[k].reach == W::Strided;
  }
  const auto dense = [&](const Window& o) { return o.in_memory() && o.reach == W::Dense; };
  if (!strided) {
    walk.vector = widest(ndim, size, all, count, 0, dense);
    return walk;
  }
  walk.ndim = ndim;
  walk.wide = n >= int64_t{1} << 31;
  if (turn(walk, size, all, count)) return walk;
  const int last = ndim - 1;
  const auto in_row = [&](const Window& o) {
    return dense(o) || (o.in_memory() && o.reach == W::Strided && o.stride[last] == 1);
  };
  walk.vector = widest(ndim, size, all, count, size[last], in_row);
  // Rows that cannot be moved in groups keep neighbouring threads at neighbouring elements, unless
  // more operands gain by groups than lose by them.
  int gain = 0;
  for (int k = 0; k < count; ++k) gain += dense(all[k]) ? 1 : in_row(all[k]) ? -1 : 0;
  if (walk.vector == 1 && gain > 0) walk.vector = widest(ndim, size, all, count, 0, dense);
  walk.in_rows = size[last] % walk.vector == 0;
  for (int k = 0; k < count && walk.in_rows && walk.vector > 1; ++k) {
    Window& o = all[k];
    if (o.reach != W::Strided) continue;
    if (in_row(o) && packs(o, walk.vector, ndim, size)) o.reach = W::Row;
    if (o.stride[last] == 0 && !o.stored) o.reach = W::Held;
  }
  return walk;
}

int64_t Walk::blocks(const Space& space) const {
  if (turned < 0) return blocks_for(space.numel(), kDeviceThreads, vector * groups());
  int64_t all = 1;
  for (int d = 0; d < ndim; ++d) all *= parts(d, space.size[d]);
  return all;
}

Divisor::Divisor(int64_t count) {
  const int bits = count <= 1 ? 0 : 64 - std::countl_zero(static_cast<uint64_t>(count - 1));
  const bool narrow = bits <= 31;
  const auto divisor = static_cast<uint64_t>(std::max<int64_t>(count, 1));
  mul = narrow ? static_cast<int64_t>((uint64_t{1} << (31 + bits)) / divisor + 1) : 0;
  shift = narrow ? 31 + bits : 0;
}

}  // namespace brrr::program
