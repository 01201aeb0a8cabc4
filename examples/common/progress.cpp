#include "examples/common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace examples {

Progress::Progress(int64_t first, int64_t total)
    : first_(first),
      total_(total),
      terminal_(isatty(STDOUT_FILENO) != 0),
      begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (open_) std::fputc('\n', stdout);
}

void Progress::show(int64_t at, const std::string& figures, bool milestone) {
  if (!terminal_ && !milestone) return;
  const std::string line =
      fmt::format("step {:>{}}/{}  {}{}", at, fmt::formatted_size("{}", total_), total_, figures,
                  remaining(at));
  // The rest of a longer line before it is erased, not overwritten with blanks.
  fmt::print("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "");
  if (milestone) std::fputc('\n', stdout);
  open_ = !milestone;
  std::fflush(stdout);
}

std::string Progress::remaining(int64_t at) const {
  if (at >= total_ || at <= first_) return "";
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
  const double left =
      spent.count() * static_cast<double>(total_ - at) / static_cast<double>(at - first_);
  return "  ETA " + clock_time(left);
}

std::string clock_time(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(seconds));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace examples
