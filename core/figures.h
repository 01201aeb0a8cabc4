#pragma once
// Figures measured on this machine, kept on disk with the kernels for every later process.

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

/// How long what has been measured is kept.
enum class Keep { OnDisk, InProcess, Not };

/// Those kept under what `of` says they are of (the measure, the machine, the build), or what
/// `measure` finds, which says what is not worth keeping for other processes or at all. With `anew`
/// measured again. One thread measures at a time. Defined with the cache of kernels.
std::vector<double> kept_figures(const std::vector<std::string_view>& of, bool anew,
                                 const std::function<std::vector<double>(Keep&)>& measure);

/// For how much of the time the thread has had a core since this was made. What it measured then is
/// no figure of the machine where others had it for more than a fifth.
class CoreWatch {
 public:
  CoreWatch();
  double share() const;  ///< At most 1.
  bool had_core() const { return share() >= 0.8; }

 private:
  double begin_, had_;
};

/// Of the file that this library is in: another after every build.
std::string build_stamp();

}  // namespace brrr
