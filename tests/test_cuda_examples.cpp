// The example programs on a GPU: both modes, checkpoints, samples, figures.
#include <brrr/brrr.h>

#include <nlohmann/json.hpp>

#include "tests/cuda_cases.h"
#include "tests/programs.h"
#include "tests/temp_dir.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;

namespace {

const std::string kMlp =
    "train_mlp --device cuda --steps 12 --images 300 --batch 16 --hidden 32,16 --dropout 0.1 ";
const std::string kGpt =
    "train_gpt --device cuda --steps 6 --batch 2 --block 8 --width 16 --heads 2 --layers 1 "
    "--eval-batches 2 ";

std::string sample_of(const Result& r) {
  const size_t at = r.text.find("sample of 12 tokens");
  REQUIRE(at != std::string::npos);
  return r.text.substr(at);
}

// A full run in each mode, and one that stops half way and resumes in the other mode.
void check_modes(const std::string& command, const std::string& save) {
  const TemporaryDirectory folder;
  const std::string ck = folder.file("ck.safetensors");
  const Result graph = run(command + "--mode graph");
  const std::string whole = parameters(graph);
  INFO(graph.text);
  CHECK(contains(graph.text, " 0 fallbacks"));
  CHECK(contains(graph.text, "on cuda:0"));
  CHECK(parameters(run(command + "--mode eager")) == whole);
  const std::string half = command + "--stop-at 3 " + save + " " + ck + " --mode ";
  CHECK(parameters(run(half + "graph")) != whole);
  CHECK(parameters(run(command + "--mode eager --resume " + ck)) == whole);
  CHECK(parameters(run(half + "eager")) != whole);
  CHECK(parameters(run(command + "--mode graph --resume " + ck)) == whole);
}

}  // namespace

TEST_CASE("examples on a GPU: train_mlp gives the same parameters in both modes and resumed") {
  if (!have_device()) return;
  check_modes(kMlp, "--save");
}

TEST_CASE("examples on a GPU: train_gpt gives the same parameters in both modes and resumed") {
  if (!have_device()) return;
  check_modes(kGpt, "--checkpoint");
  check_modes(kGpt + "--dropout 0.1 --accumulate 2 --dtype float16 ", "--checkpoint");
}

TEST_CASE("examples on a GPU: both modes sample the same text") {
  if (!have_device()) return;
  const std::string command = kGpt + "--sample 12 --top-k 5 --mode ";
  CHECK(sample_of(run(command + "eager")) == sample_of(run(command + "graph")));
}

TEST_CASE("examples on a GPU: roofline measures both modes there") {
  if (!have_device()) return;
  const TemporaryDirectory folder;
  const std::string json = folder.file("r.json");
  const Result r = run("roofline --device cuda --mb 1 --repeats 1,4 --seconds 0.01 --json " + json);
  INFO(r.text);
  REQUIRE(r.status == 0);
  const auto figures = nlohmann::json::parse(read(json));
  CHECK(figures["device"] == "cuda:0");
  CHECK(figures["points"].size() == 2);
}

TEST_CASE("examples on a GPU: overhead measures every mode, and the CPU") {
  if (!have_device()) return;
  const TemporaryDirectory folder;
  const std::string json = folder.file("o.json");
  const Result r = run("overhead --own --device all --sizes 2 --seconds 0.01 --json " + json);
  INFO(r.text);
  REQUIRE(r.status == 0);
  CHECK(contains(r.text, "the same parameters, bit for bit"));
  CHECK(contains(r.text, "queued us a step, device by device"));
  CHECK(contains(r.text, "cuda:0: overhead is less than half of a step, eager "));
  const auto models = nlohmann::json::parse(read(json))["models"];
  REQUIRE(models.size() == 2);
  CHECK(models[0]["device"] == "cpu");
  CHECK(models[0]["gpu"].is_null());
  CHECK(models[1]["device"] == "cuda:0");
  CHECK(models[1]["gpu"]["copy_256MB_gb_per_s"] > 0);
  CHECK(models[1]["gpu"]["matmul_gflops"] > 0);
  const auto& size = models[1]["sizes"][0];
  CHECK(size["one_time_cold"]["from_cache"] == false);
  CHECK(size["one_time_cold"]["capture_ms"] > 0);
  CHECK(size["one_time_warm"]["from_cache"] == true);
  for (const char* mode : {"eager", "graph+fusion", "frozen"}) {
    CHECK(size["cells"][mode]["fallbacks"] == 0);
    CHECK(size["cells"][mode]["queued"]["median_us"] > 0);
  }
}

#endif
