#include "examples/common/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "models/file.h"

namespace examples {

namespace {

namespace fs = std::filesystem;

// Locale-free, and the whole text has to be the number.
template <class T> bool read_number(const std::string& text, T& v) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, v);
  return error == std::errc() && at == end;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* o : app.get_options()) names.push_back(o->get_name());
  return names;
}

}  // namespace

CLI::Validator whole_number(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        int64_t v = 0;
        if (read_number(text, v) && v >= least) return std::string();
        return fmt::format("expected a whole number of at least {}, got '{}'", least, text);
      },
      "");
}

CLI::Validator real_number(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double v = 0;  // A NaN fails the comparison.
        if (read_number(text, v) && v >= least && v <= most) return std::string();
        return most < std::numeric_limits<double>::max()
                   ? fmt::format("expected a number from {} to {}, got '{}'", least, most, text)
                   : fmt::format("expected a number of at least {}, got '{}'", least, text);
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> choices) {
  const std::string list = fmt::format("{}", fmt::join(choices, ", "));
  return CLI::Validator(
      [choices = std::move(choices), list](std::string& text) {
        for (const std::string& c : choices) {
          if (c == text) return std::string();
        }
        return fmt::format("expected one of {}; got '{}'", list, text);
      },
      "");
}

CLI::Validator output_file() {
  return CLI::Validator(
      [](std::string& text) {
        std::error_code none;
        const fs::path path = text, parent = path.parent_path();
        if (text.empty() || fs::is_directory(path, none) || !path.has_filename()) {
          return fmt::format("expected the name of a file to write, got '{}'", text);
        }
        if (!parent.empty() && !fs::is_directory(parent, none)) {
          return fmt::format("expected a file in an existing folder; there is no folder '{}'",
                             parent.string());
        }
        return std::string();
      },
      "");
}

bool parse(CLI::App& app, int argc, char** argv, int& exit_code) {
  app.get_formatter()->column_width(34);
  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    std::string text = fmt::format("{}: {}\n", a->get_name(), e.what());
    if (dynamic_cast<const CLI::ExtrasError*>(&e)) {
      text += fmt::format("the options are {}\n", fmt::join(option_names(*a), " "));
    }
    return text + fmt::format("{} --help explains them\n", a->get_name());
  });
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? 0 : 2;
    return false;
  }
}

brrr::Device device_of(const std::string& name) {
  if (name == "cpu") return brrr::kCPU;
  try {
    brrr::device_properties(brrr::kCUDA);
  } catch (const brrr::Error& e) {
    throw brrr::Error(fmt::format("--device {}: {}", name, e.what()));
  }
  return brrr::kCUDA;
}

void use_threads(int n) {
  if (n > 0) setenv("BRRR_NUM_THREADS", std::to_string(n).c_str(), 1);
}

void write_file(const std::string& path, const std::string& text) {
  brrr::replace_file(path, {{text.data(), text.size()}});
}

}  // namespace examples
