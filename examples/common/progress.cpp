// Progress output of a run: the line on the screen, --loss-csv and --log.
#include "examples/common/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "core/check.h"
#include "tests/bench/measure/output.h"

namespace examples {

using brrr::bench::seconds_since;

double plain(double v) { return std::isnan(v) ? std::numeric_limits<double>::quiet_NaN() : v; }

// --- files that a resumed run continues ----------------------------------------------------------

// A resumed run repeats the steps after its checkpoint: drops the lines that a killed run wrote of
// those, and an incomplete last line. step_of(line) is the step of a line.
template <class F>
static std::string lines_until(const std::string& path, int64_t step, const F& step_of) {
  std::string kept;
  if (!std::filesystem::is_regular_file(path)) return kept;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    if (step_of(line) <= step) kept += line + '\n';
  }
  return kept;
}

static std::ofstream open_lines(const TrainingOptions& o, int64_t step) {
  if (!o.resume.empty() && std::filesystem::is_regular_file(o.log)) {
    write_file(o.log, lines_until(o.log, step, [](const std::string& line) {
                 const auto j = brrr::bench::parse_json(line);
                 const bool says = j.is_object() && j.contains("step") && j["step"].is_number();
                 return says ? j["step"].get<int64_t>() : 0;
               }));
  }
  // Appends, so that two runs that share a file do not overwrite each other's lines.
  std::ofstream log(o.log, std::ios::app);
  BRRR_CHECK(log.is_open(), "--log: {} cannot be written", o.log);
  if (o.resume.empty() && std::filesystem::is_regular_file(o.log)) {
    log << '\n' << std::flush;  // Detects a full disk now, not at the first line.
    std::filesystem::resize_file(o.log, 0);
  }
  return log;
}

// Drops the lines of another run immediately: a later --resume would take them for its own.
static std::ofstream open_losses(const TrainingOptions& o, int64_t first) {
  std::string text = "step,loss\n";
  if (!o.resume.empty()) {
    text += lines_until(o.loss_csv, first, [](const std::string& line) {
      const int64_t at = number_of(line.substr(0, line.find(',')));
      return at > 0 ? at : std::numeric_limits<int64_t>::max();  // Drops the header line.
    });
  }
  write_file(o.loss_csv, text);
  return std::ofstream(o.loss_csv, std::ios::app);
}

RunLog::RunLog(const TrainingOptions& o, int64_t first) : options_(o), next_(first + 1) {
  if (brrr::dist::rank() > 0) return;
  if (!o.loss_csv.empty()) losses_ = open_losses(o, first);
  if (!o.log.empty()) lines_ = open_lines(o, first);
  flush();  // Throws before the first step.
}

RunLog::~RunLog() {
  if (pending_.empty() || !losses_.is_open()) return;
  try {
    read();  // The losses before the exception that ends the run.
  } catch (const std::exception&) {
    return;  // The device itself has failed.
  }
}

void RunLog::add(const brrr::Tensor& loss) {
  constexpr size_t most = 1024;  // Bounds the losses that a run without output keeps.
  pending_.push_back(loss);
  if (pending_.size() == most) read();
}

double RunLog::read() {
  for (const brrr::Tensor& t : pending_) {
    const std::vector<float> all = t.to_vector<float>();
    last_ = plain(static_cast<double>(all[0]));
    std::vector<std::string> bad;
    for (size_t k = 1; k < all.size(); ++k) {
      if (!std::isfinite(all[k])) bad.push_back(std::to_string(k - 1));
    }
    if (where_.empty() && !bad.empty()) where_ = fmt::format(", on rank {}", fmt::join(bad, ", "));
    if (losses_.is_open()) losses_ << fmt::format("{},{:.9g}\n", next_, last_);
    ++next_;
  }
  pending_.clear();
  return last_;
}

void RunLog::write(const std::string& line) {
  if (lines_.is_open()) lines_ << line << std::flush;
}

void RunLog::flush() {
  read();
  losses_.flush();
  const bool has_losses = brrr::dist::rank() == 0 && !options_.loss_csv.empty();
  BRRR_CHECK(!has_losses || losses_, "--loss-csv: {} cannot be written", options_.loss_csv);
  BRRR_CHECK(!lines_.is_open() || lines_, "--log: {} cannot be written", options_.log);
}

// --- on the screen -------------------------------------------------------------------------------

ProgressLine::ProgressLine(int64_t first, int64_t total)
    : first_(first),
      total_(total),  // Under mpirun stdout is a terminal even if mpirun's output goes to a file.
      terminal_(brrr::dist::size() == 1 && isatty(STDOUT_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', stdout);
}

void ProgressLine::show(int64_t at, const std::string& figures, bool milestone) {
  if (!terminal_ && !milestone) return;
  const std::string line =
      fmt::format("step {:>{}}/{}  {}{}", at, fmt::formatted_size("{}", total_), total_, figures,
                  remaining(at));
  // \033[K erases the rest of a longer previous line.
  fmt::print("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "");
  if (milestone) std::fputc('\n', stdout);
  open_ = !milestone;
  std::fflush(stdout);
}

double ProgressLine::seconds_left(int64_t at) const {
  if (at >= total_ || at <= first_) return 0;
  return seconds_since(begin_) * static_cast<double>(total_ - at) /
         static_cast<double>(at - first_);
}

// Formats 75 s as "1:15", 4000 s as "1:06:40".
std::string ProgressLine::remaining(int64_t at) const {
  const auto s = static_cast<int64_t>(std::ceil(seconds_left(at)));
  if (s == 0) return "";
  if (s >= 3600) return fmt::format("  ETA {}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("  ETA {}:{:02}", s / 60, s % 60);
}

}  // namespace examples
