// Prints the text of a program's kernel for a GPU.
#include "ops/program/cuda_rows.h"
#include "ops/program/printer.h"

namespace brrr::program {

namespace {

class Text : Printer {
 public:
  Text(const Program& p, const Walk& walk, const std::string& name, bool table)
      : Printer(p), walk_(walk), name_(name), table_(table) {}

  std::string run() {
    group();
    walk_.turned < 0 ? groups() : tiles();
    text_ += table_ ? "}\n}\n" : "}\n";
    return printed();
  }

 private:
  Window::Reach reach(int w) const { return window(w).reach; }
  bool is_splat(int w) const { return reach(w) == Window::Splat; }
  template <class Which, class F> void for_windows(const Which& which, const F& f) {
    for (int w = 0; w < windows(); ++w) {
      if (std::invoke(which, window(w))) f(w);
    }
  }
  static bool is_turned(const Window& w) { return w.reach == Window::Turned; }

  // --- a group -----------------------------------------------------------------------------------

  // `G`: a thread's elements of a group, `x<w>` for each window.
  void group() {
    print("struct G_{} {{\n", name_);
    for (int w = 0; w < windows(); ++w) {
      if (!window(w).touched() || is_splat(w)) continue;
      std::string type = memory(w);
      if (window(w).in_memory() && (reach(w) == Window::Dense || reach(w) == Window::Row)) {
        type = pack(w);
      } else if (reach(w) != Window::Held) {  // As many elements, maybe not one access.
        type = fmt::format("struct {{ {} v[{}]; }}", type, walk_.vector);
      }
      print("{} x{};\n", type, w);
    }
    text_ += "};\n";
  }
  std::string pack(int w) const { return fmt::format("Pack<{}, {}>", memory(w), walk_.vector); }

  // The walk's last group may extend beyond the last element.
  bool partial() const { return walk_.vector > 1 && !walk_.in_rows; }

  const char* index() const { return walk_.ndim && !walk_.wide ? "unsigned" : "unsigned long"; }

  // `O`: the byte offset of an element in each window.
  void offsets() {
    if (walk_.ndim == 0) return;
    print("struct O_{} {{\n", name_);
    for_windows(&Window::by_strides, [&](int w) { print("long o{};\n", w); });
    print("}};\nBRRR_VX O_{0} offsets_{0}(const A_{0}& p, {1} r) {{\n", name_, index());
    text_ += unflatten(walk_, index());
    print("O_{} o;\n", name_);
    for_windows(&Window::by_strides,
                [&](int w) { print("o.o{} = {};\n", w, offset_of(w, walk_.ndim)); });
    text_ += "return o;\n}\n";
  }

  // The element at byte offset `offset` in window w.
  std::string element(int w, const std::string& offset, const std::string& type) const {
    if (window(w).index) return fmt::format("(long)({})", offset);
    return fmt::format("*({}*)(p.a{} + {})", type, w, offset);
  }

  // Prints the function that reads a group from memory, or the one that writes it.
  void transfer(bool store) {
    const int vector = walk_.vector;
    const bool rows = walk_.ndim && walk_.in_rows;
    print("BRRR_VX void {1}_{0}(const A_{0}& p, const {2} e, {3}G_{0}& g) {{\n", name_,
          store ? "write" : "read", index(), store ? "const " : "");
    if (rows) print("const O_{0} o = offsets_{0}(p, e);\n", name_);
    const std::string unroll = fmt::format("#pragma unroll\nfor (int u = 0; u < {}; ++u) ", vector);
    // Beyond the end a thread reads its own first element again, and writes nothing.
    const std::string each = unroll + (partial() && store ? "if (e + u < p.n) " : "");
    const std::string at = partial() && !store ? "(e + u < p.n ? e + u : e)" : "(e + u)";
    std::string whole, single;  // Dense windows: as groups, and at the end by elements.
    for (int w = 0; w < windows(); ++w) {
      if (is_splat(w) || !(store ? window(w).stored : window(w).loaded)) continue;
      const auto one = [&](const std::string& type, const std::string& offset, const char* lane) {
        const std::string place = element(w, offset, type), mine = fmt::format("g.x{}{}", w, lane);
        return (store ? place + " = " + mine : mine + " = " + place) + ";\n";
      };
      const std::string row = fmt::format("o.o{}", w);
      const std::string dense = fmt::format("(long){} * {}", at, window(w).item());
      if (reach(w) == Window::Dense && window(w).index) {
        text_ += each + one("", "e + u", ".v[u]");
      } else if (reach(w) == Window::Dense) {
        whole += one(pack(w), fmt::format("(long)e * {}", window(w).item()), "");
        single += each + one(memory(w), dense, ".v[u]");
      } else if (reach(w) == Window::Row || reach(w) == Window::Held) {
        text_ += one(reach(w) == Window::Row ? pack(w) : memory(w), row, "");
      } else if (rows) {
        const std::string step = fmt::format(" + u * p.s{}_{}", w, walk_.ndim - 1);
        text_ += unroll + one(memory(w), vector > 1 ? row + step : row, ".v[u]");
      } else {
        print("{0}{{\nconst O_{1} o = offsets_{1}(p, {2});\n{3}}}\n", each, name_, at,
              one(memory(w), row, ".v[u]"));
      }
    }
    text_ +=
        !partial() || whole.empty()
            ? whole
            : fmt::format("if (e + {} <= p.n) {{\n{}}} else {{\n{}}}\n", vector, whole, single);
    text_ += "}\n";
  }

