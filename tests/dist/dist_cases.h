#pragma once
// Models and data for cases of several processes.
#include <brrr/brrr.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/error_text.h"

namespace brrr::dist_cases {

using test::error_of;

extern int threads_before_init;  // Threads that accept SIGTERM.

inline int64_t ranks() { return dist::size(); }

// Rank r's tensor of a series, with values whose sums are inexact.
inline Tensor of_rank(int r, const IntList& sizes, DType dtype) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  const Tensor x = (arange(static_cast<double>(n)) * 0.37 + (r + 1) * 1.7).sin() * 100.0;
  return x.view(sizes).to(dtype);
}

// The sum as a single process computes it over consecutive passes.
inline Tensor sum_of_all(const IntList& sizes, DType dtype) {
  Tensor sum = of_rank(0, sizes, dtype).clone();
  for (int r = 1; r < dist::size(); ++r) sum.add_(of_rank(r, sizes, dtype));
  return sum;
}

inline bool checks() {
  const char* set = std::getenv("BRRR_DIST_CHECK");
  return set && *set;
}

inline std::vector<char> bytes_of(const models::Module& m) {
  std::vector<char> all;
  for (const Tensor& p : m.parameters()) {
    const auto more = comparable_bytes(p);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// A weight that is used twice, a parameter that only some steps use, dropout.
struct Net : models::Module {
  models::Linear in{12, 16}, out{16, 12}, rare{12, 12};
  models::Dropout drop{0.25};
  bool use_rare = true;
  Net() {
    register_module("in", in);
    register_module("out", out);
    register_module("rare", rare);
    register_module("drop", drop);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = out(drop(relu(in(x))));
    h = matmul(drop(relu(in(h))), in.weight);
    return use_rare ? rare(h) : h;
  }
};

// Only one of its two layers gets gradients.
struct Two : models::Module {
  models::Linear a{2, 2}, b{2, 2};
  bool first = true;
  Two() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x) override { return first ? a(x) : b(x); }
};

struct Run {
  Net net;
  dist::DataParallel ddp;
  optim::AdamW opt;
  bool clips = true;
  explicit Run(int64_t accumulate, bool rare, int64_t bucket, int shard = 0)
      : ddp(net, {.accumulate = accumulate,
                  .bucket_bytes = bucket,
                  .shard_optimizer = shard == 1,
                  .shard_gradients = shard == 2}),
        opt(net.parameters(), {.lr = 1e-2}) {
    net.use_rare = rare;
  }
  // x has the rows of all passes.
  Tensor train(const Tensor& x) {
    opt.zero_grad();
    Tensor loss;
    for (const Tensor& part : x.split(8, 0)) {
      loss = (ddp(part) - part).square().mean();
      loss.backward();
    }
    if (clips) optim::clip_grad_norm_(net.parameters(), 0.5);
    opt.step();
    return loss.detach();
  }
};

inline Tensor batch(int r, int i) { return of_rank(r + 10 * i, {8, 12}, kFloat32) * 0.01; }

inline bool on_all_ranks(const std::vector<char>& bytes) {
  const Tensor mine = from_blob(static_cast<const void*>(bytes.data()),
                                {static_cast<int64_t>(bytes.size())}, kUInt8);
  return same_bits(dist::broadcast(mine), mine);
}

}  // namespace brrr::dist_cases
