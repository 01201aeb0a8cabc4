#pragma once
// The processors' clock frequency, which is printed with figures.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace brrr::bench {

/// MHz of each processor now, as Linux reports it; empty if it does not. `root` contains /proc and
/// /sys.
inline std::vector<long> cpu_megahertz(const std::string& root = "") {
  std::vector<long> all;
  std::error_code none;
  const std::string folder = root + "/sys/devices/system/cpu";
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    std::ifstream file(entry.path() / "cpufreq/scaling_cur_freq");
    if (long kilohertz = 0; file >> kilohertz) all.push_back((kilohertz + 500) / 1000);
  }
  if (!all.empty()) return all;
  std::ifstream info(root + "/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (line.rfind("cpu MHz", 0) != 0 || colon == line.npos) continue;
    try {
      all.push_back(std::stol(line.substr(colon + 1)));
    } catch (const std::exception&) {
      continue;
    }
  }
  return all;
}

/// "2596 MHz", "1200 to 3700 MHz" if processors differ, "unknown".
inline std::string cpu_clock(const std::string& root = "") {
  const std::vector<long> all = cpu_megahertz(root);
  if (all.empty()) return "unknown";
  long least = all[0], most = all[0];
  for (long mhz : all) least = mhz < least ? mhz : least, most = mhz > most ? mhz : most;
  if (least == most) return std::to_string(most) + " MHz";
  return std::to_string(least) + " to " + std::to_string(most) + " MHz";
}

}  // namespace brrr::bench
