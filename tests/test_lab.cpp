// The measuring example programs, as their users run them.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <sched.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/mpirun.h"
#include "tests/programs.h"
#include "tests/temp_cache.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;
namespace fs = std::filesystem;

namespace {

// Figures in sentences also occur in the tables.
void check_lab_texts(const std::string& text, const nlohmann::json& j) {
  double best = 0;
  for (const auto& row : j["sections"][3]["tables"]["roofline"]) {
    best = std::max(best, row["GFLOP/s"].get<double>());
  }
  CHECK(contains(j["sections"][3]["seen"].get<std::string>(),
                 fmt::format("the best point does {:.0f} of", best)));
  for (const auto& row : j["sections"][0]["tables"]["copy-bandwidth"]) {
    if (row["size"] != "256 KB") continue;
    CHECK(contains(text, fmt::format("copy {:.0f} GB/s (256 KB read and written)",
                                     row["GB/s"].get<double>())));
  }
  for (const auto& row : j["sections"][0]["tables"]["machine"]) {
    if (row["what"] != "launch in a replay, ns") continue;
    CHECK(contains(text, fmt::format(", {:.0f} ns in a replay", row["figure"].get<double>())));
  }
}

// No label before the bars starts outside of the picture; 6.5 is a letter's width.
void check_labels(const std::string& svg) {
  size_t labels = 0;
  for (size_t at = 0; (at = svg.find("<text x=\"", at)) != std::string::npos; ++at) {
    const size_t begin = svg.find("class=\"end\">", at), close = svg.find('>', at);
    if (begin > close) continue;
    const auto letters = static_cast<double>(svg.find('<', close) - close - 1);
    CHECK(std::stod(svg.substr(at + 9)) >= 6.5 * letters);
    ++labels;
  }
  CHECK(labels >= 4);
}

}  // namespace

TEST_CASE("overhead: the interrupt key and a closed terminal leave no folder behind") {
  const brrr::test::TempCache folder;
  const std::string place = folder.dir + "/tmp";
  fs::create_directory(place);
  const brrr::test::Env variable("TMPDIR", place.c_str());
  for (const int signal : {SIGINT, SIGHUP}) {
    const pid_t child = start("overhead", {"--sizes", "1", "--seconds", "100"});
    for (int wait = 0; wait < 4000 && fs::is_empty(place); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    CHECK(!fs::is_empty(place));
    kill(child, signal);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(fs::is_empty(place));
  }
}

// Limits measured on one CPU are not reused by a run on several.
TEST_CASE("limits: of the CPUs that a process may use") {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(getpid(), sizeof set, &set) == 0);
  if (CPU_COUNT(&set) < 2) return;
  const brrr::test::TempCache cache;
  int first = 0;
  while (!CPU_ISSET(first, &set)) ++first;
  const std::string one = fmt::format("taskset -c {} ", first),
                    all = "train_mlp --images 500 --steps 8000 --threads 2 --eval-every 0";
  // The first measures and stores half of a peak, the second must not take it for the whole.
  const Result half = run("roofline --mb 1 --repeats 1 --seconds 0.01 --threads 2", ".", one);
  const double alone = 2 * std::stod(word_after(half, "multiply-adds,")),
               both = std::stod(word_after(run(all), "of the peak of"));
  CHECK(both > 1.4 * alone);
}

