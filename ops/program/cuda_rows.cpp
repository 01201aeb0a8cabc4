// Prints the text of a GPU's kernels for a program with rows, and the functions that it calls:
// packs of elements in memory, folds across the lanes of a warp and the warps of a block.
#include <map>

#include "ops/program/cuda_row_text.h"

namespace brrr::program {

const char kRowText[] = R"(
// N elements that are aligned as one piece of memory, or as pieces of 16 bytes.
template <class T, int N> BRRR_VX void take(T (&v)[N], const char* p) {
  constexpr int step = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int k = 0; k < N; k += step) {
    const Pack<T, step> raw = *(const Pack<T, step>*)(p + k * sizeof(T));
#pragma unroll
    for (int u = 0; u < step; ++u) v[k + u] = raw.v[u];
  }
}
template <class T, int N> BRRR_VX void give(char* p, const T (&v)[N]) {
  constexpr int step = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int k = 0; k < N; k += step) {
    Pack<T, step> raw;
#pragma unroll
    for (int u = 0; u < step; ++u) raw.v[u] = v[k + u];
    *(Pack<T, step>*)(p + k * sizeof(T)) = raw;
  }
}
// The same for elements that are `stride` bytes apart, one by one.
template <class T, int N> BRRR_VX void take_each(T (&v)[N], const char* p, long stride) {
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = *(const T*)(p + k * stride);
}
template <class T, int N> BRRR_VX void give_each(char* p, long stride, const T (&v)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) *(T*)(p + k * stride) = v[k];
}
template <class T, int N> BRRR_VX T* shared_room() {
  __shared__ T all[N];
  return all;
}
// Combines x over the lanes of a walker: every lane gets the same bits, as the lower lane is always
// the first operand. All threads of the block take part.
template <int kLanes, class V, class C> BRRR_VX V across(V x, C combine) {
#pragma unroll
  for (int d = (kLanes < 32 ? kLanes : 32) / 2; d > 0; d /= 2) {
    const V other = V(shuffle_xor(x.v, d));
    x = threadIdx.x & d ? combine(other, x) : combine(x, other);
  }
  if constexpr (kLanes > 32) {
    constexpr int warps = kLanes > 32 ? kLanes / 32 : 1;  // NVRTC checks untaken branches too.
    auto* const partial = shared_room<decltype(V::v), 32>();
    __syncthreads();  // Earlier uses of `partial` are done.
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x.v;
    __syncthreads();
    x = across<warps>(V(partial[threadIdx.x % warps]), combine);
  }
  return x;
}
// Combines x over the slots of each column; the threads of slot 0 get the results. Neighbouring
// lanes combine the slots of one column.
template <int kSlots, int kColumns, class V, class C> BRRR_VX V down(V x, C combine) {
  if constexpr (kSlots > 1) {
    auto* const partial = shared_room<decltype(V::v), 32 * 33>();
    constexpr int step = kColumns + 1;
    const int column = threadIdx.x / kSlots, slot = threadIdx.x % kSlots;
    __syncthreads();  // Earlier uses of `partial` are done.
    partial[threadIdx.x / kColumns * step + threadIdx.x % kColumns] = x.v;
    __syncthreads();
    x = across<kSlots>(V(partial[slot * step + column]), combine);
    __syncthreads();
    if (slot == 0) partial[column] = x.v;
    __syncthreads();
    x = V(partial[threadIdx.x % kColumns]);
  }
  return x;
}
)";

namespace {

class RowText : DeviceRowText {
 public:
  RowText(const Program& p, const RowWalk& walk, const std::string& name, bool table)
      : DeviceRowText(p, walk), name_(name), table_(table) {}

  std::string run(Stage stage) {
    text_ += kernel_head("BLOCK_KERNEL", name_, suffix(stage), walk_.threads(stage), table_);
    for (int id : made_.live) {
      const bool computed = !of(id).after && at(id).kind != Statement::Store;
      if (computed && at(id).varies == Statement::Never) line(id);
    }
    stage == Stage::Elements ? rows() : stage == Stage::Columns ? columns() : totals();
    text_ += table_ ? "}\n}\n" : "}\n";
    return printed();
  }

