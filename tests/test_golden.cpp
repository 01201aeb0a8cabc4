// Checksums of the results of every public op on the CPU and of the gradients of its inputs, in
// eager mode, float32 and float64 (number_calls() also in int64). A change that must keep every bit
// must keep tests/golden_sums.txt.
//
// After a change that is meant to change bits, or that adds a call here, rewrite the file from the
// repository's root and review what git shows as changed:
//
//   BRRR_WRITE_GOLDEN=1 build/release/bin/brrr_tests -tc='golden*'
//
// A line is the call, the dtype, the case, then "y=" for the results and "d<i>=" for the gradient
// of input i. Each case runs with dense operands and with operands in other layouts; one checksum
// covers all of them. Calls are public ones, named as users write them, so that lines do not change
// with the rows behind them. The checksums are the same on every machine, with any number of
// threads, in every build: calls that may reach OpenBLAS get whole numbers, whose sums are exact in
// any order. Gradients of attention's mask are left out, as they come from such products.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include "core/hash.h"
#include "tests/golden_calls.h"
#include "tests/library_cases.h"
#include "tests/reduction_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

const std::string kPath = std::string(BRRR_SOURCE_DIR) + "/tests/golden_sums.txt";

// --- lines ---------------------------------------------------------------------------------------

// A checksum of dtypes, sizes and comparable_bytes().
struct Sum : Fnv {
  void take(const Tensor& t) {
    const std::string kind = t.defined() ? name(t.dtype()) + to_string(t.sizes()) : "undefined";
    add(kind.data(), kind.size());
    const auto bytes = comparable_bytes(t);
    add(bytes.data(), bytes.size());
  }
};

Tensor whole(const IntList& sizes, DType t, int salt = 0) {
  return sampled(sizes, kInt64, -2, 2, salt).to(t);
}
std::string text_of(const IntList& sizes) {
  std::string s;
  for (int64_t n : sizes) s += (s.empty() ? "" : "x") + std::to_string(n);
  return s.empty() ? "0d" : s;
}

class Lines {
 public:
  /// One line of fn's results and gradients for each of the sets of operands.
  void add(const std::string& call, DType t, const std::string& which, const Function& fn,
           const std::vector<Tensors>& sets, bool whole_numbers = false) {
    const std::string key = fmt::format("{} {} {}", call, name(t), which);
    CAPTURE(key);
    std::map<std::string, Sum> sums;
    for (In operands : sets) {
      manual_seed(11);
      Tensors in, wanted, flowing, weights;
      std::vector<size_t> places;
      for (const Tensor& x : operands) {
        in.push_back(leaf(x));
        if (!in.back().requires_grad()) continue;
        places.push_back(in.size() - 1);
        wanted.push_back(in.back());
      }
      for (const Tensor& y : fn(in).all) {
        sums["y"].take(y);
        if (!y.requires_grad()) continue;
        flowing.push_back(y);
        weights.push_back(whole_numbers ? whole(y.sizes(), y.dtype(), 5)
                                        : sampled(y.sizes(), y.dtype(), 0.3, 1.7, 5));
      }
      if (flowing.empty()) continue;
      const Tensors g = grad(flowing, wanted, {.allow_unused = true}, weights);
      for (size_t i = 0; i < g.size(); ++i) {
        if (g[i].defined()) sums["d" + std::to_string(places[i])].take(g[i]);
      }
    }
    std::string line;
    for (const char* k = "yd"; *k; ++k) {
      for (const auto& [what, sum] : sums) {
        if (what[0] == *k) line += fmt::format(" {}={:016x}", what, sum.hash);
      }
    }
    CHECK_MESSAGE(lines.emplace(key, line).second, "two calls have the name ", key);
  }
  std::map<std::string, std::string> lines;
};

