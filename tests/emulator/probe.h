#pragma once
// What the emulator offers tests besides the boundary: exported functions, found by dlsym.

namespace brrr::emulator {

/// Calls since the emulator was loaded.
struct Counters {
  unsigned long graph_launches;
  unsigned long kernels;         ///< Launches and products that no capture noted.
  unsigned long copies;          ///< Copies and fills that no capture noted.
  unsigned long copies_to_host;  ///< Of those.
  unsigned long allocations;     ///< Of device and pinned memory, and growths of the arena.
  unsigned long waits;           ///< For a stream or an event, or of a copy to pageable memory.
  unsigned long graphs;          ///< That exist.
  unsigned long groups;          ///< Of messages to other processes that no capture noted.
  unsigned long refused;         ///< Of a thread that captured, what no capture takes: allocations,
                                 ///< loads of programs, choices of products, waits.
  unsigned long waiting;         ///< Pieces of work that are queued and have not run.
};

}  // namespace brrr::emulator

extern "C" {
brrr::emulator::Counters brrr_emulator_counters();
/// Makes a later step fail: the `step`-th from now on, counted from 1, of those that begin or end a
/// capture, note a node, upload a graph or launch it. 0 takes that back.
void brrr_emulator_fail(int step);
}
