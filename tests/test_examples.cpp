// The example programs as their users run them: processes, exit codes, files.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <nlohmann/json.hpp>

#include "tests/programs.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;
namespace fs = std::filesystem;

namespace {

const std::string kSmall = " --images 600 --batch 64 --hidden 32,16 --dropout 0.1 --threads 1 ";

// MNIST's four files, from the generator.
void write_digits(const std::string& folder) {
  for (const bool train : {true, false}) {
    const auto set = brrr::data::digits(train ? 600 : 200, train ? 0 : 1);
    const std::string stem = folder + (train ? "/train-" : "/t10k-");
    brrr::data::write_idx(stem + "images-idx3-ubyte",
                          (set.images * 255.0).to(brrr::kUInt8).reshape({-1, 28, 28}));
    brrr::data::write_idx(stem + "labels-idx1-ubyte", set.labels.to(brrr::kUInt8));
  }
}

}  // namespace

TEST_CASE("train_mlp: both modes print the same losses and end with the same parameters") {
  const brrr::test::TempCache cache;
  const brrr::test::TempCache folder;
  for (const std::string optimizer : {"adamw", "sgd"}) {
    if (optimizer == "sgd" && !brrr::test::long_tests()) continue;
    std::string bits[3], curves[3];
    const char* modes[] = {"eager", "graph", "auto"};
    for (int m = 0; m < 3; ++m) {
      const std::string csv = folder.dir + "/" + modes[m] + ".csv";
      bits[m] = parameters(run("train_mlp --steps 30 --mode " + std::string(modes[m]) + kSmall +
                               "--optimizer " + optimizer + " --loss-csv " + csv));
      curves[m] = read_text(csv);
    }
    CHECK(bits[0].size() == 16);
    CHECK(bits[0] == bits[1]);
    CHECK(bits[0] == bits[2]);
    CHECK(std::count(curves[0].begin(), curves[0].end(), '\n') == 31);
    CHECK(curves[0] == curves[1]);
    CHECK(curves[0] == curves[2]);
  }
  const Result r = run("train_mlp --steps 30 --explain" + kSmall);
  CHECK(contains(r.text, " 0 fallbacks"));
  CHECK(contains(r.text, "kernels of entry 0"));
}

TEST_CASE("train_mlp: a few seconds of digits give more than 97 % on held-out images") {
  const Result r = run("train_mlp --steps 800 --images 10000");
  CHECK(std::stod(word_after(r, "held-out accuracy")) > 97);
}

// Long enough that some steps are profiled, which must not change them.
TEST_CASE("train_mlp: figures of every log line as JSON, at the end the split of a step's time") {
  const brrr::test::TempCache folder;
  const std::string log = folder.dir + "/log.jsonl", words = "train_mlp --images 500 --steps ";
  const std::string whole = words + "5000 --log-every 1000 --eval-every 2000 --threads 1";
  const Result r = run(whole + " --log " + log);
  CHECK(r.status == 0);
  CHECK(contains(r.text, "images/s"));
  CHECK(contains(r.text, "  ETA 0:"));
  CHECK(contains(r.text, "a step, "));
  CHECK(contains(r.text, " of the peak of "));
  std::istringstream lines(read_text(log));
  int64_t step = 0, tests = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto j = nlohmann::json::parse(line);
    CHECK(j["step"].get<int64_t>() == (step += 1000));
    CHECK(j["loss"].is_number());
    CHECK(j["ms_per_step"].get<double>() > 0);
    const double images = j["images_per_s"].get<double>() * j["ms_per_step"].get<double>() / 1e3;
    // Batches of this interval: seven of 64 in an epoch, and one of the 52 that are left.
    CHECK(images == doctest::Approx(500 / 8.0).epsilon(0.01));
    CHECK(j.contains("eta_s") == (step < 5000));
    CHECK(j.contains("gflops_per_s") == j.contains("share_of_peak"));
    CHECK(j["peak_mb"].get<double>() > 0);
    tests += j.contains("accuracy");
  }
  CHECK(step == 5000);
  CHECK(tests == 2);  // The last one is in the summary.
  CHECK(run("train_mlp --steps 1 --log /nonexistent/log").status == 2);
}