  // Loads of the windows that have one element for all.
  void splats() {
    for_windows(
        [](const Window& w) { return w.loaded && w.reach == Window::Splat; },
        [&](int w) { print("const {} x{} = {};\n", memory(w), w, element(w, "0", memory(w))); });
  }

  // Computes element u of `group`: from the values read to those to be written.
  void compute(const std::string& group) {
    std::vector<std::string> names;
    const auto named = [&](int id) { return names[static_cast<size_t>(id)]; };
    const auto leaf = [&](const Statement& s) {
      if (s.kind == Statement::Constant) return splat(s.type, s.text);
      if (s.kind == Statement::Number) return splat(s.type, number(p_, s.which));
      std::string x = is_splat(s.which) ? "" : group + ".";
      x += fmt::format("x{}{}", s.which,
                       is_splat(s.which) || reach(s.which) == Window::Held ? "" : ".v[u]");
      const DType t = window(s).dtype;
      return s.kind == Statement::Load
                 ? from_memory(t, fmt::format("load(&{})", x))
                 : fmt::format("store(&{}, {})", x, to_memory(t, named(s.args[0])));
    };
    for (int id = 0; id < statements(); ++id) {
      const Statement& s = at(id);
      const std::string text = s.kind == Statement::Formula ? formula(id, named) : leaf(s);
      names.push_back(fmt::format("v{}", id));
      if (s.kind == Statement::Store)
        text_ += text + ";\n";
      else if (s.kind == Statement::Formula || s.kind == Statement::Load)
        print("const auto {} = {};\n", names.back(), text);
      else
        names.back() = text;
    }
  }

  // --- the walks ---------------------------------------------------------------------------------

  // A block's threads take neighbouring groups, in as many rounds as a thread has groups.
  void groups() {
    offsets();
    transfer(false);
    transfer(true);
    const int vector = walk_.vector, each = walk_.groups(), step = kDeviceThreads * vector;
    const std::string unroll =
        fmt::format("#pragma unroll\nfor (int k = 0; k < {}; ++k) {{\n", each);
    text_ += kernel_head("KERNEL", name_, "", kDeviceThreads, table_);
    print("const {0} first = ({0})block * {1} + threadIdx.x * {2};\n", index(), step * each,
          vector);
    text_ += "if (first >= p.n) return;\n";
    splats();
    print("G_{} g[{}];\n{}", name_, each, unroll);
    // Beyond the end a thread reads its first group again.
    print("const {} e = first + k * {};\n", index(), step);
    print("read_{}(p, e < p.n ? e : first, g[k]);\n}}\n{}", name_, unroll);
    print("#pragma unroll\nfor (int u = 0; u < {}; ++u) {{\n", vector);
    compute("g[k]");
    print("}}\n}}\n{}const {} e = first + k * {};\n", unroll, index(), step);
    print("if (e < p.n) write_{}(p, e, g[k]);\n}}\n", name_);
  }

  // A block takes a square tile of the innermost dim and the one along which Turned windows are
  // dense. Those are read along that dim into shared memory, and from there transposed.
  void tiles() {
    text_ += kernel_head("BLOCK_KERNEL", name_, "", kDeviceThreads, table_);
    for_windows(is_turned, [&](int w) {
      print("__shared__ {} tile{}[{}][{}];\n", memory(w), w, kDeviceTile, kDeviceTile + 1);
    });
    find_tile();
    splats();
    print("G_{} g[{}];\n", name_, kDeviceTile / kTileRows);
    tile_loop("across", "other");
    for_windows(is_turned, [&](int w) { print("tile{}[other][across] = {};\n", w, in_tile(w)); });
    text_ += "}\n";
    tile_loop("other", "across");
    for_windows([&](const Window& w) { return w.loaded && w.by_strides() && !is_turned(w); },
                [&](int w) { print("g[k].x{}.v[0] = {};\n", w, in_tile(w)); });
    text_ += "}\n__syncthreads();\n";
    tile_loop("other", "across");
    text_ += "constexpr int u = 0;\n";
    for_windows(is_turned, [&](int w) { print("g[k].x{0}.v[u] = tile{0}[across][other];\n", w); });
    compute("g[k]");
    for_windows(&Window::stored, [&](int w) { print("{} = g[k].x{}.v[u];\n", in_tile(w), w); });
    text_ += "}\n";
  }

