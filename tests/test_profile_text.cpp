// The output of a profile: tables that fit, traces of any length.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <sys/resource.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "tests/sanitizer.h"
#include "tests/temp_dir.h"

using namespace brrr;

TEST_CASE("profile: tables say what they leave out, in lines that fit, whatever names hold") {
  struct Many : models::Module {
    std::vector<std::unique_ptr<models::Linear>> all;
    Many() {
      for (int k = 0; k < 6; ++k) {
        all.push_back(std::make_unique<models::Linear>(4, 4));
        register_module(fmt::format("layer\n{}", k), *all.back());
      }
    }
    Tensor forward(const Tensor& x) override {
      Tensor y = x;
      for (auto& layer : all) y = (*layer)(y);
      return y;
    }
  } net;
  const Tensor x = randn({2, 4});
  Profile profile;
  net(x);
  const std::string text = profile.report(6);
  CHECK(text.find("layer?") != std::string::npos);
  std::istringstream lines(text);
  std::map<std::string, int64_t> calls;  // By table.
  std::string table;
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 140);
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "calls") {
      table = line.substr(line.find("bound by"));
    } else if (!table.empty()) {
      calls[table] += std::stoll(first);
    }
  }
  REQUIRE(calls.size() == 3);
  for (const auto& [name, n] : calls) CHECK(n == calls.begin()->second);
  CHECK(text.find("3 more\n") != std::string::npos);  // Of six modules; of as many ops, or twice.
  const std::string limits = text.substr(0, text.find(" kernels: "));
  std::istringstream head(limits);
  for (std::string line; std::getline(head, line);) CHECK(line.size() <= 100);
  auto step = brrr::step([&](const Tensor& v) { return net(v); });
  for (int i = 0; i < 2; ++i) step(x);
  CHECK(step.explain().find("layer?0") != std::string::npos);
}

TEST_SUITE_BEGIN("host");

TEST_CASE("profile: a trace is written to the target of a link, and the link stays") {
  const test::TemporaryDirectory folder;
  const std::string trace = std::string(folder.path) + "/trace.json",
                    link = std::string(folder.path) + "/link";
  std::filesystem::create_symlink("trace.json", link);
  Profile profile;
  exp(ones({1}));
  profile.write_trace(link);
  CHECK(std::filesystem::is_symlink(link));
  CHECK(std::filesystem::file_size(trace) > 100);
}

TEST_CASE("profile: a trace takes no memory for its spans while it is written") {
  const auto peak_megabytes = [] {
    rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss / 1024;
  };
  if (test::kAddressSanitizer || test::kThreadSanitizer) return;  // They retain freed memory.
  const test::TemporaryDirectory folder;
  const Tensor x = ones({1});
  Profile profile;
  for (int i = 0; i < 100'000; ++i) x* x;
  profile.report();  // Measures the limits it needs.
  const auto before = peak_megabytes();
  profile.write_trace(std::string(folder.path) + "/trace.json");
  CHECK(peak_megabytes() < before + 20);
}

TEST_SUITE_END();