TEST_CASE("train_mlp: 20 steps, a checkpoint and 20 steps are 40 steps, across modes") {
  const brrr::test::TempCache cache;
  const brrr::test::TempCache folder;
  const std::string all = "train_mlp --steps 40" + kSmall, ck = folder.dir + "/ck.safetensors";
  const std::string whole = parameters(run(all + "--mode eager"));
  for (const std::string first : {"eager", "graph"}) {
    const std::string second = first == "eager" ? "graph" : "eager";
    const std::string half =
        parameters(run(all + "--stop-at 20 --save " + ck + " --mode " + first));
    CHECK(half != whole);
    CHECK(parameters(run(all + "--resume " + ck + " --mode " + second)) == whole);
    // The checkpoint holds the options that the command line leaves out.
    CHECK(parameters(run("train_mlp --resume " + ck)) == whole);
  }
  const std::string done = folder.dir + "/done.safetensors";
  run(all + "--save " + done);
  const Result none = run("train_mlp --resume " + done);
  CHECK(parameters(none) == whole);
  CHECK_MESSAGE(contains(none.text, "no step taken"), none.text);
  const Result images = run("train_mlp --images 300 --resume " + ck);
  CHECK(images.status == 1);
  CHECK(contains(images.text, "it was made with images 600, not 300"));
  const Result other = run("train_mlp --steps 40 --hidden 32 --resume " + ck);
  CHECK(other.status == 1);
  CHECK(contains(other.text, "it was made with hidden 32,16, not 32"));
  brrr::Metadata notes;
  const brrr::StateDict tensors = brrr::load(ck, notes);
  notes["brrr.step"] = "19";
  brrr::save(ck, tensors, notes);
  CHECK(contains(run("train_mlp --resume " + ck).text, "of step 19, its learning rate of step 20"));
  notes["brrr.step"] = "20";
  brrr::StateDict other_data = tensors;
  other_data["loader.epoch"] = brrr::full({}, 7, brrr::kInt64);
  brrr::save(ck, other_data, notes);
  CHECK(contains(run("train_mlp --resume " + ck).text, "of step 20, its data at batch 70"));
}

// At a learning rate of 0 a run keeps the weights that it began with.
TEST_CASE("training programs: a new run begins with a checkpoint's weights and its own options") {
  const brrr::test::TempCache cache;
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors", begin = " --lr 0 --init " + ck;
  const std::string trained = parameters(run("train_mlp --steps 9" + kSmall + "--save " + ck));
  const Result mlp = run("train_mlp --steps 3 --images 300 --dropout 0.5 --optimizer sgd" + begin);
  CHECK(parameters(mlp) == trained);
  CHECK(contains(mlp.text, "begins with the weights of " + ck + ", made in 9 steps"));
  const Result wide = run("train_mlp --hidden 32" + begin);
  CHECK(wide.status == 1);
  CHECK(contains(wide.text, "--init " + ck + ": it was made with hidden 32,16, not 32; leave"));
  CHECK(contains(run("train_mlp --steps 99 --resume " + ck).text,
                 "leave that out, or begin a new run with its weights by --init"));
  CHECK(contains(run("train_mlp --resume " + ck + begin).text, "give one of them"));

  const std::string one = folder.dir + "/one", other = folder.dir + "/other";
  std::ofstream(one) << std::string(200, 'a') << "The quick brown fox jumps over the lazy dog.";
  std::ofstream(other) << std::string(200, 'b')
                       << "The lazy brown dog jumps over the quick fox, and the bee.";
  const std::string sizes = " --layers 1 --heads 2 --width 16 --block 8 --batch 2 --eval-every 0";
  const std::string gpt = parameters(
      run("train_gpt --steps 9 --tokenizer byte --data " + one + sizes + " --checkpoint " + ck));
  CHECK(parameters(run("train_gpt --steps 3 --batch 4 --seed 7 --data " + other + begin)) == gpt);
}

TEST_CASE("train_mlp: a loss that is not finite ends the run and keeps its checkpoint") {
  const brrr::test::TempCache cache;
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors";
  const Result good = run("train_mlp --steps 20" + kSmall + " --save " + ck);
  REQUIRE(good.status == 0);
  const std::string before = read_text(ck);
  const Result bad = run("train_mlp --steps 20 --lr 1e30" + kSmall + " --save " + ck);
  CHECK(bad.status == 1);
  CHECK(contains(bad.text, "by step"));
  CHECK(contains(bad.text, "are not finite; try a smaller --lr"));
  CHECK(read_text(ck) == before);
  // The loss of a step is that of the parameters before it.
  const Result last = run("train_mlp --steps 1 --lr 1e38" + kSmall + " --save " + ck);
  CHECK(last.status == 1);
  CHECK(contains(last.text, "the parameters are not finite after step 1: first fc1."));
  CHECK(read_text(ck) == before);
  // With logits around 1e38 only the loss is infinite.
  const Result sum = run(
      "train_mlp --images 50 --hidden 4 --steps 3 --batch 8 --lr 6e17 --log-every 1 --threads 1");
  CHECK(
      contains(sum.text, "the loss is inf by step 2: the parameters and their gradients are fin"));
}

