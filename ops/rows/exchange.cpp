// Rows that sum gradients over the ranks while later gradients are still being computed.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "core/call.h"
#include "core/check.h"
#include "core/context.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/device_exchange.h"
#include "ops/kinds/exchange_buckets.h"
#include "ops/rows/library_kernels.h"

namespace brrr::dist {

/// Compares between ranks which members have a gradient. Sums of gradients of different parameters,
/// whose sizes may fit, would be wrong without an error, so ranks exchange a few bytes beside them.
/// A mismatch fails the sums, which some ranks have not begun.
struct BucketUses final : Job {
  std::vector<std::string> names;  // Of the members.
  std::vector<std::string> sets;   // Seen so far: 0 or 1 per member, then the number of steps.
  std::string all;                 // The current sets of all ranks, in rank order.
  bool started = false;

  BucketUses(std::vector<std::string> members, int tag)
      : Job("the comparison of the parameters that ranks use", tag, Halves::Share),
        names(std::move(members)) {
    all.resize(each() * static_cast<size_t>(Exchange::get().size()));
    set_rows({Row(kUInt8, {{all.data(), static_cast<int64_t>(all.size())}})});
  }
  void compute() override {
    if (all.compare(each(), all.npos, all, 0, all.size() - each()) != 0) refuse();
  }
  size_t each() const { return names.size() + 1; }
  int64_t index_of(const std::vector<uint8_t>& used) {
    const std::string set(used.begin(), used.end());
    const auto number = std::ranges::find(sets, set) - sets.begin();
    if (number == std::ssize(sets)) sets.push_back(set);
    return number;
  }
  void begin(const std::shared_ptr<BucketUses>& self, int64_t set) {
    if (std::exchange(started, true)) Exchange::get().wait(*this);
    const std::string& mine = sets[static_cast<size_t>(set)];
    mine.copy(&all[each() * static_cast<size_t>(Exchange::get().rank())], each());
    Exchange::get().start(self);
  }
  std::vector<size_t> ranks_with(size_t k, bool it) const {
    std::vector<size_t> found;
    for (size_t r = 0; r * each() < all.size(); ++r) {
      if ((all[r * each() + k] != 0) == it) found.push_back(r);
    }
    return found;
  }
  // A rank that has taken more steps since the last exchange than others has skipped an exchange.
  void compare_steps() const {
    std::vector<int> steps;
    for (size_t k = names.size(); k < all.size(); k += each()) {
      steps.push_back(static_cast<uint8_t>(all[k]));
    }
    if (std::ranges::count(steps, steps[0]) == std::ssize(steps)) return;
    brrr::fail(
        "DataParallel: since the last exchange of gradients ranks 0 to {} have made {} steps of "
        "optimisers: a rank has taken a step without its gradients, which the others have waited "
        "for. Use the same parameters on all ranks; 0.0 * p.sum() in the loss uses p and adds "
        "nothing",
        steps.size() - 1, fmt::join(steps, ", "));
  }
  [[noreturn]] void refuse() const {
    compare_steps();
    constexpr int most = 4;
    std::string text;
    int differ = 0;
    for (size_t k = names.size(); k-- > 0;) {  // In the model's order: members are in backward's.
      const auto with = ranks_with(k, true), without = ranks_with(k, false);
      if (with.empty() || without.empty() || ++differ > most) continue;
      text += fmt::format("{}{} on rank {}, not on {}", text.empty() ? "" : "; ", names[k],
                          fmt::join(with, ", "), fmt::join(without, ", "));
    }
    if (differ > most) text += fmt::format("; and {} more", differ - most);
    brrr::fail(
        "DataParallel: some ranks only have gradients of some parameters: {}. Use the same ones on "
        "all ranks; 0.0 * p.sum() in the loss uses p and adds nothing",
        text);
  }
};

/// A bucket of gradients: the members that have arrived since the last sum, and the job that sums.
struct GradientBucket {
  int64_t id = 0;
  DType dtype = kFloat32;
  int passes = 1;                           // Rows of each rank but the first, which has one.
  std::string what;                         // Names the job if no member is absent.
  std::vector<std::vector<Span>> rows;      // By pass and member; absent ones have a null address.
  std::vector<std::vector<Span>> job_rows;  // The rows that the job was given.
  std::vector<Cuts> cuts;                   // By member; empty: all ranks share the work.
  size_t members = 0, arrived = 0;
  std::shared_ptr<Job> job;
  std::unique_ptr<DeviceSum> gpu;    // Sums on a GPU; kept, as captured steps use its memory.
  DeviceSum* on_gpu = nullptr;       // gpu.get() while the gradients are on a GPU.
  uint64_t capture = 0;              // The capture in which members arrived; 0: none.
  std::shared_ptr<BucketUses> uses;  // Shared by all buckets of the model.

