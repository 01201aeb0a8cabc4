#pragma once
// Command lines that say what was expected, and the main() around them.

#include <brrr/brrr.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace examples {

/// Validators: the value is checked, and a wrong one answered with what was expected.
CLI::Validator whole_number(int64_t least);
CLI::Validator real_number(double least, double most = std::numeric_limits<double>::max());
CLI::Validator one_of(std::vector<std::string> choices);
/// A file that can be written: its folder exists and it is no folder itself.
CLI::Validator output_file();

/// A program's options. The derived class declares its own in its constructor; a vector's values
/// are separated by commas.
class CommandLine : brrr::NotCopied {
 public:
  CommandLine(const char* about, const char* program) : app_(about, program) {}
  virtual ~CommandLine() = default;

  /// All of main(): reads the options, makes brrr use `threads`, calls body(). Returns what that
  /// returned; 0 after --help, 2 after a wrong option, 1 after an exception, which are explained on
  /// stderr.
  int run(int argc, char** argv, const std::function<int()>& body);

  /// What must be the same when a run goes on from its checkpoint, by the options' names.
  virtual brrr::Metadata kept() const;

  int64_t threads = 0;   ///< Of the CPU; 0: all cores.
  std::string resume;    ///< A checkpoint, which also says what the command line leaves out.
  brrr::Metadata saved;  ///< What it says.

 protected:
  template <class T>
  CLI::Option* plain(const std::string& name, T& v, const char* text,
                     const CLI::Validator& check = {}) {
    texts_[name.substr(2)] = [&v] { return text_of(v); };
    CLI::Option* option = app_.add_option(name, v, text)->check(check);
    if constexpr (std::is_same_v<T, std::vector<int64_t>>) option->delimiter(',');
    return option;
  }
  /// The same with its default in --help.
  template <class T>
  CLI::Option* add(const std::string& name, T& v, const char* text, const CLI::Validator& check) {
    return plain(name, v, text, check)->capture_default_str();
  }
  /// Checks that need several options; called before `resume` is looked at.
  virtual void check() {}

  CLI::App app_;
  std::vector<std::string> kept_;   ///< Names in kept().
  std::vector<std::string> hints_;  ///< Options that a checkpoint may also say.

 private:
  template <class T> static std::string text_of(const T& v) { return fmt::format("{}", v); }
  static std::string text_of(const std::vector<int64_t>& v) {
    return fmt::format("{}", fmt::join(v, ","));
  }
  std::optional<int> parse(const std::vector<std::string>& words);
  std::optional<int> read(std::vector<std::string> words);

  std::map<std::string, std::function<std::string()>> texts_;
};

/// The device that --device names, "cpu" or "cuda"; throws, saying what is missing, if it is not
/// here.
brrr::Device device_of(const std::string& name);

/// Writes a text file whole or not at all; throws std::runtime_error naming the file.
void write_file(const std::string& path, const std::string& text);

}  // namespace examples
