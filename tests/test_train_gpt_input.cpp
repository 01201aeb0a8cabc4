// Malformed input to train_gpt: files and options.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <nlohmann/json.hpp>

#include "models/text/utf8.h"
#include "tests/programs.h"
#include "tests/story.h"

#ifdef BRRR_EXAMPLES_DIR

using namespace brrr::test;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

TEST_CASE("train_gpt: bad files and options end before the first step, and say why") {
  const StoryFolder p;
  write_text(p.file("empty.txt"), "");
  write_text(p.file("short.txt"), "hi\n");
  write_text(p.file("binary.txt"), std::string("\x7f"
                                               "ELF\0\0\1",
                                               7));
  write_text(p.file("latin.txt"), story(20) + "caf\xe9\n");
  write_text(p.file("named-\xe9.txt"), story(20));
  write_text(p.file("other.txt"), story(390) + "Zebra\n");
  write_text(p.file("same.txt"), story(390));
  write_text(p.file("odd.bin"), std::string(2001, 'a'));
  write_text(p.file("range.bin"), std::string(2000, '\xff'));
  brrr::data::write_tokens(p.file("cut.bin"), std::vector<int64_t>(500, 3));
  write_text(p.file("cut.bin"), read_text(p.file("cut.bin")).substr(0, 1500));
  write_text(p.file("vocab.json"), R"({"a": 0, "b": 1})");
  write_text(p.file("merges.txt"), "#version: 0.2\nx y\n");
  fs::create_directory(p.file("hollow"));
  REQUIRE(run(p.tiny() + "--steps 2 --mode eager --checkpoint " + p.file("ck")).status == 0);
  REQUIRE(run("train_mlp --steps 1 --images 100 --hidden 4 --mode eager --save " + p.file("mlp"))
              .status == 0);
  const std::string ck = read_text(p.file("ck"));
  write_text(p.file("cut.ck"), ck.substr(0, ck.size() / 2));
  // The metadata of one model with the tensors of another.
  brrr::Metadata metadata;
  brrr::StateDict dict = brrr::load(p.file("ck"), metadata);
  metadata["width"] = "32";
  brrr::save(p.file("torn.ck"), dict, metadata);
  metadata["width"] = "16";
  metadata["vocabulary"] = "5";
  brrr::save(p.file("small.ck"), dict, metadata);
  metadata["vocabulary"] = "99999999";
  brrr::save(p.file("large.ck"), dict, metadata);
  brrr::Metadata other = metadata;
  other["data"] = "x\n\x1b[31mtrain_gpt: all is well";
  brrr::save(p.file("name.ck"), dict, other);
  metadata["activation"] = "\x1b[31mRED";
  brrr::save(p.file("red.ck"), dict, metadata);

  const std::string data = "--data " + p.dir() + "/", resume = "--resume " + p.dir() + "/";
  const struct {
    std::string options, expected;
  } wrong[] = {
      {data + "empty.txt", "empty.txt is empty"},
      {data + "short.txt", "short.txt, --block 32: "},
      {data + "binary.txt", "NUL byte"},
      {data + "latin.txt", "latin.txt: CharTokenizer: byte 0x"},
      {data + "named-\xe9.txt --checkpoint " + p.file("never"), "its name is not UTF-8"},
      {data + "odd.bin", "2001 bytes"},
      {data + "range.bin", "token 65535 at position 0"},
      {data + "range.bin --tokenizer byte", "is not below 256"},
      {data + "range.bin --tokenizer char", "use --tokenizer gpt2 or byte"},
      {data + "cut.bin", "cut off"},
      {data + "hollow", "no file"},
      {data + "story.txt --tokenizer gpt2", "--vocab vocab.json --merges merges.txt"},
      {data + "story.txt --tokenizer gpt2 --vocab " + p.file("vocab.json") + " --merges " +
           p.file("merges.txt"),
       p.file("vocab.json")},
      {data + "story.txt --vocab " + p.file("vocab.json") + " --merges " + p.file("merges.txt"),
       "gpt2's"},
      {data + "story.txt --width 30 --heads 4", "heads"},
      {resume + "ck --vocab " + p.file("vocab.json") + " --merges " + p.file("merges.txt"),
       "gpt2's"},
      {data + "story.txt --layers 1000000000000", "about 4.92e+16 parameters"},
      {data + "story.txt --block 1000000000000", "--block 1000000000000: about"},
      {data + "story.txt --batch 65536 --accumulate 65536", "too much for a step"},
      {data + "story.txt --batch 2000000000", "use a smaller batch"},
      {data + "story.txt --warmup 40 --steps 20", "--warmup 40: it must be below --steps 20"},
      {data + "story.txt --sample 4 --prompt Zebra", "--prompt"},
      {data + "story.txt --steps 0 --sample 4", "give --resume"},
      {resume + "ck --steps 0 --sample 4 --checkpoint " + p.file("new"),
       "--steps 0 only samples: leave"},
      {resume + "ck --steps 0 --sample 4 --log " + p.file("new"),
       "leave --checkpoint, --loss-csv, --log"},
      {resume + "ck --width 32", "it was made with width 16, not 32"},
      {resume + "ck --tokenizer byte", "it was made with tokenizer char, not byte"},
      {resume + "ck " + data + "other.txt", "Z"},
      {resume + "ck " + data + "range.bin", "a char tokenizer does not explain"},
      {resume + "ck " + data + "same.txt", "number of training tokens"},
      {resume + "torn.ck", "wte.weight (is float32[22, 16], expected float32[22, 32])"},
      {resume + "small.ck", "its model only 5"},
      {resume + "large.ck", "no room for a vocabulary of 99999999"},
      {resume + "cut.ck", "cut.ck"},
      {resume + "mlp", "not a checkpoint of train_gpt: it has no"},
      {resume + "story.txt", "story.txt"},
  };
  for (const auto& w : wrong) {
    // Otherwise AddressSanitizer ends a process that requests more memory than exists.
    const Result r =
        run("train_gpt --threads 1 " + w.options, ".", "ASAN_OPTIONS=allocator_may_return_null=1 ");
    INFO(w.options << "\n" << r.text);
    CHECK(r.status == 1);
    CHECK(contains(r.text, w.expected));
    CHECK_FALSE(contains(r.text, "step  "));
    CHECK_FALSE(contains(r.text, "ms/step"));
  }
  const Result red = run("train_gpt --threads 1 " + resume + "red.ck");
  CHECK(red.status == 2);
  CHECK(contains(red.text, "got '?[31mRED'"));  // Text from a file is escaped.
  const Result name = run("train_gpt --threads 1 " + resume + "name.ck");
  CHECK(name.status == 2);
  CHECK(contains(name.text, "does not exist: x??[31mtrain_gpt: all is well\n"));
  // Without --data it needs brrr's own folder.
  const Result r = run("train_gpt --steps 1", p.dir());
  CHECK(r.status == 1);
  CHECK(contains(r.text, "give a text with --data"));
}

