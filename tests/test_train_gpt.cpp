// train_gpt as its users run it: processes, exit codes, files, and kills.
#include <doctest/doctest.h>

#include <brrr/brrr.h>
#include <fmt/ranges.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/programs.h"
#include "tests/sanitizer.h"
#include "tests/story.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;
namespace fs = std::filesystem;

namespace {

bool same_files(const std::string& a, const std::string& b) {
  const std::string x = read_text(a);
  return !x.empty() && x == read_text(b);
}

}  // namespace

TEST_CASE("train_gpt: both modes have the same losses, parameters and sample") {
  const StoryFolder p;
  for (const std::string dtype : {"float32", "bfloat16", "float16"}) {
    INFO(dtype);
    if (dtype == "float16" && !brrr::test::long_tests()) continue;
    const std::string command = p.tiny() + "--steps 24 --dropout 0.1 --accumulate 2 --sample 40 " +
                                "--prompt 'the ' --top-k 5 --top-p 0.9 --dtype " + dtype;
    std::string tails[2];
    const char* modes[] = {"eager", "graph"};
    for (int m = 0; m < 2; ++m) {
      const std::string mode = modes[m];
      const Result r = run(command + " --mode " + mode + " --loss-csv " + p.file(mode + ".csv") +
                           " --checkpoint " + p.file(mode + ".ck"));
      INFO(r.text);
      REQUIRE(r.status == 0);
      if (m == 1) CHECK(contains(r.text, "23 replays, 1 recordings, 0 fallbacks"));
      tails[m] = r.text.substr(r.text.find("\nparameters"));
      CHECK(contains(r.text, "tokens/s"));
      CHECK(contains(r.text, " MB"));
    }
    CHECK(tails[0] == tails[1]);
    CHECK(contains(tails[0], "sample of 40 tokens:\nthe "));
    CHECK(same_files(p.file("eager.csv"), p.file("graph.csv")));
    CHECK(same_files(p.file("eager.ck"), p.file("graph.ck")));
  }
}

TEST_CASE("train_gpt: learns a text, well below its unigram entropy") {
  const StoryFolder p;
  const Result r =
      run("train_gpt --threads 1 --width 32 --block 16 --batch 8 --steps 400 --mode eager --data " +
          p.file("story.txt"));
  const double loss = std::stod(word_after(r, "validation loss"));
  const double entropy = std::stod(word_after(r, "entropy of the text"));
  CHECK(entropy > 2.5);
  CHECK(loss < 0.4 * entropy);
}

TEST_CASE("train_gpt: 15 steps, a checkpoint and 15 steps are 30 steps, also across modes") {
  const StoryFolder p;
  for (const std::string kind :
       {"--accumulate 2 --dropout 0.1", "--dtype bfloat16 --dropout 0.1 --tokenizer byte",
        "--dtype float16 --positions rotary --activation swiglu --norm rms --clip 0"}) {
    INFO(kind);
    if (contains(kind, "bfloat16") && !brrr::test::long_tests()) continue;
    const std::string all = p.tiny() + "--steps 30 " + kind + " --mode ";
    CHECK(run(all + "eager --checkpoint " + p.file("whole")).status == 0);
    for (const std::string first : {"eager", "graph"}) {
      CHECK(run(all + first + " --stop-at 15 --checkpoint " + p.file("half")).status == 0);
      CHECK_FALSE(same_files(p.file("half"), p.file("whole")));
      for (const std::string second : {"eager", "graph"}) {
        // The checkpoint contains the model, the options and the text.
        const Result r = run("train_gpt --threads 1 --eval-batches 4 --resume " + p.file("half") +
                             " --checkpoint " + p.file("end") + " --mode " + second);
        INFO(r.text);
        CHECK(r.status == 0);
        CHECK(contains(r.text, "at step 15"));
        CHECK(same_files(p.file("end"), p.file("whole")));
      }
    }
  }
}

TEST_CASE("train_gpt: a checkpoint samples without training") {
  const StoryFolder p;
  const std::string ck = p.file("ck");
  const std::string first =
      run(p.tiny() + "--steps 20 --seed 5 --mode eager --sample 30 --checkpoint " + ck).text;
  fs::remove(p.file("story.txt"));
  const Result r = run("train_gpt --resume " + ck + " --steps 0 --sample 30");
  CHECK(r.status == 0);
  CHECK(r.text.substr(r.text.find("sample of")) == first.substr(first.find("sample of")));
  const Result other = run("train_gpt --resume " + ck + " --steps 0 --sample 30 --seed 7");
  CHECK(other.status == 0);
  CHECK(other.text.substr(other.text.find("sample of")) != first.substr(first.find("sample of")));
  const std::string wrong =
      run("train_gpt --resume " + ck + " --steps 0 --sample 9 --prompt Z").text;
  CHECK(contains(wrong, "--prompt:"));
  CHECK(contains(wrong, "Z"));
}

TEST_CASE("train_gpt: evaluations and saves on the way change nothing") {
  const StoryFolder p;
  const std::string all = p.tiny() + "--steps 30 --dropout 0.2 --checkpoint ";
  CHECK(run(all + p.file("a")).status == 0);
  const Result r =
      run(all + p.file("b") + " --eval-every 5 --save-every 7 --verify-every 3 --seed 1");
  CHECK(r.status == 0);
  CHECK(contains(r.text, "validation"));
  CHECK(same_files(p.file("a"), p.file("b")));
  CHECK(run(all + p.file("c") + " --seed 2").status == 0);
  CHECK_FALSE(same_files(p.file("a"), p.file("c")));
}

