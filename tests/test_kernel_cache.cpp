#include "backends/kernel_cache.h"

#include <doctest/doctest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "backends/cpu/host_compiler.h"
#include "core/figures.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("kernel cache: a fingerprint depends on fields, their order and every bit of them") {
  CHECK(jit::fingerprint({}) == "6c62272e07bb014262b821756295c58d");  // FNV's offset basis
  std::set<std::string> seen{jit::fingerprint({"ab", "c"}), jit::fingerprint({"a", "bc"}),
                             jit::fingerprint({"c", "ab"}), jit::fingerprint({"abc"}),
                             jit::fingerprint({"abc", ""})};
  std::string text(1000, 'x');
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
    seen.insert(jit::fingerprint({text}));
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
  CHECK(seen.size() == 5 + 8 * text.size());
}

TEST_CASE("kernel cache: where the cache is") {
  const TempCache cache;
  const std::string& base = cache.dir;
  CHECK(jit::kernel_cache_dir() == base);
  const Env none("BRRR_CACHE_DIR", nullptr), xdg("XDG_CACHE_HOME", (base + "/xdg").c_str());
  const Env home("HOME", (base + "/home").c_str());
  CHECK(jit::kernel_cache_dir() == base + "/xdg/brrr");
  CHECK(fs::status(base + "/xdg/brrr").permissions() == fs::perms::owner_all);
  const Env no_xdg("XDG_CACHE_HOME", nullptr);
  CHECK(jit::kernel_cache_dir() == base + "/home/.cache/brrr");
  fs::create_directory_symlink(base + "/xdg/brrr", base + "/link");  // our own link is accepted
  const Env link("BRRR_CACHE_DIR", (base + "/link").c_str());
  CHECK(jit::kernel_cache_dir() == base + "/link");
  const mode_t before = umask(002);  // With a trailing slash it gets mode 0700, too.
  const Env slash("BRRR_CACHE_DIR", (base + "/slash//").c_str());
  CHECK(jit::kernel_cache_dir() == base + "/slash");
  umask(before);
}

TEST_CASE("kernel cache: a program that hangs is stopped") {
  const cpu::ProcessResult r = cpu::run_process({"/bin/sh", "-c", "echo begun; sleep 30"}, 0.3);
  CHECK(r.end == cpu::ProcessResult::timed_out);
  CHECK(r.output == "begun\n");
  CHECK(cpu::run_process({"/nonesuch"}, 1).end == cpu::ProcessResult::not_started);
  CHECK(cpu::run_process({"/bin/sh", "-c", "exit 7"}, 10).status == 7);
}

