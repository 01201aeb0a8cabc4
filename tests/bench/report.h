#pragma once

// The table of bench_ratios (figure, bar, measurement, verdict), and output of child processes.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace brrr::bench {

using nlohmann::json;

enum class Bar { AtMost, AtLeast, None };

class Report {
 public:
  void add(const std::string& what, Bar kind, double bar, double measured, const char* unit,
           const std::string& note = "") {
    const char* verdict = "";
    if (kind == Bar::AtMost) verdict = measured <= bar ? "pass" : "FALLS SHORT";
    if (kind == Bar::AtLeast) verdict = measured >= bar ? "pass" : "FALLS SHORT";
    const std::string limit =
        kind == Bar::None ? ""
                          : fmt::format("{} {:g} {}", kind == Bar::AtMost ? "<=" : ">=", bar, unit);
    fmt::print("{:<62} {:>13} {:>10.4g} {:<5} {:<12}{}\n", what, limit, measured, unit, verdict,
               note);
    std::fflush(stdout);
    json row = {{"what", what}, {"measured", measured}, {"unit", unit}, {"note", note}};
    if (kind != Bar::None) {
      row["bar"] = bar;
      row["sense"] = kind == Bar::AtMost ? "at most" : "at least";
      row["verdict"] = verdict;
    }
    rows_.push_back(std::move(row));
  }
  void at_most(const std::string& what, double bar, double v, const char* unit,
               const std::string& note = "") {
    add(what, Bar::AtMost, bar, v, unit, note);
  }
  void at_least(const std::string& what, double bar, double v, const char* unit,
                const std::string& note = "") {
    add(what, Bar::AtLeast, bar, v, unit, note);
  }
  void show(const std::string& what, double v, const char* unit, const std::string& note = "") {
    add(what, Bar::None, 0, v, unit, note);
  }
  // Records an error that invalidates the figures and decides the exit status.
  void wrong(const std::string& what) {
    fmt::print("*** {}\n", what);
    wrong_.push_back(what);
  }
  bool right() const { return wrong_.empty(); }
  json to_json() const { return {{"figures", rows_}, {"wrong", wrong_}}; }

 private:
  std::vector<json> rows_;
  std::vector<std::string> wrong_;
};

inline std::filesystem::path own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

// The lines that a child process prints; empty if it cannot be run or fails.
inline std::vector<std::string> run_child(const std::string& command) {
  std::vector<std::string> lines;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return lines;
  for (char part[4096]; std::fgets(part, sizeof part, pipe);) {
    if (!lines.empty() && lines.back().back() != '\n') {
      lines.back() += part;  // Lines longer than the buffer.
    } else {
      lines.emplace_back(part);
    }
  }
  if (pclose(pipe) != 0) lines.clear();
  return lines;
}

// The JSON lines of the libtorch peer, if it was built beside this program.
inline std::vector<json> run_peer(const std::string& arguments) {
  const auto path = own_path().parent_path() / "peer_torch";
  if (!std::filesystem::exists(path)) return {};
  std::vector<json> out;
  const auto lines =
      run_child("OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 '" + path.string() + "' " + arguments);
  for (const auto& line : lines) {
    json j = json::parse(line, nullptr, false);
    if (!j.is_discarded()) out.push_back(std::move(j));
  }
  return out;
}

}  // namespace brrr::bench
