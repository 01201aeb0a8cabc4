// Pitfalls of section F: misleading figures. The output of `overhead`, as its users run it.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/bench/measure/cells.h"
#include "tests/bench/measure/clock.h"
#include "tests/mpirun.h"
#include "tests/programs.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;
using namespace brrr::bench;
namespace fs = std::filesystem;

namespace {

constexpr const char* kWayNames[] = {"eager", "graph", "graph+fusion", "frozen"};
constexpr const char* kTitles[] = {"Queued: us a step of steps back to back",
                                   "Synchronised: us a step that is waited for"};
constexpr const char* kKinds[] = {"queued", "latency"};

struct Measured {
  Result result;
  Json json, trace;
  const Json& sizes() const { return json["sizes"]; }
};

Measured measured(const std::string& options) {
  const TempCache folder;
  const std::string stem = folder.dir + "/o";
  Measured m{run("overhead --seconds 0.01 " + options + " --json " + stem + ".json --trace " +
                 stem + ".trace.json --plot " + stem + ".svg"),
             {},
             {}};
  INFO(m.result.text);
  REQUIRE(m.result.status == 0);
  m.json = Json::parse(read_text(stem + ".json"));
  m.trace = Json::parse(read_text(stem + ".trace.json"));
  CHECK(read_text(stem + ".svg").starts_with("<svg xmlns"));
  return m;
}

// Of the MLP, the largest of which is compute-bound; its profile goes into the trace.
const Measured& five_sizes() {
  static const Measured all = measured("--sizes 512,4,2,8,1");
  return all;
}

// The table below `title`, its header first. Columns are separated by at least two blanks.
using Table = std::vector<std::vector<std::string>>;
Table table_below(const std::string& text, const std::string& title) {
  INFO(title);
  const size_t at = text.find("\n" + title);
  REQUIRE(at != std::string::npos);
  std::istringstream lines(text.substr(text.find("\n\n", at) + 2));
  const std::regex gap("  +");
  Table table;
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with("--")) continue;
    table.emplace_back(std::sregex_token_iterator(line.begin(), line.end(), gap, -1),
                       std::sregex_token_iterator());
  }
  return table;
}

double median_of(const Json& size, const char* mode, const char* kind) {
  return size["cells"][mode][kind]["median_us"].get<double>();
}

void check_sizes(const Json& report, int64_t least_kernels) {
  REQUIRE(report["sizes"].size() == 2);
  CHECK(report["sizes"][0]["batch"] == 1);
  for (const auto& size : report["sizes"]) {
    CHECK(size["one_time_cold"]["from_cache"] == false);
    CHECK(size["one_time_warm"]["from_cache"] == true);
    CHECK(size["flops_analytic"] > 0);
    CHECK(size["cells"]["graph+fusion"]["kernels"] >= least_kernels);
  }
}

}  // namespace

TEST_CASE("overhead: figures of the models, and a trace with their modules") {
  std::vector<std::string> models = {"mlp"};
  if (long_tests()) models.insert(models.end(), {"all", "gpt"});
  for (const std::string& model : models) {
    const Measured m = measured("--sizes 3,1 --model " + model);
    const std::string& text = m.result.text;
    INFO(text);
    CHECK(contains(text, "the same parameters, bit for bit; no step fell back"));
    CHECK(contains(text, "== MLP 784-256-128-10, adamw") == (model != "gpt"));
    CHECK(contains(text, "== GPT, 2 layers") == (model != "mlp"));
    if (model == "all") {
      REQUIRE(m.json["models"].size() == 2);
      check_sizes(m.json["models"][0], 3);
      check_sizes(m.json["models"][1], 20);
    } else {
      check_sizes(m.json, 3);
    }
    CHECK(m.trace["traceEvents"].size() > (model == "all" ? 200 : 100));
    std::set<std::string> modules;
    for (const auto& e : m.trace["traceEvents"]) {
      if (e["pid"] != 1 && e["ph"] == "X") modules.insert(e["args"]["module"].get<std::string>());
    }
    CHECK(modules.count("fc1") == (model != "gpt"));
    // F7: no gain is predicted from two sizes.
    CHECK(contains(text, "2 sizes only: too few to say what graph mode gains"));
    CHECK_FALSE(contains(text, "over eager: queued"));
  }
}

