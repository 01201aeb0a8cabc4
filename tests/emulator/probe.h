#pragma once
// Functions that the emulator exports for tests besides the boundary; found by dlsym.

namespace brrr::emulator {

/// Calls since the emulator was loaded.
struct Counters {
  unsigned long graph_launches;
  unsigned long kernels;         ///< Launches and products outside of captures.
  unsigned long copies;          ///< Copies and fills outside of captures.
  unsigned long copies_to_host;  ///< Those of `copies` that go to the host.
  unsigned long allocations;     ///< Of device and pinned memory, and growths of the arena.
  unsigned long waits;           ///< For a stream or an event, or by a copy to pageable memory.
  unsigned long graphs;          ///< Graphs that exist now.
  unsigned long groups;          ///< Groups of messages to other processes, outside of captures.
  unsigned long refused;         ///< Calls that failed because the thread captures: allocations,
                                 ///< loads of programs, choices of products, waits.
  unsigned long waiting;         ///< Items of work that are queued now and have not run.
};

}  // namespace brrr::emulator

extern "C" {
brrr::emulator::Counters brrr_emulator_counters();
/// Makes a later step fail: the `step`-th from now, counted from 1, of those that begin or end a
/// capture, add a node, upload a graph or launch one. 0 cancels this.
void brrr_emulator_fail(int step);
}