TEST_CASE("train_mlp: IDX files train like generated digits, and wrong ones are named") {
  const brrr::test::TempCache cache;
  const brrr::test::TempCache folder;
  write_digits(folder.dir);
  const std::string command =
      "train_mlp --steps 30 --hidden 32 --batch 64 --data " + folder.dir + " --mode ";
  const Result eager = run(command + "eager"), graph = run(command + "graph");
  CHECK(contains(eager.text, "(200 images)"));
  CHECK(parameters(eager) == parameters(graph));

  // A class that occurs only in the test set has a logit too.
  const std::string held = folder.dir + "/t10k-labels-idx1-ubyte", before = read_text(held);
  write_text(held, before.substr(0, before.size() - 1) + '\x0c');
  CHECK(contains(run(command + "eager").text, "MLP 784-32-13, 25549 parameters"));

  const std::string labels = folder.dir + "/train-labels-idx1-ubyte";
  brrr::test::write_text(labels, read_text(labels).substr(0, 300));
  Result r = run(command + "eager");
  CHECK(r.status == 1);
  CHECK(contains(r.text, labels));
  fs::remove(labels);
  r = run(command + "eager");
  CHECK(r.status == 1);
  CHECK(contains(r.text, "train-labels-idx1-ubyte"));
}

TEST_CASE("examples: a wrong option says what was expected") {
  struct Wrong {
    const char* command;
    const char* expected;
  };
  const Wrong wrong[] = {
      {"train_mlp --mode lazy", "expected one of eager, graph, auto; got 'lazy'"},
      {"train_mlp --device tpu", "expected one of cpu, cuda; got 'tpu'"},
      {"train_mlp --steps 0", "expected a whole number of at least 1, got '0'"},
      {"train_mlp --steps 9223372036854775808", "from 1 to 9223372036854775807, got"},
      {"train_mlp --steps 1e3", "expected a whole number of at least 1, got '1e3'"},
      {"train_mlp --steps x --steps 4", "expected a whole number of at least 1, got 'x'"},
      {"train_mlp --steps 3 --steps 4", "--steps: is given twice"},
      {"train_mlp --lr nan", "expected a number of at least 0, got 'nan'"},
      {"train_mlp --dropout 1", "expected a number from 0 to 0.99, got '1'"},
      {"train_mlp --hidden 3,x", "expected a whole number of at least 1, got 'x'"},
      {"train_mlp --hidden 1,,2", "expected a whole number of at least 1, got ''"},
      {"train_mlp --hidden 1,2,", "expected a whole number of at least 1, got ''"},
      {"train_mlp --save /no/such/folder/ck", "there is no folder '/no/such/folder'"},
      {"overhead --json /proc/brrr.json", "cannot write /proc/"},
      {"overhead --plot /dev/full", "it is not a regular file"},
      {"overhead --seconds nan", "expected a number from 0.01"},
      {"train_mlp --save-every 5", "--save-every requires --save"},
      {"train_mlp --resume /no/such/file", "does not exist"},
      {"train_mlp --stps 5", "the options are --help --mode"},
      {"overhead --model lstm", "expected one of mlp, gpt, all; got 'lstm'"},
      {"overhead --sizes 8,0", "expected a whole number of at least 1, got '0'"},
      {"overhead --sizes 1,,1,1", "expected a whole number of at least 1, got ''"},
      {"overhead --device gpu", "expected one of cpu, cuda, all; got 'gpu'"},
      {"overhead --optimizer adam", "expected one of adamw, sgd; got 'adam'"},
      {"roofline --repeats 4,0", "expected a whole number from 1 to 4096, got '0'"},
      {"roofline --mb 0", "expected a whole number from 1 to 1073741824, got '0'"},
      {"roofline --mb 17592186044417", "expected a whole number from 1 to 1073741824"},
      {"roofline --repeats 100000", "expected a whole number from 1 to 4096, got '100000'"},
      {"train_mlp --batch 4611686018427387904", "expected a whole number from 1 to 2147483647"},
      {"train_mlp --threads 1025", "expected a whole number from 0 to 1024, got '1025'"},
      {"overhead --ranks 1", "expected at least 2 processes, or 0 for no such table, got '1'"},
      {"overhead --own --model gpt", "--model excludes --own"},
      {"overhead --ranks 4294967297", "expected a whole number from 0 to 4096"},
      {"train_mlp --accumulate 4294967296", "expected a whole number from 1 to 2147483647"},
  };
  for (const Wrong& w : wrong) {
    const Result r = run(w.command);
    INFO(w.command << "\n" << r.text);
    CHECK(r.status == 2);
    CHECK(contains(r.text, w.expected));
    CHECK(contains(r.text, "--help"));
  }
  const Result large = run("train_mlp --images 50 --batch 65536 --accumulate 65536");
  CHECK(large.status == 1);
  CHECK(contains(large.text, "--batch 65536 times 65536 passes is too much for a step"));
  const Result wide = run("train_mlp --images 50 --hidden 1000000,1000000");
  CHECK(wide.status == 1);
  CHECK(contains(wide.text, "--hidden 1000000,1000000: about 1e+12 parameters take 1.6e+04 GB"));
  if (!brrr::cuda_available()) {
    for (const std::string program :
         {"train_mlp --device cuda", "train_gpt --device cuda", "overhead --device cuda",
          "overhead --device all", "roofline --device cuda"}) {
      const Result r = run(program);
      INFO(r.text);
      CHECK(r.status == 1);
      CHECK(contains(r.text, "--device cuda: cuda: "));
      CHECK(std::count(r.text.begin(), r.text.end(), '\n') == 1);
    }
  }
  for (const std::string words : {"--help", "--images 200 --batch 8 --steps 2"}) {
    const Result full = run("train_mlp " + words, ".", "sh -c '\"$@\" > /dev/full' sh ");
    CHECK(full.status == 1);
    CHECK(full.text == "train_mlp: standard output cannot be written\n");
  }
  for (const char* program : {"train_mlp", "overhead", "roofline"}) {
    const Result r = run(program + std::string(" --help"));
    CHECK(r.status == 0);
    CHECK(contains(r.text, "--threads"));
  }
}

