// The collectives, stage by stage.
#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "ops/kinds/exchange.h"
#include "ops/kinds/pointwise.h"
#include "ops/vocabulary/convert.h"

namespace brrr::dist {

namespace {

// into[i] += from[i], each sum rounded to the dtype as add_() rounds it.
void add_dense(char* into, const char* from, int64_t n, DType dtype) {
  static const PointwiseInfo& add = *find_op("add")->pointwise;
  const DType ct = compute_type(dtype);
  const auto add_to = [&](char* x, const char* y, int64_t count) {
    const char* const in[] = {x, y};
    constexpr int64_t step[] = {1, 1};
    add.loop(ct)(&x, in, step, count);
  };
  if (dtype == ct) return add_to(into, from, n);
  constexpr int64_t tile = 512;
  alignas(64) char a[tile * 8], b[tile * 8];  // Of the largest compute type.
  const auto item = static_cast<int64_t>(itemsize(dtype));
  for (int64_t at = 0; at < n; at += tile) {
    const int64_t m = std::min(tile, n - at);
    load_tile(ct, a, dtype, into + at * item, 1, m);
    load_tile(ct, b, dtype, from + at * item, 1, m);
    add_to(a, b, m);
    store_tile(dtype, into + at * item, 1, ct, a, m);
  }
}

void add_all(const SumPlan::Addition& sum, DType dtype) {
  constexpr int64_t block = 2048;  // Stays in the first cache.
  alignas(64) char total[block * 8];
  const auto item = static_cast<int64_t>(itemsize(dtype));
  for (int64_t at = 0; at < sum.n; at += block) {
    const int64_t n = std::min(block, sum.n - at);
    const auto bytes = static_cast<size_t>(n * item);
    std::memcpy(total, sum.from[0] + at * item, bytes);
    for (size_t k = 1; k < sum.from.size(); ++k) {
      add_dense(total, sum.from[k] + at * item, n, dtype);
    }
    std::memcpy(sum.to + at * item, total, bytes);
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

// All ranks' shares of this one's shard come, dense, in pieces as they are sent: one of the first
// rank, `passes` of the others.
static void plan_shares(SumPlan& plan, const std::vector<Row>& rows, int passes,
                        const std::vector<std::vector<Span>>& own,
                        const std::function<char*(int64_t)>& shares) {
  const int me = Exchange::get().rank(), size = Exchange::get().size();
  const auto item = static_cast<int64_t>(itemsize(rows.back().dtype()));
  const auto shares_of = [&](int r) { return r == 0 ? 1 : passes; };
  const auto first_of = [&](int r) { return r == 0 ? 0 : 1 + int64_t{r - 1} * passes; };
  int64_t n = 0;
  for (const Span& s : own[0]) n += s.n;
  char* const memory = shares(first_of(size) * n);
  const auto share_at = [&](int r, int pass, int64_t at) {
    return memory + ((first_of(r) + pass) * n + at) * item;
  };
  auto& messages = plan.stages.emplace_back();
  for_peers([&](int peer) {
    SumPlan::Message m{peer, {}, {}};
    for (const Row& row : rows) {
      const std::vector<Span> theirs = row.shard(peer, size);
      m.to.insert(m.to.end(), theirs.begin(), theirs.end());
    }
    for (int p = 0; p < shares_of(peer); ++p) {
      int64_t at = 0;
      for (const Span& s : own[0]) {
        m.from.push_back({share_at(peer, p, at), s.n});
        at += s.n;
      }
    }
    messages.push_back(std::move(m));
  });
  int64_t at = 0;
  for (size_t k = 0; k < own[0].size(); ++k) {
    SumPlan::Addition sum{own.back()[k].at, {}, own[0][k].n};
    for (int r = 0; r < size; ++r) {
      for (int p = 0; p < shares_of(r); ++p) {
        sum.from.push_back(r == me ? own[static_cast<size_t>(p)][k].at : share_at(r, p, at));
      }
    }
    at += sum.n;
    plan.additions.push_back(std::move(sum));
  }
}

SumPlan plan_sum(const std::vector<Row>& rows, int passes, Halves halves,
                 const std::function<char*(int64_t)>& shares) {
  const int me = Exchange::get().rank(), size = Exchange::get().size();
  const Row& last = rows.back();
  SumPlan plan;
  if (last.size() == 0) return plan;
  std::vector<std::vector<Span>> own;
  for (const Row& row : rows) own.push_back(row.shard(me, size));
  if (halves != Halves::Share) plan_shares(plan, rows, passes, own, shares);
  if (halves != Halves::Sum) {
    auto& messages = plan.stages.emplace_back();
    for_peers([&](int peer) { messages.push_back({peer, own.back(), last.shard(peer, size)}); });
  }
  return plan;
}

void Job::set_rows(std::vector<Row> rows, int passes) {
  rows_ = std::move(rows);
  passes_ = passes;
  changed_ = true;
}

static std::vector<Piece> pieces_of(const std::vector<Span>& spans, DType dtype) {
  std::vector<Piece> pieces;
  for (const Span& s : spans) pieces.push_back({s.at, static_cast<size_t>(s.n) * itemsize(dtype)});
  return pieces;
}

void Job::declare() {
  const DType t = rows_.back().dtype();
  plan_ = plan_sum(rows_, passes_, halves_, [&](int64_t n) {
    shares_.resize(static_cast<size_t>(n) * itemsize(t));
    return shares_.data();
  });
  for (int stage = 0; stage < static_cast<int>(plan_.stages.size()); ++stage) {
    for (const SumPlan::Message& m : plan_.stages[static_cast<size_t>(stage)]) {
      declare(stage, false, m.peer, pieces_of(m.from, t));
      declare(stage, true, m.peer, pieces_of(m.to, t));
    }
  }
}

void Job::declare(int stage, bool sends, int peer, const std::vector<Piece>& pieces) {
  if (pieces.empty()) return;
  const Transport& t = *Exchange::get().transport();
  void* r =
      (sends ? t.send : t.receive)(pieces.data(), static_cast<int>(pieces.size()), peer, tag_);
  BRRR_CHECK(r, "{}: no message to or from rank {}: {}", what_, peer, t.error());
  size_t bytes = 0;
  for (const Piece& p : pieces) bytes += p.bytes;
  messages_.push_back({r, peer, stage, sends ? bytes : 0, false});
}

void Job::compute() {
  for (const SumPlan::Addition& sum : plan_.additions) add_all(sum, rows_.back().dtype());
}

Cuts owned_by(int rank, int64_t n) {
  Cuts cuts(static_cast<size_t>(Exchange::get().size()) + 1, n);
  std::fill_n(cuts.begin(), rank + 1, 0);
  return cuts;
}

void share(std::string what, Row row, bool patience) {
  Exchange& e = Exchange::get();
  const auto job = std::make_shared<Job>(std::move(what), e.next_tag(), Halves::Share);
  job->set_rows({std::move(row)});
  if (patience) job->be_patient();
  e.run(job);
}

}  // namespace brrr::dist
