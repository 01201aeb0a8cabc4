// The stages of a collective.
#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "ops/kinds/exchange.h"
#include "ops/kinds/pointwise.h"
#include "ops/vocabulary/convert.h"

namespace brrr::dist {

namespace {

constexpr int64_t kBlock = 2048;  // Elements that stay in the L1 cache.

// into[i] += from[i], at most kBlock elements, each sum rounded to the dtype as add_() rounds it.
void add_dense(char* into, const char* from, int64_t n, DType dtype) {
  static const PointwiseInfo& add = *find_op("add")->pointwise;
  const DType ct = compute_type(dtype);
  const auto add_to = [&](char* x, const char* y) {
    const char* const in[] = {x, y};
    constexpr int64_t step[] = {1, 1};
    add.loop(ct)(&x, in, step, n);
  };
  if (dtype == ct) return add_to(into, from);
  alignas(64) char a[kBlock * 4], b[kBlock * 4];  // A dtype that is converted has 32 bits then.
  load_tile(ct, a, dtype, into, 1, n);
  load_tile(ct, b, dtype, from, 1, n);
  add_to(a, b);
  store_tile(dtype, into, 1, ct, a, n);
}

void add_all(const SumPlan::Addition& sum, DType dtype) {
  alignas(64) char total[kBlock * 8];
  const auto item = static_cast<int64_t>(itemsize(dtype));
  for (int64_t at = 0; at < sum.n; at += kBlock) {
    const int64_t n = std::min(kBlock, sum.n - at);
    const auto bytes = static_cast<size_t>(n * item);
    std::memcpy(total, sum.from[0] + at * item, bytes);
    for (size_t k = 1; k < sum.from.size(); ++k) {
      add_dense(total, sum.from[k] + at * item, n, dtype);
    }
    std::memcpy(sum.to + at * item, total, bytes);
  }
}

// From the next rank on, so that the ranks do not all begin with the same peer.
template <class F> void for_peers(const F& f) {
  const int rank = Exchange::get().rank(), size = Exchange::get().size();
  for (int k = 1; k < size; ++k) f((rank + k) % size);
}

}  // namespace

Row::Row(DType dtype, std::vector<Span> spans, std::vector<const Cuts*> cuts)
    : dtype_(dtype), spans_(std::move(spans)), cuts_(std::move(cuts)) {
  for (const Span& s : spans_) size_ += s.n;
}

Row Row::moved(char* to) const {
  Row row = *this;
  for (Span& s : row.spans_) {
    s.at = to;
    to += s.n * item();
  }
  return row;
}

std::vector<Span> Row::shard(int rank, int ranks) const {
  std::vector<Span> own;
  int64_t before = 0;  // Elements of the previous spans.
  for (size_t k = 0; k < spans_.size(); ++k) {
    const Span& s = spans_[k];
    const auto cut = [&](int r) {
      return cuts_.empty() ? std::clamp<int64_t>(shard_begin(size_, r, ranks) - before, 0, s.n)
                           : cuts_[k]->at(static_cast<size_t>(r));
    };
    const int64_t from = cut(rank), to = cut(rank + 1);
    if (from < to) own.push_back({s.at + from * item(), to - from});
    before += s.n;
  }
  return own;
}

// The first stage: receives every rank's shares of this rank's shard, packed, in the pieces in
// which they are sent: one share of the first rank, `passes` of each other.
static void plan_shares(SumPlan& plan, const std::vector<Row>& rows, int passes,
                        const std::vector<std::vector<Span>>& own,
                        const std::function<char*(int64_t)>& shares) {
  const int me = Exchange::get().rank(), size = Exchange::get().size();
  const Row mine(rows.back().dtype(), own[0]);
  const auto first_of = [&](int r) { return r == 0 ? 0 : 1 + (r - 1) * passes; };
  char* const memory = shares(first_of(size) * mine.size());
  const auto share = [&](int k) {
    return mine.moved(memory + k * mine.size() * mine.item()).spans();
  };
  const auto add = [](std::vector<Span>& all, const std::vector<Span>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  auto& messages = plan.stages.emplace_back();
  for_peers([&](int peer) {
    SumPlan::Message& m = messages.emplace_back(SumPlan::Message{peer, {}, {}});
    for (const Row& row : rows) add(m.to, row.shard(peer, size));
    for (int k = first_of(peer); k < first_of(peer + 1); ++k) add(m.from, share(k));
  });
  for (size_t k = 0; k < own[0].size(); ++k) {
    plan.additions.push_back({own.back()[k].at, {}, own[0][k].n});
  }
  for (int k = 0; k < first_of(size); ++k) {
    const bool is_mine = k >= first_of(me) && k < first_of(me + 1);
    const auto from = is_mine ? own[static_cast<size_t>(k - first_of(me))] : share(k);
    for (size_t s = 0; s < from.size(); ++s) plan.additions[s].from.push_back(from[s].at);
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

void Job::declare() {
  const size_t item = itemsize(rows_.back().dtype());
  plan_ = plan_sum(rows_, passes_, halves, [&](int64_t n) {
    shares_.resize(static_cast<size_t>(n) * item);
    return shares_.data();
  });
  int stage = kCalls;
  for (const auto& messages : plan_.stages) {
    ++stage;
    for (const SumPlan::Message& m : messages) {
      declare(stage, false, m.peer, m.from, item);
      declare(stage, true, m.peer, m.to, item);
    }
  }
}

void Job::declare(int stage, bool sends, int peer, const std::vector<Span>& spans, size_t item) {
  if (spans.empty()) return;
  std::vector<Piece> pieces;
  size_t bytes = 0;
  for (const Span& s : spans) {
    pieces.push_back({s.at, static_cast<size_t>(s.n) * item});
    bytes += pieces.back().bytes;
  }
  const Transport& t = *Exchange::get().transport();
  void* r = (sends ? t.send : t.receive)(pieces.data(), static_cast<int>(pieces.size()), peer, tag);
  BRRR_CHECK(r, "{}: cannot start a message to or from rank {}: {}", what, peer, t.error());
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

void exchange(std::string what, Row row, Halves halves, bool patience) {
  Exchange& e = Exchange::get();
  const auto job = std::make_shared<Job>(std::move(what), e.next_tag(), halves);
  job->set_rows({std::move(row)});
  job->patient = patience;
  e.start(job);
  e.wait(*job);
  e.retire(job);
}

}  // namespace brrr::dist
