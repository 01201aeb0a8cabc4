#include "ops/program/cpu_text.h"

#include <unistd.h>

#include <algorithm>
#include <bit>

#include "core/hash.h"
#include "ops/kinds/reduction.h"

namespace brrr::program {

// A kernel that moves more bytes than this leaves nothing in the caches for the next one, and
// non-temporal stores save reading the lines that they overwrite.
constexpr int64_t kStreaming = int64_t{64} << 20;

int prefetch_level() {
  static const bool large = sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 << 10;
  return large ? 1 : 2;
}

bool prefers_near() {
  static const bool large = sysconf(_SC_LEVEL2_CACHE_SIZE) >= 2 << 20;
  return large && prefetch_level() == 1;
}

Distance one_stream_distance() {
  return prefers_near() ? Distance{3 * kAhead / 8, kAhead / 16} : Distance{2 * kAhead, kAhead};
}

CpuText::CpuText(const Program& p) : Printer(p), ndim_(p.space.ndim), size_(p.space.size) {
  out_.arguments = cpu_arguments(p);
  int64_t bytes = 0;
  for (const Window& w : p.windows) bytes += p.bytes_of(w);
  streaming_ = bytes >= kStreaming;
  // Non-temporal stores need whole, aligned cache lines: row strides are checked here, addresses
  // when the kernel starts.
  for (int w = 0; streaming_ && w < windows(); ++w) {
    const Window& x = window(w);
    bool nontemporal = x.in_memory() && inner_stride(w) == 1 && x.stored && !x.loaded &&
                       x.item() >= 4 && streams(x);
    for (int d = 0; d < ndim_ - 1; ++d) nontemporal &= x.stride[d] * x.item() % 64 == 0;
    if (nontemporal) nontemporal_.insert(w);
  }
}

bool CpuText::streams(const Window& w) const {
  return std::all_of(w.stride, w.stride + ndim_, [](int64_t s) { return s != 0; });
}

std::vector<int> CpuText::all(Statement::Varies which) const {
  std::vector<int> ids;
  for (int id = 0; id < statements(); ++id) {
    if (at(id).varies == which && !is_literal(at(id))) ids.push_back(id);
  }
  return ids;
}

void CpuText::pointers() {
  for (size_t k = 0; k < out_.arguments.size(); ++k) {
    const CpuArgument& a = out_.arguments[k];
    if (a.kind != CpuArgument::Window) continue;
    const std::string type = pointer_type(window(a.which));
    print("{} const {}{} = ({})a[{}];\n", type, origin(), a.which, type, k);
  }
  for (int w = 0; w < windows(); ++w) {
    if (window(w).touched() && !window(w).in_memory()) print("const long {}{} = 0;\n", origin(), w);
  }
  if (nontemporal_.empty()) return;
  text_ += "const bool around = (0";
  for (int w : nontemporal_) {
    print(fmt::runtime(ndim_ > 1 ? " | (long)o{}" : " | (long)(p{} + begin)"), w);
  }
  text_ += ") % 64 == 0;\n";
}

void CpuText::row_pointers(const std::string& r, const std::set<int>& windows, const char* name) {
  // Split the row index into indices of the outer dims, the last of them fastest.
  std::string rest = r;
  for (int d = ndim_ - 2; d > 0; --d) {
    print("const long j{0} = {1} % {2}, rest{0} = {1} / {2};\n", d, rest, size_[d]);
    rest = fmt::format("rest{}", d);
  }
  if (ndim_ > 1) print("const long j0 = {};\n", rest);
  for (int w : windows) {
    std::string from = fmt::format("o{}", w);
    for (int d = 0; d < ndim_ - 1; ++d) {
      if (window(w).stride[d]) from += fmt::format(" + j{} * {}", d, window(w).stride[d]);
    }
    print("{} const {}{} = {};\n", pointer_type(window(w)), name, w, from);
  }
}

void CpuText::loops(const std::vector<int>& ids, const std::string& from, const std::string& to,
                    int unroll, int64_t length) {
  print("long i = {};\n", from);
  if (size_[ndim_ - 1] > 1) {
    bodies(16 * unroll, to, length, [&] {
      at_body(unroll);
      emit(ids, unroll, false);
    });
  }
  if (length && length % (16 * unroll) == 0) return;
  print("for (; i < {}; i += 16) {{\n", to);
  print("const int n = {0} - i < 16 ? (int)({0} - i) : 16;\n", to);
  emit(ids, 1, true);
  text_ += "}\n";
}

void CpuText::bodies(int64_t step, const std::string& to, int64_t length,
                     const std::function<void()>& body) {
  const bool once = length / step == 1;
  text_ += once ? "{\n" : fmt::format("for (; i + {0} <= {1}; i += {0}) {{\n", step, to);
  body();
  if (once) print("i += {};\n", step);
  text_ += "}\n";
}

std::string CpuText::address(const std::string& pointer, int u, bool tail) {
  if (tail) return pointer + " + i";
  if (!std::ranges::count(addressed_, pointer)) addressed_.push_back(pointer);
  return fmt::format("i{} + {}", pointer, 16 * u);
}

std::string CpuText::load(const Statement& x, int u, bool tail) {
  const int w = x.which;
  const int64_t s = inner_stride(w);
  const bool index = window(w).index;
  const char* base = x.varies == Statement::Never ? origin() : "p";
  const std::string place = tail ? "i" : fmt::format("i + {}", 16 * u);
  if (index && s == 0) return fmt::format("splat({}{})", base, w);
  if (index) {
    return fmt::format(
        "i64{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}} * {0}l + "
        "(p{1} + ({2}) * {0}l)",
        s, w, place);
  }
  std::string vector = fmt::format("splat(*{}{})", base, w);
  if (s == 1) {
    const std::string from = address(fmt::format("p{}", w), u, tail);
    vector = tail ? fmt::format("load_n({}, n)", from) : fmt::format("load({})", from);
  } else if (s != 0) {
    vector = tail ? fmt::format("load_strided_n(p{0} + i * {1}, {1}l, n)", w, s)
                  : fmt::format("load_strided(p{0} + ({1}) * {2}, {2}l)", w, place, s);
  }
  return from_memory(window(w).dtype, vector);
}

std::string CpuText::store(const Statement& x, int u, bool tail) {
  const int w = x.which;
  const std::string v = to_memory(window(w).dtype, name(x.args[0], u));
  const int64_t s = inner_stride(w);
  // A space of one element has stride 0: its store is a tail of one lane.
  if (tail) {
    return s <= 1 ? fmt::format("store_n(p{} + i, {}, n)", w, v)
                  : fmt::format("store_strided_n(p{} + i * {}, {}, {}l, n)", w, s, v, s);
  }
  if (s > 1)
    return fmt::format("store_strided(p{0} + (i + {1}) * {2}, {3}, {2}l)", w, 16 * u, s, v);
  const std::string to = address(fmt::format("p{}", w), u, tail) + ", " + v;
  return nontemporal_.contains(w) ? fmt::format("around ? store_nt({0}) : store({0})", to)
                                  : fmt::format("store({})", to);
}

std::string CpuText::name(int id, int u) const {
  const Statement& s = at(id);
  if (is_literal(s)) return value(id, u);
  return s.varies < Statement::InRow ? fmt::format("v{}", id) : fmt::format("v{}_{}", id, u);
}

std::string CpuText::value(int id, int u) const {
  const Statement& s = at(id);
  if (s.kind == Statement::Formula) return formula(id, [&](int a) { return name(a, u); });
  if (s.kind == Statement::Constant) return splat(s.type, s.text);
  // A single row may have any length: the call passes it.
  if (s.kind == Statement::Length)
    return splat(s.type, p_.row == p_.space.numel() ? "length" : std::to_string(p_.row));
  const Number& c = number(s);
  if (!c.control) return splat(s.type, literal(c));
  size_t k = 0;
  while (out_.arguments[k].kind != CpuArgument::Number || out_.arguments[k].which != s.which) ++k;
  return splat(s.type, fmt::format("*(const {}*)a[{}]", spelling(c.dtype).element, k));
}

// The most values that are live in registers at once: loads come first, stores last.
size_t CpuText::live_vectors(const std::vector<int>& ids) const {
  std::vector<int> last(p_.statements.size());
  for (int id : ids) {
    for (int a : at(id).args) last[static_cast<size_t>(a)] = id;
  }
  size_t most = 1, live = 0;
  std::vector<size_t> ends(p_.statements.size() + 1);
  for (size_t k = 0; k < p_.statements.size(); ++k) {
    live -= ends[k];
    const bool here = std::binary_search(ids.begin(), ids.end(), static_cast<int>(k));
    if (!here || p_.statements[k].kind == Statement::Store) continue;
    most = std::max(most, ++live);
    ++ends[std::max(static_cast<size_t>(last[k]), k + 1)];
  }
  return most;
}

// The out-of-order window is some 200 operations. One polynomial after the other fills it with one
// dependent chain, unless enough vectors take each step together: 20 polynomials took a third of
// the time with eight vectors that they took with one. Long text costs compile time: some 5 ms for
// a polynomial of one vector.
int CpuText::choose_unroll(const std::vector<int>& ids) const {
  constexpr bool whole = BRRR_VX_BYTES == 64;  // A vector is one register.
  constexpr size_t most_polynomials = 64, statements = 2048, in_registers = whole ? 32 : 8;
  size_t cost = 0, lines = 1;
  for (int id : ids) {
    cost += at(id).cost;
    lines += at(id).kind == Statement::Formula;
  }
  const size_t polynomials = (cost + 1) / 2;
  // Where a vector takes several registers there are only sixteen: two vectors' polynomials fill
  // these; more would spill and take the compiler two or three times as long.
  constexpr size_t side_by_side = whole ? 8 : 2;
  if (polynomials > 1) {
    const size_t fits = std::max<size_t>(most_polynomials / polynomials, 1);
    return static_cast<int>(std::min(side_by_side, std::bit_floor(fits)));
  }
  // In a long chain of single instructions each waits four cycles; two can start per cycle.
  const size_t chains = whole && lines >= 10 ? 8 : 4;
  const size_t at_most = polynomials > 0 ? std::min(side_by_side, chains) : chains;
  const size_t most =
      std::min(std::bit_floor(in_registers / live_vectors(ids)), statements / lines);
  return static_cast<int>(std::clamp<size_t>(most, 1, at_most));
}

void CpuText::emit(const std::vector<int>& ids, int unroll, bool tail) {
  std::string lines;
  addressed_.clear();
  for (int id : ids) {
    if (is_literal(at(id))) continue;
    for (int u = 0; u < unroll; ++u) lines += line(id, u, tail) + ";\n";
  }
  for (const std::string& pointer : addressed_) print("auto* const i{0} = {0} + i;\n", pointer);
  text_ += lines;
}
std::string CpuText::line(int id, int u, bool tail) {
  const Statement& s = at(id);
  if (s.kind == Statement::Store) return store(s, u, tail);
  return fmt::format("const auto {} = {}", name(id, u),
                     s.kind == Statement::Load ? load(s, u, tail) : value(id, u));
}
void CpuText::store_scalars(const Statement& s, const std::string& place, const std::string& value,
                            const std::string& count) {
  print("store_n({}, {}, {});\n", place, to_memory(window(s).dtype, value), count);
}
void CpuText::store_scalar(const Statement& s) {
  store_scalars(s, fmt::format("o{}", s.which), name(s.args[0], 0), "1");
}

// A lane has at least four bytes.
bool CpuText::fits_register(int id) const {
  return 16 * std::max<size_t>(itemsize(at(id).type), 4) <= BRRR_VX_BYTES;
}
std::string CpuText::function(const std::string& text) {
  Fnv of_text;
  of_text.add(text.data(), text.size());
  const std::string name = fmt::format("f{:x}", of_text.hash);
  out_.functions.push_back(indented(fill(text, {name})));
  return name;
}
void CpuText::accumulators(const std::vector<int>& folds) {
  for (int f : folds) {
    for (int u = 0; u < 4; ++u) {
      print("{} a{}_{} = {};\n", carried(f), f, u, name(at(f).args[1], 0));
    }
  }
}
void CpuText::accumulate(const std::vector<int>& ids, const std::vector<int>& folds, int unroll,
                         bool tail, const std::string& names) {
  emit(ids, unroll, tail);
  for (int u = 0; u < unroll; ++u) {
    for (int f : folds) {
      const std::string sum = fill(names, {std::to_string(f), std::to_string(u)});
      const std::string x = name(at(f).args[0], u);
      const std::string in =
          tail ? fmt::format("where(first_lanes(n), {}, {})", x, name(at(f).args[1], 0))
               : "(" + x + ")";
      print("{} = {};\n", sum, combined(f, value_of(f, sum), in));
    }
  }
}
std::string CpuText::fold_four(int fold, const std::string& names) {
  const std::string name =
      function(fmt::format("BRRR_VX auto $0({0} a, {0} b, {0} c, {0} d) {{\n"
                           "const auto op = [](auto x, auto y) {{ return {1}; }};\n"
                           "return reduce(op(op(a, b), op(c, d)), op);\n}}\n",
                           vector(fold), combined(fold, "(x)", "(y)")));
  std::string all;
  for (const char* k : {"0", "1", "2", "3"}) {
    all += (all.empty() ? "" : ", ") + value_of(fold, fill(names, {k}));
  }
  return fmt::format("{}({})", name, all);
}
void CpuText::fold_array(int fold, const std::string& array, const std::string& count) {
  const std::string each = "where(first_lanes(n), load_n(x + i, n), init)";
  const std::string name = function(fmt::format(
      "static __attribute__((noinline)) void $0({0}* x, long m, {1} init) {{\n"
      "for (long t; m > 1; m = t) {{\n"
      "t = (m + {2}) / {3};\n"
      "for (long c = 0; c < t; ++c) {{\n"
      "const long to = (c + 1) * {3} < m ? (c + 1) * {3} : m;\n"
      "{6} r[4] = {{init, init, init, init}};\n"
      "for (long i = c * {3}, k = 0; i < to; i += 16, k = (k + 1) % 4) {{\n"
      "const int n = to - i < 16 ? (int)(to - i) : 16;\n"
      "r[k] = {4};\n"
      "}}\n"
      "x[c] = {5};\n"
      "}}\n}}\n}}\n",
      element(fold), vector(fold), kReduceChunk - 1, kReduceChunk,
      combined(fold, value_of(fold, "r[k]"), each), fold_four(fold, "r[$0]"), carried(fold)));
  print("{}({}, {}, {});\n", name, array, count, CpuText::name(at(fold).args[1], 0));
}
void CpuText::fold_all(int fold, const std::string& count) {
  fold_array(fold, fmt::format("s{}", fold), count);
  print("const auto v{0} = splat(*s{0});\n", fold);
}

}  // namespace brrr::program
