// A failure or a delay on one rank is reported on all ranks.
#include <brrr/brrr.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/check.h"
#include "models/data_parallel.h"
#include "ops/kinds/exchange.h"
#include "tests/sanitizer.h"
#include "tests/temp_dir.h"

using namespace brrr;
using test::error_of, test::TemporaryDirectory;

namespace {

void sleep_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

// A folder that all ranks see, until the last has left it.
struct SharedDirectory {
  std::optional<TemporaryDirectory> own;
  std::string path;
  SharedDirectory() {
    if (dist::rank() == 0) own.emplace();
    path = dist::broadcast_text(own ? own->file("") : "", 0);
  }
  ~SharedDirectory() { dist::barrier(); }
};

}  // namespace

TEST_CASE("on_first_rank: all wait, longer than any limit, and throw what it throws") {
  dist::set_limit(0.3);
  bool done = false;
  const auto begin = std::chrono::steady_clock::now();
  dist::on_first_rank("a nap", [&] { sleep_s(1), done = true; });
  CHECK(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(900));
  CHECK(done == (dist::rank() == 0));
  dist::set_limit(60);
  CHECK(error_of([] { dist::on_first_rank("x", [] { fail("the disk is full"); }); }) ==
        "the disk is full");
}

TEST_CASE("save_checkpoint: all ranks find the file when it returns, or all throw") {
  const SharedDirectory dir;
  manual_seed(5);
  models::Linear model(300, 300);
  TrainingState state{.model = &model};
  for (state.step = 1; state.step < 6; ++state.step) {
    save_checkpoint(dir.path + "ck", state);
    TrainingState read{.model = &model};
    load_checkpoint(dir.path + "ck", read);
    CHECK(read.step == state.step);
  }
  const std::string said = error_of([&] { save_checkpoint(dir.path + "none/ck", state); });
  CHECK_MESSAGE(said.find("/none/") != std::string::npos, said);
  if (dist::rank() == 0) state.step = -1;  // The state of the writing rank is invalid.
  const std::string wrong = error_of([&] { save_checkpoint(dir.path + "ck", state); });
  CHECK_MESSAGE(wrong.find("the step is -1") != std::string::npos, wrong);
}

TEST_CASE("load_checkpoint: ranks that have different files are named, and nothing changes") {
  if (dist::size() == 1) return;
  const SharedDirectory dir;
  manual_seed(5);
  models::Linear model(3, 2);
  TrainingState state{.model = &model, .step = 4};
  save_checkpoint(dir.path + "ck", state);
  Metadata metadata;
  StateDict dict = load(dir.path + "ck", metadata);
  const std::string own = dir.path + std::to_string(dist::rank());
  const auto refused = [&](const char* what) {
    const Tensor before = model.weight.detach().clone();
    const std::string said = error_of([&] { load_checkpoint(own, state); });
    CHECK_MESSAGE(said.find(what) != std::string::npos, said);
    CHECK((state.step == 4 && same_bits(before, model.weight)));
  };
  const bool odd = dist::rank() == 1;
  metadata["brrr.step"] = odd ? "5" : "4";
  save(own, dict, metadata);
  refused("rank 1 reads another file than rank 0; the ranks must read the same");
  metadata["brrr.step"] = "4";
  if (odd) dict["model.weight"] = dict["model.weight"] * 2.0;
  save(own, dict, metadata);
  refused("rank 1 reads another file than rank 0");
  if (odd) std::filesystem::remove(own);
  refused(odd ? "No such file" : "rank 1 cannot load it");
}

#if !BRRR_ASAN && !BRRR_TSAN
TEST_CASE("a process that a rank forks ends as any other does, and exchanges nothing") {
  if (default_device() != kCPU) return;
  std::fflush(nullptr);
  models::Linear model(3, 2);
  auto ddp = std::make_unique<dist::DataParallel>(model);
  const pid_t child = fork();
  if (child == 0) {
    ddp.reset();
    const bool refused = error_of([] { dist::barrier(); }).find("forked") != std::string::npos;
    std::exit(refused || dist::size() == 1 ? 0 : 1);
  }
  int status = -1;
  pid_t ended = 0;
  for (int i = 0; i < 1000 && ended == 0; ++i) {
    sleep_s(0.01);
    ended = waitpid(child, &status, WNOHANG);
  }
  CHECK(ended == child);
  CHECK(status == 0);
  if (ended != child) kill(child, SIGKILL);
}
#endif

// The last ones, each in a run of its own (messages.sh): they end it.
TEST_CASE("zz fault: an exception that is not caught") {
  if (dist::rank() == 1) std::thread([] { fail("bad thing on purpose"); }).join();
  sleep_s(20);
}

static std::shared_ptr<dist::Job> share_job(const char* what, int tag, char* bytes) {
  const auto job = std::make_shared<dist::Job>(what, tag, dist::Halves::Share);
  job->set_rows({dist::Row(kUInt8, {{bytes, 2}})});
  return job;
}

TEST_CASE("zz fault: a job that is not waited for, and whose peer never arrives") {
  auto& e = dist::Exchange::get();
  static char bytes[2];  // Still in flight when the case ends.
  const int tag = e.reserve_tags(2) + dist::rank();
  e.start(share_job("the lost one", tag, bytes));
}

TEST_CASE("zz fault: a collective on one rank while the others are in a bucket") {
  auto& e = dist::Exchange::get();
  char bytes[2] = {};
  const auto job = share_job("bucket 0", e.reserve_tags(1), bytes);
  const std::string said = error_of([&] {
    if (dist::rank() == 1) {
      sleep_s(0.5);
      dist::all_reduce(ones({3}));
    } else {
      e.start(job);
      e.wait(*job);
    }
  });
  std::fprintf(stderr, "rank %d: %s\n", dist::rank(), said.c_str());
  sleep_s(2);  // The rank that ends first ends the other.
}

TEST_CASE("zz fault: a step that one rank alone verifies") {
  const bool verifies = dist::rank() == 0;
  models::Linear model(2, 2);
  dist::DataParallel ddp(model);
  auto step = brrr::step(
      [&](const Tensor& x) { ddp(x).sum().backward(); },
      StepOptions{.mode = verifies ? Mode::Graph : Mode::Eager, .verify_every = verifies ? 1 : 0});
  step(ones({1, 2}));
}

TEST_CASE("zz fault: the last rank has ended its program while all others wait for it") {
  if (dist::rank() == dist::size() - 1) return;
  const std::string said = error_of([] { dist::all_reduce(ones({3})); });
  std::fprintf(stderr, "rank %d: %s\n", dist::rank(), said.c_str());
}

static struct Late {
  bool armed = false;
  ~Late() {
    if (armed) dist::abort("too late");
  }
} late;

TEST_CASE("zz fault: abort after the last message") { late.armed = dist::rank() == 1; }
