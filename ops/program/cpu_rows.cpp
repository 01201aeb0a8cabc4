// The CPU's kernel of a program with rows. It takes a few rows at a time, pass by pass: each pass
// walks all of them and ends in scalars per row, from which further per-row scalars are computed
// with one row per lane; the last pass stores elements. Where rows stream from memory the passes
// are interleaved. A row's fold is in the order of ops/kinds/reduction.h ("rows"), one over the
// rows in blocks of 64 ("columns"), so that the bits are those of eager kernels.
#include "ops/program/cpu_row_text.h"

namespace brrr::program {

namespace {

class RowWalk : public RowText {
 public:
  using RowText::RowText;

  CpuKernel run() {
    plan_scratch();
    const int64_t unit = columns_.empty() ? block_ : kReduceBlock;
    out_.extent = (rows_ + unit - 1) / unit;
    out_.unit = unit * n_;
    out_.grain = std::max<int64_t>(1, kGrain / (unit * n_));
    text_ = "(char* const* a, long begin, long end) {\n";
    begin();
    store_uniform();
    arrays();
    pipelined_ ? pipeline(unit) : pass_by_pass(unit);
    end_body();
    if (!columns_.empty() || !totals_.empty()) finish();
    return std::move(out_);
  }

 private:
  void pass_by_pass(int64_t unit) {
    print(
        "for (long k = begin; k < end; ++k) {{\nconst long last = (k + 1) * {0} < {1} ? "
        "(k + 1) * {0} : {1};\n",
        unit, rows_);
    clear_columns();
    text_ += unit == block_
                 ? fmt::format("{{\nconst long r0 = k * {};\n", unit)
                 : fmt::format("for (long r0 = k * {}; r0 < last; r0 += {}) {{\n", unit, block_);
    print("const int rows = last - r0 < {0} ? (int)(last - r0) : {0};\n", block_);
    for (int d = 0; d <= deepest_; ++d) {
      row_scalars(d);
      if (walks(d) || !passes_[static_cast<size_t>(d)].picks.empty()) pass(d);
    }
    store_row_scalars();
    text_ += "}\n}\n";
  }

  // --- the beginning -----------------------------------------------------------------------------

  // Scalars that depend on no row.
  void store_uniform() {
    for (int id : live_) {
      const Statement& s = at(id);
      if (s.kind != Statement::Store || !is_uniform(s) || of(id).after) continue;
      text_ += "if (begin == 0) ";
      store_scalar(s);
    }
  }
  bool is_uniform(const Statement& s) const { return !window(s).varies(ndim_); }
  // Arrays of per-row scalars and of values that later passes load again; in a pipeline, those of
  // all blocks under way.
  void arrays() {
    for (int id : live_) {
      const std::string type = element(id);
      const char* all = pipelined_ ? "all_" : "";
      if (at(id).varies == Statement::WithRow) {
        print("alignas(64) {} {}w{}[{}] = {{}};\n", type, all, id, 16 * scalar_blocks());
      }
      if (of(id).kept) {
        print("alignas(64) {} {}k{}[{}];\n", type, all, id, blocks_kept(id) * block_ * padded_);
      }
    }
  }
  // --- scalars of rows ---------------------------------------------------------------------------

  bool is_dense(const Window& w) const {
    int64_t next = 1;
    for (int d = ndim_ - 2; d >= 0; --d) {
      if (size_[d] > 1 && w.stride[d] != next) return false;
      next *= size_[d];
    }
    return !w.index;
  }

