#include "graph/diagnose.h"

#include <algorithm>
#include <vector>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"
#include "graph/core.h"
#include "graph/watch.h"
#include "ops/dist.h"

namespace brrr::graph {

namespace {

using Call = std::function<void()>;

double median(std::vector<double> all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

// Median microseconds of both, called in turns so that disturbances of the machine hit both.
std::pair<double, double> time_in_turns(const Call& a, const Call& b) {
  // Calls may communicate between processes, whose clocks would stop at different counts.
  const bool counted = dist::size() > 1;
  const double min_s = counted ? 0 : 0.5;
  const size_t min_calls = counted ? 25 : 7, max_calls = 5000;
  const Call* const calls[] = {&a, &b};
  std::vector<double> us[2];
  const auto begin = Clock::now();
  while (us[0].size() < min_calls || (seconds_since(begin) < min_s && us[0].size() < max_calls)) {
    for (size_t k : {0, 1}) {
      const auto t = Clock::now();
      (*calls[k])();
      // Wait for queued work if a GPU has been used.
      if (detail::backends[static_cast<int>(DeviceType::CUDA)]) synchronize(kCUDA);
      us[k].push_back(1e6 * seconds_since(t));
    }
  }
  return {median(us[0]), median(us[1])};
}

// The average of profiled calls, scaled to the time of a call without a profile.
struct ProfiledCall {
  TimeSplit split;
  double between_us = 0;  // Outside of kernels.
  std::vector<ProfileRow> rows;
};
ProfiledCall profiled(const Call& call, double us) {
  const int calls = dist::size() > 1 ? 10 : static_cast<int>(std::clamp(5e4 / us, 5.0, 50.0));
  const Profile profile;
  for (int i = 0; i < calls; ++i) call();
  const TimeSplit all = profile.total();
  // A profile's own cost lies between kernels.
  const double kernels_us = profile.kernels_us(),
               scale = std::min(1.0, us * calls / kernels_us) / calls;
  ProfiledCall seen{all.each(calls, us), std::max(0.0, us - kernels_us * scale), profile.rows()};
  for (ProfileRow& r : seen.rows) {
    r.flops /= calls;
    r.bytes /= calls;
    r.calls /= calls;
    for (double* t : {&r.time.us, &r.time.compute_us, &r.time.memory_us}) *t *= scale;
  }
  return seen;
}

// Sums up the time beyond the limits in kernels that are not small.
void find_slow(Diagnosis& d, const std::vector<ProfileRow>& rows) {
  constexpr double small_us = 2;
  double most = 0;
  for (const ProfileRow& r : rows) {
    if (r.calls == 0 || r.time.us < small_us * static_cast<double>(r.calls)) continue;
    d.slow_us += r.time.overhead_us();
    if (r.time.overhead_us() > most) {
      most = r.time.overhead_us();
      d.slowest = r.module.empty() ? r.op : r.op + " of " + r.module;
    }
  }
  d.slow_us = std::min(d.slow_us, d.split.overhead_us());
}

std::string text_of(const Diagnosis& d, bool may_freeze, Device device) {
  const TimeSplit& s = d.split;
  const auto percent = [&](double part) { return fmt::format("{:.0f} %", 100 * s.share(part)); };
  const auto digits = [](double us) { return us < 1 ? 3 : 1; };
  const std::string bound = s.bound();
  const double most = std::max({s.compute_us, s.memory_us, s.overhead_us()});
  const bool eager = d.mode == Mode::Eager, graph_helps = eager && d.refused.empty();
  const char* const threads = device == kCPU ? ", more threads" : "";
  const bool slow = bound == "overhead" && 2 * d.slow_us > s.overhead_us();
  std::string t = slow ? fmt::format("kernel-bound: {} of the step, in kernels far from the limits",
                                     percent(d.slow_us))
                       : fmt::format("{}-bound: {} of the step", bound, percent(most));
  if (d.predicted_us > 0) {
    t += fmt::format("; graph mode would give about {:.2f}x\nit gives {:.2f}x: {:.{}f} us a call",
                     d.predicted_gain(), d.gain(), d.graph_us, digits(d.graph_us));
  } else if (d.graph_us > 0) {
    t += fmt::format("; graph mode gives {:.2f}x", d.gain());
  }
  if (!d.refused.empty()) t += "\ngraph mode cannot run it: " + d.refused;
  t += fmt::format("\n{:.{}f} us a call: compute {}, memory {}, overhead {}\n", d.us, digits(d.us),
                   percent(s.compute_us), percent(s.memory_us), percent(s.overhead_us()));
  const std::string gain = fmt::format("{:.2f}x", d.gain());
  if (!eager && d.graph_us > 0 && d.gain() < 0.98) {
    return t + "what helps: Mode::Eager, which takes " + gain +
           " as long here, or more work a call (larger batches)";
  }
  if (slow) {
    return t + fmt::format("what helps: fewer or other operations than {}{}{}", d.slowest, threads,
                           eager && d.gain() >= 1.02 ? ", graph mode" : "");
  }
  if (eager && d.graph_us > 0 && d.gain() < 1.02 && bound != "compute") {
    return t + "graph mode does not help here (" + gain +
           "); what helps: more work a call (larger batches)" +
           (bound == "memory" ? ", 16-bit floats" : "");
  }
  if (bound == "overhead") {
    return t + fmt::format("what helps: {}more work a call (larger batches){}",
                           graph_helps ? "graph mode, and " : "",
                           may_freeze && !eager ? ", step.freeze()" : "");
  }
  if (bound == "memory") {
    return t + fmt::format("what helps: {}16-bit floats, which halve the bytes",
                           graph_helps ? "graph mode, which fuses; " : "");
  }
  return t + fmt::format("what helps: fewer FLOPs{}, a faster machine", threads);
}

}  // namespace

Diagnosis diagnose(StepBase& step, Device device, const std::function<void(StepBase&)>& call_by) {
  BRRR_CHECK(!context.recorder, "diagnose: call it outside of the step");
  BRRR_CHECK(!context.observer, "diagnose: end the Profile first; profiling distorts the times");
  StepOptions options = step.options();
  Diagnosis d;
  d.mode = options.mode;
  const bool eager = d.mode == Mode::Eager;
  options.mode = eager ? Mode::Graph : Mode::Eager;
  const auto other = make_step(options);
  const Call call = [&] { call_by(step); }, call_other = [&] { call_by(*other); };
  // Until the step is recorded, built and warm, and Auto has chosen.
  const int warm = d.mode == Mode::Auto ? 3 + kAutoTrials : 3;
  for (int i = 0; i < warm; ++i) {
    call();
    if (!d.refused.empty()) continue;
    try {
      call_other();
    } catch (const Error& error) {
      if (!eager) throw;
      d.refused = error.what();
    }
  }
  StepBase& graph = eager ? *other : step;
  const StepStats before = graph.stats();
  const auto [us, other_us] = time_in_turns(call, d.refused.empty() ? call_other : call);
  d.us = us;
  d.eager_us = eager ? d.us : other_us;
  d.graph_us = eager ? other_us : d.us;
  const StepStats now = graph.stats();
  const uint64_t calls = now.calls - before.calls, replays = now.replays - before.replays;
  if (replays < calls || calls == 0 || now.fallbacks > before.fallbacks) d.graph_us = 0;
  const ProfiledCall seen = profiled(call, d.us);
  d.split = seen.split;
  find_slow(d, seen.rows);
  if (eager && d.graph_us > 0) {
    const ProfiledCall then = profiled(call_other, d.graph_us);  // Its times are not used.
    d.predicted_us = predict_graph_us(seen.rows, seen.between_us, then.rows, now, device);
  }
  d.text = text_of(d, !step.options().check_numerics && !step.is_frozen(), device) + '\n' +
           limits_text(device, device_limits(device));
  return d;
}

}  // namespace brrr::graph
