#pragma once
// brrr::Profile: where the time of a step goes.

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"

namespace brrr {

/// The parts of a time, in microseconds. Of a kernel: the time that its FLOPs take at the measured
/// peak or its bytes at the bandwidth measured for that size, whichever is longer, counts as
/// compute or memory; the rest is overhead. Of a total: the sum over its kernels, and the time
/// between them is overhead, too.
struct TimeSplit {
  double us = 0;
  double compute_us = 0, memory_us = 0;
  double overhead_us() const { return us - compute_us - memory_us; }
  double share(double part_us) const { return us > 0 ? part_us / us : 0; }
  double overhead_share() const { return share(overhead_us()); }
  /// "compute", "memory" or "overhead": the largest part.
  const char* bound() const;
  /// The split of one of `calls` calls, which takes `one_us` without a profile: compute and memory
  /// are scaled down where they would exceed that. A profiled call may be slower, never faster.
  TimeSplit each(double calls, double one_us) const;
};
/// The split of one kernel's time on a device with these limits.
TimeSplit split_time(double us, double flops, double bytes, const DeviceLimits& limits,
                     DType dtype = DType::Float32);

/// Sums over kernels that share op, module or kind.
struct ProfileRow {
  std::string op;      ///< The op's name; of a fused kernel the names of its ops.
  std::string module;  ///< "gpt.blocks.0.fc"; of backward and updates the module they belong to.
  std::string kind;    ///< "contraction", "normalisation", "pointwise" or "other".
  int64_t calls = 0;
  double flops = 0, bytes = 0;  ///< Of all calls.
  TimeSplit time;
  DType dtype = DType::Float32;  ///< Compute dtype of the last call.
};

/// Profiles this thread while it lives: every kernel of both modes with its module, floating-point
/// operations, bytes and time, and the host's time between kernels.
///
///   {
///     brrr::Profile profile;
///     for (int i = 0; i < 100; ++i) step(x, y);
///     std::puts(profile.report().c_str());
///     profile.write_trace("step.trace.json");
///   }
///
/// The profile's own time is excluded from all results, but eager calls take a slower path than
/// usual, and a GPU runs a replay kernel by kernel, each between two events, instead of as one
/// launch: take headline numbers from runs without it. Throws brrr::Error if the thread has another
/// profile, and inside recorded steps and steps that check numerics. One that another thread
/// destroys stays installed until its own thread has run the next kernel. Without a profile, a call
/// costs one branch.
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// Discards all results and starts again.
  void reset();
  /// Excludes everything until resume(), such as an evaluation. Both throw brrr::Error on a thread
  /// other than the one that made the profile, and when they do not alternate.
  void pause();
  void resume();
  /// By op and module, longest time first.
  std::vector<ProfileRow> rows() const;
  /// The same by kind only, and by module only.
  std::vector<ProfileRow> kinds() const;
  std::vector<ProfileRow> modules() const;
  /// The time since the start or reset(); the kernels' time, which on a GPU overlaps the host's.
  TimeSplit total() const;
  double kernels_us() const;

  /// Totals, what bounds them, and tables of the `most` longest rows. Sums are those of total().
  std::string report(size_t most = 20) const;
  /// All rows and totals.
  std::string json() const;
  /// Writes a trace for chrome://tracing and ui.perfetto.dev: kernels, the host's work for them,
  /// modules; it shows gaps and how far the host runs ahead. Keeps the first million spans. Throws
  /// brrr::Error if the file cannot be written.
  void write_trace(const std::string& path) const;

 private:
  struct Watch;
  std::vector<ProfileRow> sums(std::string ProfileRow::*by) const;
  std::shared_ptr<Watch> watch_;  // Shared with its thread (Watch::own()).
};

}  // namespace brrr
