#pragma once
// Command line options whose errors name the expected values, and the main() around them.

#include <brrr/brrr.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Only options.cpp includes CLI11, which adds 80 KB of code to every file that does.
namespace CLI {
class App;
}  // namespace CLI

namespace examples {

/// Parses the whole text as a decimal number, independent of the locale.
template <class T> bool read_number(const std::string& text, T& v) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, v);
  return error == std::errc() && at == end;
}

/// Validates an option's value: returns what was expected, or "" if the value is valid.
using Check = std::function<std::string(const std::string&)>;
Check whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
/// A number of CPU threads, up to the maximum of BRRR_NUM_THREADS.
Check thread_count(int64_t least = 1);
Check real_number(double least, double most = std::numeric_limits<double>::max());
Check one_of(std::vector<std::string> choices);
/// A file that can be written, which is tried. If `replaced` as a whole it must not be a device.
Check output_file(bool replaced = true);
Check existing_file();
Check existing_folder();
Check existing_path();  ///< A file or a folder.

/// A program's options. The derived class declares its own in its constructor; the elements of a
/// vector are separated by commas.
class CommandLine : brrr::NotCopied {
 public:
  CommandLine(const char* about, const char* program);
  virtual ~CommandLine();

  /// All of main(): joins the other processes under mpirun, parses the options, makes brrr use
  /// `threads`, calls body(). Returns body()'s result, 0 after --help, 2 after a wrong option, 1
  /// after an exception; errors go to stderr. Of several processes only rank 0 prints on stdout,
  /// and an exception in one of them ends all.
  int run(int argc, char** argv, const std::function<int()>& body);

  /// The options, by name, that a resumed run must share with its checkpoint.
  virtual brrr::Metadata saved_options() const;
  /// Converts a checkpoint's options to this run, which may have another number of processes.
  virtual void adapt(brrr::Metadata& saved) const { static_cast<void>(saved); }

  int64_t threads = 0;   ///< CPU threads; 0: all cores.
  std::string resume;    ///< A checkpoint to resume, which also provides options not given.
  std::string init;      ///< A checkpoint with the initial weights, and their sizes, of a new run.
  brrr::Metadata saved;  ///< The metadata of either checkpoint.

  /// The path of the checkpoint to resume or initialise from; empty if none is given.
  const std::string& source() const { return resume.empty() ? init : resume; }
  /// The same with its option, for messages.
  std::string source_option() const {
    return (resume.empty() ? "--init " : "--resume ") + source();
  }

 protected:
  /// Adds an option. T is std::string, int64_t, double or a std::vector of the first two, whose
  /// elements are each checked. A name without dashes declares positional arguments.
  template <class T>
  void plain(const std::string& name, T& v, const std::string& text, const Check& check = {},
             bool shows_default = false);
  /// The same with its default in --help.
  template <class T>
  void add(const std::string& name, T& v, const std::string& text, const Check& check) {
    plain(name, v, text, check, true);
  }
  /// An option that names an existing file or folder to read, or a file to write. A file to write
  /// must differ from all other files given.
  void add_input(const std::string& name, std::string& v, const std::string& text,
                 const Check& existing) {
    add(name, v, text, existing);
    files_.push_back({name, &v, false});
  }
  void add_output(const std::string& name, std::string& v, const std::string& text,
                  bool replaced = true) {
    add(name, v, text, output_file(replaced));
    files_.push_back({name, &v, true});
  }
  void flag(const std::string& name, bool& v, const std::string& text);
  /// `option` requires `other`.
  void needs(const std::string& option, const std::string& other);
  /// `option` and `other` are mutually exclusive.
  void excludes(const std::string& option, const std::string& other);
  /// Checks that involve several options; called before a checkpoint is read.
  virtual void check() {}
  /// Whether `file`, a path relative to the input folder `folder`, is one that the program reads
  /// from that folder, or would read if it existed.
  virtual bool reads(const std::filesystem::path& folder, const std::filesystem::path& file) const {
    return static_cast<void>(folder), static_cast<void>(file), false;
  }

  const std::string* resume_output_ = nullptr;  ///< An output file that may be that of `resume`.
  std::vector<std::string> saved_options_;      ///< The names in saved_options().
  std::vector<std::string> sizes_;  ///< Those of saved_options_ that the weights alone depend on.
  std::vector<std::string> saved_defaults_;  ///< Defaults that a checkpoint to resume may provide.

 private:
  struct File {
    std::string option;
    const std::string* name;
    bool is_written;
  };
  void check_files() const;
  void check_folder(const File& folder, const File& file) const;
  void use_threads(std::vector<std::string> words);
  std::optional<int> parse(const std::vector<std::string>& words);
  std::optional<int> read(std::vector<std::string> words);

  const std::unique_ptr<CLI::App> app_;
  std::map<std::string, std::function<std::string()>> texts_;
  std::vector<File> files_;
  std::string parse_error_ = "nothing wrong";  // The ranks compare it.
};

/// Ends all processes of the run. Ranks above 0 wait first, so that rank 0 reports a common error.
[[noreturn]] void end_all(const std::string& why);

/// `text` as a non-negative whole number; -1 if it is not one.
int64_t number_of(const std::string& text);

/// The device that --device names, "cpu" or "cuda"; throws, saying what is missing, if there is
/// none.
brrr::Device device_of(const std::string& name);

/// The distinct numbers, sorted.
std::vector<int64_t> distinct(const std::vector<int64_t>& numbers);

/// Replaces a text file atomically; throws brrr::Error naming the file.
void write_file(const std::string& path, const std::string& text);

}  // namespace examples
