#pragma once
// Figures measured on this machine, kept on disk with the kernels for later processes.

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

/// How long a measurement is kept.
enum class Keep { OnDisk, InProcess, Not };

/// The figures kept under the key `of` (the measure, the machine, the build), or those that
/// `measure` returns, which sets Keep if they are not worth keeping for other processes or at all.
/// `anew`: measured again. One thread measures at a time. Defined with the cache of kernels.
std::vector<double> cached_figures(const std::vector<std::string_view>& of, bool anew,
                                   const std::function<std::vector<double>(Keep&)>& measure);

/// The share of the time since its construction for which the thread had a core. Where others had
/// it for more than a fifth, figures measured meanwhile do not describe the machine.
class CoreWatch {
 public:
  CoreWatch();
  double share() const;  ///< At most 1.
  bool had_core() const { return share() >= 0.8; }

 private:
  double begin_, had_;
};

/// Identifies the file that contains this library: changes with every build.
std::string build_stamp();

}  // namespace brrr
