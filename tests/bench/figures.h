#pragma once

// Figures in a file that is written anew after each of them, so that whatever ends the program
// leaves those before it. results.py reads it; peer_inputs.py writes the same.

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
  /// Begins the file `path`, none if it is empty, with `about`. Throws std::runtime_error if the
  /// file cannot be written, here and in each call below.
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
  /// Losses of the first steps, which tell whether programs compute the same.
  void note_losses(const std::string& name, const std::vector<float>& values) {
    all_["losses"][name] = values;
    fmt::print("{}: losses {:.6f}\n", name, fmt::join(values, " "));
    write();
  }

  /// Calls f(). If that throws, it is noted why; the next figure can still be measured.
  template <class F> void attempt(const std::string& name, const F& f) {
    try {
      f();
    } catch (const std::exception& e) {
      fmt::print("{}: failed: {}\n", name, e.what());
      all_["failures"][name] = e.what();
      write();
    }
  }

  /// With "figures", "losses" and "failures", each by name.
  const nlohmann::json& all() const { return all_; }
  bool failed() const { return !all_["failures"].empty(); }

 private:
  // Whoever reads the file meanwhile sees all of the older or all of the newer one.
  void write() const {
    if (path_.empty()) return;
    const std::string next = path_ + ".next";
    std::ofstream out(next);
    // A message that is no UTF-8 must not end the program.
    out << all_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    out.close();
    if (!out) throw std::runtime_error(next + " cannot be written");
    std::filesystem::rename(next, path_);
  }

  std::string path_;
  nlohmann::json all_;
};

}  // namespace brrr::bench