TEST_CASE("train_gpt: a loss that is not finite stops the run and names what went bad") {
  const StoryFolder p;
  for (const std::string mode : {"eager", "graph"}) {
    const std::string command = p.tiny() + "--steps 50 --warmup 0 --lr 1e30 --mode " + mode;
    Result r = run(command + " --checkpoint " + p.file("ck"));
    INFO(r.text);
    CHECK(r.status == 1);
    CHECK(contains(r.text, "step 2: the loss is "));
    CHECK(contains(r.text, "first wte.weight.grad"));
    CHECK(contains(r.text, "--check-numerics"));
    CHECK_FALSE(fs::exists(p.file("ck")));
    r = run(command + " --check-numerics");
    CHECK(r.status == 1);
    CHECK(contains(r.text, "h.0.attn.c_attn: linear("));
  }
}

TEST_CASE("train_gpt: non-finite parameters are not saved, even if the loss was finite") {
  const StoryFolder p;
  const std::string ck = p.file("ck");
  write_text(ck, "mine");
  const Result r = run(
      p.tiny() + "--steps 9 --warmup 0 --lr 1e38 --save-every 1 --mode eager --checkpoint " + ck);
  INFO(r.text);
  CHECK(r.status == 1);
  CHECK(contains(r.text, "the parameters are not finite after step 1: first "));
  CHECK(read_text(ck) == "mine");
}

// --- kills ---------------------------------------------------------------------------------------

TEST_CASE("train_gpt: the interrupt key ends the work that follows a saved training") {
  const StoryFolder p;
  std::vector<std::string> words = {"--sample", "1000000000", "--steps", "2", "--mode", "eager"};
  words.insert(words.end(), {"--checkpoint", p.file("ck"), "--data", p.file("story.txt"),
                             "--eval-batches", "1"});
  const pid_t child = start("train_gpt", words);
  int status = 0;
  for (int wait = 0; wait < 4000 && !fs::exists(p.file("ck")); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (int wait = 0; wait < 4000 && waitpid(child, &status, WNOHANG) == 0; ++wait) {
    if (wait % 40 == 20) kill(child, SIGINT);  // The first may come just before the handler is set.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
  CHECK(fs::exists(p.file("ck")));
}

namespace {

using Words = std::vector<std::string>;

// Runs train_gpt, and kills it after `microseconds` unless that is 0 or it has ended. Returns
// whether it was killed.
bool interrupted(const Words& options, uint32_t microseconds) {
  const pid_t child = start("train_gpt", options);
  REQUIRE(child > 0);
  if (microseconds > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    kill(child, SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) return true;
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  return false;
}

int64_t step_in(const std::string& checkpoint) {
  if (!fs::exists(checkpoint)) return 0;
  brrr::Metadata metadata;
  brrr::load(checkpoint, metadata);  // Throws unless it is complete.
  return std::stoll(metadata.at("brrr.step"));
}

}  // namespace

TEST_CASE("train_gpt: killed at random moments it resumes and ends as if undisturbed") {
  const StoryFolder p;
  const int kills = long_tests() ? 100 : 5;
  const std::string ck = p.file("ck"), steps = long_tests() ? "1000" : "200";
  const Words options = {"--data",         p.file("story.txt"),
                         "--threads",      "1",
                         "--width",        "16",
                         "--heads",        "2",
                         "--block",        "16",
                         "--batch",        "4",
                         "--dropout",      "0.1",
                         "--accumulate",   "2",
                         "--eval-every",   "0",
                         "--eval-batches", "1",
                         "--steps",        steps,
                         "--seed",         "3"};
  std::string straight = "train_gpt --mode graph --checkpoint " + p.file("whole");
  for (const std::string& o : options) straight += " " + o;
  REQUIRE(run(straight).status == 0);

  // Killed runs resume in either mode. A run that ends starts again while kills are left.
  std::mt19937 random(11);
  int killed = 0, ends = 0;
  int64_t furthest = 0;
  for (bool ended = false; killed < kills || !ended;) {
    Words all = options;
    const std::string mode = random() % 2 ? "eager" : "graph";
    all.insert(all.end(), {"--mode", mode, "--checkpoint", ck, "--save-every", "2"});
    if (fs::exists(ck)) all.insert(all.end(), {"--resume", ck});
    const uint32_t moment = killed < kills ? 5000 + random() % 120000 : 0;
    ended = !interrupted(all, moment);
    if (!ended) {
      ++killed;
      furthest = std::max(furthest, step_in(ck));
    } else {
      ++ends;
      CHECK(same_files(ck, p.file("whole")));
      fs::remove(ck);
    }
  }
  MESSAGE(killed << " kills, the furthest at step " << furthest << "; " << ends << " ends");
  // Killed saves leave no files: only the text and the undisturbed checkpoint remain.
  std::vector<std::string> left;
  for (const auto& f : fs::directory_iterator(p.dir())) left.push_back(f.path().filename());
  CHECK_MESSAGE(left.size() == 2, fmt::format("{}", fmt::join(left, ", ")));
}

#else

TEST_CASE("train_gpt: not built, so not tested") { MESSAGE("configure with BRRR_EXAMPLES=ON"); }

#endif