  // Those of depth d that are not folds, one row per lane.
  void row_scalars(int d) {
    std::vector<int> list;
    std::set<int> given;
    for (int id : live_) {
      const Statement& s = at(id);
      const bool of_row = s.varies == Statement::WithRow && s.kind != Statement::Store;
      if (!of_row || ends_pass(s) || of(id).depth != d) continue;
      list.push_back(id);
      for (int a : s.args) {
        if (at(a).varies == Statement::WithRow && (ends_pass(at(a)) || of(a).depth < d)) {
          given.insert(a);
        }
      }
    }
    if (list.empty()) return;
    text_ += "{\n";
    for (int id : given) {
      print("const auto v{} = {};\n", id, scalars_of(id));
    }
    for (int id : list) {
      gather(id);
      print("const auto v{} = {};\n", id, row_scalar(id));
      print("store(w{}, {});\n", id, to_memory(at(id).type, name(id, 0)));
    }
    text_ += "}\n";
  }
  // Those that are computed already.
  std::string scalars_of(int id) const {
    return from_memory(at(id).type, fmt::format("load(w{})", id));
  }
  std::string row_scalar(int id) const {
    const Statement& s = at(id);
    if (s.kind == Statement::Counts) {
      return fmt::format("ne(load_n(o{} + r0, rows), splat({}))", s.which, ignored(s));
    }
    if (s.kind == Statement::Load) {
      const Window& w = window(s);
      if (!is_dense(w)) return scalars_of(id);
      return from_memory(w.dtype, fmt::format("load_n(o{} + r0, rows)", s.which));
    }
    return value(id, 0);
  }
  // Scalars that are not contiguous are gathered first.
  void gather(int id) {
    const Statement& s = at(id);
    if (s.kind != Statement::Load || is_dense(window(s))) return;
    text_ += "for (long r = 0; r < rows; ++r) {\nconst long q = r0 + r;\n";
    row_pointers("q", {s.which});
    print("w{}[r] = {}[0];\n}}\n", id, to_memory(s.type, load(s, 0, false)));
  }
  void store_row_scalars() {
    for (int id : live_) {
      const Statement& s = at(id);
      const bool total = s.kind == Statement::Total;
      const bool scalar = s.kind == Statement::Store && !is_element_store(p_, s, of(id)) &&
                          !is_uniform(s) && !of(s.args[0]).after;
      if (!total && !scalar) continue;
      const int arg = s.args[0];
      const std::string v = at(arg).varies == Statement::WithRow ? scalars_of(arg) : name(arg, 0);
      if (total) {
        print("store_n(s{} + r0, {}, rows);\n", id, v);
      } else {
        store_scalars(s, fmt::format("o{} + r0", s.which), v, "rows");
      }
    }
  }

  // --- passes over elements ----------------------------------------------------------------------

