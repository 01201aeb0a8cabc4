#include "ops/kinds/device_exchange.h"

#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "core/device_kernel.h"
#include "core/tensor_impl.h"

namespace brrr::dist {

namespace {

constexpr int kShares = 32;  // Of one launch.

BRRR_DEVICE_STRUCT(ShareSumArguments, {
  char* to;
  const char* from[32];
  long n;
  int shares;
});

// Each sum is rounded to the dtype, as add_() rounds it.
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
  if (threadIdx.x == 0) *p.exchanges += 1;
})"}};

// Where a rank's first share is among all that are summed: the first rank has one, others `passes`.
int64_t first_of(int r, int passes) { return r == 0 ? 0 : 1 + int64_t{r - 1} * passes; }

// All ranks queue the same groups. In one all messages make progress, in whatever order.
template <class F> void in_group(const F& f) {
  device_link::begin_group();
  try {
    for (int k = 1; k < size(); ++k) f((rank() + k) % size());
  } catch (...) {
    try {
      device_link::end_group();  // What comes next would be put into it.
    } catch (const Error&) {
      // What failed first says more.
    }
    throw;
  }
  device_link::end_group();
}

void send(const std::vector<Span>& spans, DType dtype, int peer) {
  for (const Span& s : spans) {
    device_link::send(s.at, static_cast<size_t>(s.n) * itemsize(dtype), peer);
  }
}
void receive(const std::vector<Span>& spans, DType dtype, int peer) {
  for (const Span& s : spans) {
    device_link::receive(s.at, static_cast<size_t>(s.n) * itemsize(dtype), peer);
  }
}

// Each rank gets its shard of every row from all ranks, in pieces as its own spans are: members of
// a bucket lie where they are, nothing is packed. Then it sums, into the last row.
void queue_sum(const std::vector<Row>& rows, int passes, char* shares) {
  const DType t = rows.back().dtype();
  const auto item = static_cast<int64_t>(itemsize(t));
  std::vector<std::vector<Span>> own;
  for (const Row& row : rows) own.push_back(row.shard(rank(), size()));
  int64_t n = 0;
  for (const Span& s : own[0]) n += s.n;
  const auto share_at = [&](int r, int pass, int64_t at) {
    return shares + ((first_of(r, passes) + pass) * n + at) * item;
  };
  const auto passes_of = [&](int r) { return r == 0 ? 1 : passes; };
  in_group([&](int peer) {
    for (const Row& row : rows) send(row.shard(peer, size()), t, peer);
    for (int p = 0; p < passes_of(peer); ++p) {
      std::vector<Span> pieces;
      int64_t at = 0;
      for (const Span& s : own[0]) {
        pieces.push_back({share_at(peer, p, at), s.n});
        at += s.n;
      }
      receive(pieces, t, peer);
    }
  });
  int64_t at = 0;
  for (size_t k = 0; k < own[0].size(); ++k) {
    std::vector<const char*> from;
    for (int r = 0; r < size(); ++r) {
      for (int p = 0; p < passes_of(r); ++p) {
        from.push_back(r == rank() ? own[static_cast<size_t>(p)][k].at : share_at(r, p, at));
      }
    }
    char* const to = own.back()[k].at;
    add_shares(to, rank() == 0 ? to : share_at(0, 0, at), from, own[0][k].n, t);
    at += own[0][k].n;
  }
}

// Each rank's shard to all.
void queue_shards(const Row& row) {
  const std::vector<Span> own = row.shard(rank(), size());
  in_group([&](int peer) {
    send(own, row.dtype(), peer);
    receive(row.shard(peer, size()), row.dtype(), peer);
  });
}

int64_t elements(const std::vector<Span>& spans) {
  int64_t n = 0;
  for (const Span& s : spans) n += s.n;
  return n;
}

// Memory of the GPU for `n` elements; what there is stays where it is large enough.
char* make_room(Tensor& memory, int64_t n, DType dtype) {
  if (!memory.defined() || memory.dtype() != dtype || memory.numel() < n) {
    memory = raw_empty({n}, dtype, kCUDA);
  }
  return memory.impl()->data();
}

// An exchange of linked GPUs, beside the computation. Those that watch over it see it done.
void exchange(const Point& end, const std::function<void()>& work) {
  beside(end, [&] {
    work();
    run_kernel(count, {}, {1}, CountArguments{exchanges_done()});
  });
}

// A collective that the computation waits for.
void at_once(const std::string& what, const std::function<void()>& work) {
  compare_calls(what);
  const Point end;
  exchange(end, work);
  device_link::await(end.get());
}

}  // namespace

void refuse_capture(const std::string& what) {
  BRRR_CHECK(device_link::capture() == 0,
             "{}: what goes through the host's memory is no part of a captured step", what);
}

void beside(const Point& end, const std::function<void()>& work) {
  struct Scope {
    Scope() { device_link::enter(); }
    ~Scope() { device_link::leave(); }
  } scope;
  work();
  device_link::note(end.get());
}

// --- sums ----------------------------------------------------------------------------------------

