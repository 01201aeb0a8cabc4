// Figures of benchmarks: each is written at once, whatever happens to those after it.
#include "tests/bench/figures.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "tests/temp_cache.h"
#include "tests/temp_dir.h"

using namespace brrr::test;
using brrr::bench::Figures;
using nlohmann::json;

TEST_CASE("figures: the file is written at the beginning and after each of them") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("f.json");
  const auto written = [&] { return json::parse(read_text(path)); };
  Figures figures(path, {{"device", "some"}});
  CHECK(written()["device"] == "some");
  CHECK(written()["figures"].empty());
  figures.note("one", 1.5, "us");
  CHECK(written()["figures"]["one"]["value"] == 1.5);
  CHECK(written()["figures"]["one"]["unit"] == "us");
  figures.note_losses("step", {2.0f, 1.0f});
  CHECK(written()["losses"]["step"] == json({2.0, 1.0}));
  CHECK(!std::filesystem::exists(path + ".next"));
}

TEST_CASE("figures: one that fails is named with its message, and the rest are measured") {
  const TemporaryDirectory folder;
  const std::string path = folder.file("f.json");
  Figures figures(path, {});
  figures.attempt("first", [&] { figures.note("first", 1, "us"); });
  CHECK(!figures.failed());
  figures.attempt("second", [&] {
    figures.note("second, half", 2, "us");
    throw std::runtime_error("out of \xff memory");
  });
  figures.attempt("third", [&] { figures.note("third", 3, "us"); });
  CHECK(figures.failed());
  const json written = json::parse(read_text(path));
  CHECK(written["figures"].size() == 3);
  CHECK(written["failures"].size() == 1);
  CHECK(written["failures"]["second"].get<std::string>().find("out of") == 0);
}

TEST_CASE("figures: a file that cannot be written is an error, and none is needed") {
  CHECK_THROWS_AS(Figures("/nowhere/f.json", {}), std::runtime_error);
  Figures figures("", {});
  figures.note("one", 1, "us");
  CHECK(figures.all()["figures"].size() == 1);
}

TEST_CASE("figures: programs that measure in turns refuse what they cannot measure") {
  if (std::system("command -v python3 >/dev/null") != 0) return;
  const auto said = [](const std::string& words) {
    const TemporaryDirectory folder;
    const std::string out = folder.file("out");
    const int status = std::system(
        ("timeout 20 python3 -B tests/bench/" + words + " >" + out + " 2>&1 </dev/null").c_str());
    CHECK(WEXITSTATUS(status) == 2);
    return read_text(out);
  };
  for (const std::string words : {"--ranks 0", "--rounds 0", "--rounds -1", "--seconds nan"}) {
    const std::string text = said("ranks.py " + words);
    const std::string option = words.substr(0, words.find(' '));
    CHECK_MESSAGE(text.find(option + ": a positive number is needed") != text.npos, text);
  }
  CHECK(said("ranks.py --rounds 1.5").find("--rounds: invalid int value: '1.5'") !=
        std::string::npos);
  for (const std::string words : {"--rounds 0", "--scale 0", "--scale -1", "--scale inf"}) {
    const std::string text = said("outside.py " + words);
    CHECK_MESSAGE(text.find("--scale: a positive number is needed") != text.npos, text);
  }
}