  void move_to(Device device) {
    if ((device != kCPU) != (on_gpu != nullptr)) {
      job_rows.clear();
      if (device != kCPU && !gpu) gpu = std::make_unique<DeviceSum>();
      on_gpu = device == kCPU ? nullptr : gpu.get();
    }
    if (!on_gpu) return;
    // An abandoned capture has run nothing of what it recorded.
    const uint64_t now = device_link::capture();
    if (capture != now && capture != 0) forget();
    capture = now;
  }
  void arrive(size_t n) {
    BRRR_CHECK(arrived + n <= members,
               "DataParallel: a gradient arrived twice before its sum was waited for");
    arrived += n;
    if (arrived < members) return;
    if (rows != job_rows) set_job_rows();  // In replays gradients keep their addresses.
    on_gpu ? on_gpu->begin() : Exchange::get().start(job);
  }
  void set_job_rows() {
    std::vector<Row> all;
    for (const std::vector<Span>& row : rows) {
      std::vector<Span> there;
      std::vector<const Cuts*> theirs;
      for (size_t k = 0; k < row.size(); ++k) {
        if (!row[k].at) continue;
        there.push_back(row[k]);
        if (!cuts.empty()) theirs.push_back(&cuts[k]);
      }
      all.emplace_back(dtype, std::move(there), std::move(theirs));
    }
    on_gpu ? on_gpu->set_rows(all, passes, job) : job->set_rows(std::move(all), passes);
    job_rows = rows;
    std::string absent;
    for (size_t k = 0; k < members; ++k) {
      if (!rows.back()[k].at) absent += fmt::format("{} {}", absent.empty() ? "" : ",", k);
    }
    job->what = absent.empty() ? what : fmt::format("{} without gradients{}", what, absent);
  }
  void wait() { on_gpu ? on_gpu->end() : Exchange::get().wait(*job); }
  // Discards what a pass that threw has left, after waiting for a sum under way.
  void clear() noexcept {
    if (arrived == members) {
      on_gpu ? on_gpu->wait_until_unused() : Exchange::get().wait_until_unused(*job);
    }
    forget();
  }
  void forget() noexcept {
    arrived = 0;
    for (auto& row : rows) std::fill(row.begin(), row.end(), Span{});
  }
};

namespace {

// Recorded steps refer to buckets by id.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, GradientBucket*> all;
  int64_t next = 0;
};
Registry& registry() {
  static auto* const r = new Registry;
  return *r;
}

GradientBucket& bucket_of(int64_t id) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto at = r.all.find(id);
  BRRR_CHECK(
      at != r.all.end(),
      "DataParallel: the step was recorded with one that no longer exists; keep it as long as the "
      "step");
  return *at->second;
}

// `used`: the set of members to compare with other ranks', which a sum without some members of its
// bucket waits for; -1: none. `last`: the step's last call, which waits for the comparison.
struct BeginAttrs {
  int64_t bucket, member, absent, used;
};
struct EndAttrs {
  int64_t bucket, used, last;
};

