#pragma once
// One line that says how far a run is: rewritten in place on a terminal, else printed now and then.

#include <chrono>
#include <cstdint>
#include <string>

namespace examples {

class Progress {
 public:
  /// Steps from `first` to `total`.
  Progress(int64_t first, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After step `at`, with the figures to show beside it. `milestone` lines stay on the screen and
  /// are all that is printed where there is no terminal.
  void show(int64_t at, const std::string& figures, bool milestone);
  bool on_terminal() const { return terminal_; }

 private:
  std::string remaining(int64_t at) const;
  int64_t first_, total_;
  bool terminal_, open_ = false;
  std::chrono::steady_clock::time_point begin_;
};

/// 75 s as "1:15", 4000 s as "1:06:40".
std::string clock_time(double seconds);

}  // namespace examples
