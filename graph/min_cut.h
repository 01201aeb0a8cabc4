#pragma once
// Minimum cut: the cheapest set of edges that separates a source from a sink, by maximum flow with
// shortest augmenting paths (Edmonds and Karp, "Theoretical improvements in algorithmic efficiency
// for network flow problems", 1972).

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
  /// Adds an edge that costs `cost` to cut; kNever: it must not be cut.
  void edge(uint32_t from, uint32_t to, int64_t cost) {
    edges_of_[from].push_back(static_cast<uint32_t>(edges_.size()));
    edges_.push_back({to, cost});
    edges_of_[to].push_back(static_cast<uint32_t>(edges_.size()));
    edges_.push_back({from, 0});
  }
  /// By node: whether it is on the sink's side of the minimum cut, of several the one with the
  /// smallest sink side. A cut without kNever edges must exist.
  std::vector<bool> sink_side(uint32_t source, uint32_t sink) {
    for (;;) {
      const std::vector<uint32_t> by = edges_towards(source, sink);
      if (by[source] == kNone) {
        std::vector<bool> sinks(by.size());
        std::transform(by.begin(), by.end(), sinks.begin(), [](auto e) { return e != kNone; });
        sinks[sink] = true;
        return sinks;
      }
      int64_t flow = kNever;
      for (uint32_t n = source; n != sink; n = edges_[by[n]].to)
        flow = std::min(flow, edges_[by[n]].left);
      for (uint32_t n = source; n != sink; n = edges_[by[n]].to) {
        edges_[by[n]].left -= flow;
        edges_[by[n] ^ 1].left += flow;
      }
    }
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Edge {
    uint32_t to;
    int64_t left;  // Residual capacity.
  };
  // By node with a residual path to the sink: the first edge of a shortest one; else kNone. Stops
  // when it reaches the source.
  std::vector<uint32_t> edges_towards(uint32_t source, uint32_t sink) const {
    std::vector<uint32_t> by(edges_of_.size(), kNone);
    std::queue<uint32_t> next({sink});
    for (; by[source] == kNone && !next.empty(); next.pop()) {
      for (uint32_t back : edges_of_[next.front()]) {
        const uint32_t from = edges_[back].to, there = back ^ 1;
        if (from == sink || by[from] != kNone || edges_[there].left == 0) continue;
        by[from] = there;
        next.push(from);
      }
    }
    return by;
  }

  std::vector<std::vector<uint32_t>> edges_of_;
  std::vector<Edge> edges_;  // Edge k and its reverse k ^ 1.
};

}  // namespace brrr::graph
