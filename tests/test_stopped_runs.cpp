// Runs that do not end by themselves: stopped, killed, out of disk space or without a reader.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/programs.h"
#include "tests/story.h"
#include "tests/temp_cache.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;
namespace fs = std::filesystem;

static const std::string kSmall =
    " --images 600 --batch 64 --hidden 32,16 --dropout 0.1 --threads 1 ";

// Lines after the last checkpoint, the last of them incomplete, are written again.
TEST_CASE("train_mlp: the log of a killed run continues from its checkpoint") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors", log = folder.dir + "/log.jsonl";
  const std::string first = "train_mlp --steps 60" + kSmall + "--log-every 10 --stop-at 35 --save ";
  REQUIRE(run(first + ck + " --log " + log).status == 0);
  write_text(log, read_text(log) + "{\"step\":40,\"loss\":1}\n{\"step\":50,\"lo");
  REQUIRE(run("train_mlp --resume " + ck + " --log " + log).status == 0);
  std::istringstream lines(read_text(log));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line)["step"].get<int64_t>());
  }
  CHECK(steps == std::vector<int64_t>{10, 20, 30, 35, 40, 50, 60});
}

TEST_CASE("train_mlp: with standard output closed, nothing is printed into a run's files") {
  const brrr::test::TempCache folder;
  const std::string log = folder.dir + "/log.jsonl";
  run("train_mlp --steps 4 --mode eager" + kSmall + " --log " + log + " >&- 2>/dev/null; true");
  const std::string text = read_text(log);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.starts_with("{\"step\":4,"));
}

TEST_CASE("train_mlp: the losses of a stopped run are kept when it resumes") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors", csv = folder.dir + "/loss.csv";
  // More losses than a run keeps unread.
  const std::string first =
      "train_mlp --steps 1500 --images 20 --hidden 2 --batch 2 --eval-every 0 "
      "--log-every 2000 --mode eager --save " +
      ck + " --loss-csv ";
  REQUIRE(run(first + csv).status == 0);
  const std::string whole = read_text(csv);
  CHECK(std::count(whole.begin(), whole.end(), '\n') == 1501);
  REQUIRE(run(first + csv + " --stop-at 1200").status == 0);
  CHECK(whole.starts_with(read_text(csv)));
  write_text(csv, read_text(csv) + "1201,7\n1202,");
  REQUIRE(run("train_mlp --eval-every 0 --resume " + ck + " --loss-csv " + csv).status == 0);
  CHECK(read_text(csv) == whole);
}

TEST_CASE("train_mlp: losses are in their file once a checkpoint is, and none of another run") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors", csv = folder.dir + "/loss.csv";
  std::string other = "step,loss\n";
  for (int step = 1; step < 2000; ++step) other += fmt::format("{},7\n", step);
  write_text(csv, other);
  const pid_t child =
      start("train_mlp", {"--steps", "1000000", "--images", "300", "--save", ck, "--save-every",
                          "50", "--mode", "eager", "--loss-csv", csv, "--eval-every", "0"});
  REQUIRE(child > 0);
  for (int wait = 0; wait < 2000 && !fs::exists(ck); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  brrr::Metadata metadata;
  brrr::load(ck, metadata);
  const int64_t end = std::stoll(metadata.at("brrr.step")) + 3;
  REQUIRE(run(fmt::format("train_mlp --mode eager --resume {} --loss-csv {} --stop-at {}", ck, csv,
                          end))
              .status == 0);
  std::istringstream lines(read_text(csv));
  std::string line;
  std::getline(lines, line);
  CHECK(line == "step,loss");
  int64_t step = 0;
  while (std::getline(lines, line)) {
    CHECK(line.starts_with(fmt::format("{},", ++step)));
    CHECK_FALSE(line.ends_with(",7"));
  }
  CHECK(step == end);
}

TEST_CASE("training programs: a run that fails leaves its losses, up to the non-finite one") {
  const brrr::test::TempCache folder;
  const std::string csv = folder.dir + "/loss.csv";
  write_text(folder.dir + "/text", story(40));
  for (const std::string& program : {std::string("train_mlp --images 300"),
                                     "train_gpt --batch 2 --data " + folder.dir + "/text"}) {
    const Result r = run(program + " --mode eager --steps 20 --lr 1e30 --loss-csv " + csv);
    INFO(r.text);
    CHECK(r.status == 1);
    const std::string text = read_text(csv);
    CHECK(text.starts_with("step,loss\n1,"));
    CHECK(contains(text, "nan\n"));
  }
}