TEST_CASE("pitfall F1, F2: queued throughput and synchronised latency stand side by side") {
  const Measured& all = five_sizes();
  for (size_t kind : {0, 1}) {
    const Table t = table_below(all.result.text, kTitles[kind]);
    REQUIRE(t.size() == 6);
    for (size_t row = 1; row < t.size(); ++row) {
      const Json& size = all.sizes()[row - 1];
      CHECK(t[row][0] == size["batch"].dump());
      for (const char* mode : kWayNames) {
        const auto column = static_cast<size_t>(std::ranges::find(t[0], mode) - t[0].begin());
        REQUIRE(column < t[row].size());
        const Json& cell = size["cells"][mode][kKinds[kind]];
        CHECK(t[row][column] ==
              three_figures(cell["median_us"]) + " (" + three_figures(cell["p95_us"]) + ")");
      }
    }
  }
}

TEST_CASE("pitfall F3: one-off costs are listed apart, with the step at which they pay off") {
  const Measured& all = five_sizes();
  const Table t = table_below(all.result.text, "Once: ms before the first compiled step");
  REQUIRE(t.size() == 6);
  REQUIRE(t[0].size() == 11);
  CHECK(t[0][9] == "break-even step cold");
  for (size_t row = 1; row < t.size(); ++row) {
    const Json& size = all.sizes()[row - 1];
    const double gain =
        median_of(size, "eager", "queued") - median_of(size, "graph+fusion", "queued");
    const char* const runs[] = {"one_time_cold", "one_time_warm"};
    for (size_t k : {0, 1}) {
      const double total = size[runs[k]]["total_ms"];
      CHECK(t[row][7 + k] == three_figures(total));
      CHECK(t[row][9 + k] == (gain > 0 ? fmt::format("{:.0f}", std::ceil(total * 1e3 / gain))
                                       : std::string("never")));
    }
    // The timed steps neither record nor build.
    CHECK(size["cells"]["graph+fusion"]["recordings"] == 1);
    CHECK(size["cells"]["graph+fusion"]["replays"] == size["steps_per_mode"].get<int64_t>() - 1);
  }
}

// A profile only divides a time that was measured without it.
TEST_CASE("pitfall F5: no headline has a figure of a profiled run") {
  const Measured& all = five_sizes();
  CHECK(contains(all.result.text, "its own times are no figures"));
  CHECK(all.trace["traceEvents"].size() > 100);
  for (const Json& size : all.sizes()) {
    for (const auto& [mode, part] :
         {std::pair{"eager", "split_eager"}, {"graph+fusion", "split_graph_fusion"}}) {
      const Json& split = size[part];
      const double sum = split["compute_us"].get<double>() + split["memory_us"].get<double>() +
                         split["overhead_us"].get<double>();
      CHECK(sum == doctest::Approx(median_of(size, mode, "queued")).epsilon(1e-6));
    }
  }
}

TEST_CASE("pitfall F6: eager, eager+fusion, graph and graph+fusion are four cells") {
  const Measured& all = five_sizes();
  for (const char* title : kTitles) {
    const Table t = table_below(all.result.text, title);
    CHECK(t[0] == std::vector<std::string>{"batch", "eager", "eager+fusion", "graph",
                                           "graph+fusion", "frozen", "gain", "n"});
    for (size_t row = 1; row < t.size(); ++row) CHECK(t[row][2] == "- [1]");
  }
  CHECK(contains(all.result.text, "\n[1] Eager is eager+fusion already"));
  for (const Json& size : all.sizes()) {
    CHECK(size["cells"].size() == 5);
    CHECK(size["cells"]["eager+fusion"].is_null());
    // Without fusion as many launches as ops, with it fewer.
    CHECK(size["cells"]["graph+fusion"]["kernels"] < size["cells"]["graph"]["kernels"]);
  }
}

