// A third implementation of programs: as plain C, one element after the other, against the vectors
// of eager kernels and of generated ones.

#include "backends/cpu/jit.h"
#include "graph/schedule.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/program/cpu.h"
#include "tests/recorded.h"
#include "tests/row_cases.h"
#include "tests/scalar_target.h"
#include "tests/special_values.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

using program::Program;

class Scalars {
 public:
  ~Scalars() {
    if (module_) cpu::unload(module_);
  }
  void add(const Program& p) { text_ += program::scalar_text(p, fmt::format("k{}", n_++)); }
  void run(size_t k, const std::vector<char*>& arguments) {
    bool cached = false;
    if (!module_) module_ = cpu::build(text_, cached);
    void* fn = cpu::symbol(module_, fmt::format("k{}", k).c_str());
    reinterpret_cast<void (*)(char* const*)>(fn)(arguments.data());
  }

 private:
  std::string text_ = program::scalar_prelude();
  size_t n_ = 0;
  KernelModule* module_ = nullptr;
};

DType compute_of(const OpDef& op, const Tensors& in) {
  std::vector<TensorImpl*> impls;
  for (const Tensor& t : in) impls.push_back(t.impl());
  return pointwise_compute_dtype(OpCall(op, impls.data(), static_cast<int>(in.size())));
}

// The row over dense vectors: outputs, then inputs.
Program program_of_row(const OpDef& op, const Tensors& out, const Tensors& in) {
  Program p;
  p.space.ndim = 1;
  p.space.size[0] = out[0].numel();
  program::Step step{&op, compute_of(op, in), {}, {}};
  for (const Tensors* list : {&out, &in}) {
    for (const Tensor& t : *list) {
      (list == &out ? step.out : step.in).push_back(static_cast<int>(p.windows.size()));
      p.windows.push_back({.dtype = t.dtype(), .loaded = list == &in, .stored = list == &out});
      p.windows.back().stride[0] = 1;
    }
  }
  append_steps(p, {step}, false);
  return p;
}

char* bytes_of(const Tensor& t) { return static_cast<char*>(t.data_ptr()); }

// Whether all its operations are correctly rounded.
bool is_exact(const Program& p) {
  return std::all_of(p.statements.begin(), p.statements.end(),
                     [](const Statement& s) { return s.kind != Statement::Formula || s.cost < 2; });
}

double epsilon(DType t) {
  return t == kFloat64 ? 0x1p-52 : t == kBFloat16 ? 0x1p-7 : t == kFloat16 ? 0x1p-10 : 0x1p-23;
}

// Within `units` last places of the largest of value, operands and 1; infinity starts a bit early.
void check_near(const Tensor& got, const Tensor& want, double scale, double units,
                const std::string& what) {
  const auto u = got.to(kFloat64).to_vector<double>(), v = want.to(kFloat64).to_vector<double>();
  const double most = want.dtype() == kFloat64 ? 1e300 : want.dtype() == kFloat16 ? 6e4 : 3e38;
  for (size_t i = 0; i < u.size(); ++i) {
    const double unit = epsilon(want.dtype()) * std::max({1.0, scale, std::fabs(v[i])});
    const bool huge = std::fabs(u[i]) > most && std::fabs(v[i]) > most && u[i] * v[i] > 0;
    const bool same = u[i] == v[i] || (std::isnan(u[i]) && std::isnan(v[i])) || huge;
    const bool near = same || std::fabs(u[i] - v[i]) <= units * unit;
    CHECK_MESSAGE(near, fmt::format("{}, element {}: {} in plain C, {}", what, i, u[i], v[i]));
  }
}

struct RowCase {
  const OpDef* op;
  Tensors in, want, got;
  Program program;
};

