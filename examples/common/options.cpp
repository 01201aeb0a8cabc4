#include "examples/common/options.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <thread>

#include "backends/cpu/pool.h"
#include "core/check.h"
#include "core/text.h"
#include "models/file.h"

namespace examples {

namespace fs = std::filesystem;
using brrr::shown;

static std::string explain(const CLI::App* app, const CLI::Error& e) {
  // shown() escapes the text, because values may come from checkpoints.
  std::string text = fmt::format("{}: {}\n", app->get_name(), shown(e.what(), std::string::npos));
  if (dynamic_cast<const CLI::ExtrasError*>(&e)) {
    text += "the options are";
    for (const CLI::Option* o : app->get_options()) text += " " + o->get_name();
    text += "\n";
  }
  return text + fmt::format("{} --help explains them\n", app->get_name());
}

// Ignores errors: there is no other place to report them.
static void say(const std::string& program, const std::string& what) {
  std::fputs(fmt::format("{}: {}\n", program, what).c_str(), stderr);
}

template <class T> static Check number(const char* what, T least, T most) {
  return [=](const std::string& text) {
    T v = 0;  // A NaN fails the comparison.
    if (read_number(text, v) && v >= least && v <= most) return std::string();
    double size = 0;
    const bool above = read_number(text, size) && size >= static_cast<double>(most);
    return most < std::numeric_limits<T>::max() || above
               ? fmt::format("expected {} from {} to {}, got '{}'", what, least, most, shown(text))
               : fmt::format("expected {} of at least {}, got '{}'", what, least, shown(text));
  };
}
Check whole_number(int64_t least, int64_t most) { return number("a whole number", least, most); }
Check thread_count(int64_t least) { return whole_number(least, brrr::cpu::kMaxThreads); }
Check real_number(double least, double most) { return number("a number", least, most); }

Check one_of(std::vector<std::string> choices) {
  return [choices = std::move(choices)](const std::string& text) {
    if (std::count(choices.begin(), choices.end(), text)) return std::string();
    return fmt::format("expected one of {}; got '{}'", fmt::join(choices, ", "), shown(text));
  };
}

Check output_file(bool replaced) {
  return [replaced](const std::string& text) {
    std::error_code none;
    const fs::path path = text, parent = path.parent_path();
    if (text.empty() || fs::is_directory(path, none) || !path.has_filename()) {
      return fmt::format("expected the name of a file to write, got '{}'", shown(text));
    }
    if (!parent.empty() && !fs::is_directory(parent, none)) {
      return fmt::format("expected a file in an existing folder; there is no folder '{}'",
                         shown(parent.string()));
    }
    const bool special = fs::exists(path, none) && !fs::is_regular_file(path, none);
    try {
      if (replaced || !special) brrr::check_replaceable(text);
    } catch (const brrr::Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
}

// --- reading -------------------------------------------------------------------------------------

// With CLI11's own error messages.
Check existing_file() { return CLI::ExistingFile; }
Check existing_folder() { return CLI::ExistingDirectory; }
Check existing_path() { return CLI::ExistingPath; }

CommandLine::CommandLine(const char* about, const char* program)
    : app_(std::make_unique<CLI::App>(about, program)) {}
CommandLine::~CommandLine() = default;

// Parses values without CLI11, which reads 010 as eight, rounds reals twice and drops empty
// elements of a list.
template <class T>
void CommandLine::plain(const std::string& name, T& v, const std::string& text, const Check& check,
                        bool shows_default) {
  constexpr bool is_text = std::is_same_v<T, std::string>,
                 is_list = !is_text && !std::is_arithmetic_v<T>;
  const auto value = [&v] {
    if constexpr (is_list)
      return fmt::format("{}", fmt::join(v, ","));
    else
      return fmt::format("{}", v);
  };
  const auto read_one = [name, check](const std::string& word, auto& to) {
    const std::string wrong = check ? check(word) : "";
    if (!wrong.empty()) throw CLI::ValidationError(name, wrong);
    if constexpr (std::is_same_v<decltype(to), std::string&>)
      to = word;
    else
      read_number(word, to);
  };
  const auto read = [&v, name, read_one](const CLI::results_t& words) {
    if constexpr (is_list) v.clear();
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      for (const std::string& word : words) read_one(word, v.emplace_back());
    } else if constexpr (is_list) {
      std::istringstream all(fmt::format("{},", fmt::join(words, ",")));
      for (std::string word; std::getline(all, word, ',');) read_one(word, v.emplace_back());
    } else {
      for (const std::string& word : words) read_one(word, v);  // First: reports invalid values.
      if (words.size() > 1) throw CLI::ValidationError(name, "is given twice; give it once");
    }
    return true;
  };
  CLI::Option* const option = app_->add_option(
      name, read, text, false, [=] { return is_list ? "[" + value() + "]" : value(); });
  const bool is_word = is_text || std::is_same_v<T, std::vector<std::string>>;
  option->type_name(is_word ? "TEXT" : std::is_same_v<T, double> ? "FLOAT" : "INT");
  if (is_list)
    option->expected(1, -1)->allow_extra_args();
  else
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (shows_default) option->capture_default_str();
  if (option->nonpositional()) texts_[name.substr(2)] = value;
}
using Text = const std::string&;
template void CommandLine::plain(Text, std::string&, Text, const Check&, bool);
template void CommandLine::plain(Text, int64_t&, Text, const Check&, bool);
template void CommandLine::plain(Text, double&, Text, const Check&, bool);
template void CommandLine::plain(Text, std::vector<std::string>&, Text, const Check&, bool);
template void CommandLine::plain(Text, std::vector<int64_t>&, Text, const Check&, bool);

void CommandLine::flag(const std::string& name, bool& v, const std::string& text) {
  app_->add_flag(name, v, text);
}
void CommandLine::needs(const std::string& option, const std::string& other) {
  app_->get_option(option)->needs(app_->get_option(other));
}
void CommandLine::excludes(const std::string& option, const std::string& other) {
  app_->get_option(option)->excludes(app_->get_option(other));
}

// Returns main's exit status if the program ends here.
std::optional<int> CommandLine::parse(const std::vector<std::string>& words) {
  app_->get_formatter()->column_width(34);
  app_->failure_message(explain);
  try {
    std::vector<std::string> last_first(words.rbegin(), words.rend());
    app_->parse(last_first);
    return {};
  } catch (const CLI::ParseError& e) {
    parse_error_ = e.get_exit_code() == 0 ? "a request for help" : e.what();
    if (brrr::dist::rank() > 0) return e.get_exit_code() == 0 ? 0 : 2;  // Rank 0 reports it.
    return app_->exit(e) == 0 ? 0 : 2;
  }
}

// An absolute path without links. weakly_canonical() alone leaves the path of a file that does not
// exist relative, and does not follow a link to such a file.
static fs::path place(const fs::path& p) {
  std::error_code none;
  return fs::weakly_canonical(brrr::resolve_links(fs::absolute(p, none)), none);
}

// Throws if one option would write a file that another reads from its folder, now or later.
void CommandLine::check_folder(const File& folder, const File& file) const {
  std::error_code none;
  if (folder.is_written || !file.is_written || file.name->empty() ||
      !fs::is_directory(*folder.name, none)) {
    return;
  }
  const fs::path inside = place(*file.name).lexically_relative(place(*folder.name));
  BRRR_CHECK(inside.empty() || *inside.begin() == ".." || !reads(*folder.name, inside),
             "{} {} is read by {} {}; give it a file of its own", file.option, *file.name,
             folder.option, *folder.name);
}

// Throws if one option would write a file that another reads or writes.
void CommandLine::check_files() const {
  std::error_code none;
  for (size_t k = 0; k < files_.size(); ++k) {
    const fs::path path = *files_[k].name;
    for (size_t n = 0; n < k && !path.empty(); ++n) {
      const fs::path other = *files_[n].name;
      const bool written = files_[k].is_written || files_[n].is_written,
                 goes_on = files_[k].name == &resume && files_[n].name == resume_output_;
      if (!written || goes_on || other.empty() || fs::is_character_file(path, none)) continue;
      BRRR_CHECK(place(path) != place(other), "{} and {} are one file, {}; give each its own",
                 files_[n].option, files_[k].option, path.string());
    }
    for (const File& other : files_) check_folder(other, files_[k]);
  }
}

std::optional<int> CommandLine::read(std::vector<std::string> words) {
  if (const auto code = parse(words)) return code;
  check();
  check_files();
  BRRR_CHECK(resume.empty() || init.empty(),
             "--resume goes on with a run, --init begins one; give one of them");
  if (source().empty()) return {};
  const bool goes_on = !resume.empty();
  const std::vector<std::string>& same = goes_on ? saved_options_ : sizes_;
  brrr::load(source(), saved);  // Checks the whole file before its content is used.
  if (goes_on) adapt(saved);
  std::set<std::string> given;
  const auto take = [&](const std::string& key) {
    if (app_->count("--" + key) > 0)
      given.insert(key);
    else
      words.push_back("--" + key + "=" + saved[key]);
  };
  for (const std::string& key : same) {
    BRRR_CHECK(saved.count(key), "{}: it is not a checkpoint of {}: it has no {}", source_option(),
               app_->get_name(), key);
    BRRR_CHECK(!saved[key].empty(), "{}: its {} is empty: it is damaged", source_option(), key);
    take(key);
  }
  for (const std::string& key : saved_defaults_) {
    if (goes_on && !saved[key].empty()) take(key);
  }
  if (const auto code = parse(words)) {
    say(app_->get_name(), "what the command line leaves out is as in " + source());
    return code;
  }
  check_files();
  const brrr::Metadata now = saved_options();
  for (const std::string& key : same) {
    const bool free = goes_on && !std::count(sizes_.begin(), sizes_.end(), key);
    BRRR_CHECK(
        saved[key] == now.at(key), "{}: it was made with {} {}, not {}; {}{}", source_option(), key,
        shown(saved[key]), now.at(key),
        given.count(key) ? "leave that out" : fmt::format("give --{} {}", key, shown(saved[key])),
        free ? ", or begin a new run with its weights by --init" : "");
  }
  return {};
}

// Sets BRRR_NUM_THREADS before dist::init(): without it, processes divide the processors there.
void CommandLine::use_threads(std::vector<std::string> words) {
  try {
    std::reverse(words.begin(), words.end());
    app_->parse(words);
  } catch (const CLI::ParseError&) {
    return;  // read() reports the error, after dist::init(), on rank 0 only.
  }
  if (threads > 0) setenv("BRRR_NUM_THREADS", std::to_string(threads).c_str(), 1);
}

// Fails if standard output could not be written, for example to a full disk.
static int after_output(const std::string& program, int code) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
  say(program, "standard output cannot be written");
  return code == 0 ? 1 : code;
}

// Opens missing standard streams: otherwise the first file that is opened would become one of them.
static void keep_standard_files() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDONLY);
  if (fd >= 0) ::close(fd);
}

