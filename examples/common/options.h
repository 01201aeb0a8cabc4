#pragma once
// Command lines that say what was expected, and the main() around them.

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

// CLI11 puts 80 KB of its code into every file that includes it: only options.cpp does.
namespace CLI {
class App;
}  // namespace CLI

namespace examples {

/// The decimal number that is the whole text, in every locale.
template <class T> bool read_number(const std::string& text, T& v) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, v);
  return error == std::errc() && at == end;
}

/// What a value must be: says what was expected when it is not, and nothing when it is.
using Check = std::function<std::string(const std::string&)>;
Check whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
/// CPU threads, at most as many as BRRR_NUM_THREADS may say.
Check thread_count(int64_t least = 1);
Check real_number(double least, double most = std::numeric_limits<double>::max());
Check one_of(std::vector<std::string> choices);
/// A file that can be written, which is tried. One that is `replaced` as a whole is no device.
Check output_file(bool replaced = true);
/// What is read exists.
Check existing_file();
Check existing_folder();
Check existing_path();  ///< Either.

/// A program's options. The derived class declares its own in its constructor; a vector's numbers
/// are separated by commas.
class CommandLine : brrr::NotCopied {
 public:
  CommandLine(const char* about, const char* program);
  virtual ~CommandLine();

  /// All of main(): joins the other processes under mpirun, reads the options, makes brrr use
  /// `threads`, calls body(). Returns what that returned; 0 after --help, 2 after a wrong option, 1
  /// after an exception, which are explained on stderr. Of several processes only the first prints
  /// on stdout, and an exception in one of them ends all.
  int run(int argc, char** argv, const std::function<int()>& body);

  /// What must be the same when a run goes on from its checkpoint, by the options' names.
  virtual brrr::Metadata kept() const;
  /// What a checkpoint says, in the terms of this run.
  virtual void adapt(brrr::Metadata& saved) const { static_cast<void>(saved); }

  int64_t threads = 0;   ///< Of the CPU; 0: all cores.
  std::string resume;    ///< A checkpoint, which also says what the command line leaves out.
  std::string init;      ///< A checkpoint whose weights a new run begins with, and their sizes.
  brrr::Metadata saved;  ///< What either says.

  /// The checkpoint that is given, if one is.
  const std::string& source() const { return resume.empty() ? init : resume; }
  /// The same as the command line says it.
  std::string source_option() const {
    return (resume.empty() ? "--init " : "--resume ") + source();
  }

 protected:
  /// T is std::string, int64_t, double or a std::vector of the first two, each of which is checked.
  /// A name without dashes is what stands on the command line by itself.
  template <class T>
  void plain(const std::string& name, T& v, const std::string& text, const Check& check = {},
             bool shows_default = false);
  /// The same with its default in --help.
  template <class T>
  void add(const std::string& name, T& v, const std::string& text, const Check& check) {
    plain(name, v, text, check, true);
  }
  /// The name of a file or folder that is read, which exists, or of a file that is written. One
  /// that is written is no other that is given.
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
  /// Who gives `option` has to give `other`, too.
  void needs(const std::string& option, const std::string& other);
  /// Who gives `option` cannot give `other`, too.
  void excludes(const std::string& option, const std::string& other);
  /// Checks that need several options; called before a checkpoint is looked at.
  virtual void check() {}
  /// Whether `file`, as it is called from `folder` on, is one of those that are read where that is
  /// an input, or would be if it were there.
  virtual bool reads(const std::filesystem::path& folder, const std::filesystem::path& file) const {
    return static_cast<void>(folder), static_cast<void>(file), false;
  }

  const std::string* resumed_ = nullptr;  ///< What is written and may be the file of `resume`.
  std::vector<std::string> kept_;         ///< Names in kept().
  std::vector<std::string> sizes_;        ///< Of these, what the weights alone ask for.
  std::vector<std::string> hints_;        ///< Options that a checkpoint to resume may also say.

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
  std::string wrong_ = "nothing wrong";  // With the command line.
};

/// Ends all processes of the run; what all of them find wrong only the first one says.
[[noreturn]] void end_all(const std::string& why);

/// The whole number that `text` is; -1 if it is none, or negative.
int64_t number_of(const std::string& text);

/// The device that --device names, "cpu" or "cuda"; throws, saying what is missing, if it is not
/// here.
brrr::Device device_of(const std::string& name);

/// Each of the numbers once, rising.
std::vector<int64_t> distinct(const std::vector<int64_t>& numbers);

/// Writes a text file whole or not at all; throws brrr::Error naming the file.
void write_file(const std::string& path, const std::string& text);

}  // namespace examples