TEST_CASE("lab: every experiment, and a page that asks for nothing outside itself") {
  const brrr::test::TempCache folder;
  const std::string out = folder.dir + "/lab";
  const Result r = run("lab --quick --out " + out);
  CHECK(r.status == 0);
  CHECK(contains(r.text, "[10/10] processes"));
  CHECK(contains(r.text, "both modes had the same results, bit for bit; no step fell back"));
  const auto j = nlohmann::json::parse(read_text(out + "/lab.json"));
  CHECK(j["sections"].size() == 10);
  for (const auto& section : j["sections"]) CHECK(!section["seen"].get<std::string>().empty());
  for (const char* table :
       {"batch-doubling-gpt", "classes-graph", "roofline", "anatomy", "verdicts"}) {
    CHECK(contains(read_text(out + "/" + table + ".csv"), ","));
  }
  const std::string page = read_text(out + "/lab.html");
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(contains(page, "</html>"));
  CHECK(contains(page, "prefers-color-scheme"));
  for (const char* outside : {"src=", "<link", "@import", "url(http"}) {
    CHECK_FALSE(contains(page, outside));
  }
  for (const char* name : {"lab", "batch-doubling-mlp", "classes", "roofline", "verdicts"}) {
    const std::string svg = read_text(out + "/" + name + ".svg");
    CHECK(svg.starts_with("<svg xmlns"));
    CHECK(contains(svg, "prefers-color-scheme"));
    CHECK(svg.ends_with("</svg>\n"));
  }
  check_lab_texts(r.text, j);
  check_labels(read_text(out + "/verdicts.svg"));
  CHECK(run("lab --out /dev/null").status == 2);
  const Result none = run("lab --quick --out " + out + " limits");
  CHECK(none.status == 0);
  CHECK_FALSE(contains(none.text, "both modes"));  // No comparison was made.
  // An unwritable file is reported before anything is measured.
  for (const char* file : {"/lab.json", "/machine.csv"}) {
    fs::remove(out + file);
    fs::create_directory(out + file);
    const Result taken = run("lab --quick --out " + out + " limits");
    CHECK(taken.status == 1);
    CHECK(taken.text.starts_with("lab: cannot write " + out + file + ": it is not a regular file"));
    fs::remove(out + file);
  }
  const Result proc = run("lab --quick --out /proc limits");
  CHECK(proc.status == 1);
  CHECK(contains(proc.text, "cannot write /proc/"));
  CHECK(std::count(proc.text.begin(), proc.text.end(), '\n') == 1);  // Nothing was measured.
}

TEST_CASE("lab: a step that falls back is a complaint, whatever the experiment") {
  const brrr::test::TempCache folder;
  const FakeMpirun mpirun;
  const std::string command = "lab --quick --out " + folder.dir + "/lab ";
  const Result good = run(command + "processes classes");
  INFO(good.text);
  CHECK(good.status == 0);
  CHECK(contains(good.text, "both modes had the same results, bit for bit; no step fell back"));
  const brrr::test::Env off("BRRR_JIT", "off");
  for (const std::string experiment : {"processes", "classes"}) {
    const Result r = run(command + experiment);
    INFO(r.text);
    CHECK(r.status == 1);
    CHECK(contains(r.text, "lab: do not use these figures:"));
    CHECK(contains(r.text, "BRRR_JIT=off"));
    CHECK_FALSE(contains(r.text, "no step fell back"));
  }
}

TEST_CASE("roofline: a row for each number of multiplications, both modes with the limit") {
  const brrr::test::TempCache folder;
  const std::string stem = folder.dir + "/r";
  const std::string command = "roofline --mb 1 --repeats 64,1,8,8 --seconds 0.01 --json " + stem +
                              ".json --plot " + stem + ".svg";
  const Result r = run(command);
  INFO(r.text);
  CHECK(r.status == 0);
  CHECK(contains(r.text, "A float32 tensor of 1 MB on cpu, multiplied, 1 thread(s)"));
  CHECK(contains(r.text, "Each element of 1 MB multiplied 1 to 64 times."));
  CHECK(contains(r.text, "Limits: half of the peak of multiply-adds, "));
  const auto json = nlohmann::json::parse(read_text(stem + ".json"));
  REQUIRE(json["points"].size() == 3);
  const int repeats[] = {1, 8, 64};
  for (size_t i = 0; i < 3; ++i) {
    const auto& point = json["points"][i];
    CHECK(point["repeats"] == repeats[i]);
    CHECK(point["flop_per_byte"] == repeats[i] / 8.0);
    for (const char* time : {"fused_ms", "eager_ms", "limit_ms"}) CHECK(point[time] > 0);
  }
  CHECK(read_text(stem + ".svg").starts_with("<svg xmlns"));

  const Result huge = run("roofline --mb 100000000");
  INFO(huge.text);
  CHECK(huge.status == 1);
  CHECK(contains(huge.text, "roofline: "));

  const brrr::test::Env off("BRRR_JIT", "off");
  const Result fell = run(command);
  CHECK(fell.status == 1);
  CHECK(contains(fell.text, "roofline: "));
}

#endif