// The tensor to sum in place; copies the input if the planner gave the result memory of its own.
TensorImpl& in_place(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  if (out.data() != c.in[0]->data()) copy_now(out, *c.in[0]);
  return out;
}

void begin_run(OpCall& c) {
  const auto a = c.attrs.as<BeginAttrs>();
  GradientBucket& b = bucket_of(a.bucket);
  if (a.used >= 0) {
    b.uses->begin(b.uses, a.used);
    Exchange::get().wait(*b.uses);
  }
  TensorImpl& g = in_place(c);
  if (a.absent > 0) return b.arrive(static_cast<size_t>(a.absent));
  const auto k = static_cast<size_t>(a.member);
  b.move_to(g.device);
  // Earlier passes' rows come before the last one's.
  for (size_t p = 0; p < b.rows.size(); ++p) {
    const bool last = p + 1 == b.rows.size();
    b.rows[p][k] = {(last ? g : *c.in[p + 1]).data(), g.numel};
  }
  b.arrive(1);
}

void end_run(OpCall& c) {
  const auto a = c.attrs.as<EndAttrs>();
  GradientBucket& b = bucket_of(a.bucket);
  if (a.used >= 0) b.uses->begin(b.uses, a.used);
  if (b.arrived > 0) {  // The call of the bucket's first member waits.
    BRRR_CHECK(b.arrived == b.members, "DataParallel: waiting for a sum that was not started");
    b.wait();
    b.forget();
  }
  if (a.last) Exchange::get().wait(*b.uses);
  in_place(c);
}

Work no_work(const OpCall&) { return {}; }
// This rank's additions, and the bytes that it sends and receives.
Work sum_work(const OpCall& c) {
  const double n = Exchange::get().size();
  return {static_cast<double>(c.in[0]->numel) * (n - 1) / n, operand_bytes(c)};
}

OpSpec in_place_spec(void (*run)(OpCall&), Work (*work)(const OpCall&)) {
  return {.infer = same_infer,
          .kernel = {{run}, {run}},
          .scratch = no_scratch,
          .work = work,
          .communicates = true,
          .gradient_row = true};
}
const OpDef begin_row{"exchange_begin", "a gradient is ready to be summed over the ranks",
                      in_place_spec(begin_run, sum_work)};
const OpDef end_row{"exchange_end", "a gradient has been summed over the ranks",
                    in_place_spec(end_run, no_work)};

}  // namespace

Buckets::Buckets(const std::vector<Tensor>& members, int64_t bucket_bytes, int passes,
                 const Division& division)
    : own_rows_(Exchange::get().rank() == 0 ? 1 : passes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  int64_t bytes = 0;
  // All members of a bucket, of every pass, are operands of one call.
  const size_t most = std::max(1, Inputs::kMost / passes);
  for (const Tensor& t : members) {
    const auto more = t.numel() * static_cast<int64_t>(itemsize(t.dtype()));
    if (buckets_.empty() || buckets_.back()->members == most || bytes + more > bucket_bytes ||
        buckets_.back()->dtype != t.dtype()) {
      GradientBucket& b = *buckets_.emplace_back(std::make_unique<GradientBucket>());
      b.id = r.next++;
      b.dtype = t.dtype();
      b.passes = passes;
      b.rows.resize(static_cast<size_t>(own_rows_));
      bytes = 0;
    }
    bytes += more;
    GradientBucket& b = *buckets_.back();
    place_.emplace_back(buckets_.size() - 1, b.members++);
    for (auto& row : b.rows) row.emplace_back();
    if (!division.cuts.empty()) b.cuts.push_back(division.cuts[place_.size() - 1]);
  }
  const int jobs = static_cast<int>(buckets_.size()), compares = division.names.empty() ? 0 : 1;
  const int first = Exchange::get().reserve_tags(jobs + compares);
  if (compares) uses_ = std::make_shared<BucketUses>(division.names, first + jobs);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b]->what = fmt::format(
        "{} in bucket {}",
        division.halves == Halves::Share ? "the new parameters" : "the sum of the gradients", b);
    buckets_[b]->job =
        std::make_shared<Job>(buckets_[b]->what, first + static_cast<int>(b), division.halves);
    buckets_[b]->uses = uses_;
    r.all[buckets_[b]->id] = buckets_[b].get();
  }
}