// With three operands of equal sizes, of sizes that broadcast, and at the limits of the ranges.
void pointwise_lines(Lines& l, const Call& c, DType t) {
  const auto operand = [&](const IntList& s, int i) { return sampled(s, t, c.lo, c.hi, i); };
  for (const IntList& s : {IntList{1, 1}, {3, 17}, {40, 67}, {211, 200}}) {
    std::vector<Tensors> sets;
    for (size_t k : {0, 1, 3}) {  // Dense; then two sets in which each operand has another layout.
      Tensors in;
      for (int i = 0; i < 3; ++i) {
        const auto layout = k ? kLayouts[(k + static_cast<size_t>(i)) % 5] : Layout::Dense;
        in.push_back(laid_out(operand(s, i), layout));
      }
      sets.push_back(in);
    }
    l.add(c.name, t, text_of(s), c.fn, sets);
  }
  const Tensor a = operand({33, 65}, 0), row = operand({65}, 1), column = operand({33, 1}, 2);
  const Tensor one = operand({}, 3);
  l.add(c.name, t, "broadcast", c.fn, {{a, row, column}, {row, column, a}, {a, one, row}});
  if (!is_floating(t)) return;
  const double values[] = {std::nan(""), kInf, -kInf, 0.0, -0.0, std::ldexp(1, -140),
                           1e-30,        1e30, 0.5,   1.5, -3,   3,
                           88,           -104};
  const size_t n = std::size(values);
  std::vector<double> v[3];
  for (size_t i = 0; i < n * n; ++i) {
    v[0].push_back(values[i % n]);
    v[1].push_back(values[i / n]);
    v[2].push_back(values[i * 5 % n]);
  }
  l.add(c.name, t, "special", c.fn, {{tensor(v[0]).to(t), tensor(v[1]).to(t), tensor(v[2]).to(t)}});
}

// --- rows, reductions ----------------------------------------------------------------------------

using Reduce = Tensor (*)(const Tensor&, const IntList&, bool);
const std::pair<const char*, Reduce> kReductions[] = {
    {"sum", sum},
    {"mean", mean},
    {"prod", [](const Tensor& x, const IntList& d, bool k) { return prod(x * 0.01 + 1.0, d, k); }},
    {"amax", amax},
    {"amin", amin},
    {"norm", norm},
    {"logsumexp",
     [](const Tensor& x, const IntList& d, bool k) {
       return logsumexp(x, d.empty() ? dims_of(static_cast<int>(x.dim())).back() : d, k);
     }},
    {"var", [](const Tensor& x, const IntList& d, bool k) { return var(x, d, true, k); }},
    {"var(biased)", [](const Tensor& x, const IntList& d, bool k) { return var(x, d, false, k); }},
    {"any", [](const Tensor& x, const IntList& d, bool k) { return any(x > 1.9, d, k); }},
    {"all", [](const Tensor& x, const IntList& d, bool k) { return all(x > -1.9, d, k); }}};

const std::vector<IntList>& row_shapes() {
  static const std::vector<IntList> shapes = {{3, 1},    {3, 3},    {3, 16},   {3, 17},
                                              {3, 64},   {3, 100},  {3, 257},  {3, 1000},
                                              {3, 4097}, {3, 5000}, {300, 257}};
  return shapes;
}

void row_lines(Lines& l, DType t) {
  for (size_t k = 0; k < row_shapes().size(); ++k) {
    const IntList& s = row_shapes()[k];
    const int64_t n = s.back();
    const Tensor x = sampled(s, t, -4, 4), w = sampled({n}, t, 0.5, 1.5, 1),
                 b = sampled({n}, t, -1, 1, 2), y = sampled(s, t, -2, 2, 3), at = ids(s[0], n);
    const auto strided = [&](const Tensor& m, size_t i) {
      return laid_out(m, kLayouts[1 + (k + i) % 4]);
    };
    const std::vector<Tensors> sets = {{x, y, w, b, at},
                                       {strided(x, 0), strided(y, 1), with_gaps(w), b, at}};
    for (const Call& c : row_calls()) l.add(c.name, t, text_of(s), c.fn, sets);
  }
  // A row of -inf alone, one with inf, one with NaN, and large numbers.
  const Tensor x = sampled({6, 100}, t, -400, 400);
  x.select(0, 0).fill_(-kInf);
  x.select(0, 1).slice(0, 3, 90).fill_(-kInf);
  x.select(0, 2).narrow(0, 7, 1).fill_(kInf);
  x.select(0, 3).narrow(0, 50, 1).fill_(std::nan(""));
  const Tensor w = sampled({100}, t, 0.5, 1.5, 1), y = sampled({6, 100}, t, -2, 2, 3);
  for (const Call& c : row_calls()) {
    if (c.name.starts_with("multinomial")) continue;  // It refuses them.
    l.add(c.name, t, "special", c.fn, {{x, y, w, w, ids(6, 100)}});
  }
}