TEST_CASE("kernel cache: a process killed in a build leaves no lock, other keys are not locked") {
  const TempCache cache;
  const std::string key = jit::fingerprint({"a"}), other = jit::fingerprint({"b"});
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const jit::BuildLock held(cache.dir, key);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  { const jit::BuildLock free(cache.dir, other); }
  std::atomic<bool> entered = false;
  std::thread waiting([&] {
    const jit::BuildLock next(cache.dir, key);
    entered = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(!entered);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  waiting.join();
  CHECK(entered);
  for (const int end : ready) close(end);
}

TEST_CASE("kernel cache: figures are kept for later processes, measured again on request") {
  const TempCache cache;
  int measured = 0;
  const auto measure = [&](Keep&) { return std::vector<double>{0.0, 1e-300, 1.0 / ++measured}; };
  const auto found = [&](bool anew = false) { return cached_figures({"test"}, anew, measure)[2]; };
  CHECK(found() == 1);
  CHECK(found() == 1);
  CHECK(found(true) == 0.5);
  // What another process would find: the file, in a directory that this process has not read.
  const auto move_to = [&](const std::string& dir) {
    fs::create_directory(dir);
    fs::permissions(dir, fs::perms::owner_all);
    for (const auto& f : fs::directory_iterator(cache.dir)) {
      if (f.is_regular_file()) fs::copy(f, dir);
    }
    return dir;
  };
  {
    const Env later("BRRR_CACHE_DIR", move_to(cache.dir + "/later").c_str());
    CHECK(cached_figures({"test"}, false, measure) == std::vector<double>{0.0, 1e-300, 0.5});
    CHECK(measured == 2);
  }
  {
    const std::string dir = move_to(cache.dir + "/damaged");
    for (const auto& f : fs::directory_iterator(dir)) fs::resize_file(f, 9);
    const Env damaged("BRRR_CACHE_DIR", dir.c_str());
    CHECK(found() == 1.0 / 3);
  }
  Keep how = Keep::Not;
  const auto unsure = [&](Keep& keep) {
    keep = how;
    return std::vector<double>{2};
  };
  CHECK(cached_figures({"other"}, false, unsure)[0] == 2);
  CHECK(cached_figures({"other"}, false, measure)[2] == 0.25);
  how = Keep::InProcess;
  const auto files = cache.files().size();
  CHECK(cached_figures({"third"}, false, unsure)[0] == 2);
  CHECK(cached_figures({"third"}, false, measure)[0] == 2);
  CHECK(cache.files().size() == files);
}

TEST_CASE("kernel cache: figures that a full disk cannot keep are used, and reported once") {
  const TempCache cache;
  const auto measure = [](Keep&) { return std::vector<double>{1}; };
  cached_figures({"no room"}, true, measure);
  const std::string file = cache.only_file();
  fs::remove(file);
  fs::create_directories(file + "/inside");  // It cannot be replaced.
  const std::string said = stderr_of([&] {
    for (int run = 0; run < 2; ++run) CHECK(cached_figures({"no room"}, true, measure)[0] == 1);
  });
  CHECK(said.starts_with("brrr: kernel cache: " + file + " cannot be written"));
  CHECK(std::ranges::count(said, '\n') == 1);
}

// In separate processes, since each has one such folder.
TEST_CASE("kernel cache: files of a killed process are removed when another needs a folder") {
  const TempCache cache;
  REQUIRE(chmod(cache.dir.c_str(), 0777) == 0);  // Writable by others, so unused.
  const bench::TemporaryFolder temp;
  const Env folder("TMPDIR", temp.path.c_str());
  const auto run_and_kill = [] {
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen("/dev/null", "w", stderr)) jit::kernel_cache_dir();
      raise(SIGKILL);
    }
    waitpid(child, nullptr, 0);
  };
  // The existing folders, made to look old.
  const auto left = [&] {
    std::vector<std::string> names;
    for (const auto& f : fs::directory_iterator(temp.path)) {
      names.push_back(f.path());
      fs::last_write_time(f, fs::file_time_type::clock::now() - std::chrono::minutes(5));
    }
    return names;
  };
  run_and_kill();
  REQUIRE(left().size() == 1);
  const std::string first = left()[0];
  const int in_use = open(first.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(flock(in_use, LOCK_EX) == 0);
  run_and_kill();
  CHECK(left().size() == 2);
  close(in_use);
  run_and_kill();
  CHECK(left().size() == 1);
  CHECK(left()[0] != first);
}

TEST_CASE("kernel cache: a thread without a core of its own is detected") {
  const CoreWatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!watch.had_core());
}

TEST_CASE("kernel cache: the cache is bounded") {
  const TempCache cache;
  auto name = [&](int i) {
    std::string key = std::to_string(i);
    return cache.dir + "/" + std::string(32 - key.size(), '0') + key + ".so";
  };
  for (int i = 0; i < 10; ++i) {
    write_text(name(i), std::string(1000, 'x'));
    fs::last_write_time(name(i), fs::file_time_type::clock::now() - std::chrono::minutes(20 - i));
  }
  write_text(cache.dir + "/notes.so", "not ours");
  fs::create_directory(cache.dir + "/build.killed");
  fs::create_directory(cache.dir + "/build.now");
  fs::last_write_time(cache.dir + "/build.killed",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  jit::trim_kernel_cache(cache.dir, 8);
  CHECK_FALSE(fs::exists(name(1)));
  CHECK(fs::exists(name(2)));
  jit::trim_kernel_cache(cache.dir, 8, 3500);
  CHECK_FALSE(fs::exists(name(6)));
  CHECK(fs::exists(name(7)));
  CHECK(fs::exists(cache.dir + "/notes.so"));
  CHECK(fs::exists(cache.dir + "/build.now"));
  CHECK_FALSE(fs::exists(cache.dir + "/build.killed"));
}