void Buckets::clear() const noexcept {
  for (const auto& b : buckets_) b->clear();
}

Buckets::~Buckets() {
  clear();
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const auto& b : buckets_) {
    r.all.erase(b->id);
    Exchange::get().retire(b->job);
  }
  if (uses_ && uses_->started) Exchange::get().wait_until_unused(*uses_);
  if (uses_) Exchange::get().retire(uses_);
  const int tags = static_cast<int>(buckets_.size()) + (uses_ ? 1 : 0);
  if (!buckets_.empty()) Exchange::get().return_tags(buckets_[0]->job->tag, tags);
}

void Buckets::begin(const Tensor& g, size_t k, const std::vector<Tensor>& before) const {
  BRRR_CHECK(static_cast<int>(before.size()) + 1 == own_rows_,
             "DataParallel: {} earlier passes instead of {}", before.size(), own_rows_ - 1);
  const auto [bucket, member] = place_[k];
  std::vector<Tensor> all{g};
  all.insert(all.end(), before.begin(), before.end());
  call_into(g, begin_row, Inputs(all.data(), static_cast<int>(all.size())),
            BeginAttrs{buckets_[bucket]->id, static_cast<int64_t>(member), 0, -1});
}

size_t Buckets::members_of(size_t bucket) const { return buckets_[bucket]->members; }

void Buckets::end(const std::vector<Tensor>& gradients, const std::vector<size_t>& members,
                  const std::function<std::vector<Tensor>(size_t)>& before,
                  const std::vector<uint8_t>& used) const {
  int64_t compared = used.empty() || Exchange::get().size() == 1 ? -1 : uses_->index_of(used);
  if (compared >= 0 && gradients[0].device() != kCPU && gpus_linked()) {
    // A replay may be a CUDA graph, which cannot compare: only calls outside of recordings do.
    if (!context.recorder) {
      uses_->begin(uses_, compared);
      Exchange::get().wait(*uses_);
    }
    compared = -1;
  }
  const bool compares = compared >= 0;
  const auto once = [&] { return std::exchange(compared, -1); };
  // Calls f(bucket, index of its first member here, number of its members here).
  const auto for_buckets = [&](const auto& f) {
    for (size_t first = 0, n; first < members.size(); first += n) {
      const size_t bucket = bucket_of(members[first]);
      for (n = 1; first + n < members.size() && bucket_of(members[first + n]) == bucket;) ++n;
      f(*buckets_[bucket], first, n);
    }
  };
  // Starts all sums before waiting for the first.
  for_buckets([&](const GradientBucket& b, size_t first, size_t n) {
    const auto absent = static_cast<int64_t>(b.members - n);
    const Tensor& g = gradients[first];
    if (absent > 0) call_into(g, begin_row, {g}, BeginAttrs{b.id, 0, absent, once()});
  });
  for_buckets([&](const GradientBucket& b, size_t first, size_t n) {
    std::vector<Tensor> all(&gradients[first], &gradients[first] + n);
    for (size_t k = 0; k < n; ++k) {  // The sum reads earlier passes' gradients until here.
      for (const Tensor& t : before(members[first + k])) all.push_back(t);
    }
    const auto attrs = [&](size_t k) {
      return EndAttrs{b.id, once(), compares && first + k + 1 == members.size()};
    };
    // Every member is an operand of the first call, whose result is an operand of all others: the
    // calls are ordered after all begins and before all uses of a sum.
    call_into(all[0], end_row, Inputs(all.data(), static_cast<int>(all.size())), attrs(0));
    for (size_t k = 1; k < n; ++k) call_into(all[k], end_row, {all[k], all[0]}, attrs(k));
  });
}

}  // namespace brrr::dist