 private:
  // The row of a step: by its distance from the walker's first row, if rows are one dim.
  void find_step() {
    if (columns_.empty()) return find_row("row", fmt::format("r / ({})p.matrix", rows_type()));
    if (!walk_.even) return find_row("on ? row : first", "m");
    print("const {} n = on ? whole : 0;\nconst int beyond = on ? row - first : 0;\n", length());
    for (int w = 0; w < windows(); ++w) {
      if (window(w).touched())
        print("const long o{0} = base{0} + beyond * p.s{0}_{1};\n", w, last_ - 1);
    }
  }

  void rows() {
    print(
        "const int lane = threadIdx.x % {0};\n"
        "const long walker = (long)block * {1} + threadIdx.x / {0};\n",
        walk_.lanes(), walk_.per_block());
    if (columns_.empty()) {
      find_walker("row", "on", "p.rows");
      one_row();
    } else {
      print("{};\n", walkers());
      find_walker("mine", "there", "p.matrices * walkers");
      print(
          "const {0} m = ({0})mine / walkers;\n"
          "const long first = m * p.matrix + ({0})mine % walkers * p.steps, last = (m + 1) * "
          "p.matrix;\n"
          "const long end = !there ? first : first + p.steps < last ? first + p.steps : last;\n",
          rows_type());
      if (walk_.even) find_row("first", "m", "there", "whole", "base");
      for (int id : columns_) accumulators(id);
      const int rows = preloaded_rows();
      print("for (long next = first; next < {}; next += {}) {{\n",
            shares_warps() ? "first + p.steps" : "end", rows);
      // Lanes without a row read the first one again, which others have stored meanwhile.
      if (shares_warps() && rows == 1 && stores_elements()) sync_lanes();
      const std::string row = fmt::format(
          "#pragma unroll\nfor (int s = 0; s < {}; ++s) {{\n"
          "const long row = next + s;\nconst bool on = {};\n",
          rows, always_on() ? "true" : "row < end");
      if (rows > 1) {
        preload(0, walk_.slots, fmt::format("[{}]", rows), [&] {
          text_ += row;
          find_step();
        });
        text_ += "}\n";
      }
      text_ += row;
      one_row();
      text_ += "}\n}\n";
      if (walk_.slots) store_accumulators();
    }
    if (totals_.empty()) store_uniform("if (walker == 0 && lane == 0) ");
  }
  // Declares `name`, the walker whose rows are read, and `there`, whether this walker is one of
  // `all`. Where walkers share a warp, the warp's first stands in for those beyond the end, so that
  // nothing reads what another warp may be writing; else those beyond the end return.
  void find_walker(const char* name, const char* there, const char* all) {
    if (shares_warps()) {
      print(
          "const long lead = walker - threadIdx.x % 32 / {0};\nif (lead >= {1}) return;\n"
          "const bool {2} = walker < {1};\nconst long {3} = {2} ? walker : lead;\n",
          walk_.lanes(), all, there, name);
    } else {
      if (walk_.per_block() > 1) print("if (walker >= {}) return;\n", all);
      print("constexpr bool {} = true;\nconst long {} = walker;\n", there, name);
    }
  }

  void one_row() {
    find_step();
    find_ids();
    for (int id : made_.live) {
      if (of(id).kept) print("{} e{}[{}][{}];\n", vector(id), id, walk_.slots, walk_.group());
    }
    for (int d = 0; d <= made_.deepest; ++d) {
      for (int id : made_.live) {
        const Statement& s = at(id);
        if (of(id).depth == d && s.varies == Statement::WithRow && !ends_pass(s) && !of(id).after &&
            s.kind != Statement::Store && !is_total(id)) {
          line_of_row(id);
        }
      }
      pass(d);
    }
    store_row_scalars();
    held_.clear();
  }