int CommandLine::run(int argc, char** argv, const std::function<int()>& body) {
  namespace dist = brrr::dist;
  bool joined = false;
  keep_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // Exceeding the file size limit is then an error of write().
  try {
    use_threads({argv + 1, argv + argc});
    dist::init();
    joined = true;
    if (dist::rank() > 0 && !std::freopen("/dev/null", "w", stdout)) return 1;
    const auto code = read({argv + 1, argv + argc});
    // Rank 0 has already reported an error that all ranks share.
    dist::check_alike("the processes' command lines", {parse_error_});
    return after_output(app_->get_name(), code ? *code : body());
  } catch (const std::exception& e) {
    std::fflush(stdout);
    if (joined && dist::size() > 1) end_all(e.what());
    say(app_->get_name(), e.what());
    return 1;
  }
}

brrr::Metadata CommandLine::saved_options() const {
  brrr::Metadata all;
  for (const std::string& key : saved_options_) all[key] = texts_.at(key)();
  return all;
}

void end_all(const std::string& why) {
  if (brrr::dist::rank() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  brrr::dist::abort(why);
}

int64_t number_of(const std::string& text) {
  int64_t v = 0;
  return read_number(text, v) && v >= 0 ? v : -1;
}

brrr::Device device_of(const std::string& name) {
  if (name == "cpu") return brrr::kCPU;
  try {
    brrr::device_properties(brrr::kCUDA);
  } catch (const brrr::Error& e) {
    brrr::fail("--device {}: {}", name, e.what());
  }
  return brrr::kCUDA;
}

std::vector<int64_t> distinct(const std::vector<int64_t>& numbers) {
  const std::set<int64_t> each(numbers.begin(), numbers.end());
  return {each.begin(), each.end()};
}

void write_file(const std::string& path, const std::string& text) {
  brrr::replace_file(path, {{text.data(), text.size()}});
}

}  // namespace examples