  void pass(int d) {
    current_ = d;
    const RowPass& pass = passes_[static_cast<size_t>(d)];
    text_ += "for (long r = 0; r < rows; ++r) {\n";
    row_names(pass);
    for (int id : pass.picks) pick(id);
    if (d == deepest_) {
      int unroll = choose_unroll(pass.list);
      while (unroll > 1 && n_ % (16 * unroll) != 0 && (n_ % 16 == 0 || n_ < 16 * unroll)) {
        unroll /= 2;
      }
      loops(pass.list, "0", std::to_string(n_), unroll, n_);
    } else if (!pass.folds.empty()) {
      fold(pass.list, pass.folds);
    }
    text_ += "}\n";
  }
  // Prefetch the rows to come: a pass over cached rows would leave memory idle, and the hardware
  // prefetcher does not cross a page. More than once, as some lines come too early for L1 and
  // others too late: a pipeline in the pass that reads a window first, at two distances in bytes;
  // other walks the next block, but not in the last of many passes, whose stores keep memory busy.
  // Where L1 has room for two more blocks, only the last pass does, for the block after the next,
  // so that loads and stores alternate (a layer norm of a sum 6.2 to 5.4 ms for 64 MB, its backward
  // 4.8 to 4.5). At a near distance where the machine prefers that (cpu_text.h).
  void at_body(int unroll) override {
    const bool far = prefetches_far();
    const bool prefetches =
        streaming_ && (far ? current_ == deepest_ : current_ <= std::max(1, deepest_ - 1));
    for (int w = 0; w < windows(); ++w) {
      const Window& x = window(w);
      if (!x.in_memory() || !x.loaded || inner_stride(w) != 1 || !streams(x)) continue;
      bool dense = true;
      for (int d = 0; d + 2 < ndim_; ++d) dense &= x.stride[d] == x.stride[d + 1] * size_[d + 1];
      if (!dense) continue;
      const int level = block_ * n_ * x.item() > (8 << 10) ? 2 : prefetch_level();
      const int64_t ahead = prefers_near() ? kAhead / 8 / x.item() : (far ? 2 : 1) * block_ * n_;
      if (!pipelined_ && prefetches) prefetch(w, level, ahead, unroll);
      if (!pipelined_ || first_pass(w) != current_) continue;
      prefetch(w, 2, one_stream_distance().second / x.item(), unroll);
      prefetch(w, level, one_stream_distance().used / x.item(), unroll);
    }
  }
  // Prefetches what a body loads, `ahead` elements ahead.
  void prefetch(int w, int level, int64_t ahead, int unroll) {
    const Window& x = window(w);
    const int64_t row = x.stride[ndim_ - 2], to = ahead / n_ * row + ahead % n_;
    for (int64_t at = 0; at < 16 * unroll; at += 64 / x.item()) {
      print("prefetch<{}>((const char*)(o{} + q * {} + i + {}));\n", level, w, row, to + at);
    }
  }
  // The first pass that loads from a window.
  int first_pass(int w) const {
    const auto loads = [&](const RowPass& pass) { return loads_from(pass, w); };
    return static_cast<int>(std::ranges::find_if(passes_, loads) - passes_.begin());
  }

  // All folds in one walk over the row: chunks of kReduceChunk, four accumulators in each.
  void fold(const std::vector<int>& list, const std::vector<int>& folds) {
    const int64_t chunks = (n_ + kReduceChunk - 1) / kReduceChunk;
    if (chunks > 1) {
      for (int f : folds) print("{} c{}[{}];\n", element(f), f, chunks);
      print("for (long c = 0; c < {}; ++c) {{\n", chunks);
    }
    accumulators(folds);
    text_ += "{\n";
    const std::string first = chunks > 1 ? fmt::format("c * {}", kReduceChunk) : "0";
    const std::string last =
        chunks > 1 ? fmt::format("(c + 1 < {0} ? (c + 1) * {1} : {2})", chunks, kReduceChunk, n_)
                   : std::to_string(n_);
    print("long i = {};\n", first);
    if (n_ >= 64) bodies(64, last, chunks > 1 ? 0 : n_, [&] { fold_body(list, folds); });
    rest(list, folds, chunks);
    text_ += "}\n";
    reduced(folds, chunks > 1 ? "c{}[c]" : "w{}[r]");
    if (chunks == 1) return;
    text_ += "}\n";
    for (int f : folds) {
      fold_array(f, fmt::format("c{}", f), std::to_string(chunks));
      print("w{0}[r] = *c{0};\n", f);
    }
  }

  // --- passes over several blocks at a time ------------------------------------------------------

  int scalar_blocks() const { return pipelined_ ? deepest_ + 1 : 1; }

