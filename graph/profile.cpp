// Profile: rows of kernel times by op and module.
#include "graph/profile.h"

#include <algorithm>
#include <functional>

#include "graph/watch.h"

namespace brrr {

static void sort_by_time(std::vector<ProfileRow>& rows) {
  std::ranges::stable_sort(rows, std::greater<>(), [](const auto& r) { return r.time.us; });
}

const char* TimeSplit::bound() const {
  if (overhead_us() >= compute_us && overhead_us() >= memory_us) return "overhead";
  return compute_us >= memory_us ? "compute" : "memory";
}

TimeSplit TimeSplit::each(double calls, double one_us) const {
  const double known = (compute_us + memory_us) / calls, scale = std::min(1.0, one_us / known);
  return {one_us, compute_us / calls * scale, memory_us / calls * scale};
}

TimeSplit split_time(double us, double flops, double bytes, const DeviceLimits& limits,
                     DType dtype) {
  const double compute = flops / limits.gflops_of(dtype) * 1e-3,
               memory = bytes > 0 ? bytes / limits.gb_per_second(bytes) * 1e-3 : 0;
  TimeSplit t{us};
  (compute >= memory ? t.compute_us : t.memory_us) = std::min(us, std::max(compute, memory));
  return t;
}

Profile::Profile() {
  if (Watch::own() && Watch::own()->ended) Watch::own()->uninstall();
  watch_ = std::make_shared<Watch>();
  Watch::own() = watch_;
}
Profile::~Profile() {
  if (std::this_thread::get_id() != watch_->thread) {
    watch_->ended = true;
    return;
  }
  watch_->uninstall();
  if (Watch::own() == watch_) Watch::own().reset();
}
void Profile::reset() {
  watch_->check_thread();
  watch_->reset();
}

void Profile::pause() {
  BRRR_CHECK(std::this_thread::get_id() == watch_->thread && !watch_->detached,
             "profile: pause(): it is already paused, or another thread's");
  BRRR_CHECK(!context.recorder && context.observer == watch_.get(),
             "profile: pause() inside of a recorded step or of one that checks numerics; call it "
             "outside");
  watch_->detach();
}
void Profile::resume() {
  BRRR_CHECK(std::this_thread::get_id() == watch_->thread && watch_->detached,
             "profile: resume(): it is not paused, or another thread's");
  BRRR_CHECK(!context.recorder && !context.observer,
             "profile: resume() within a step, or while another observer is installed");
  Watch::own() = watch_;
  watch_->attach();
}

double Profile::kernels_us() const {
  watch_->flush_pending();
  return watch_->kernels_us + watch_->device_us;
}

std::vector<ProfileRow> Profile::rows() const {
  watch_->flush_pending();
  std::vector<ProfileRow> all = watch_->rows;
  sort_by_time(all);
  return all;
}

std::vector<ProfileRow> Profile::sums(std::string ProfileRow::*by) const {
  watch_->flush_pending();
  std::vector<ProfileRow> all;
  for (const ProfileRow& row : watch_->rows) {
    auto it = std::ranges::find_if(all, [&](auto& k) { return k.*by == row.*by; });
    if (it == all.end()) {
      it = all.insert(it, ProfileRow{});
      (*it).*by = row.*by;
    }
    add(*it, row);
  }
  sort_by_time(all);
  return all;
}
std::vector<ProfileRow> Profile::kinds() const { return sums(&ProfileRow::kind); }
std::vector<ProfileRow> Profile::modules() const { return sums(&ProfileRow::module); }

TimeSplit Profile::total() const {
  watch_->flush_pending();
  ProfileRow sum;
  for (const ProfileRow& row : watch_->rows) add(sum, row);
  // A GPU keeps running while the host does the profile's own work, which is excluded.
  sum.time.us = std::max(watch_->kernels_us + watch_->host_us, watch_->device_us);
  return sum.time;
}

}  // namespace brrr