void check_rows(const std::vector<std::pair<const OpDef*, Tensors>>& calls) {
  Scalars scalars;
  std::vector<RowCase> cases;
  for (const auto& [op, in] : calls) {
    RowCase c{op, in, run_row(*op, in), {}, {}};
    for (const Tensor& t : c.want) c.got.push_back(empty_like(t));
    c.program = program_of_row(*op, c.got, c.in);
    scalars.add(c.program);
    cases.push_back(std::move(c));
  }
  for (size_t k = 0; k < cases.size(); ++k) {
    const RowCase& c = cases[k];
    std::vector<char*> arguments;
    double scale = 0;
    for (const Tensor& t : c.got) arguments.push_back(bytes_of(t));
    for (const Tensor& t : c.in) {
      arguments.push_back(bytes_of(t));
      for (double x : t.to(kFloat64).to_vector<double>()) {
        if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
      }
    }
    scalars.run(k, arguments);
    for (size_t o = 0; o < c.got.size(); ++o) {
      const std::string what =
          fmt::format("{}({}), output {}", c.op->name, describe(c.in[0].impl()), o);
      if (is_exact(c.program)) {
        const std::string d = difference(c.got[o], c.want[o]);
        CHECK_MESSAGE(d.empty(), what, ": ", d);
      } else {
        check_near(c.got[o], c.want[o], scale, 4.0 * operations(*c.op), what);
      }
    }
  }
}

// The row op over `rows` rows of n elements: outputs, then inputs.
Program program_of_row_op(const OpDef& op, const nn_test::RowCase& c, const Tensors& out,
                          int64_t rows, int64_t n) {
  Program p;
  p.space = {2, {rows, n}};
  p.row = n;
  const auto window = [&](const Tensor& t, bool in_row, bool per_row, bool stored) {
    p.windows.push_back({.dtype = t.dtype(), .loaded = !stored, .stored = stored});
    p.windows.back().stride[0] = per_row ? (in_row ? n : 1) : 0;
    p.windows.back().stride[1] = in_row;
    return static_cast<int>(p.windows.size()) - 1;
  };
  const auto number = [&](DType t, int word) {
    p.numbers.push_back({t, c.words.v[word]});
    return static_cast<int>(p.numbers.size()) - 1;
  };
  program::Step step{&op, compute_type(out[0].dtype()), {}, {}};
  for (size_t k = 0; k < out.size(); ++k) {
    const Operand r = op.row->results[k];
    const bool each = r == Operand::Each;
    step.out.push_back(
        window(out[k], each || r == Operand::Column, each || r == Operand::PerRow, true));
  }
  for (const RowOperand& o : op.row->operands) {
    const bool each = o.kind == Operand::Each, id = o.kind == Operand::Id;
    step.ignored.push_back(id ? number(kInt64, o.word) : 0);
    step.in.push_back(o.kind == Operand::Scalar
                          ? ~number(kFloat64, o.word)
                          : window(c.in[static_cast<size_t>(o.input)], each || is_shared(o.kind),
                                   each || id || o.kind == Operand::PerRow, false));
  }
  append_steps(p, {step}, false);
  return p;
}

void check_row_ops(DType t, int64_t rows, int64_t n) {
  Scalars scalars;
  struct Called {
    std::string what;
    Tensors want, got, in;
  };
  std::vector<Called> calls;
  nn_test::for_row_ops([&](const OpDef& op) {
    const nn_test::RowCase c = nn_test::make_case(*op.row, rows, n, t);
    Called call{fmt::format("{} of {} rows of {}", op.name, rows, n), run(op, c, false), {}, c.in};
    for (const Tensor& y : call.want) call.got.push_back(empty_like(y));
    scalars.add(program_of_row_op(op, c, call.got, rows, n));
    calls.push_back(std::move(call));
  });
  for (size_t k = 0; k < calls.size(); ++k) {
    const Called& c = calls[k];
    std::vector<char*> arguments;
    for (const Tensors* list : {&c.got, &c.in}) {
      for (const Tensor& x : *list) arguments.push_back(bytes_of(x));
    }
    scalars.run(k, arguments);
    for (size_t o = 0; o < c.got.size(); ++o) {
      check_near(c.got[o], c.want[o], 1, itemsize(c.want[o].dtype()) == 2 ? 2 : 64, c.what);
    }
  }
}