  // Locates the block's tile, and the thread in it; `base<w>` is the offset by the other dims.
  void find_tile() {
    const int last = walk_.ndim - 1;
    print("const int across = threadIdx.x % {0}, down = threadIdx.x / {0};\n", kDeviceTile);
    text_ += "unsigned r = block;\n";
    text_ += unflatten(walk_, "unsigned");
    print("const long first_t = (long)j{1} * {0}, first_c = (long)j{2} * {0};\n", kDeviceTile,
          walk_.turned, last);
    for_windows(&Window::by_strides, [&](int w) {
      print("const long base{} = {};\n", w, offset_of(w, last, walk_.turned));
    });
  }

  // Loops over the thread's elements: at t in the turned dim and c in the innermost one.
  void tile_loop(const char* t, const char* c) {
    print("#pragma unroll\nfor (int k = 0; k < {}; ++k) {{\n", kDeviceTile / kTileRows);
    print("const int other = down + {} * k;\n", kTileRows);
    print("const long t = first_t + {}, c = first_c + {};\n", t, c);
    print("if (t >= p.size{} || c >= p.size{}) continue;\n", walk_.turned, walk_.ndim - 1);
  }
  std::string in_tile(int w) const {
    return element(
        w,
        fmt::format("base{0} + t * p.s{0}_{1} + c * p.s{0}_{2}", w, walk_.turned, walk_.ndim - 1),
        memory(w));
  }
  static constexpr int kTileRows = kDeviceThreads / kDeviceTile;

  const Walk& walk_;
  const std::string& name_;
  const bool table_;
};

}  // namespace

std::string declaration(Word w, const std::vector<Number>& numbers) {
  if (w.kind == Word::Number) {
    const Number& c = numbers[static_cast<size_t>(w.which)];
    return fmt::format(fmt::runtime(c.control ? "const {}* c{}" : "{} c{}"),
                       spelling(c.dtype).element, w.which);
  }
  if (w.kind == Word::Rows) return fmt::format("long {}", RowWalk::fields[w.which].name);
  // By Word::Kind; the two empty ones are handled above.
  static constexpr const char* others[] = {
      "char* a{}",   "", "long n",    "long size{}", "long mul{}", "long shift{}",
      "long s{}_{}", "", "char* t{}", "char* fault", "long op"};
  return fmt::format(fmt::runtime(others[w.kind]), w.which, w.dim);
}

std::string kernel_head(const char* macro, const std::string& name, const char* suffix, int threads,
                        bool table) {
  if (!table) {
    return fmt::format("{0}({1}{2}, A_{1}, {3}) {{\nconst unsigned block = blockIdx.x;\n", macro,
                       name, suffix, threads);
  }
  // Copy the argument: for all the compiler knows, a store of this thread might overwrite it.
  return fmt::format(
      "{0}({1}{2}, CallTable, {3}) {{\n"
      "int low = 0;\n"
      "for (int high = p.count; high - low > 1;) {{\n"
      "const int middle = (low + high) / 2;\n"
      "if (p.first[middle] <= blockIdx.x) low = middle; else high = middle;\n}}\n"
      "const unsigned block = blockIdx.x - p.first[low];\n"
      "const A_{1} own = ((const A_{1}*)p.arguments)[low];\n"
      "{{\nconst A_{1}& p = own;\n",
      macro, name, suffix, threads);
}

std::string number(const Program& p, int which) {
  return fmt::format("{}p.c{}", p.numbers[static_cast<size_t>(which)].control ? "*" : "", which);
}

std::string unflatten(const Walk& walk, const char* type) {
  std::string out;
  for (int d = walk.ndim - 1; d > 0; --d) {
    const std::string count =
        walk.tiled(d) ? fmt::format("((p.size{} + {}) / {})", d, kDeviceTile - 1, kDeviceTile)
                      : fmt::format("p.size{}", d);
    const std::string quotient =
        walk.wide ? fmt::format("r / {}", count)
                  : fmt::format("(unsigned)(((unsigned long)r * p.mul{0}) >> p.shift{0})", d);
    out += fmt::format("const {0} q{1} = {2}, j{1} = r - q{1} * ({0}){3};\nr = q{1};\n", type, d,
                       quotient, count);
  }
  if (walk.ndim > 0) out += fmt::format("const {} j0 = r;\n", type);
  return out;
}

std::string offset_of(int w, int ndim, int but) {
  std::string sum = "0";
  for (int d = 0; d < ndim; ++d) {
    if (d != but) sum += fmt::format(" + (long)j{0} * p.s{1}_{0}", d, w);
  }
  return sum;
}

std::string cuda_text(const Program& p, const Walk& walk, const std::string& name, Stage,
                      bool table) {
  return Text(p, walk, name, table).run();
}

}  // namespace brrr::program
