// Benchmarks exit with an error for a wrong command line and for steps that fell back.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include "tests/bench/command_line.h"
#include "tests/programs.h"
#include "tests/temp_cache.h"

using namespace brrr::test;
using namespace brrr::bench;

namespace {

std::string all_words(std::vector<std::string> words, const std::string& with_value) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  std::string read;
  try {
    for (Words w(static_cast<int>(argv.size()), argv.data()); w.next();) {
      read += w.word() + (w.word() == with_value ? "=" + w.value() : "") + ";";
      if (w.word() == "--wrong") w.unknown();
    }
  } catch (const UsageError& e) {
    read += e.what();
  }
  return read;
}

template <class F> std::string refused(const F& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("benchmarks: options are read one by one, and only Google Benchmark's are skipped") {
  CHECK(all_words({"--benchmark_filter=x", "--json", "f", "--quick"}, "--json") ==
        "--json=f;--quick;");
  CHECK(all_words({"--json"}, "--json") == "--json: value missing");
  CHECK(all_words({"--json", "--quick"}, "--json") == "--json: value missing");
  CHECK(all_words({"--wrong"}, "") == "--wrong;unknown option '--wrong', see --help");
}

TEST_CASE("benchmarks: numeric options must be positive, and counts whole") {
  CHECK(positive_number("--n", "7") == 7);
  for (const char* wrong : {"0", "-1", "", "1e3", "7x", "2147483648", "99999999999999999999"}) {
    CHECK(refused([&] { positive_number("--n", wrong); }).starts_with("--n: '"));
  }
  CHECK(positive_real("--seconds", "0.5") == 0.5);
  for (const char* wrong : {"0", "-1", "", "nan", "inf", "1e999", "0.5s"}) {
    CHECK(refused([&] { positive_real("--seconds", wrong); }) ==
          std::string("--seconds: '") + wrong + "' is not a positive number");
  }
}

#if defined(BRRR_BENCH_PROGRAMS) && defined(BRRR_EXAMPLES_DIR)

TEST_CASE("benchmarks: a wrong option on the command line is an error that names it") {
  struct Wrong {
    const char* command;
    const char* said;
  };
  const Wrong wrong[] = {
      {"bench_steps --bogus=1", "bench_steps: unknown option '--bogus=1', see --help"},
      {"bench_steps --jsn f", "unknown option '--jsn'"},
      {"bench_steps --json", "--json: value missing"},
      {"bench_steps --only nosuch",
       "there is no step 'nosuch'; the steps are\n  MLP step, batch 1"},
      {"bench_ops foo", "bench_ops: unknown option 'foo', see --help"},
      {"bench_ops --json", "--json: value missing"},
      {"bench_ops --inputs f", "unknown option '--inputs'"},
      {"bench_ops --seconds -1", "--seconds: '-1' is not a positive number"},
      {"bench_ops --seconds nan", "--seconds: 'nan' is not a positive number"},
      {"bench_ops --threads 4294967297", "--threads: '4294967297' is not a positive number"},
      {"bench_ops --only nosuch",
       "no op has 'nosuch' in its name; the ops are add, add of a row, "},
      {"bench_gpu --foo", "bench_gpu: unknown option '--foo', see --help"},
      {"bench_gpu --json", "--json: value missing"},
      {"bench_ops --only ''", "--only: value missing"},
      {"bench_micro --json f", "bench_micro: unknown option '--json', see --help"},
      {"bench_micro --cpu -1", "bench_micro: --cpu: '-1' is not a positive number"},
      {"bench_micro --benchmark_bogus=1", "unknown option '--benchmark_bogus=1', see --help"},
  };
  for (const Wrong& w : wrong) {
    const Result r = run(w.command);
    INFO(w.command << "\n" << r.text);
    CHECK(r.status == 2);
    CHECK(contains(r.text, w.said));
  }
  for (const std::string program : {"bench_steps", "bench_ops", "bench_gpu"}) {
    const Result help = run(program + " --benchmark_filter=x --help");
    CHECK(help.status == 0);
    CHECK(help.text.starts_with("usage: " + program));
  }
  CHECK(run("bench_micro --help").text.starts_with("bench_micro [--threads N] [--cpu N]"));
}

TEST_CASE("benchmarks: a step that fell back is an error, in the exit status too") {
  const TempCache cache;
  const Env off("BRRR_JIT", "off");
  struct Program {
    const char* command;
    int status;
  };
  const Program all[] = {
      {"bench_ratios --only replay", 2},
      {"bench_ratios --only memory", 2},
      {"bench_ratios --instr frozen 10", 2},
      {"bench_micro --benchmark_min_time=0.001 '--benchmark_filter=^chain/(graph|frozen)'", 1},
      {"bench_micro --benchmark_min_time=0.001 '--benchmark_filter=graph/batch:1/adamw:0'", 1},
      {"bench_micro --benchmark_min_time=0.001 '--benchmark_filter=one_cos/graph/MB:1/'", 1},
      {"bench_ops --only tanh --seconds 0.001", 1},
      {"bench_steps --only 'MLP step, batch 1' --seconds 0.001", 1}};
  for (const Program& p : all) {
    const Result r = run(p.command);
    INFO(p.command << "\n" << r.text);
    CHECK(r.status == p.status);
    CHECK(contains(r.text, "BRRR_JIT=off"));
    CHECK_FALSE(contains(r.text, "-nan"));
  }
}

#endif
