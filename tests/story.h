#pragma once
// A text to train on, and a folder for runs of train_gpt.

#include <string>

#include "tests/temp_cache.h"
#include "tests/temp_dir.h"

namespace brrr::test {

/// A text with some structure, identical on every run.
inline std::string story(size_t lines) {
  const char* who[] = {"the cat", "a dog", "the old man", "nobody"};
  const char* does[] = {"sees", "follows", "forgets", "likes"};
  std::string text;
  uint32_t state = 1;
  const auto pick = [&] { return (state = state * 1664525u + 1013904223u) >> 30; };
  for (size_t i = 0; i < lines; ++i) {
    text += std::string(who[pick()]) + " " + does[pick()] + " " + who[pick()] + ".\n";
  }
  return text;
}

/// A folder with a text, and a private kernel cache.
struct StoryFolder {
  TempCache cache;
  TemporaryDirectory folder;
  StoryFolder() { write_text(file("story.txt"), story(400)); }
  std::string dir() const { return folder.path.string(); }
  std::string file(const std::string& name) const { return folder.file(name); }
  std::string tiny() const {
    return "train_gpt --threads 1 --width 16 --heads 2 --block 16 --batch 4 --eval-batches 4 "
           "--data " +
           file("story.txt") + " ";
  }
};

}  // namespace brrr::test