// Runs the step's groups in order, in separate memory; `inputs` are in the order of first use.
std::vector<char> run_groups(const graph::Recording& r, const Tensors& inputs) {
  const graph::Schedule s = graph::make_schedule(r, true);
  std::vector<std::vector<char>> memory;
  for (const graph::StorageInfo& st : r.storages) memory.emplace_back(st.bytes);
  for (size_t k = 0; k < inputs.size(); ++k) {
    std::vector<char>& m = memory[r.externals[k]];
    std::copy_n(bytes_of(inputs[k]), m.size(), m.begin());
  }
  Scalars scalars;
  std::vector<graph::GroupProgram> groups;
  for (const graph::Group& g : s.groups) {
    REQUIRE(g.fused);
    for (const graph::Part& part : g.parts) {
      groups.push_back(graph::program_of(r, part, s));
      scalars.add(groups.back().program);
    }
  }
  CHECK(groups.size() < r.instrs.size());
  for (size_t k = 0; k < groups.size(); ++k) {
    std::vector<char*> arguments;
    for (const auto& a : program::cpu_arguments(groups[k].program)) {
      REQUIRE(a.kind == program::CpuArgument::Window);
      const graph::Value& v = r.value(groups[k].values[static_cast<size_t>(a.which)]);
      arguments.push_back(memory[v.storage].data() +
                          v.offset * static_cast<int64_t>(itemsize(v.dtype)));
    }
    scalars.run(k, arguments);
  }
  REQUIRE(r.survivors.size() == 1);
  return memory[r.survivors[0]];
}

template <class F> void check_step(const F& fn, const Tensors& inputs, double units) {
  const graph::Recording r = record([&] { return std::vector<Tensor>{fn(inputs)}; });
  const Tensor want = fn(inputs), got = empty_like(want);
  const std::vector<char> bytes = run_groups(r, inputs);
  REQUIRE(bytes.size() == static_cast<size_t>(want.numel()) * itemsize(want.dtype()));
  std::copy(bytes.begin(), bytes.end(), bytes_of(got));
  units ? check_near(got, want, 1, units, "step") : check_same(got, want);
}

}  // namespace

TEST_CASE("program: numbers are printed the same in every locale") {
  const char* const names[] = {"C", "de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "fr_FR", "cs_CZ.UTF-8"};
  const std::string before = std::setlocale(LC_NUMERIC, nullptr);
  for (const char* name : names) {
    if (!std::setlocale(LC_NUMERIC, name)) continue;  // Most machines have few locales.
    CHECK(literal(0.1) == "0x1.999999999999ap-4");
    CHECK(literal(-3.0) == "-0x1.8p+1");
    CHECK(literal(-0.0) == "-0x0p+0");
  }
  std::setlocale(LC_NUMERIC, before.c_str());
}

TEST_CASE("program: every pointwise row in plain C has the eager kernel's values") {
  const TempCache cache;
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8, kBool}) {
    CAPTURE(std::string(name(t)));
    std::vector<std::pair<const OpDef*, Tensors>> calls;
    for (const OpDef* op : rows_of(OpKind::Pointwise)) {
      if (!is_floating(t) && !is_number_row(*op)) continue;
      calls.emplace_back(op, operands_of(*op, {37}, t));
      if (t == kFloat32 || t == kFloat64) {
        calls.emplace_back(op, as_tensors(*op, special_columns(*op), t));
      }
    }
    check_rows(calls);
  }
}

// A few rows, and more than a block of rows for folds over rows.
TEST_CASE("program: every row op in plain C has the eager kernel's values") {
  const TempCache cache;
  const NoGradGuard guard;
  manual_seed(3);
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    CAPTURE(std::string(name(t)));
    check_row_ops(t, 5, 37);
    check_row_ops(t, 70, 18);
    check_row_ops(t, 1, 1);
  }
}

