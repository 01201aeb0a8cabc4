// The registry's rule: one row per op, documented, declared for users, and named nowhere else. And
// its trial: a row added here gets its gradient, fusion and graph mode automatically.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "brrr.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row.h"
#include "tests/op_cases.h"

// --- the trial: one row and its public function --------------------------------------------------

namespace brrr {

namespace {
const PointwiseOp trial_erfc_row{
    "trial_erfc",
    "1 - erf(x)",
    {},
    [](auto x) { return 1.0 - m::erf(x); },
    [](auto x, auto, auto g) { return g * -1.1283791670955126 * m::exp(-(x * x)); }};
}  // namespace

Tensor trial_erfc(const Tensor& x) { return call(trial_erfc_row, x); }

}  // namespace brrr

using namespace brrr;
using namespace brrr::test;

namespace {

namespace fs = std::filesystem;
const fs::path kSource = BRRR_SOURCE_DIR;

std::string read(const fs::path& p) {
  std::ifstream in(p);
  REQUIRE_MESSAGE(in.good(), p.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> sources(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& e : fs::recursive_directory_iterator(kSource / folder)) {
    const auto extension = e.path().extension();
    if (extension == ".cpp" || extension == ".h") files.push_back(e.path());
  }
  REQUIRE(!files.empty());
  return files;
}

std::set<std::string> all_matches(const std::string& text, const std::string& pattern) {
  const std::regex r(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::set<std::string> found;
  for (std::sregex_iterator i(text.begin(), text.end(), r), end; i != end; ++i) {
    found.insert((*i)[1]);
  }
  return found;
}

// Functions that ops/*_ops.h (and, for the trial, this file) declare.
std::set<std::string> declared_functions() {
  std::string text = read(kSource / "tests/test_registry.cpp");
  for (const fs::path& p : sources("ops")) {
    if (p.filename().string().ends_with("_ops.h")) text += read(p);
  }
  return all_matches(text,
                     R"(^(?:Tensor|void|std::vector<Tensor>|std::pair<Tensor, Tensor>) (\w+)\()");
}

// Members of Tensor that compute a tensor.
std::set<std::string> members() {
  return all_matches(read(kSource / "core/tensor.h"),
                     R"(^  (?:const Tensor&|Tensor|std::vector<Tensor>) (\w+)\(.*\) const;)");
}

// Public functions without a row of their own, and the rows that they consist of.
const std::map<std::string, std::string> kCompositions = {
    {"tensor", "bytes of the host, copied (host_data inside a step)"},
    {"from_blob", "bytes of the host, copied or used in place"},
    {"zeros", "full"},
    {"ones", "full"},
    {"full_like", "full"},
    {"zeros_like", "full"},
    {"ones_like", "full"},
    {"empty_like", "empty"},
    {"rand_like", "rand"},
    {"randn_like", "randn"},
    {"randperm", "argsort of random words"},
    {"dropout_mask_at", "select and dropout_mask"},
    {"stack", "unsqueeze and cat"},
    {"einsum", "permute, reshape, slice, squeeze, sum, mul and matmul"},
    {"mse_loss", "sub, square and mean"},
    {"max_with_indices", "argmax and gather"},
    {"sort", "argsort and gather"},
    {"sum_to", "sum and view"},
    {"transpose", "permute"},
    {"reshape", "view, after a copy where that is needed"},
    {"flatten", "view"},
    {"squeeze", "view"},
    {"unsqueeze", "view"},
    {"chunk", "split"}};

// Rows that are not named after a public function, and their callers.
const std::map<std::string, std::string> kCallersOfRows = {
    {"copy", "clone, contiguous, to, copy_ and fill_"},
    {"cube", "pow(x, 3)"},
    {"gelu_tanh", "gelu(x, \"tanh\")"},
    {"smooth_cross_entropy", "cross_entropy with label_smoothing"},
    {"row_cross_entropy", "cross_entropy with another reduction than the mean"},
    {"smooth_row_cross_entropy", "both of these"},
    {"host_data", "tensor, from_blob and to(device) inside a step"},
    {"rotary_angle", "rotary_embedding"},
    {"rotary_pair", "rotary_embedding"}};

std::string without_underscore(const std::string& name) {
  return name.ends_with('_') ? name.substr(0, name.size() - 1) : name;
}

std::string code_of(const std::string& line) { return line.substr(0, line.find("//")); }

}  // namespace

TEST_CASE("sources: the files that comments name exist") {
  constexpr const char* folders[] = {"core",  "ops",    "autograd", "backends",
                                     "graph", "models", "examples", "tests"};
  for (const char* folder : folders) {
    for (const fs::path& p : sources(folder)) {
      std::istringstream text(read(p));
      std::string comments;
      for (std::string line; std::getline(text, line);) {
        if (const size_t at = line.find("//"); at != line.npos) comments += line.substr(at) + '\n';
      }
      const std::string path =
          fmt::format("\\b((?:{})/[\\w/]+\\.(?:h|cpp))\\b", fmt::join(folders, "|"));
      for (const std::string& named : all_matches(comments, path)) {
        CHECK_MESSAGE(fs::exists(kSource / named), p.string(), " names ", named);
      }
    }
  }
}

TEST_CASE("registry: names are unique and found, rows are documented") {
  std::set<std::string> names;
  for (size_t i = 0; i < registry().size(); ++i) {
    const OpDef& op = *registry()[i];
    CAPTURE(std::string(op.name));
    CHECK(names.insert(op.name).second);
    CHECK(find_op(op.name) == &op);
    CHECK(op.index == i);
    CHECK(bool(op.infer));
    CHECK(!std::string(op.doc).empty());
    CHECK(bool(op.on(DeviceType::CPU).run) == !op.is_view());
  }
  CHECK(find_op("no such op") == nullptr);
}

TEST_CASE("registry: threads may use rows while the process ends: none is ever destroyed") {
  CHECK(std::is_trivially_destructible_v<PointwiseOp>);
  CHECK(std::is_trivially_destructible_v<RowOp>);
  CHECK(std::is_trivially_destructible_v<ReductionOp>);
}

TEST_CASE("registry: every row has a way to run on a GPU") {
  std::string without;
  for (const OpDef* op : registry()) {
    const bool runs =
        op->on(DeviceType::CUDA).run || op->pointwise || op->reduction || op->decompose;
    if (!op->is_view() && !runs) without += std::string(" ") + op->name;
  }
  CHECK_MESSAGE(without.empty(), "these have none:", without);
}

TEST_CASE("registry: public functions and rows are one list") {
  const auto functions = declared_functions(), methods = members();
  REQUIRE(functions.size() > 80);
  REQUIRE(methods.size() > 60);
  for (const std::string& f : functions) {
    const bool row = find_op(f) || find_op(without_underscore(f)), listed = kCompositions.count(f);
    CHECK_MESSAGE(row != listed, f,
                  row ? " has a row: no composition" : " has neither a row nor a reason");
  }
  for (const auto& entry : kCompositions) {
    CHECK_MESSAGE(functions.count(entry.first), entry.first, " is not declared any more");
  }
  for (const OpDef* op : registry()) {
    if (op->gradient_row) continue;
    const std::string name = op->name;
    const bool open = functions.count(name) || functions.count(name + "_") || methods.count(name);
    CHECK_MESSAGE(open != (kCallersOfRows.count(name) > 0), name, " has no public function");
  }
}

TEST_CASE("registry: rows are defined in ops/ and named nowhere else") {
  const std::regex row(R"(\b(OpDef|PointwiseOp|NumberOp|ReductionOp|RowOp) (\w+)\{("|$))");
  const std::regex compares(
      R"re((==|!=|find_op\(|strcmp\(|compare\(|\bcase\b|count\()\s*\(?"(\w+)")re");
  size_t looked_at = 0;
  for (const char* folder : {"core", "graph", "backends", "autograd", "models", "examples"}) {
    for (const fs::path& p : sources(folder)) {
      std::ifstream in(p);
      std::string line;
      while (std::getline(in, line)) {
        ++looked_at;
        const std::string code = code_of(line);
        std::smatch m;
        // Only the recorder's own instruction is a row outside of ops/.
        const bool made = std::regex_search(code, m, row) && m[2] != "host_data_row";
        CHECK_MESSAGE(!made, p.string(), ": ", line);
        // A device, an option or a file's field may be compared with a string; an op's name never.
        if (std::regex_search(code, m, compares)) {
          CHECK_MESSAGE(!find_op(m[2]), p.string(), ": ", line);
        }
        const bool looks_up = code.find("find_op(") != std::string::npos;
        const bool is_core = p.parent_path().filename() == "core";
        CHECK_MESSAGE((!looks_up || is_core), p.string(), ": ", line);
        const bool by_name = std::regex_search(code, std::regex(R"(op(\(\))?(->|\.)name\s*[!=]=)"));
        CHECK_MESSAGE(!by_name, p.string(), ": ", line);
      }
    }
  }
  CHECK(looked_at > 3000);
}

TEST_CASE("registry: ops are functions, also together with <cmath>") {
  CHECK(exp(1.0) == std::exp(1.0));
  CHECK(floor(2.5) == 2);
  const Tensor t = tensor({1.0, 2.0});
  check_same(exp(t), t.exp());
  CHECK(pow(2.0, 3.0) == 8);
  check_same(pow(t, 2.0), t * t);
  Tensor (*function)(const Tensor&) = sqrt;  // The functions' addresses can be taken.
  check_same(function(t), t.sqrt());
}

TEST_CASE("adding an op takes one row: gradient, fusion and graph mode come with it") {
  const OpDef* op = find_op("trial_erfc");
  REQUIRE(op);
  CHECK(op->kind == OpKind::Pointwise);
  CHECK(op->differentiable());
  // The tests of test_ops_pointwise.cpp also cover it; here is the op itself.
  const Tensor x = sampled({3, 5}, kFloat64, -3, 3);
  const auto values = x.to_vector<double>(), y = trial_erfc(x).to_vector<double>();
  for (size_t i = 0; i < y.size(); ++i) CHECK(std::fabs(y[i] - std::erfc(values[i])) < 1e-15);
  CHECK(trial_erfc(arange(3)).dtype() == kFloat32);

  auto fn = [](const Tensors& in) { return trial_erfc(in[0] * 0.5); };
  const auto r = gradcheck(fn, {x}, {.second_order = true});
  CHECK_MESSAGE(r.ok, r.report);

  const Tensor w = leaf(sampled({6, 19}, kFloat32)), b = leaf(sampled({19}, kFloat32));
  check_step([&](Results& results) {
    add_with_gradients(results, "erfc of a chain", trial_erfc(w * 2.0 + b).exp(), {w, b});
  });

  // Fused with its neighbours: the chain is one kernel, and so is the chain's gradient.
  auto step = brrr::step([&] { return trial_erfc(w.detach() * 2.0 + 1.0).tanh() - 0.5; },
                         StepOptions{.require_graph = true, .build_at_first_call = true});
  step();
  CHECK(step.stats().ops_per_replay == 5);
  CHECK(step.stats().kernels_per_replay == 1);
  CHECK(step.stats().fused_kernels == 1);
}

TEST_CASE("gradcheck finds a wrong gradient") {
  // First order: the derivative of x^2 given as x; second order: that of x^3 given as a constant.
  const Tensor x = sampled({4}, kFloat64, 0.5, 2);
  auto first = [](const Tensors& in) { return in[0] * in[0].detach(); };
  CHECK(!gradcheck(first, {x}).ok);
  auto second = [](const Tensors& in) {
    const Tensor slope = (in[0].detach().square() * 3.0).detach();
    return in[0].detach().pow(3.0) + slope * (in[0] - in[0].detach());
  };
  CHECK(
      gradcheck([](const Tensors& in) { return in[0].pow(3.0); }, {x}, {.second_order = true}).ok);
  CHECK(!gradcheck(second, {x}, {.second_order = true}).ok);
  // With large inputs the right one is not taken for noise, and the wrong one is still detected.
  const Tensor large = x * 1e9;
  CHECK(gradcheck([](const Tensors& in) { return in[0].square(); }, {large}).ok);
  CHECK(!gradcheck(first, {large}).ok);
  CHECK_THROWS_WITH_AS(gradcheck({}, {randn({2}).to(kFloat64)}),
                       "gradcheck: the function is empty; give one that takes the inputs", Error);
  const auto lost = [](const std::vector<Tensor>& in) { return in[0].detach().exp(); };
  CHECK_THROWS_WITH_AS(gradcheck(lost, {ones({2}, kFloat64)}),
                       doctest::Contains("gradcheck: what fn returned does not require grad"),
                       Error);
  const auto captured = [&](const Tensors&) { return x.detach().set_requires_grad(true).exp(); };
  CHECK_THROWS_WITH_AS(gradcheck(captured, {arange(3)}),
                       doctest::Contains("gradcheck: no input is float64"), Error);
}