TEST_CASE("examples: a file that one option writes is not read or written by another") {
  const brrr::test::TempCache folder;
  const std::string f = folder.dir + "/f", other = folder.dir + "/./f";
  // Also files that do not exist yet.
  const Result later = run("train_mlp --save ./f --log f", folder.dir);
  CHECK(later.status == 1);
  CHECK(contains(later.text, "--save and --log are one file"));
  fs::create_symlink("g", folder.dir + "/link");
  CHECK(contains(run("train_mlp --save link --log g", folder.dir).text,
                 "--save and --log are one file"));
  write_text(f, "mine");
  const std::string commands[] = {"train_mlp --resume " + f + " --log " + other,
                                  "train_mlp --loss-csv " + f + " --resume " + f,
                                  "train_mlp --save " + f + " --loss-csv " + other,
                                  "train_mlp --log " + f + " --loss-csv " + f,
                                  "train_gpt --data " + f + " --checkpoint " + other,
                                  "roofline --json " + f + " --plot " + other,
                                  "overhead --json " + f + " --trace " + other};
  for (const std::string& command : commands) {
    const Result r = run(command);
    INFO(command << "\n" << r.text);
    CHECK(r.status == 1);
    CHECK(contains(r.text, "are one file"));
    CHECK(read_text(f) == "mine");
  }
}