  // Groups that a lane loads before it computes the first. A thread of a large block has only 64
  // registers, addresses included.
  int groups_ahead(const RowPass& pass) const {
    const int groups = walk_.group() == 1 ? 8 : 4;
    if (walk_.threads() <= kDeviceThreads) return groups;
    if (walk_.traits.item > 4) return 1;
    const auto windows = std::ranges::count_if(pass.list, [&](int id) {
      const Statement::Kind kind = at(id).kind;
      return (kind == Statement::Load || kind == Statement::Store) && window(at(id)).in_memory();
    });
    return std::max(1, groups / std::max(1, static_cast<int>(windows)));
  }
  // Registers of a lane's elements of a row.
  int registers(int w, int groups) const {
    return (groups * walk_.group() * static_cast<int>(window(w).item()) + 3) / 4;
  }
  // Rows that are loaded together, where no fold of a row waits for its elements.
  int preloaded_rows() const {
    int row = 0;
    for (int id : pass_of(0).list) {
      if (loads_memory(id)) row += registers(at(id).which, walk_.slots);
    }
    return walk_.slots && made_.deepest == 0 && row ? std::clamp(48 / row, 1, 8) : 1;
  }
  // Several walkers share a warp, and go on together.
  bool shares_warps() const { return walk_.lanes() > 1 && walk_.lanes() < 32; }
  bool always_on() const { return !columns_.empty() && !shares_warps() && preloaded_rows() == 1; }
  bool stores_elements() const {
    return std::ranges::any_of(made_.passes.back().list,
                               [&](int id) { return is_element_store(p_, at(id), of(id)); });
  }
  // Until all lanes have read what they need of the row's memory.
  void sync_lanes() {
    if (walk_.lanes() > 1) {
      text_ += walk_.lanes() > 32 ? "__syncthreads();\n" : "__syncwarp();\n";
    }
  }

  // The elements of a pass, group by group.
  void pass(int d) {
    const RowPass& pass = pass_of(d);
    for (int id : pass.picks) line(id);
    for (int f : pass.folds) print("{} {} = {};\n", vector(f), named(f), init(f));
    if (pass.list.empty() && pass.folds.empty()) return;
    // A lane may overwrite elements of the row that another one has yet to read.
    const bool stores = d == made_.deepest && stores_elements();
    if (d > 0) std::erase_if(held_, [&](const auto& own) { return !is_kept(own.first); });
    if (walk_.slots) preload(d, walk_.slots, "", [] {});
    if (stores) sync_lanes();
    // Beyond the row's end a lane computes elements again (the row's first ones, if preloaded
    // before lanes wait for each other, or else its own) and discards the result. There is no
    // branch: ptxas would move the preloads into it. Column sums there are never stored. There have
    // to be registers to compute all groups side by side.
    const bool crowded = walk_.traits.item > 4 || (walk_.group() == 1 && walk_.spare < 64);
    const bool skips =
        crowded || std::ranges::any_of(pass.list, [&](int id) {
          return (at(id).kind == Statement::FoldRows && !(walk_.slots && always_on())) ||
                 // Another lane may have written it; weights are never written.
                 (stores && walk_.slots && loads_memory(id) && !held_.contains(at(id).which) &&
                  window(at(id).which).varies(last_)) ||
                 at(id).text.find("checked(") != std::string::npos;
        });
    // The compiler moves no load above a store.
    const int groups = walk_.slots ? walk_.slots : stores ? groups_ahead(pass) : 0;
    const bool takes_all = groups && !skips;
    const int step = walk_.lanes() * walk_.group();
    if (groups) {
      if (!walk_.slots) {
        print("for ({} begin = lane * {}; begin < n; begin += {}) {{\n", length(), walk_.group(),
              groups * step);
        preload(d, groups, "", [] {});
      }
      each_group(groups);
      if (skips) text_ += "if (i >= n) continue;\n";
      for (int f : pass.folds) {
        if (takes_all) print("const auto before{} = {};\n", f, name(f));
      }
    } else {
      print("#pragma unroll {}\nfor ({} i = lane * {}; i < n; i += {}) {{\n", groups_ahead(pass),
            length(), walk_.group(), step);
    }
    group(pass, d, takes_all ? "at" : "i");
    for (int f : pass.folds) {
      if (takes_all) print("if (i >= n) {} = before{};\n", name(f), f);
    }
    text_ += groups && !walk_.slots ? "}\n}\n" : "}\n";
    for (int f : pass.folds) {
      print("v{0} = across<{1}>(v{0}, {2});\n", f, walk_.lanes(), combine(f));
    }
  }

