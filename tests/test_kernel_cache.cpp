#include "backends/kernel_cache.h"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>

#include "backends/cpu/host_compiler.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("kernel cache: a fingerprint tells fields, their order and every bit of them apart") {
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
  fs::create_directory_symlink(base + "/xdg/brrr", base + "/link");  // our own link is good
  const Env link("BRRR_CACHE_DIR", (base + "/link").c_str());
  CHECK(jit::kernel_cache_dir() == base + "/link");
}

TEST_CASE("kernel cache: a program that hangs is stopped") {
  const cpu::ProcessResult r = cpu::run_process({"/bin/sh", "-c", "echo begun; sleep 30"}, 0.3);
  CHECK(r.end == cpu::ProcessResult::timed_out);
  CHECK(r.output == "begun\n");
  CHECK(cpu::run_process({"/nonesuch"}, 1).end == cpu::ProcessResult::not_started);
  CHECK(cpu::run_process({"/bin/sh", "-c", "exit 7"}, 10).status == 7);
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