void reduction_lines(Lines& l, DType t) {
  std::vector<IntList> shapes = row_shapes();
  for (const IntList& s : {IntList{}, {17}, {100003}, {5, 70, 18}, {2, 3, 4, 5}}) {
    shapes.push_back(s);
  }
  for (const auto& [called, reduce] : kReductions) {
    for (const IntList& s : shapes) {
      const Tensor x = sampled(s, t, -2, 2);
      for (const IntList& dims : dims_of(static_cast<int>(s.size()))) {
        const auto fn = [&, f = reduce](In in) { return f(in[0], dims, dims.size() % 2 == 0); };
        const std::string call = fmt::format("{}({})", called, fmt::join(dims, ","));
        l.add(call, t, text_of(s), fn, {{x}, {reversed(x)}, {with_gaps(x)}});
      }
    }
  }
}

// --- products, attention, other calls ------------------------------------------------------------

void product_lines(Lines& l, DType t) {
  const std::pair<IntList, IntList> shapes[] = {{{3, 4}, {4, 5}},       {{4}, {4}},
                                                {{3, 4}, {4}},          {{4}, {4, 5}},
                                                {{2, 3, 4}, {4, 5}},    {{2, 3, 4}, {4}},
                                                {{2, 3, 4}, {2, 4, 5}}, {{2, 1, 3, 4}, {3, 4, 2}},
                                                {{1, 257}, {257, 100}}, {{64, 1}, {1, 100}},
                                                {{70, 300}, {300, 90}}, {{4, 17, 33}, {4, 33, 65}}};
  for (const auto& [a, b] : shapes) {
    const Tensor x = whole(a, t), y = whole(b, t, 3);
    l.add(
        "matmul", t, text_of(a) + "," + text_of(b), [](In in) { return matmul(in[0], in[1]); },
        {{x, y}, {reversed(x), with_gaps(y)}}, true);
  }
  for (const IntList& s : {IntList{4}, {3, 4}, {2, 3, 17}, {300, 64}, {1, 257}}) {
    const Tensor x = whole(s, t), w = whole({33, s.back()}, t, 1), b = whole({33}, t, 2);
    l.add(
        "linear", t, text_of(s), [](In in) { return linear(in[0], in[1]); },
        {{x, w}, {reversed(x), reversed(w)}}, true);
    l.add(
        "linear(b)", t, text_of(s), [](In in) { return linear(in[0], in[1], in[2]); },
        {{x, w, b}, {with_gaps(x), with_gaps(w), with_gaps(b)}}, true);
  }
  const std::pair<std::string, std::vector<IntList>> sums[] = {
      {"bhid,bhjd->bhij", {{2, 2, 3, 4}, {2, 2, 5, 4}}},
      {"ij,ij,i->", {{3, 4}, {3, 4}, {3}}},
      {"i,j,ij->ji", {{3}, {4}, {3, 4}}},
      {"iij->ij", {{3, 3, 2}}},
      {"ba", {{3, 4}}},
      {"...ij,...jk->...ik", {{2, 1, 3, 4}, {3, 4, 2}}},
      {"ij,kj->", {{3, 4}, {1, 4}}}};
  for (const auto& sum : sums) {
    const std::string& equation = sum.first;
    Tensors in;
    for (const IntList& s : sum.second) in.push_back(whole(s, t, static_cast<int>(in.size())));
    l.add(
        "einsum", t, equation, [&](In x) { return einsum(equation, x); }, {in}, true);
  }
}

void attention_lines(Lines& l, DType t) {
  struct Sizes {
    int64_t queries, keys, width, depth;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1},
                         {5, 7, 8, 3},
                         {33, 33, 17, 17},
                         {70, 130, 64, 64},
                         {16, 100, 100, 257}}) {
    const Tensor q = sampled({2, 3, s.queries, s.width}, t), v = sampled({3, s.keys, s.depth}, t),
                 k = sampled({2, 3, s.keys, s.width}, t, -2, 2, 4);
    const Tensor bias = sampled({s.queries, s.keys}, t, -3, 3, 8), allowed = bias > -1.0;
    const std::pair<const char*, AttentionOptions> options[] = {
        {"", {}},
        {"(causal)", {.causal = true}},
        {"(allowed)", {.mask = allowed}},
        {"(bias)", {.causal = true, .mask = bias, .scale = 0.3}},
        {"(column)", {.mask = bias.narrow(1, 0, 1) > 1.0}},
        {"(dropout)", {.causal = true, .dropout = 0.25}}};
    for (const auto& [suffix, o] : options) {
      const auto fn = [o = o](In x) { return scaled_dot_product_attention(x[0], x[1], x[2], o); };
      l.add(fmt::format("scaled_dot_product_attention{}", suffix), t,
            fmt::format("{}x{}x{}x{}", s.queries, s.keys, s.width, s.depth), fn,
            {{q, k, v}, {reversed(q), with_gaps(k), reversed(v)}});
    }
  }
}