  // Loops over a lane's groups in registers: those of a row, or those from element `begin` on.
  void each_group(int groups) {
    const std::string i = walk_.slots
                              ? fmt::format("(k * {} + lane) * {}", walk_.lanes(), walk_.group())
                              : fmt::format("begin + k * {}", walk_.lanes() * walk_.group());
    print(
        "#pragma unroll\nfor (int k = 0; k < {}; ++k) {{\n"
        "const {} i = {}, at = i < n ? i : {};\n",
        groups, length(), i, walk_.slots ? "0" : "begin");
  }
  // Loads a row's elements into registers: all of them before any is waited for, and
  // unconditionally, as what is computed from them first would go into the branch as well. `rows`
  // is the array extent for the rows that are loaded together, in the loop that `begin` opens.
  template <class F> void preload(int d, int groups, const std::string& rows, const F& begin) {
    std::string loads;
    // More registers would leave fewer resident warps.
    int room = walk_.threads() > kDeviceThreads ? walk_.spare : 32;
    if (walk_.group() == 1) room = std::min(room, walk_.spare - 64);
    for (int id : pass_of(d).list) {
      const int w = at(id).which;
      if (!loads_memory(id) || held_.contains(w)) continue;
      // preloaded_rows() bounds the rows that are loaded together.
      if (rows.empty() && !is_kept(w) && (room -= registers(w, groups)) < 0) continue;
      print("{} x{}_{}{}[{}][{}];\n", memory(w), w, d, rows, groups, walk_.group());
      held_[w] = fmt::format("x{}_{}{}[k]", w, d, rows.empty() ? "" : "[s]");
      loads += load_group(w, "at");
    }
    if (loads.empty()) return;
    begin();
    each_group(groups);
    text_ += loads + "}\n";
  }

  // Elements are read at `place`, and stored at `i` unless that is beyond the end.
  void group(const RowPass& pass, int d, const std::string& place) {
    for (int id : pass.list) {
      const Statement& s = at(id);
      if (loads_memory(id) && !held_.contains(s.which)) {
        print("{} x{}[{}];\n", memory(s.which), s.which, walk_.group());
        held_[s.which] = fmt::format("x{}", s.which);
        text_ += load_group(s.which, place);
      }
      if (s.kind == Statement::Store) {
        print("{} y{}[{}];\n", memory(s.which), s.which, walk_.group());
      }
    }
    print("#pragma unroll\nfor (int u = 0; u < {}; ++u) {{\n", walk_.group());
    for (int id : pass.list) {
      const Statement& s = at(id);
      if (s.kind == Statement::Store) {
        print("store(&y{}[u], {});\n", s.which, to_memory(window(s).dtype, name(s.args[0])));
      } else if (s.kind == Statement::FoldRows) {
        add_to_column(id);
      } else if (of(id).kept && of(id).pass < d) {
        names_[static_cast<size_t>(id)] = fmt::format("e{}[k][u]", id);
      } else {
        line(id, place + " + u", loads_memory(id) ? held_[s.which] + "[u]" : "");
        if (of(id).kept) print("e{0}[k][u] = {1};\n", id, name(id));
      }
    }
    for (int f : pass.folds) print("{} = {};\n", name(f), combined(f, name(f)));
    text_ += "}\n";
    for (int id : pass.list) {
      const Statement& s = at(id);
      if (s.kind != Statement::Store) continue;
      const bool whole = window(s.which).reach == Window::Row;
      if (place != "i") text_ += "if (i < n) ";
      const std::string to = address(s.which, "i");
      text_ += whole ? fmt::format("give({}, y{});\n", to, s.which)
                     : fmt::format("give_each({}, p.s{}_{}, y{});\n", to, s.which, last_, s.which);
    }
  }
  bool loads_memory(int id) const {
    return at(id).kind == Statement::Load && window(at(id)).in_memory();
  }
  std::string load_group(int w, const std::string& at) {
    return window(w).reach == Window::Row
               ? fmt::format("take({}, {});\n", held_[w], address(w, at))
               : fmt::format("take_each({}, {}, p.s{}_{});\n", held_[w], address(w, at), w, last_);
  }

  void store_row_scalars() {
    std::string each;
    for (int id : made_.live) {
      if (is_scalar_store(id) && !is_uniform(id)) each += stored(id) + ";\n";
    }
    for (size_t k = 0; k < totals_.size(); ++k) {
      each += fmt::format("store(({}*)p.t{} + row, {});\n", element(totals_[k]),
                          columns_.size() + k, name(split() ? totals_[k] : at(totals_[k]).args[0]));
    }
    if (each.empty()) return;
    sync_lanes();
    print("if (lane == 0 && on) {{\n{}}}\n", each);
  }

  const std::string& name_;
  const bool table_;
  std::map<int, std::string> held_;  // Windows with elements in registers, and their names.
};

}  // namespace

std::string cuda_text(const Program& p, const RowWalk& walk, const std::string& name, Stage stage,
                      bool table) {
  return RowText(p, walk, name, table).run(stage);
}

}  // namespace brrr::program
