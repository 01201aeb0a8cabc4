// Plans how a GPU walks the elements of a program.
#include "ops/program/cuda.h"

#include <algorithm>
#include <bit>

namespace brrr::program {

namespace {

constexpr int64_t kMaxAccessBytes = 16;      // Bytes of one access.
constexpr int64_t kStaticShared = 48 << 10;  // Bytes that a block may have without opting in.
constexpr int64_t kMinTiledSize = 16;        // Least size of a dim that is walked by tiles.

// How an operand is reached, considered alone.
Window::Reach reach_of(const Window& o, const Space& space) {
  bool dense = true, splat = !o.stored;
  int64_t step = 1;
  for (int d = space.ndim - 1; d >= 0; --d) {
    dense &= space.size[d] == 1 || o.stride[d] == step;
    splat &= space.size[d] == 1 || o.stride[d] == 0;
    step *= space.size[d];
  }
  return dense ? Window::Dense : splat ? Window::Splat : Window::Strided;
}

// Whether a group of the operand, which is dense along the innermost dim, is one aligned access.
bool packs(const Window& o, int64_t vector, const Space& space) {
  const int64_t bytes = vector * o.item();
  bool aligned = bytes <= kMaxAccessBytes && o.address % static_cast<uintptr_t>(bytes) == 0;
  for (int d = 0; o.reach != Window::Dense && d < space.ndim - 1; ++d) {
    aligned &= space.size[d] == 1 || o.stride[d] % vector == 0;
  }
  return aligned;
}

// The most elements that are one aligned access of each of the operands for which `which` holds.
// Unless `row` is 0, rows of that length consist of whole groups.
template <class Which>
int widest(const Space& space, std::span<const Window> all, int64_t row, const Which& which) {
  int64_t largest = 0;
  for (const Window& o : all) {
    if (which(o)) largest = std::max(largest, o.item());
  }
  for (int64_t v = largest ? kMaxAccessBytes / largest : 1; v > 1; v /= 2) {
    const auto fits = [&](const Window& o) { return !which(o) || packs(o, v, space); };
    if (row % v == 0 && std::ranges::all_of(all, fits)) return static_cast<int>(v);
  }
  return 1;
}

// Walks by tiles where an operand that is read is dense along a dim other than the innermost one:
// neighbouring threads would each load a cache line for one element.
bool plan_tiles(Walk& walk, const int64_t* size, std::span<Window> all) {
  const int last = walk.ndim - 1;
  if (size[last] < kMinTiledSize) return false;
  int64_t shared = 0;
  for (Window& o : all) {
    const bool walked = o.in_memory() && o.reach == Window::Strided && !o.stored;
    if (!walked || o.stride[last] == 0 || o.stride[last] == 1) continue;
    for (int d = last - 1; d >= 0 && walk.turned < 0; --d) {
      if (o.stride[d] == 1 && size[d] >= kMinTiledSize) walk.turned = d;
    }
    const int64_t bytes = kDeviceTile * (kDeviceTile + 1) * o.item();
    if (walk.turned < 0 || o.stride[walk.turned] != 1 || shared + bytes > kStaticShared) continue;
    o.reach = Window::Turned;
    shared += bytes;
  }
  if (walk.turned < 0) return false;
  for (Window& o : all) {
    if (o.reach == Window::Dense) o.reach = Window::Strided;
  }
  walk.wide = false;  // Tiles are counted, not elements.
  return true;
}

}  // namespace

Walk plan_walk(const Space& space, std::span<Window> all) {
  using W = Window;
  Walk walk;
  bool strided = false;
  for (Window& o : all) {
    o.reach = o.touched() ? reach_of(o, space) : W::Dense;
    strided |= o.reach == W::Strided;
  }
  const auto dense = [&](const Window& o) { return o.in_memory() && o.reach == W::Dense; };
  if (!strided) {
    walk.vector = widest(space, all, 0, dense);
    return walk;
  }
  walk.ndim = space.ndim;
  walk.wide = space.numel() >= int64_t{1} << 31;
  if (plan_tiles(walk, space.size, all)) return walk;
  const int last = space.ndim - 1;
  const auto in_row = [&](const Window& o) {
    return dense(o) || (o.in_memory() && o.reach == W::Strided && o.stride[last] == 1);
  };
  walk.vector = widest(space, all, space.size[last], in_row);
  // Where rows cannot be moved in groups, neighbouring threads take neighbouring elements, unless
  // more operands gain by groups than lose by them.
  int gain = 0;
  for (const Window& o : all) gain += dense(o) ? 1 : in_row(o) ? -1 : 0;
  if (walk.vector == 1 && gain > 0) walk.vector = widest(space, all, 0, dense);
  walk.in_rows = space.size[last] % walk.vector == 0;
  if (!walk.in_rows || walk.vector == 1) return walk;
  for (Window& o : all) {
    if (o.reach != W::Strided) continue;
    if (in_row(o) && packs(o, walk.vector, space)) o.reach = W::Row;
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

uint64_t Walk::bits() const {
  return static_cast<uint64_t>(ndim) | uint64_t{wide} << 4 | uint64_t{in_rows} << 5 |
         static_cast<uint64_t>(std::countr_zero(static_cast<unsigned>(vector))) << 6 |
         static_cast<uint64_t>(turned + 1) << 9;
}

Divisor::Divisor(int64_t count) {
  const int bits = count <= 1 ? 0 : 64 - std::countl_zero(static_cast<uint64_t>(count - 1));
  const bool narrow = bits <= 31;
  const auto divisor = static_cast<uint64_t>(std::max<int64_t>(count, 1));
  mul = narrow ? static_cast<int64_t>((uint64_t{1} << (31 + bits)) / divisor + 1) : 0;
  shift = narrow ? 31 + bits : 0;
}

}  // namespace brrr::program