TEST_CASE("program: fused groups in plain C") {
  const TempCache cache;
  const NoGradGuard guard;
  const Tensors in{randn({6, 17}), randn({17}), randn({17, 6}).t(), randn({6, 1})};
  const auto exact = [](const Tensors& x) {
    const Tensor a = x[0] * x[1], y = a + x[2] / 3 - 0.25;
    return where(y > x[3], maximum(y, x[0]), -y) * 1.5;
  };
  check_step(exact, in, 0);
  const auto rounded = [](const Tensors& x) {
    const Tensor a = (x[0] * 2.5).to(kBFloat16), b = x[1].to(kFloat16) * 0.1;
    return a + b * x[2];
  };
  check_step(rounded, {in[0], in[1], in[3]}, 0);
  const auto curved = [](const Tensors& x) {
    const Tensor a = tanh(x[0]).cos(), b = exp(x[1]) * a;
    return b + gelu(x[2]) * 3;
  };
  check_step(curved, {in[0], in[1], in[2]}, 64);
}

TEST_CASE("program: fused groups with rows in plain C") {
  const TempCache cache;
  const NoGradGuard guard;
  const Tensors in{randn({40, 17}), randn({17}), randint(0, 17, {40})};
  const auto over = [](const Tensors& x) { return softmax(x[0] * 2 + x[1], -1) * x[1]; };
  check_step(over, {in[0], in[1]}, 64);
  const auto columns = [](const Tensors& x) { return sum((x[0] * x[1]).exp(), {0}); };
  check_step(columns, {in[0], in[1]}, 256);
  const auto whole = [](const Tensors& x) { return mse_loss(x[0] * 3, x[1]); };
  check_step(whole, {in[0], in[0].exp()}, 64);
  const auto ids = [](const Tensors& x) { return cross_entropy(x[0] * 2, x[1]); };
  check_step(ids, {in[0], in[2]}, 64);
  const auto hot = [](const Tensors& x) {
    return sum(where(one_hot(x[0], 17) != 0, x[1], 0.0), {-1}) + 1;
  };
  check_step(hot, {in[2], in[0]}, 64);
}

// An index window has no memory: its element is the offset itself.
TEST_CASE("program: a dim's index and the element's own index are windows") {
  const TempCache cache;
  const Tensor a = randint(-9, 9, {5, 40}), y = empty_like(a);
  Program p;
  p.space = {2, {5, 40}};
  p.windows = {{.dtype = kInt64, .stored = true, .stride = {40, 1}},
               {.dtype = kInt64, .loaded = true, .stride = {40, 1}},
               {.dtype = kInt64, .loaded = true, .index = true, .stride = {1, 0}},
               {.dtype = kInt64, .loaded = true, .index = true, .stride = {0, 3}}};
  const OpDef& add = *find_op("add");
  merge_dims(p);
  CHECK(p.space.ndim == 2);
  append_steps(p, {{&add, kInt64, {1, 2}, {0}}, {&add, kInt64, {0, 3}, {0}}}, false);
  const Tensor want = a + arange(5).view({5, 1}) + arange(40) * 3;
  Scalars scalars;
  scalars.add(p);
  scalars.run(0, {bytes_of(y), bytes_of(a)});
  check_same(y, want);

  const program::CpuKernel kernel = program::cpu_kernel(p);
  bool cached = false;
  KernelModule* module =
      cpu::build("using namespace brrr::vx;\nextern \"C\" void k" + kernel.body, cached);
  y.fill_(0);
  char* arguments[] = {bytes_of(y), bytes_of(a)};
  reinterpret_cast<void (*)(char* const*, int64_t, int64_t)>(cpu::symbol(module, "k"))(
      arguments, 0, kernel.extent);
  cpu::unload(module);
  check_same(y, want);
}

TEST_CASE("program: an in-place result that is not read again is not stored") {
  const Tensor x = randn({64, 64}), b = randn({64});
  const graph::Recording r = record([&] { return Tensors{matmul(x, x).add_(b).exp()}; });
  const graph::Schedule s = graph::make_schedule(r, true);
  REQUIRE(s.groups.size() == 2);
  const graph::GroupProgram made = graph::program_of(r, s.groups[1].parts.at(0), s);
  CHECK(made.program.bytes() == (64 * 64 + 64 + 64 * 64) * 4);
}
