#pragma once
// The cheapest set of edges that parts a source from a sink: maximum flow by shortest augmenting
// paths (Edmonds and Karp, "Theoretical improvements in algorithmic efficiency for network flow
// problems", 1972).

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

namespace brrr::graph {

class MinCut {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

  explicit MinCut(size_t nodes) : edges_of_(nodes) {}
  /// Cutting it costs `cost`, kNever what cannot be done.
  void edge(uint32_t from, uint32_t to, int64_t cost) {
    edges_of_[from].push_back(static_cast<uint32_t>(edges_.size()));
    edges_.push_back({to, cost});
    edges_of_[to].push_back(static_cast<uint32_t>(edges_.size()));
    edges_.push_back({from, 0});
  }
  /// By node: whether it is on the sink's side, which is the smallest of those that cost least.
  /// Some set of edges has to be possible.
  std::vector<bool> sink_side(uint32_t source, uint32_t sink) {
    while (augment(source, sink)) continue;
    std::vector<bool> sinks(edges_of_.size());
    std::queue<uint32_t> next({sink});
    for (sinks[sink] = true; !next.empty(); next.pop()) {
      for (uint32_t e : edges_of_[next.front()]) {  // Against what may still flow.
        const uint32_t from = edges_[e].to;
        if (sinks[from] || edges_[e ^ 1].left == 0) continue;
        sinks[from] = true;
        next.push(from);
      }
    }
    return sinks;
  }

 private:
  struct Edge {
    uint32_t to;
    int64_t left;
  };
  bool augment(uint32_t source, uint32_t sink) {
    constexpr uint32_t none = ~0u;
    std::vector<uint32_t> by(edges_of_.size(), none);
    std::queue<uint32_t> next({source});
    for (; by[sink] == none && !next.empty(); next.pop()) {
      for (uint32_t e : edges_of_[next.front()]) {
        const uint32_t to = edges_[e].to;
        if (to == source || by[to] != none || edges_[e].left == 0) continue;
        by[to] = e;
        next.push(to);
      }
    }
    if (by[sink] == none) return false;
    int64_t flow = kNever;
    for (uint32_t n = sink; n != source; n = edges_[by[n] ^ 1].to)
      flow = std::min(flow, edges_[by[n]].left);
    for (uint32_t n = sink; n != source; n = edges_[by[n] ^ 1].to) {
      edges_[by[n]].left -= flow;
      edges_[by[n] ^ 1].left += flow;
    }
    return true;
  }

  std::vector<std::vector<uint32_t>> edges_of_;
  std::vector<Edge> edges_;  // An edge and the way back side by side.
};

}  // namespace brrr::graph