TEST_CASE("train_mlp: killed at any moment, its checkpoint is complete") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors";
  const std::vector<std::string> options = {
      "--steps", "1000000", "--images", "300", "--batch",      "16", "--eval-every", "0",
      "--mode",  "eager",   "--save",   ck,    "--save-every", "1",  "--threads",    "1"};
  using namespace std::chrono_literals;
  for (int round = 0; round < 8; ++round) {
    const pid_t child = start("train_mlp", options);
    REQUIRE(child > 0);
    for (int wait = 0; wait < 2000 && !fs::exists(ck); ++wait) std::this_thread::sleep_for(5ms);
    std::this_thread::sleep_for(round * 3701us);
    kill(child, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    brrr::Metadata metadata;
    const brrr::StateDict dict = brrr::load(ck, metadata);
    CHECK(dict.count("model.fc1.weight") == 1);
    CHECK(std::stoll(metadata.at("brrr.step")) >= 1);
    if (round < 7) fs::remove(ck);
  }
  std::string command = "train_mlp --stop-at 1 --resume " + ck;
  for (size_t i = 0; i < 6; ++i) command += " " + options[i];
  CHECK(run(command).status == 0);
}

TEST_CASE("train_mlp: interrupt key, batch system, closed terminal end it with its checkpoint") {
  const brrr::test::TempCache folder;
  int signal = 0;
  SUBCASE("key") { signal = SIGINT; }
  SUBCASE("batch system") { signal = SIGTERM; }
  SUBCASE("closed terminal") { signal = SIGHUP; }
  const std::string ck = folder.dir + "/ck.safetensors";
  const pid_t child = start("train_mlp", {"--steps", "1000000", "--images", "300", "--save", ck,
                                          "--save-every", "50", "--mode", "eager"});
  for (int wait = 0; wait < 2000 && !fs::exists(ck); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(child, signal);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + signal);
  CHECK(brrr::load(ck).count("optimizer.lr") == 1);
}

TEST_CASE("train_mlp: a limit on the size of files is reported, and old files are kept") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors";
  write_text(ck, "mine");
  const Result r =
      run("train_mlp --steps 2 --mode eager" + kSmall + " --save " + ck, ".", "ulimit -f 8; ");
  CHECK(r.status == 1);
  CHECK(contains(r.text, "File too large; the file that was there before is unchanged"));
  CHECK(read_text(ck) == "mine");
}

TEST_CASE("train_mlp: no checkpoint is ahead of a log that ran out of disk space") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors", log = folder.dir + "/log.jsonl";
  const Result r =
      run("train_mlp --steps 300 --mode eager --images 100 --hidden 1 --batch 8 "
          "--threads 1 --log-every 1 --save-every 10 --save " +
              ck + " --log " + log,
          ".", "ulimit -f 40; ");
  CHECK(r.status == 1);
  CHECK(contains(r.text, "--log: " + log + " cannot be written"));
  brrr::Metadata metadata;
  brrr::load(ck, metadata);
  const std::string lines = read_text(log);
  CHECK(std::stoll(metadata.at("brrr.step")) <= std::count(lines.begin(), lines.end(), '\n'));
}

TEST_CASE("train_mlp: losses that the disk has no space for end the run at its next line") {
  const brrr::test::TempCache folder;
  const std::string csv = folder.dir + "/losses.csv";
  const Result r =
      run("train_mlp --steps 1000000 --mode eager --images 100 --hidden 1 --batch 8 --threads 1 "
          "--log-every 500 --loss-csv " +
              csv,
          ".", "ulimit -f 8; ");
  CHECK(r.status == 1);
  CHECK(contains(r.text, "--loss-csv: " + csv + " cannot be written"));
}

TEST_CASE("train_mlp: no disk space for a log or loss file ends the run before its first step") {
  const brrr::test::TempCache folder;
  for (const std::string option : {"--log", "--loss-csv"}) {
    const Result r =
        run("train_mlp --steps 1000000 --mode eager --images 100 --hidden 1 --batch 8 "
            "--threads 1 --log-every 500 " +
                option + " " + folder.dir + "/lines",
            ".", "ulimit -f 0; ");
    CHECK(r.status == 1);
    CHECK(contains(r.text, folder.dir + "/lines"));
    CHECK_FALSE(contains(r.text, "loss "));
  }
}

// The interrupt key ends `tee` at once, so the run's next line has no reader.
TEST_CASE("train_mlp: a run whose output has lost its reader ends with its checkpoint") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors";
  auto* before = std::signal(SIGPIPE, SIG_DFL);  // A run inherits it.
  const Result r = run("train_mlp --steps 1000000 --log-every 1 --images 300 --mode eager --save " +
                       ck + " | head -2");
  std::signal(SIGPIPE, before);
  CHECK(contains(r.text, "step       1/1000000"));
  REQUIRE(fs::exists(ck));
  CHECK(brrr::load(ck).count("optimizer.lr") == 1);
}

#else

TEST_CASE("stopped runs: not built, so not tested") { MESSAGE("configure with BRRR_EXAMPLES=ON"); }

#endif