TEST_CASE("train_gpt: a wrong option says what was expected") {
  const struct {
    const char *options, *expected;
  } wrong[] = {
      {"--mode lazy", "expected one of eager, graph, auto; got 'lazy'"},
      {"--dtype float64", "expected one of float32, bfloat16, float16; got 'float64'"},
      {"--tokenizer word", "expected one of char, byte, gpt2; got 'word'"},
      {"--top-p 0", "expected a number from 1e-09 to 1, got '0'"},
      {"--temperature -1", "expected a number of at least 0, got '-1'"},
      {"--accumulate 0", "expected a whole number from 1 to 2147483647, got '0'"},
      {"--batch 9223372036854775807", "expected a whole number from 1 to 2147483647"},
      {"--positions none", "expected one of learned, rotary; got 'none'"},
      {"--save-every 5", "--save-every requires --checkpoint"},
      {"--vocab README.md", "--vocab requires --merges"},
      {"--prompt a", "--prompt requires --sample"},
      {"--data /no/such/file", "does not exist"},
      {"--checkpoint /no/such/folder/ck", "there is no folder '/no/such/folder'"},
      {"--stps 5", "the options are --help --mode"},
  };
  for (const auto& w : wrong) {
    const Result r = run(std::string("train_gpt ") + w.options);
    INFO(w.options << "\n" << r.text);
    CHECK(r.status == 2);
    CHECK(contains(r.text, w.expected));
    CHECK(contains(r.text, "--help"));
  }
  CHECK(run("train_gpt --help").status == 0);
}

