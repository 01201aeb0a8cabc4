// The collectives, stage by stage.
#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "ops/kinds/exchange.h"
#include "ops/vocabulary/convert.h"

namespace brrr::dist {

namespace {

// into[i] += from[i], each sum rounded to the dtype as add_() rounds it.
void add_dense(char* into, const char* from, int64_t n, DType dtype) {
  const DType ct = compute_type(dtype);
  constexpr int64_t tile = 512;
  alignas(64) double a[tile], b[tile];  // Of the largest compute type.
  const auto item = static_cast<int64_t>(itemsize(dtype));
  const auto add = [&]<class T>(T*) {
    T* const x = reinterpret_cast<T*>(a);
    const T* const y = reinterpret_cast<const T*>(b);
    for (int64_t at = 0; at < n; at += tile) {
      const int64_t m = std::min(tile, n - at);
      load_tile(ct, a, dtype, into + at * item, 1, m);
      load_tile(ct, b, dtype, from + at * item, 1, m);
      for (int64_t i = 0; i < m; ++i) x[i] = x[i] + y[i];
      store_tile(dtype, into + at * item, 1, ct, a, m);
    }
  };
  if (dtype == kFloat32) {
    auto* x = reinterpret_cast<float*>(into);
    const auto* y = reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
  } else if (ct == kFloat64) {
    add(static_cast<double*>(nullptr));
  } else if (ct == kFloat32) {
    add(static_cast<float*>(nullptr));
  } else if (ct == kInt64) {
    add(static_cast<uint64_t*>(nullptr));  // Wraps around, as add does.
  } else {
    add(static_cast<uint32_t*>(nullptr));
  }
}

// From the next one on, so that not all talk to the same first.
template <class F> void for_peers(const F& f) {
  const int rank = Exchange::get().rank(), size = Exchange::get().size();
  for (int k = 1; k < size; ++k) f((rank + k) % size);
}

}  // namespace

Row::Row(DType dtype, std::vector<Span> spans, std::vector<const Cuts*> cuts)
    : dtype_(dtype), spans_(std::move(spans)), cuts_(std::move(cuts)) {
  for (const Span& s : spans_) size_ += s.n;
}

std::vector<Span> Row::part(int64_t begin, int64_t end) const {
  std::vector<Span> part;
  const auto item = static_cast<int64_t>(itemsize(dtype_));
  int64_t at = 0;
  for (const Span& s : spans_) {
    const int64_t from = std::max(begin, at), to = std::min(end, at + s.n);
    if (from < to) part.push_back({s.at + (from - at) * item, to - from});
    at += s.n;
  }
  return part;
}

Row Row::moved(char* to) const {
  Row there = *this;
  for (Span& s : there.spans_) {
    s.at = to;
    to += s.n * static_cast<int64_t>(itemsize(dtype_));
  }
  return there;
}

std::vector<Span> Row::shard(int rank, int ranks) const {
  if (!cuts_.empty()) {
    std::vector<Span> own;
    const auto item = static_cast<int64_t>(itemsize(dtype_));
    for (size_t k = 0; k < spans_.size(); ++k) {
      const int64_t* const at = cuts_[k]->data() + rank;
      if (at[0] < at[1]) own.push_back({spans_[k].at + at[0] * item, at[1] - at[0]});
    }
    return own;
  }
  return part(shard_begin(size_, rank, ranks), shard_begin(size_, rank + 1, ranks));
}

void Shares::resize(int ranks, int passes, int64_t n, DType dtype) {
  ranks_ = ranks;
  passes_ = passes;
  n_ = n;
  dtype_ = dtype;
  bytes_.resize(static_cast<size_t>(first_of(ranks)) * static_cast<size_t>(n) * itemsize(dtype));
}

Span Shares::of(int rank) {
  const int64_t before = first_of(rank) * n_ * static_cast<int64_t>(itemsize(dtype_));
  return {bytes_.data() + before, shares_of(rank) * n_};
}

void Shares::sum(const std::vector<std::vector<Span>>& own, int rank) {
  const auto item = static_cast<int64_t>(itemsize(dtype_));
  constexpr int64_t block = 2048;  // Stays in the first cache.
  // Where element `first` of each own share lies: spans need not be alike.
  const auto copy = [&](const std::vector<Span>& spans, int64_t first, int64_t n, const auto& f) {
    for (const Span& s : spans) {
      const int64_t m = std::min(s.n - first, n);
      if (m > 0) f(s.at + first * item, m);
      if (m > 0) n -= m;
      first = std::max<int64_t>(0, first - s.n);
    }
  };
  block_.resize(static_cast<size_t>(block * item));
  for (int64_t at = 0; at < n_; at += block) {
    const int64_t n = std::min(block, n_ - at);
    bool any = false;
    const auto add = [&](const char* x, int64_t begin, int64_t m) {
      char* const to = block_.data() + begin * item;
      any ? add_dense(to, x, m, dtype_)
          : static_cast<void>(std::memcpy(to, x, static_cast<size_t>(m * item)));
    };
    for (int r = 0; r < ranks_; ++r) {
      for (int p = 0; p < shares_of(r); ++p) {
        if (r != rank) {
          add(of(r).at + (p * n_ + at) * item, 0, n);
        } else {
          int64_t done = 0;
          copy(own[static_cast<size_t>(p)], at, n, [&](const char* x, int64_t m) {
            add(x, done, m);
            done += m;
          });
        }
        any = true;
      }
    }
    const char* from = block_.data();
    copy(own.back(), at, n, [&](char* x, int64_t m) {
      std::memcpy(x, from, static_cast<size_t>(m * item));
      from += m * item;
    });
  }
}

void AllReduceJob::set_rows(std::vector<Row> rows, int passes) {
  rows_ = std::move(rows);
  passes_ = passes;
  forget();
}

// All ranks' shares of this one's shard come.
void AllReduceJob::prepare_sum() {
  const DType t = rows_.back().dtype();
  int64_t n = 0;
  for (const Span& s : own_[0]) n += s.n;
  shares_.resize(Exchange::get().size(), passes_, n, t);
  for_peers([&](int peer) {
    // In pieces as they are sent.
    std::vector<Span> all;
    Span share = shares_.of(peer);
    while (share.n > 0) {
      for (const Span& s : own_[0]) {
        all.push_back({share.at, s.n});
        share = {share.at + s.n * static_cast<int64_t>(itemsize(t)), share.n - s.n};
      }
    }
    receive(peer, all, t);
    all.clear();
    for (const Row& r : rows_) {
      const auto part = r.shard(peer, Exchange::get().size());
      all.insert(all.end(), part.begin(), part.end());
    }
    send(peer, all, t);
  });
}

void AllReduceJob::prepare_share() {
  const Row& row = rows_.back();
  for_peers([&](int peer) {
    receive(peer, row.shard(peer, Exchange::get().size()), row.dtype());
    send(peer, own_.back(), row.dtype());
  });
}

bool AllReduceJob::prepare(int stage) {
  const int rank = Exchange::get().rank(), size = Exchange::get().size();
  if (size == 1 || rows_.back().size() == 0) return false;
  if (stage == 0) {
    own_.clear();
    for (const Row& r : rows_) own_.push_back(r.shard(rank, size));
  }
  if (stage == sum_at()) return prepare_sum(), true;
  if (stage > sum_at() + 1 || halves_ == Halves::Sum) return false;
  return prepare_share(), true;
}

void AllReduceJob::compute(int stage) {
  const bool summed = stage == sum_at() + 1 && sum_at() == 0;
  if (summed && Exchange::get().size() > 1 && rows_.back().size() > 0) {
    shares_.sum(own_, Exchange::get().rank());
  }
}

std::shared_ptr<Job> all_gather_job(std::string what, int tag, Span mine, char* all, DType dtype) {
  const auto bytes = mine.n * static_cast<int64_t>(itemsize(dtype));
  const auto messages = [=](OneStage& job) {
    for_peers([&](int peer) {
      job.receive(peer, {{all + peer * bytes, mine.n}}, dtype);
      job.send(peer, {mine}, dtype);
    });
  };
  const auto own = [=](OneStage&) {
    std::memcpy(all + Exchange::get().rank() * bytes, mine.at, static_cast<size_t>(bytes));
  };
  return std::make_shared<OneStage>(std::move(what), tag, mine.n > 0, messages, own);
}

std::shared_ptr<Job> reduce_scatter_job(std::string what, int tag, Span mine, char* all,
                                        DType dtype) {
  const auto bytes = mine.n * static_cast<int64_t>(itemsize(dtype));
  const auto shares = std::make_shared<Shares>();
  const auto messages = [=](OneStage& job) {
    shares->resize(Exchange::get().size(), 1, mine.n, dtype);
    for_peers([&](int peer) {
      job.receive(peer, {shares->of(peer)}, dtype);
      job.send(peer, {{all + peer * bytes, mine.n}}, dtype);
    });
  };
  const auto sum = [=](OneStage&) {
    const int rank = Exchange::get().rank();
    std::memcpy(mine.at, all + rank * bytes, static_cast<size_t>(bytes));
    shares->sum({{mine}}, rank);
  };
  return std::make_shared<OneStage>(std::move(what), tag, mine.n > 0, messages, nullptr, sum);
}

std::shared_ptr<Job> broadcast_job(std::string what, int tag, Span values, DType dtype, int root) {
  const auto messages = [=](OneStage& job) {
    if (Exchange::get().rank() != root) return job.receive(root, {values}, dtype);
    for_peers([&](int peer) { job.send(peer, {values}, dtype); });
  };
  return std::make_shared<OneStage>(std::move(what), tag, values.n > 0, messages);
}

}  // namespace brrr::dist
