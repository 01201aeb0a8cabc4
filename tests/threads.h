#pragma once
// The number of threads, for a while.

#include "backends/cpu/pool.h"

namespace brrr::test {

struct Threads {
  int before = cpu::num_threads();
  explicit Threads(int n = cpu::num_threads()) { cpu::set_num_threads(n); }
  ~Threads() { cpu::set_num_threads(before); }
};

}  // namespace brrr::test
