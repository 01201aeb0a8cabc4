#pragma once

// Command lines of the programs here that have options of their own: a word that none of them takes
// is an error, never passed over. C++17 and nothing of brrr, for the peers.

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::bench {

// What was asked for is wrong, as against what went wrong.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

inline std::int64_t positive_number(std::string_view name, const char* text) {
  char* end = nullptr;
  const long long n = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || n <= 0 || n > INT_MAX) {
    throw UsageError(std::string(name) + ": '" + text + "' is not a positive number" +
                     (n > INT_MAX ? " of at most " + std::to_string(INT_MAX) : ""));
  }
  return n;
}

inline double positive_real(std::string_view name, const char* text) {
  char* end = nullptr;
  const double v = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(v > 0) || !std::isfinite(v)) {
    throw UsageError(std::string(name) + ": '" + text + "' is not a positive number");
  }
  return v;
}

// The command line, word by word. Google Benchmark's options, which ./brrr bench hands to all
// programs, mean nothing here and are passed over.
class Words {
 public:
  Words(int argc, char** argv) : words_(argv + 1, argv + argc) {}
  // Goes to the next word; false behind the last one.
  bool next() {
    while (at_ < words_.size()) {
      word_ = words_[at_++];
      if (word_.rfind("--benchmark_", 0) != 0) return true;
    }
    return false;
  }
  const std::string& word() const { return word_; }
  // What stands behind the word.
  std::string value() {
    if (at_ == words_.size() || words_[at_].rfind("--", 0) == 0) {
      throw UsageError(word_ + ": value missing");
    }
    return words_[at_++];
  }
  [[noreturn]] void unknown() const {
    throw UsageError("unknown option '" + word_ + "', see --help");
  }

 private:
  std::vector<std::string> words_;
  std::string word_;
  std::size_t at_ = 0;
};

// Says why a program ends; returns its exit status: 2 if its command line is wrong, else 1.
inline int status_of(const char* program, const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", program, e.what());
  return dynamic_cast<const UsageError*>(&e) != nullptr ? 2 : 1;
}

}  // namespace brrr::bench