// Parameters after one step and at the end; the step with found_inf set must change nothing.
template <class Optimizer, class Options>
void optimizer_line(Lines& l, const char* called, DType t, const Options& options) {
  for (const IntList& s : {IntList{3, 17}, {33000}}) {
    const Tensors p = {leaf(sampled(s, t)), leaf(sampled(s, t, -1, 1, 1).t().clone().t())};
    Optimizer o(p, options);
    Tensors seen;
    for (int i = 0; i < 4; ++i) {
      for (const Tensor& x : p) x.set_grad(sampled(s, t, -1, 1, i + 3));
      if (i == 1) seen.push_back(optim::clip_grad_norm_(p, 0.5));
      o.step(i == 2 ? tensor(true) : i == 3 ? tensor(false) : Tensor());
      if (i == 1 || i == 2) continue;
      for (const Tensor& x : p) seen.push_back(x.detach().clone());
    }
    l.add(called, t, text_of(s), [&](In) { return seen; }, {{}});
  }
}

void optimizer_lines(Lines& l, DType t) {
  using namespace optim;
  optimizer_line<SGD>(l, "SGD", t, SGDOptions{.lr = 0.1});
  optimizer_line<SGD>(l, "SGD(decay)", t, SGDOptions{.lr = 0.1, .weight_decay = 0.03});
  optimizer_line<SGD>(l, "SGD(momentum)", t, SGDOptions{.momentum = 0.9, .weight_decay = 0.03});
  optimizer_line<SGD>(l, "SGD(nesterov)", t, SGDOptions{.momentum = 0.9, .nesterov = true});
  optimizer_line<Adam>(l, "Adam", t, AdamOptions{});
  optimizer_line<Adam>(l, "Adam(decay)", t, AdamOptions{.lr = 0.01, .weight_decay = 0.1});
  optimizer_line<AdamW>(l, "AdamW", t, AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
}

Lines all_lines() {
  Lines l;
  for (DType t : {kFloat32, kFloat64, kInt64}) {
    for (const Call& c : number_calls()) pointwise_lines(l, c, t);
  }
  for (DType t : {kFloat32, kFloat64}) {
    for (const Call& c : float_calls()) pointwise_lines(l, c, t);
    row_lines(l, t);
    reduction_lines(l, t);
    product_lines(l, t);
    attention_lines(l, t);
    optimizer_lines(l, t);
    std::map<std::string, int> count;
    for (const Case& c : all_cases()) {
      const std::string called = c.covers;
      const std::string which = fmt::format("case{}", count[called]++);
      if (called == "matmul" || called == "linear" || called == "einsum") continue;
      l.add(called, t, which, [&](In x) { return c.fn(x); }, {inputs_of(c, t)});
    }
  }
  for (const Call& c : makers()) l.add(c.name, c.fn({}).all[0].dtype(), "-", c.fn, {{}});
  return l;
}

}  // namespace

TEST_CASE("golden: every op gives the recorded bits") {
  const Lines now = all_lines();
  if (std::getenv("BRRR_WRITE_GOLDEN")) {
    std::ofstream out(kPath);
    for (const auto& [key, sums] : now.lines) out << key << sums << '\n';
    REQUIRE(out.good());
    return;
  }
  std::map<std::string, std::string> then;
  std::ifstream in(kPath);
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find(' ', line.find(' ', line.find(' ') + 1) + 1);
    REQUIRE_MESSAGE(end != std::string::npos, kPath, ": ", line);
    then[line.substr(0, end)] = line.substr(end);
  }
  REQUIRE_MESSAGE(!then.empty(), kPath, " cannot be read; write it as this file's head says");
  for (const auto& [key, sums] : now.lines) {
    const auto at = then.find(key);
    if (at == then.end()) {
      FAIL_CHECK("new: ", key, sums);
    } else if (at->second != sums) {
      FAIL_CHECK("differs: ", key, "\n  was", at->second, "\n  is ", sums);
    }
  }
  for (const auto& [key, sums] : then) {
    if (!now.lines.count(key)) FAIL_CHECK("missing: ", key, sums);
  }
}
