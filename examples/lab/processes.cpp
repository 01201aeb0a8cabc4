// What a step gains from a second process, and what exchanging gradients takes of it.
#include "examples/common/scaling.h"
#include "examples/lab/lab.h"

namespace examples::lab {

Section processes(Lab& lab) {
  Section section{"Two processes", ""};
  section.note =
      "The same GPT step in one process and in two, each with one thread and its own batch, which "
      "mpirun starts; medians. MB is what each process sends in a step. \"Under way\" is the time "
      "in "
      "which at least one sum of gradients was; \"waited\" what the computation stood still for "
      "it, "
      "which includes the time by which one process was later than the other.";
  Sheet s{"processes",
          "GPT, AdamW, samples a second of all processes",
          {"batch", "mode", "processes", "ms a step", "samples/s", "gain", "MB sent",
           "under way ms", "waited ms"}};
  const std::vector<std::string> arguments = {"--ranks",   "2",
                                              "--model",   "gpt",
                                              "--sizes",   lab.quick ? "1" : "16",
                                              "--seconds", fmt::format("{}", lab.seconds)};
  std::string gains;
  double waited = 0, ms = 1;
  try {
    measure_scaling(program_file("overhead"), 2, arguments, [&](const ScalingRow& r) {
      const auto v = [&](const char* key) { return r[key].get<double>(); };
      const auto mode = r["mode"].get<std::string>();
      s.rows.push_back({r["batch"].get<int64_t>(), mode, r["ranks"].get<int64_t>(), v("ms"),
                        v("samples_per_s"), times(v("gain")), v("mb"), v("under_way_ms"),
                        v("waited_ms")});
      if (r["ranks"] == 1) return;
      gains += fmt::format("{}{:.2f} times ({})", gains.empty() ? "" : ", ", v("gain"), mode);
      waited = v("waited_ms");
      ms = v("ms");
    });
  } catch (const brrr::Error& e) {
    section.seen = fmt::format("Not measured: {}.", e.what());
    return section;
  }
  section.seen = fmt::format(
      "Two processes train on {} the samples a second of one, each on its own batch. In graph mode "
      "the computation waits {:.2f} ms of a step's {:.2f} for the other process and its gradients.",
      gains, waited, ms);
  section.sheets.push_back(std::move(s));
  return section;
}

}  // namespace examples::lab
