#pragma once

// Writes figures to a JSON file that is rewritten after each of them, so that an aborted program
// keeps its earlier figures. Read by results.py; peer_inputs.py writes the same format.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace brrr::bench {

class Figures {
 public:
  /// Starts the file `path` with `about`; an empty path writes no file. Throws std::runtime_error
  /// if the file cannot be written, here and in each call below.
  Figures(std::string path, nlohmann::json about) : path_(std::move(path)), all_(std::move(about)) {
    for (const char* part : {"figures", "losses", "failures"}) {
      all_[part] = nlohmann::json::object();
    }
    write();
  }

  void note(const std::string& name, double value, const char* unit) {
    all_["figures"][name] = {{"value", value}, {"unit", unit}};
    fmt::print("{:<44} {:>12.3f} {}\n", name, value, unit);
    std::fflush(stdout);
    write();
  }
  /// Losses of the first steps, which show whether programs compute the same.
  void note_losses(const std::string& name, const std::vector<float>& values) {
    all_["losses"][name] = values;
    fmt::print("{}: losses {:.6f}\n", name, fmt::join(values, " "));
    write();
  }

  /// Calls f(). If it throws, the message is recorded and the next figure can still be measured.
  template <class F> void attempt(const std::string& name, const F& f) {
    try {
      f();
    } catch (const std::exception& e) {
      fmt::print("{}: failed: {}\n", name, e.what());
      all_["failures"][name] = e.what();
      write();
    }
  }

  /// The JSON written so far: "figures", "losses" and "failures", each by name.
  const nlohmann::json& all() const { return all_; }
  bool failed() const { return !all_["failures"].empty(); }

 private:
  // Renames a complete file into place, so that a concurrent reader never sees a partial one.
  void write() const {
    if (path_.empty()) return;
    const std::string next = path_ + ".next";
    std::ofstream out(next);
    // Invalid UTF-8 in a message must not end the program.
    out << all_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    out.close();
    if (!out) throw std::runtime_error(next + " cannot be written");
    std::filesystem::rename(next, path_);
  }

  std::string path_;
  nlohmann::json all_;
};

}  // namespace brrr::bench
