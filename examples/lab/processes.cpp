// The gain from a second process, and the cost of exchanging gradients.
#include "examples/common/scaling.h"
#include "examples/lab/lab.h"

namespace examples::lab {

Section processes(Lab& lab) {
  Section section{
      .title = "Two processes",
      .note =
          "The same GPT step with AdamW in one process and in two, each with one thread and its "
          "own batch, which mpirun starts; medians. MB is what each process sends in a step. "
          "\"Under way\" is the time in which at least one sum of gradients was; \"waited\" what "
          "the computation stood still for it, which includes the time by which one process was "
          "later than the other."};
  Scaling all;
  try {
    all = measure_scaling(2, {"--ranks", "2", "--model", "gpt", "--sizes", lab.quick ? "1" : "16",
                              "--seconds", fmt::format("{}", lab.seconds)});
  } catch (const brrr::Error& e) {
    section.findings = {fmt::format("Not measured: {}.", e.what())};
    return section;
  }
  lab.compared += all.compared;
  for (const std::string& complaint : all.complaints) lab.complain("processes", complaint);
  std::string gains;
  for (const Json& r : all.rows) {
    if (r["ranks"] == 1) continue;
    gains += fmt::format("{}{:.2f} times ({})", gains.empty() ? "" : ", ", r["gain"].get<double>(),
                         r["mode"].get<std::string>());
  }
  const Json& last = all.rows.back();
  section.findings = {fmt::format(
      "Two processes train on {} the samples a second of one, each on its own batch. In graph mode "
      "the computation waits {:.2f} ms of a step's {:.2f} for the other process and its gradients.",
      gains, last["waited_ms"].get<double>(), last["ms"].get<double>())};
  section.sheets = all.sheets;
  return section;
}

}  // namespace examples::lab
