#include "backends/kernel_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "backends/cpu/host_compiler.h"
#include "backends/sha256.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

std::string digest_of(const std::string& text) {
  return jit::hex(jit::Sha256().bytes(text.data(), text.size()).finish());
}

}  // namespace

TEST_CASE("kernel cache: SHA-256 of the standard's examples") {
  CHECK(digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(digest_of(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  const std::string text(200, 'x');  // in pieces of every size
  for (size_t piece = 1; piece < 130; ++piece) {
    jit::Sha256 hash;
    for (size_t at = 0; at < text.size(); at += piece) {
      hash.bytes(text.data() + at, std::min(piece, text.size() - at));
    }
    CHECK(jit::hex(hash.finish()) == digest_of(text));
  }
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