  // The passes run over the same elements of different blocks: while one loads from memory, another
  // computes and a third stores, so that neither memory nor any execution unit waits for a pass to
  // end. In turn t pass d is at block t - d.
  void pipeline(int64_t unit) {
    print(
        "const long first = begin * {0}, last = end * {0} < {1} ? end * {0} : {1};\n"
        "for (long t = 0; first + (t - {2}) * {3} < last; ++t) {{\n"
        "const auto count = [&](long at) {{\n"
        "return at < first || at >= last ? 0 : last - at < {3} ? (int)(last - at) : {3};\n"
        "}};\n",
        unit, rows_, deepest_, block_);
    std::string all_full;
    for (int d = 0; d <= deepest_; ++d) {
      print("const long at{0} = first + (t - {0}) * {1};\nconst int rows{0} = count(at{0});\n", d,
            block_);
      all_full += fmt::format("{}rows{} == {}", d ? " && " : "", d, block_);
    }
    print("const bool together = {};\n", all_full);
    for (int d = 0; d <= deepest_; ++d) {
      text_ += "{\n";
      block_names(d);
      row_scalars(d);
      if (d == deepest_ && !columns_.empty()) {
        print("if (rows && r0 % {} == 0) {{\n", kReduceBlock);
        clear_columns();
        text_ += "}\n";
      }
      text_ += "}\n";
    }
    print("for (long r = 0; r < {}; ++r) {{\n", block_);
    std::string whole, apart, scopes;
    for (int d = 0; d <= deepest_; ++d) {
      if (!walks(d)) continue;
      body(d);
      scopes += "}";
      whole += fmt::format(" body{}(i);", d);
      apart += fmt::format("for (long i = 0; r < rows{0} && i < {1}; i += 64) body{0}(i);\n", d,
                           n_ / 64 * 64);
    }
    print("if (together) {{\nfor (long i = 0; i < {}; i += 64) {{{} }}\n}} else {{\n{}}}\n",
          n_ / 64 * 64, whole, apart);
    for (int d = 0; d <= deepest_; ++d) end_of_row(d);
    print("{}\n}}\n{{\n", scopes);
    block_names(deepest_);
    store_row_scalars();
    text_ += "}\n}\n";
  }
  // Whether the pass goes over elements.
  bool walks(int d) const {
    const RowPass& pass = passes_[static_cast<size_t>(d)];
    return !pass.list.empty() || !pass.folds.empty();
  }

  // The names in a pass of its block's rows, their scalars and the values kept of them.
  void block_names(int d) {
    print("const long r0 = at{0};\nconst int rows = rows{0};\n", d);
    if (!columns_.empty()) print("const long k = r0 / {};\n", kReduceBlock);
    const std::string turn = fmt::format("(t + {})", deepest_ - d);
    for (int id : live_) {
      if (at(id).varies == Statement::WithRow) {
        print("{0}* const w{1} = all_w{1} + {2} % {3} * 16;\n", element(id), id, turn,
              scalar_blocks());
      }
      if (of(id).kept && of(id).pass <= d) {
        print("{0}* const k{1} = all_k{1} + {2} % {3} * {4};\n", element(id), id, turn,
              blocks_kept(id), block_ * padded_);
      }
    }
  }
  // A pass over 64 elements of row r, as a lambda of their index. Its names are in a scope that
  // stays open, nested in those of the passes before it.
  void body(int d) {
    current_ = d;
    const RowPass& pass = passes_[static_cast<size_t>(d)];
    text_ += "{\n";
    block_names(d);
    row_names(pass);
    accumulators(pass.folds);
    print("const auto body{} = [&](long i) __attribute__((always_inline)) {{\n", d);
    fold_body(pass.list, pass.folds);
    text_ += "};\n";
  }
  // What a pass does after whole bodies.
  void end_of_row(int d) {
    current_ = d;
    const RowPass& pass = passes_[static_cast<size_t>(d)];
    const bool rest_of_row = n_ % 64 != 0 && walks(d);
    if (!rest_of_row && pass.folds.empty() && pass.picks.empty()) return;
    print("if (r < rows{}) {{\n", d);
    block_names(d);
    row_names(pass);
    for (int id : pass.picks) pick(id);
    if (rest_of_row) {
      print("long i = {};\n", n_ / 64 * 64);
      rest(pass.list, pass.folds, 1);
    }
    reduced(pass.folds, "w{}[r]");
    text_ += "}\n";
  }
};

}  // namespace

CpuKernel cpu_rows(const Program& p) { return RowWalk(p).run(); }

}  // namespace brrr::program