TEST_CASE("pitfall F7: five sizes, one bound by compute, and the gain from the least to the most") {
  const Measured& all = five_sizes();
  const Json& last = all.sizes()[4];
  CHECK(last["batch"] == 512);
  CHECK(last["split_eager"]["compute_us"] > last["split_eager"]["memory_us"]);
  const auto bound = std::ranges::count_if(
      all.sizes(), [](const Json& size) { return size["split_eager"]["regime"] == "compute"; });
  CHECK(contains(all.result.text, fmt::format(" on cpu, 5 sizes, {} of them bound by compute",
                                              bound > 0 ? std::to_string(bound) : "none")));
  for (const char* way : {"graph+fusion", "frozen"}) {
    std::string line = fmt::format("    {:<12} over eager: ", way);
    for (size_t kind : {0, 1}) {
      std::vector<std::pair<double, int64_t>> gains;
      for (const Json& size : all.sizes()) {
        gains.emplace_back(
            median_of(size, "eager", kKinds[kind]) / median_of(size, way, kKinds[kind]),
            size["batch"].get<int64_t>());
      }
      const auto [lo, hi] = std::ranges::minmax(gains);
      line += fmt::format("{} {:.2f}x (batch {}) .. {:.2f}x (batch {})",
                          kind == 0 ? "queued" : ", synchronised", lo.first, lo.second, hi.first,
                          hi.second);
    }
    CHECK_MESSAGE(contains(all.result.text, line + "\n"), line);
  }
  if (!long_tests()) return;
  const Env row("BRRR_SCALING_ROW", "1");  // One process's rows, at the default sizes.
  std::istringstream lines(run("overhead --ranks 2 --model all --seconds 0.01").text);
  std::map<std::string, std::set<int64_t>> sizes;
  for (std::string line; std::getline(lines, line);) {
    const Json j = Json::parse(line);
    sizes[j["task"]].insert(j["batch"].get<int64_t>());
  }
  CHECK(sizes.size() == 2);
  for (const auto& task : sizes) CHECK_MESSAGE(task.second.size() >= 5, task.first);
}

TEST_CASE("pitfall F8: the language of the baseline is named") {
  const Measured& all = five_sizes();
  CHECK(contains(all.result.text, "written in C++ (the baseline, eager, too)\n"));
  CHECK(all.json["versions"].get<std::string>().starts_with("C++20, "));
}

TEST_CASE("pitfall F9: figures after a fallback are an error in every measuring program") {
  const TempCache cache;
  const FakeMpirun mpirun;
  const Result good = run("overhead --ranks 2 --sizes 1 --seconds 0.01");
  INFO(good.text);
  CHECK(good.status == 0);
  CHECK(contains(good.text, "both modes had the same parameters, bit for bit; no step fell back"));
  const Env off("BRRR_JIT", "off");
  for (const std::string options : {"", "--ranks 2 "}) {
    const Result r = run("overhead " + options + "--sizes 1 --seconds 0.01");
    INFO(r.text);
    CHECK(r.status == 1);
    CHECK(contains(r.text, "overhead: do not use these figures:"));
    CHECK(contains(r.text, "steps fell back to the reference walker: no compiler: BRRR_JIT=off"));
    CHECK_FALSE(contains(r.text, "bit for bit"));
  }
}

