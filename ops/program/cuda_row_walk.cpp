// Plans how a GPU walks a program with rows.
#include <algorithm>
#include <bit>

#include "ops/program/cuda_rows.h"

namespace brrr::program {

namespace {

constexpr int64_t kLongestKept = 16384;  // Longest row that lanes may keep in registers.
constexpr int64_t kWarp = 32;

// Of a row, or a piece, of n elements.
int log_group_of(int64_t n) {
  return n > 0 ? std::min(2, std::countr_zero(static_cast<uint64_t>(n))) : 0;
}
int log_lanes_of(int64_t n) {
  return n <= 8 ? 0 : n <= 64 ? 3 : n <= 1024 ? 5 : n <= 8192 ? 8 : 10;
}

// Rows per walker: enough that walkers write little compared with what they read, and few enough
// that the whole card has work; fewer of long rows, of which each lane holds more. Where the data
// is small and stays in L2 anyway, only the latter counts, as a walker waits for its rows one after
// the other.
int64_t steps_of(const RowWalk& walk) {
  constexpr int64_t walkers = 2048, cached = 1 << 20, little = 128;
  const int64_t threads = walk.length <= little ? 1 << 17 : 1 << 15;
  const int64_t wanted =
      std::max((walk.rows << log_lanes_of(walk.length)) / threads, walk.matrix / walkers);
  const int64_t least = walk.length <= little && walk.rows * walk.length <= cached ? 1 : 4;
  return std::clamp(wanted, least, std::max<int64_t>(32, walk.matrix / 8192));
}

// Cuts rows into pieces of `piece` elements, which become dim `outer`.
void cut(RowWalk& walk, Space& space, std::span<Window> windows, int outer, int64_t piece) {
  const int last = space.ndim++;
  const auto insert = [&](int64_t* all, int64_t outermost, int64_t innermost) {
    std::copy_backward(all + outer, all + last, all + last + 1);
    all[outer] = outermost;
    all[last] = innermost;
  };
  walk.pieces = (walk.length + piece - 1) / piece;
  walk.matrices *= walk.pieces;
  walk.rows *= walk.pieces;
  walk.n = piece;
  insert(space.size, walk.pieces, piece);
  for (Window& w : windows) insert(w.stride, w.stride[last - 1] * piece, w.stride[last - 1]);
}

// Whether each group of the window is contiguous and aligned.
bool in_groups(const Window& w, const Space& space, const RowWalk& walk) {
  const int last = space.ndim - 1;
  const int64_t bytes = std::min<int64_t>(16, walk.group() * w.item());
  bool all = w.in_memory() && w.stride[last] == 1 && w.address % static_cast<uintptr_t>(bytes) == 0;
  for (int d = 0; d < last; ++d) {
    all &= space.size[d] == 1 || w.stride[d] * w.item() % bytes == 0;
  }
  return all;
}

}  // namespace

DeviceRowPasses::DeviceRowPasses(const Program& p, bool split, int values) : states(row_states(p)) {
  std::vector<bool> is_long;  // By statement: whether it needs a polynomial.
  for (size_t id = 0; id < states.size(); ++id) {
    const Statement& x = p.statements[id];
    RowState& s = states[id];
    const auto after = [&](int a) {
      return p.at(a).kind == Statement::Fold || states[static_cast<size_t>(a)].after;
    };
    if (split) s.after = std::ranges::any_of(x.args, after);
    if (s.live) live.push_back(static_cast<int>(id));
    if (s.live && !split) deepest = std::max(deepest, s.depth);
    const auto already = [&](int a) { return is_long[static_cast<size_t>(a)]; };
    is_long.push_back(x.varies == Statement::InRow &&
                      (x.cost > 1 || std::ranges::any_of(x.args, already)));
  }
  passes = row_passes(p, states, deepest, [&](int id) {
    return p.at(id).kind == Statement::Formula && is_floating(p.at(id).type) &&
           is_long[static_cast<size_t>(id)] && values-- > 0;
  });
  std::vector<int> reads(p.windows.size());
  for (const RowPass& pass : passes) {
    for (int id : pass.list) {
      if (p.at(id).kind == Statement::Load) ++reads[static_cast<size_t>(p.at(id).which)];
    }
  }
  for (size_t w = 0; w < reads.size(); ++w) {  // What all rows share is cached anyway.
    const bool own = p.windows[w].in_memory() && p.windows[w].varies(p.space.ndim - 1);
    if (reads[w] > 1 && own) reused.push_back(static_cast<int>(w));
  }
}

RowTraits row_traits(const Program& p, bool split) {
  const DeviceRowPasses made(p, split);
  RowTraits t{.reused = static_cast<int>(made.reused.size()), .split = split};
  for (int id : made.live) {
    const Statement& s = p.at(id);
    // None of these can be computed from a piece of a row.
    t.folds |= ends_pass(s) || s.kind == Statement::Counts || s.kind == Statement::IsAt ||
               s.kind == Statement::Total;
    const bool column = s.kind == Statement::FoldRows;
    const bool total = s.kind == Statement::Total || (split && s.kind == Statement::Fold);
    t.columns += column;
    t.totals += total;
    if (!column && !total && !ends_pass(s)) continue;
    t.item = std::max(t.item, static_cast<int>(itemsize(s.type)));
  }
  return t;
}

int64_t RowWalk::scratch(int fold) const {
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t column = aligned(matrices * walkers() * n * traits.item);
  const int columns = std::min(fold, traits.columns);
  return columns * column + (fold - columns) * aligned(rows * traits.item);
}

uint64_t RowWalk::bits() const {
  const auto held = static_cast<unsigned>(slots);
  const auto kind = static_cast<uint64_t>(2 * std::bit_width(held) + !std::has_single_bit(held));
  const int log_slots = traits.columns ? std::countr_zero(static_cast<unsigned>(col_slots())) : 0;
  return static_cast<uint64_t>(ndim) | static_cast<uint64_t>(log_group) << 4 |
         static_cast<uint64_t>(log_lanes) << 6 | kind << 10 | uint64_t{even} << 14 |
         uint64_t{wide} << 15 | uint64_t{ragged()} << 16 | uint64_t{traits.split} << 17 |
         uint64_t{traits.columns > 0} << 18 | uint64_t{few_columns()} << 19 |
         static_cast<uint64_t>(log_slots) << 20;
}

RowWalk plan_rows(Space& space, std::span<Window> windows, const RowTraits& traits, int outer,
                  int64_t longest) {
  RowWalk walk{.traits = traits};
  walk.rows = 1;
  for (int d = 0; d < space.ndim - 1; ++d) walk.rows *= space.size[d];
  for (int d = 0; d < outer; ++d) walk.matrices *= space.size[d];
  walk.matrix = walk.matrices ? walk.rows / walk.matrices : 0;
  walk.n = walk.length = space.size[space.ndim - 1];
  walk.log_group = log_group_of(walk.n);
  const bool whole = walk.rows == 1 && !traits.columns;
  if (traits.columns) walk.steps = steps_of(walk);
  // Places in a row are independent: a lane takes one group. But a per-row scalar that is stored
  // belongs to one walker.
  const bool independent =
      traits.columns && !traits.folds && std::ranges::none_of(windows, [&](const Window& w) {
        return w.stored && w.stride[space.ndim - 1] == 0;
      });
  if (independent) longest = kWarp * walk.group();
  if (traits.split) longest = kLongestPiece;
  if (traits.split || (longest && walk.n > longest)) cut(walk, space, windows, outer, longest);
  const auto groups = static_cast<uint64_t>(walk.n / walk.group());
  walk.log_lanes = independent ? std::countr_zero(std::bit_ceil(groups))
                   : whole     ? 10
                               : log_lanes_of(walk.n);
  walk.ndim = space.ndim;
  walk.even = traits.columns && space.ndim > 1 && walk.matrix == space.size[space.ndim - 2];
  // An index in a row is multiplied by 8 at most.
  walk.wide = walk.rows >= int64_t{1} << 31 || walk.n >= int64_t{1} << 28;
  const int64_t of_lanes = walk.lanes() * walk.group();
  // A power of 2, or three quarters of it: to keep the number of texts low.
  const auto needed = static_cast<uint64_t>((walk.n + of_lanes - 1) / of_lanes);
  const auto power = std::bit_ceil(needed), slots = needed <= power / 4 * 3 ? power / 4 * 3 : power;
  const int64_t kept = static_cast<int64_t>(slots) * walk.group() * traits.item / 4 *
                       (traits.reused + traits.columns);  // In registers.
  // Of the 64 or 255 registers of a thread; float64 arithmetic takes more of them.
  const int64_t room = (walk.threads() > kDeviceThreads ? 24 : 128) / (traits.item > 4 ? 2 : 1);
  if (kept && walk.n && !traits.split && walk.n <= kLongestKept && kept <= room) {
    walk.slots = static_cast<int>(slots);
  }
  walk.spare = static_cast<int>(room - (walk.slots ? kept : 0));
  for (Window& w : windows) w.reach = in_groups(w, space, walk) ? Window::Row : Window::Strided;
  return walk;
}

}  // namespace brrr::program
