#pragma once

// Command lines of the programs here that have options of their own; an unknown argument is an
// error, never ignored. C++17 and independent of brrr, for the peers.

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace brrr::bench {

// An error in the command line, as opposed to a failure of the program.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

inline std::int64_t positive_number(std::string_view name, const std::string& text) {
  char* end = nullptr;
  const long long n = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != '\0' || n <= 0 || n > INT_MAX) {
    throw UsageError(std::string(name) + ": '" + text + "' is not a positive number" +
                     (n > INT_MAX ? " of at most " + std::to_string(INT_MAX) : ""));
  }
  return n;
}

inline double positive_real(std::string_view name, const std::string& text) {
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(v > 0) || !std::isfinite(v)) {
    throw UsageError(std::string(name) + ": '" + text + "' is not a positive number");
  }
  return v;
}

// Iterates over the command line. Google Benchmark's options, which ./brrr bench passes to all
// programs, mean nothing to most of them and are skipped, unless `all` is set.
class Words {
 public:
  Words(int argc, char** argv, bool all = false) : words_(argv + 1, argv + argc), all_(all) {}
  // Advances to the next word; false at the end.
  bool next() {
    while (at_ < words_.size()) {
      word_ = words_[at_++];
      if (all_ || word_.rfind("--benchmark_", 0) != 0) return true;
    }
    return false;
  }
  const std::string& word() const { return word_; }
  // The value that follows the current word.
  std::string value() {
    if (at_ == words_.size() || words_[at_].empty() || words_[at_].rfind("--", 0) == 0) {
      throw UsageError(word_ + ": value missing");
    }
    return words_[at_++];
  }
  // If the word is `name`, stores its value and returns true; a bool takes no value and is set.
  template <class T> bool take(const char* name, T& to) {
    if (word_ != name) return false;
    if constexpr (std::is_same_v<T, bool>) {
      to = true;
    } else if constexpr (std::is_same_v<T, std::string>) {
      to = value();
    } else if constexpr (std::is_floating_point_v<T>) {
      to = positive_real(name, value());
    } else {
      to = static_cast<T>(positive_number(name, value()));
    }
    return true;
  }
  [[noreturn]] void unknown() const {
    throw UsageError("unknown option '" + word_ + "', see --help");
  }

 private:
  std::vector<std::string> words_;
  bool all_;
  std::string word_;
  std::size_t at_ = 0;
};

// Passes the words to options.take(words). Returns false after printing help.
template <class Options>
bool read_words(int argc, char** argv, const char* help, Options& options) {
  for (Words words(argc, argv); words.next();) {
    if (words.word() == "--help") {
      std::fputs(help, stdout);
      return false;
    }
    if (!options.take(words)) words.unknown();
  }
  return true;
}

// Prints the error; returns the exit status: 2 for a wrong command line, else 1.
inline int status_of(const char* program, const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", program, e.what());
  return dynamic_cast<const UsageError*>(&e) != nullptr ? 2 : 1;
}

// main() of a program whose work is run(options).
template <class Options, class Run>
int words_main(const char* program, int argc, char** argv, const char* help, Options options,
               const Run& run) {
  try {
    return read_words(argc, argv, help, options) ? run(options) : 0;
  } catch (const std::exception& e) {
    return status_of(program, e);
  }
}

}  // namespace brrr::bench