TEST_CASE("train_gpt: a char model, new or loaded, refuses token ids") {
  const StoryFolder p;
  const std::string ck = p.file("ck"), ids = p.file("ids.bin"),
                    why = "holds token ids, which a char tokenizer does not explain";
  write_text(ids, std::string(400, '\0'));
  REQUIRE(run(p.tiny() + "--steps 2 --checkpoint " + ck).status == 0);
  for (const std::string& from : {std::string(" --tokenizer char"), " --init " + ck}) {
    const Result r = run("train_gpt --steps 2 --data " + ids + from);
    CHECK(r.status == 1);
    CHECK(contains(r.text, why));
  }
}

// --- GPT-2's files ------------------------------------------------------------------------------

namespace {

// GPT-2's spelling of the 256 bytes, "th", and `more`.
void write_vocabulary(const std::string& folder, const Words& more) {
  nlohmann::json ids = nlohmann::json::object();
  Words tokens;
  int hidden = 256;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
    std::string spelled;
    brrr::data::append_utf8(spelled, static_cast<char32_t>(itself ? b : hidden++));
    tokens.push_back(spelled);
  }
  std::string merges = "#version: 0.2\n";
  for (const std::string& word : more) {
    tokens.push_back(word);
    merges += word.substr(0, 1) + " " + word.substr(1) + "\n";
  }
  for (size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = i;
  write_text(folder + "/vocab.json", ids.dump());
  write_text(folder + "/merges.txt", merges);
}

}  // namespace

TEST_CASE("train_gpt: GPT-2's vocabulary goes into the checkpoint, and another one is noticed") {
  const StoryFolder p;
  const std::string files =
                        " --vocab " + p.file("vocab.json") + " --merges " + p.file("merges.txt"),
                    ck = p.file("ck");
  write_vocabulary(p.dir(), {"th", "at"});
  Result r = run(p.tiny() + "--steps 4 --stop-at 2 --mode eager --tokenizer gpt2 --sample 5 " +
                 "--checkpoint " + ck + files);
  INFO(r.text);
  REQUIRE(r.status == 0);
  CHECK(contains(r.text, "vocabulary 258 (gpt2)"));
  // Without the files, which the checkpoint contains; and with the same ones.
  const std::string resume = "train_gpt --mode eager --threads 1 --resume " + ck;
  CHECK(run(resume).status == 0);
  CHECK(run(resume + files).status == 0);
  write_vocabulary(p.dir(), {"th", "og"});
  r = run(resume + files);
  CHECK(r.status == 1);
  CHECK(contains(r.text, "another vocabulary or other merges"));
  // A vocabulary that another version wrote there is replaced by the files' one.
  write_vocabulary(p.dir(), {"th", "at"});
  brrr::Metadata saved;
  const brrr::StateDict all = brrr::load(ck, saved);
  saved["tokenizer-state"] = R"({"tokenizer": "gpt2", "tokens": []})";
  brrr::save(ck, all, saved);
  r = run(resume);
  CHECK(r.status == 1);
  CHECK(contains(r.text, "its tokenizer cannot be read"));
  CHECK(contains(r.text, "give --vocab and --merges"));
  CHECK(run(resume + files).status == 0);
  write_vocabulary(p.dir(), {"th"});
  CHECK(contains(run(resume + files).text, "257 tokens, but the model in " + ck + " has 258"));
  write_vocabulary(p.dir(), {"th", "at", "og"});
  r = run(resume + files);
  CHECK(r.status == 1);
  CHECK(contains(r.text, "259 tokens, but the model in " + ck + " has 258"));
  write_text(p.file("merges.txt"), "#version: 0.2\nt h\na t\nx q\n");
  r = run(resume + files);
  CHECK(r.status == 1);
  CHECK(contains(r.text, "merges.txt"));

  // Token files need no tokenizer for training; samples are then ids.
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 900; ++i) ids.push_back(i * i % 250);
  brrr::data::write_tokens(p.file("train.bin"), ids, brrr::data::TokenFormat::NanoGPT);
  brrr::data::write_tokens(p.file("val.bin"), ids);
  const std::string tokens =
      "train_gpt --threads 1 --width 16 --block 16 --steps 3 --mode eager "
      "--sample 4 --data " +
      p.dir();
  r = run(tokens);
  INFO(r.text);
  CHECK(r.status == 0);
  CHECK(contains(r.text, "900 tokens to train on, 900 to validate on"));
  CHECK(contains(r.text, "vocabulary 50257 (unknown tokenizer)"));
  CHECK(run(tokens + "/train.bin --tokenizer byte").status == 0);
  r = run(tokens + " --prompt a");
  CHECK(r.status == 1);
  CHECK(contains(r.text, "no tokenizer is known"));
}

#endif
