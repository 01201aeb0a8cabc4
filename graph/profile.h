#pragma once
// brrr::Profile: where the time of a step goes.

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"

namespace brrr {

/// How a time is made up, in microseconds. Of a kernel: what its FLOPs take at the measured peak or
/// its bytes at the measured bandwidth for so many bytes, whichever is longer, is compute or
/// memory; the rest is overhead. Of a whole: the sum over its kernels, and all that lies between
/// them is overhead, too.
struct TimeSplit {
  double us = 0;
  double compute_us = 0, memory_us = 0;
  double overhead_us() const { return us - compute_us - memory_us; }
  double share(double part_us) const { return us > 0 ? part_us / us : 0; }
  double overhead_share() const { return share(overhead_us()); }
  /// "compute", "memory" or "overhead": the largest part.
  const char* bound() const;
  /// Of one of so many calls, which takes `one_us` without a profile. What a profile saw may have
  /// been slower than that, and is never faster.
  TimeSplit each(double calls, double one_us) const;
};
/// Of one kernel, or of something that is like one, on a device with these limits.
TimeSplit split_time(double us, double flops, double bytes, const DeviceLimits& limits,
                     DType dtype = DType::Float32);

/// Kernels with something in common.
struct ProfileRow {
  std::string op;      ///< Its name; of a fused kernel those of its ops.
  std::string module;  ///< "gpt.blocks.0.fc"; of backward and updates the module they belong to.
  std::string kind;    ///< "contraction", "normalisation", "pointwise" or "other".
  int64_t calls = 0;
  double flops = 0, bytes = 0;  ///< Of all calls.
  TimeSplit time;
  DType dtype = DType::Float32;  ///< Of the arithmetic of the last call.
};

/// What this thread runs while it lives: every kernel of both modes with its module, floating-point
/// operations, bytes and time, and the host's time between them.
///
///   {
///     brrr::Profile profile;
///     for (int i = 0; i < 100; ++i) step(x, y);
///     std::puts(profile.report().c_str());
///     profile.write_trace("step.trace.json");
///   }
///
/// Measuring costs time itself: what it takes is left out of all figures, but eager calls take a
/// longer way than usual, and a GPU runs a replay kernel by kernel, each between two events, and
/// not as one launch. Headlines come from runs without it. One at a time on a thread, made
/// outside of recorded steps and of those that check numerics: else it throws brrr::Error. One
/// that another thread destroys looks on until its own has run the next kernel. Where none lives, a
/// call pays for one branch.
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// Begins anew.
  void reset();
  /// Looks away until resume(): what runs in between, an evaluation say, is in none of its figures.
  /// Both throw brrr::Error on another thread than the one that made it, and when they do not take
  /// turns.
  void pause();
  void resume();
  /// By op and module, the longest first.
  std::vector<ProfileRow> rows() const;
  /// The same by kind only, and by module only.
  std::vector<ProfileRow> kinds() const;
  std::vector<ProfileRow> modules() const;
  /// The whole time since the beginning; and how much of it kernels ran, on a GPU beside the host.
  TimeSplit total() const;
  double kernels_us() const;

  /// A table of the `most` longest rows; totals; what bounds them. Sums are those of total().
  std::string report(size_t most = 20) const;
  /// All rows and totals.
  std::string json() const;
  /// For chrome://tracing and ui.perfetto.dev: kernels, what the host did for them, modules; gaps
  /// and how far the host runs ahead can be seen. The first million spans are kept. Throws
  /// brrr::Error where the file cannot be written.
  void write_trace(const std::string& path) const;

 private:
  struct Watch;
  std::vector<ProfileRow> sums(std::string ProfileRow::*by) const;
  std::shared_ptr<Watch> watch_;  // Its thread holds it, too.
};

}  // namespace brrr