TEST_CASE("pitfall F9: final parameters that differ are an error") {
  const TempCache cache;
  {
    const FakeMpirun mpirun(R"(sed '/graph+fusion/s/"parameters":"[^"]*"/"parameters":"0"/')");
    const Result r = run("overhead --ranks 2 --sizes 1 --seconds 0.01");
    INFO(r.text);
    CHECK(r.status == 1);
    CHECK(contains(r.text,
                   "batch 1, 1 process, graph+fusion: the parameters after 10 steps are not "
                   "eager's, bit for bit\n"));
    CHECK(contains(r.text, "batch 1, 2 processes, graph+fusion: the parameters"));
  }
  Batches batches;
  for (size_t k = 0; k < kBatches; ++k) {
    batches.x.push_back(brrr::full({2, 4}, static_cast<double>(k)));
    batches.y.push_back(brrr::full({2}, static_cast<int64_t>(k % 3), brrr::kInt64));
  }
  for (const bool same : {true, false}) {
    const Cells cells = measure(
        [&](Way way) {
          brrr::manual_seed(same || way != Way::Frozen ? 1 : 2);
          return std::make_unique<Trainer>(mlp_learner({.sizes = {4, 3}}), batches, "sgd",
                                           options_of(way));
        },
        0.001);
    CHECK(cells.complaint ==
          (same ? "" : "frozen: the final parameters are not eager's, bit for bit"));
  }
}

TEST_CASE("pitfall F10: medians, p95 and n, with the clock and versions they were measured at") {
  const Measured& all = five_sizes();
  const std::string& text = all.result.text;
  const std::regex clock("\\| clock ([0-9]+( to [0-9]+)? MHz|unknown) \\|");
  std::smatch found;
  REQUIRE(std::regex_search(text, found, clock));
  CHECK(all.json["machine"]["clock"] == found[1].str());
  CHECK((found[1] == "unknown") == cpu_megahertz().empty());
  CHECK(contains(text, "\n" + all.json["versions"].get<std::string>() + "\n"));
  CHECK(contains(text, "OpenBLAS core"));
  CHECK(contains(text, "median (p95) of n series"));
  CHECK(contains(text, "median (p95) of n steps"));
  for (size_t kind : {0, 1}) {
    const Table t = table_below(text, kTitles[kind]);
    for (size_t row = 1; row < t.size(); ++row) {
      const Json& cells = all.sizes()[row - 1]["cells"];
      CHECK(t[row].back() == cells["eager"][kKinds[kind]]["n"].dump());
      for (const char* mode : kWayNames) {
        const Json& cell = cells[mode][kKinds[kind]];
        CHECK(cell["n"] >= 16);
        CHECK(cell["median_us"] > 0);
        CHECK(cell["p95_us"] >= cell["median_us"]);
      }
    }
  }
}

TEST_CASE("pitfall F10: inputs rotate") {
  CHECK(contains(five_sizes().result.text, "Inputs rotate over 16 batches"));
  const TempCache cache;
  Batches batches;
  for (size_t k = 0; k < kBatches; ++k) {
    batches.x.push_back(brrr::full({2, 4}, static_cast<double>(k)));
    batches.y.push_back(brrr::full({2}, int64_t{0}, brrr::kInt64));
  }
  std::map<Way, std::vector<const void*>> seen;
  measure(
      [&](Way way) {
        Learner learner = mlp_learner({.sizes = {4, 3}});
        auto loss = learner.loss;
        learner.loss = [&seen, way, loss](const brrr::Tensor& x, const brrr::Tensor& y) {
          if (way == Way::Eager) seen[way].push_back(x.data_ptr());
          return loss(x, y);
        };
        return std::make_unique<Trainer>(learner, batches, "sgd", options_of(way));
      },
      0.001);
  const auto& all = seen[Way::Eager];
  REQUIRE(all.size() > 2 * kBatches);
  CHECK(std::set<const void*>(all.begin(), all.begin() + kBatches).size() == kBatches);
  for (size_t k = kBatches; k < all.size(); ++k) CHECK(all[k] != all[k - 1]);
}

TEST_CASE("pitfall F10: the clock is what Linux reports for all processors, or unknown") {
  const TempCache folder;
  const std::string root = folder.dir;
  CHECK(cpu_clock(root) == "unknown");
  fs::create_directories(root + "/proc");
  write_text(root + "/proc/cpuinfo",
             "processor\t: 0\ncpu MHz\t\t: 2596.124\n\nprocessor\t: 1\ncpu MHz\t\t: 1200.9\n");
  CHECK(cpu_clock(root) == "1200 to 2596 MHz");
  for (const std::string cpu : {"0", "1"}) {
    const std::string frequency = root + "/sys/devices/system/cpu/cpu" + cpu + "/cpufreq";
    fs::create_directories(frequency);
    write_text(frequency + "/scaling_cur_freq", "3700499\n");
  }
  CHECK(cpu_clock(root) == "3700 MHz");
}

#endif