void add_shares(char* to, char* partial, const std::vector<const char*>& from, int64_t n,
                DType dtype) {
  for (size_t at = 0; at < from.size();) {
    ShareSumArguments a{};
    a.n = static_cast<long>(n);
    if (at > 0) a.from[a.shares++] = partial;
    while (a.shares < kShares && at < from.size()) a.from[a.shares++] = from[at++];
    a.to = at == from.size() ? to : partial;
    run_kernel(share_sum, {.t = dtype}, {blocks_for(n)}, a);
  }
}

DeviceSum::~DeviceSum() {
  if (job_) job_->begin_when({});
  if (pinned_) device_link::give_pinned(pinned_);
}

void DeviceSum::set_rows(std::vector<Row> rows, int passes,
                         const std::shared_ptr<AllReduceJob>& job) {
  linked_ = gpus_linked();
  rows_ = std::move(rows);
  passes_ = passes;
  job_ = job;
  if (!linked_) return place_on_host();
  const Row& row = rows_.back();
  make_room(shares_, first_of(size(), passes) * elements(row.shard(rank(), size())), row.dtype());
}

void DeviceSum::place_on_host() {
  refuse_capture(job_->what());
  const size_t item = itemsize(rows_[0].dtype());
  const size_t row_bytes = static_cast<size_t>(rows_[0].size()) * item;
  if (pinned_bytes_ < rows_.size() * row_bytes) {
    if (pinned_) device_link::give_pinned(std::exchange(pinned_, nullptr));
    pinned_ = device_link::take_pinned(rows_.size() * row_bytes);
    pinned_bytes_ = rows_.size() * row_bytes;
  }
  std::vector<Row> on_host;
  copies_.clear();
  for (const Row& row : rows_) {
    char* at = pinned_ + on_host.size() * row_bytes;
    on_host.push_back(row.moved(at));
    const std::vector<Span> spans = row.part(0, row.size());
    copies_back_ = spans.size();
    for (const Span& s : spans) {
      copies_.push_back({s.at, at, static_cast<size_t>(s.n) * item});
      at += copies_.back().bytes;
    }
  }
  job_->set_rows(std::move(on_host), passes_);
  job_->begin_when([point = done_.get()] { return device_link::reached(point); });
}

void DeviceSum::begin() {
  if (linked_) {
    compare_calls(job_->what());
    return exchange(done_, [&] {
      if (job_->halves() != Halves::Share) queue_sum(rows_, passes_, shares_.impl()->data());
      if (job_->halves() != Halves::Sum) queue_shards(rows_.back());
    });
  }
  refuse_capture(job_->what());
  beside(done_, [&] {
    for (const Copy& c : copies_) device_link::to_pinned(c.pinned, c.there, c.bytes);
  });
  Exchange::get().start(job_);
}

void DeviceSum::end() {
  if (linked_) return device_link::await(done_.get());
  Exchange::get().wait(*job_);
  for (size_t k = copies_.size() - copies_back_; k < copies_.size(); ++k) {
    device_link::from_pinned(copies_[k].there, copies_[k].pinned, copies_[k].bytes);
  }
}

void DeviceSum::let_go() noexcept {
  if (!linked_) Exchange::get().let_go(*job_);
  try {
    device_link::await(done_.get());
  } catch (const Error&) {
    // The device is gone, and with it whatever used the memory.
  }
}

// --- collectives ---------------------------------------------------------------------------------

void device_all_reduce(const std::string& what, Span values, DType dtype) {
  const Row row(dtype, {values});
  Tensor shares;
  char* const at = make_room(shares, elements(row.shard(rank(), size())) * size(), dtype);
  at_once(what, [&] {
    queue_sum({row}, 1, at);
    queue_shards(row);
  });
}

void device_all_gather(const std::string& what, Span mine, char* all, DType dtype) {
  const auto bytes = mine.n * static_cast<int64_t>(itemsize(dtype));
  at_once(what, [&] {
    backend(DeviceType::CUDA).copy(all + rank() * bytes, mine.at, static_cast<size_t>(bytes));
    in_group([&](int peer) {
      if (mine.n == 0) return;
      send({mine}, dtype, peer);
      receive({{all + peer * bytes, mine.n}}, dtype, peer);
    });
  });
}

void device_reduce_scatter(const std::string& what, Span mine, char* all, DType dtype) {
  // What it sums in place: `all` is the caller's.
  const auto bytes = mine.n * static_cast<int64_t>(itemsize(dtype));
  Tensor shares;
  char* const at = make_room(shares, mine.n * size(), dtype);
  at_once(what, [&] {
    in_group([&](int peer) {
      if (mine.n == 0) return;
      send({{all + peer * bytes, mine.n}}, dtype, peer);
      receive({{at + peer * bytes, mine.n}}, dtype, peer);
    });
    std::vector<const char*> from;
    for (int r = 0; r < size(); ++r) from.push_back((r == rank() ? all : at) + r * bytes);
    add_shares(mine.at, mine.at, from, mine.n, dtype);
  });
}

void device_broadcast(const std::string& what, Span values, DType dtype, int root) {
  at_once(what, [&] {
    in_group([&](int peer) {
      if (values.n == 0) return;
      if (rank() == root) send({values}, dtype, peer);
      if (peer == root) receive({values}, dtype, peer);
    });
  });
}

}  // namespace brrr::dist
