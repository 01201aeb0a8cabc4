#include "ops/kinds/device_exchange.h"

#include <utility>

#include "core/check.h"
#include "core/device_kernel.h"
#include "core/tensor_impl.h"

namespace brrr::dist {

namespace {

constexpr int kMaxShares = 32;  // Per launch.

BRRR_DEVICE_STRUCT(ShareSumArguments, {
  char* to;
  const char* from[32];
  long n;
  int shares;
});

constexpr DeviceKernel share_sum{"share_sum", ShareSumArgumentsText, 256, {R"(
KERNEL(share_sum, ShareSumArguments, 256) {
  const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.n) return;
  T sum = ((const T*)p.from[0])[i];
  for (int k = 1; k < p.shares; ++k) {
    put(&sum, get(&sum) + get((const T*)p.from[k] + i));
  }
  ((T*)p.to)[i] = sum;
})"}};

BRRR_DEVICE_STRUCT(CountArguments, { long* exchanges; });

constexpr DeviceKernel count{"count", CountArgumentsText, 32, {R"(
KERNEL(count, CountArguments, 32) {
  volatile long* const done = p.exchanges;  // The host polls it meanwhile.
  if (threadIdx.x == 0) *done = *done + 1;
})"}};

// All ranks queue the same groups. In a group all messages make progress, in any order.
void queue(const std::vector<SumPlan::Message>& messages, DType dtype) {
  const auto bytes = [&](const Span& s) { return static_cast<size_t>(s.n) * itemsize(dtype); };
  device_link::begin_group();
  try {
    for (const SumPlan::Message& m : messages) {
      for (const Span& s : m.to) device_link::send(s.at, bytes(s), m.peer);
      for (const Span& s : m.from) device_link::receive(s.at, bytes(s), m.peer);
    }
  } catch (...) {
    try {
      device_link::end_group();  // Else later messages would join this group.
    } catch (const Error&) {
      // The first error says more.
    }
    throw;
  }
  device_link::end_group();
}

}  // namespace

void refuse_capture(const std::string& what) {
  BRRR_CHECK(device_link::capture() == 0,
             "{}: a transfer through host memory cannot be captured in a step", what);
}

// --- sums ----------------------------------------------------------------------------------------

void add_on_device(const SumPlan::Addition& sum, DType dtype) {
  for (size_t at = 0; at < sum.from.size();) {
    ShareSumArguments a{};
    a.n = static_cast<long>(sum.n);
    if (at > 0) a.from[a.shares++] = sum.from[0];
    while (a.shares < kMaxShares && at < sum.from.size()) a.from[a.shares++] = sum.from[at++];
    a.to = at == sum.from.size() ? sum.to : sum.from[0];
    run_kernel(share_sum, {.t = dtype}, {blocks_for(sum.n)}, a);
  }
}

DeviceSum::~DeviceSum() {
  if (job_) job_->ready = {};
  if (pinned_) device_link::give_pinned(pinned_);
}

void DeviceSum::set_rows(const std::vector<Row>& rows, int passes,
                         const std::shared_ptr<Job>& job) {
  linked_ = gpus_linked();
  dtype_ = rows.back().dtype();
  job_ = job;
  if (!linked_) return place_on_host(rows, passes);
  plan_ = plan_sum(rows, passes, job->halves, [&](int64_t n) {
    // A buffer that is large enough is reused. One that is too small is kept as well: a captured
    // step may write to it on every replay.
    if (shares_.empty() || shares_.back().dtype() != dtype_ || shares_.back().numel() < n) {
      shares_.push_back(raw_empty({n}, dtype_, kCUDA));
    }
    return shares_.back().impl()->data();
  });
}

void DeviceSum::place_on_host(const std::vector<Row>& rows, int passes) {
  refuse_capture(job_->what);
  const Row& last = rows.back();
  const size_t item = itemsize(dtype_), row_bytes = static_cast<size_t>(last.size()) * item;
  const size_t bytes = rows.size() * row_bytes;
  if (pinned_bytes_ < bytes) {
    if (pinned_) device_link::give_pinned(std::exchange(pinned_, nullptr));
    pinned_ = device_link::take_pinned(bytes);
    pinned_bytes_ = bytes;
  }
  const auto copies = [&](std::vector<Copy>& all, const Row& there, const Row& here, bool shard) {
    const auto spans = [&](const Row& r) { return shard ? r.shard(rank(), size()) : r.spans(); };
    const std::vector<Span> from = spans(there), to = spans(here);
    for (size_t k = 0; k < from.size(); ++k) {
      if (from[k].n) all.push_back({from[k].at, to[k].at, static_cast<size_t>(from[k].n) * item});
    }
  };
  std::vector<Row> on_host;
  to_host_.clear();
  back_.clear();
  for (const Row& row : rows) {
    on_host.push_back(row.moved(pinned_ + on_host.size() * row_bytes));
    copies(to_host_, row, on_host.back(), job_->halves == Halves::Share);
  }
  copies(back_, last, on_host.back(), job_->halves == Halves::Sum);
  job_->set_rows(std::move(on_host), passes);
  job_->ready = [point = done_.get()] { return device_link::reached(point); };
}

void DeviceSum::begin() {
  if (!linked_) {
    refuse_capture(job_->what);
    device_link::beside(done_, [&] {
      for (const Copy& c : to_host_) device_link::to_pinned(c.pinned, c.there, c.bytes);
    });
    return Exchange::get().start(job_);
  }
  compare_calls(job_->what);
  device_link::beside(done_, [&] {
    for (size_t k = 0; k < plan_.stages.size(); ++k) {
      queue(plan_.stages[k], dtype_);
      if (k > 0) continue;
      for (const SumPlan::Addition& sum : plan_.additions) add_on_device(sum, dtype_);
    }
    // Shows the watching thread that the exchange is done.
    run_kernel(count, {}, {1}, CountArguments{exchanges_done()});
  });
}

void DeviceSum::end() {
  if (linked_) return device_link::await(done_.get());
  Exchange::get().wait(*job_);
  for (const Copy& c : back_) device_link::from_pinned(c.there, c.pinned, c.bytes);
}

void DeviceSum::wait_until_unused() noexcept {
  if (!linked_) Exchange::get().wait_until_unused(*job_);
  try {
    device_link::await(done_.get());
  } catch (const Error&) {
    // The device is lost, and with it all users of the memory.
  }
}

}  // namespace brrr::dist