TEST_CASE("examples: a file that is read in a folder is not written by any option") {
  const brrr::test::TempCache folder;
  const std::string f = folder.dir + "/";
  const auto check = [&](const std::string& command, const std::string& file, bool read) {
    for (const bool there : {false, true}) {
      fs::remove(f + file);
      if (there) write_text(f + file, "mine");
      const Result r = run(command + f + file);
      INFO(command << file << "\n" << r.text);
      CHECK(r.status == 1);
      CHECK(contains(r.text, f + file + " is read by --data " + folder.dir + "; give it a") ==
            read);
      CHECK(fs::exists(f + file) == there);
      if (there) CHECK(read_text(f + file) == "mine");
    }
  };
  fs::create_directories(f + "build");
  fs::create_directories(f + "inner");
  // Without a text to train on, an allowed command fails later.
  const std::string gpt = "train_gpt --data " + folder.dir + " --warmup 9 --steps 9 --";
  check(gpt + "kernels ", "a.cpp", true);
  check(gpt + "log ", "inner/a.md", true);
  check(gpt + "kernels ", "build/a.cpp", false);
  check(gpt + "checkpoint ", "val.bin", false);
  check(gpt + "checkpoint ", "train.bin", true);
  check(gpt + "checkpoint ", "val.bin", true);
  check(gpt + "kernels ", "a.cpp", false);
  const std::string mlp = "train_mlp --data " + folder.dir + " --";
  check(mlp + "save ", "t10k-labels-idx1-ubyte", true);
  check(mlp + "loss-csv ", "loss.csv", false);
}

TEST_CASE("examples: --kernels writes the text of a run's kernels") {
  const brrr::test::TempCache folder;
  const std::string f = folder.dir + "/kernels.cpp",
                    options = " --steps 3 --batch 2 --kernels " + f;
  REQUIRE(run("train_mlp" + options).status == 0);
  CHECK(contains(read_text(f), "times adamw_step_:\nextern \"C\" void brrr_k"));
  const Result eager = run("train_gpt --mode eager" + options);
  CHECK(eager.status == 1);
  CHECK(contains(eager.text, "--kernels: eager mode generates none"));
  CHECK(contains(run("train_gpt --check-numerics" + options).text, "--check-numerics runs every"));
  const Result one = run("train_mlp --stop-at 1" + options);
  CHECK(one.status == 1);
  CHECK(contains(one.text, "--kernels: they are built in the second of a run's steps"));
  CHECK_FALSE(contains(one.text, "step 1/"));
}

TEST_CASE("train_mlp: a resumed run keeps its images") {
  const brrr::test::TempCache folder;
  const std::string data = folder.dir + "/idx", ck = folder.dir + "/ck";
  fs::create_directory(data);
  write_digits(data);
  const std::string begin = "train_mlp --hidden 8 --batch 64 --steps 6 --mode eager --data ";
  REQUIRE(run(begin + "idx --stop-at 3 --save ck", folder.dir).status == 0);
  CHECK(run("train_mlp --mode eager --resume ck", folder.dir).status == 0);
  REQUIRE(run(begin + data + " --stop-at 3 --save " + ck).status == 0);
  const Result none = run("train_mlp --mode eager --resume " + ck);
  INFO(none.text);
  CHECK(none.status == 0);
  fs::rename(data, data + ".moved");
  const Result lost = run("train_mlp --mode eager --resume " + ck);
  CHECK(lost.status != 0);
  CHECK(contains(lost.text, "--data"));
  fs::rename(data + ".moved", data);
  const std::string resume = "train_mlp --mode eager --resume " + ck + " --data " + data;
  CHECK(run(resume).status == 0);
  const auto labels = data + "/train-labels-idx1-ubyte";
  std::string bytes = read_text(labels);
  bytes.back() = bytes.back() == 1 ? 2 : 1;
  write_text(labels, bytes);
  const Result changed = run(resume);
  CHECK(changed.status == 1);
  CHECK(contains(changed.text, "it was trained on other images"));
}

TEST_CASE("examples: numbers are decimal and rounded once") {
  const brrr::test::TempCache folder;
  const std::string ck = folder.dir + "/ck.safetensors";
  const Result r =
      run("train_mlp --images 0200 --batch 08 --steps 010 --hidden 016,08 --threads 1 "
          "--mode eager --lr 0.0028770 --save " +
          ck);
  INFO(r.text);
  CHECK(contains(r.text, "784-16-8-10"));
  CHECK(contains(r.text, "step 10/10"));
  brrr::Metadata saved;
  brrr::load(ck, saved);
  CHECK(saved["lr"] == "0.002877");
  CHECK(saved["batch"] == "8");
}

TEST_CASE("quickstart: one recording serves a thousand steps") {
  const Result r = run("quickstart");
  CHECK(r.status == 0);
  CHECK(contains(r.text, "1000 calls, 1 recordings, 999 replays, 0 fallbacks"));
}

#else

TEST_CASE("examples: not built, so not tested") { MESSAGE("configure with BRRR_EXAMPLES=ON"); }

#endif
