// What bounds a training step: compute, memory bandwidth or overhead? Runs the experiments of
// Horace He's "Making Deep Learning Go Brrrr From First Principles" and writes one page about them.
#include <brrr/brrr.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "backends/cpu/stream.h"
#include "core/check.h"
#include "core/text.h"
#include "examples/common/options.h"
#include "examples/common/page.h"
#include "examples/lab/lab.h"
#include "models/file.h"

using namespace examples;

namespace {

namespace fs = std::filesystem;

Check output_folder() {
  return [](const std::string& text) {
    std::error_code none;
    if (!text.empty() && (!fs::exists(text, none) || fs::is_directory(text, none))) {
      return std::string();
    }
    return fmt::format("expected a folder, which is made if need be; got '{}'", text);
  };
}

struct Experiment {
  const char* name;
  lab::Section (*run)(lab::Lab&);
};
constexpr Experiment kExperiments[] = {{"limits", lab::limits_of_machine},
                                       {"doubling", lab::batch_doubling},
                                       {"classes", lab::where_time_goes},
                                       {"roofline", lab::roofline},
                                       {"fusion", lab::fusion},
                                       {"activations", lab::activations},
                                       {"rematerialisation", lab::rematerialisation},
                                       {"anatomy", lab::anatomy},
                                       {"verdicts", lab::verdicts},
                                       {"processes", lab::processes}};

struct Options : CommandLine {
  std::string out = "out/lab", model = "all";
  double seconds = 0.3;
  bool quick = false;
  std::vector<std::string> only;

  Options()
      : CommandLine(
            "Shows what bounds a training step: compute, memory bandwidth or overhead. Writes "
            "lab.html, lab.json, a CSV file for each table and an SVG file for each picture.",
            "lab") {
    threads = 1;
    add("--out", out, "the folder to write into", output_folder());
    add("--model", model,
        "whose batches are doubled and whose step is taken apart: mlp, gpt, all; own, your own "
        "of examples/common/own.cpp",
        one_of({"mlp", "gpt", "all", "own"}));
    add("--threads", threads, "CPU threads", thread_count());
    add("--seconds", seconds, "for each figure, about", real_number(0.001, 1000));
    std::vector<std::string> names;
    for (const Experiment& e : kExperiments) names.emplace_back(e.name);
    plain("experiments", only, fmt::format("only these: {}", fmt::join(names, ", ")),
          one_of(names));
    flag("--quick", quick, "tiny sizes: to see that all of it works");
  }
};

void print_section(const lab::Section& s) {
  for (const std::string& text : s.findings) {
    fmt::print("\n{}\n", fmt::join(brrr::wrapped(text, 90), "\n"));
  }
  for (const Sheet& sheet : s.sheets) fmt::print("\n{}\n\n{}", sheet.title, sheet.text());
  std::fflush(stdout);
}

Page page_of(const lab::Lab& lab, const std::vector<lab::Section>& sections) {
  Page page("What bounds a training step: compute, memory or overhead?",
            fmt::format("{}, {} thread{}, float32, measured by brrr's example lab, after Horace "
                        "He, Making Deep Learning Go Brrrr From First Principles",
                        lab.limits.cpu, lab.limits.threads, lab.limits.threads > 1 ? "s" : ""));
  if (lab.quick) page.paragraph("A quick run with tiny sizes: its figures mean nothing.");
  if (!lab.complaints.empty()) page.lead("Do not use these figures: " + lab.complaints);
  for (const lab::Section& s : sections) {
    page.pictures(s.answer_pictures);
    for (const std::string& text : s.answer) page.lead(text);
  }
  page.note(header_text({lab.limits}));
  if (!disturbance(lab).empty()) page.note(disturbance(lab));
  for (const lab::Section& s : sections) {
    page.heading(s.title);
    for (const std::string& text : s.findings) page.paragraph(text);
    page.pictures(s.pictures);
    if (!s.note.empty()) page.note(s.note);
    for (const Sheet& sheet : s.sheets) page.table(sheet);
  }
  return page;
}

Json json_of(const lab::Lab& lab, const std::vector<lab::Section>& sections, double seconds) {
  Json all = Json::array();
  for (const lab::Section& s : sections) {
    Json tables = Json::object();
    for (const Sheet& sheet : s.sheets) tables[sheet.name] = sheet.json();
    const std::string findings = fmt::format("{}", fmt::join(s.findings, "\n"));
    all.push_back(object("title seen tables", s.title, findings, tables));
  }
  const Limits& l = lab.limits;
  return object(
      "program quick cpu clock threads versions warning seconds "
      "gflops_of_a_core disturbance complaints sections",
      "lab", lab.quick, l.cpu, l.clock, l.threads, versions(), l.blas.warning, seconds, lab.peaks,
      disturbance(lab), lab.complaints, all);
}

void write_all(const Options& o, const lab::Lab& lab, const std::vector<lab::Section>& sections,
               double seconds) {
  const fs::path folder = o.out;
  const auto write_picture = [&](const Picture& p) {
    write_file(folder / (p.name + ".svg"), svg_file({p}));
  };
  for (const lab::Section& s : sections) {
    for (const Sheet& sheet : s.sheets) write_file(folder / (sheet.name + ".csv"), sheet.csv());
    for (const Picture& p : s.pictures) write_picture(p);
    for (const Picture& p : s.answer_pictures) write_picture(p);
    if (!s.answer_pictures.empty()) write_file(folder / "lab.svg", svg_file(s.answer_pictures));
  }
  write_file(folder / "lab.json", json_of(lab, sections, seconds).dump(2) + "\n");
  write_file(folder / "lab.html", page_of(lab, sections).html());
}

// Before measuring: checks that files can be written, also over those of an earlier run.
void check_folder(const fs::path& folder) {
  std::error_code why;
  fs::create_directories(folder, why);
  BRRR_CHECK(!why, "--out {}: it cannot be made: {}", folder.string(), why.message());
  for (const char* name : {"lab.html", "lab.json"}) {
    brrr::check_replaceable((folder / name).string());
  }
  for (const auto& there : fs::directory_iterator(folder)) {
    const fs::path& path = there.path();
    const bool one_of_lab = path.extension() == ".csv" || path.extension() == ".svg";
    if (one_of_lab) brrr::check_replaceable(path.string());
  }
}

int run(const Options& o) {
  check_folder(o.out);
  const auto begin = Clock::now();
  lab::Lab lab{
      measure_limits({brrr::kCPU}).front(), o.quick ? 0.01 : o.seconds, o.model, o.quick, {}};
  fmt::print("{}", header_text({lab.limits}));
  std::vector<lab::Section> sections;
  std::vector<Experiment> chosen;
  std::ranges::copy_if(kExperiments, std::back_inserter(chosen), [&](const Experiment& e) {
    return o.only.empty() || std::ranges::count(o.only, e.name);
  });
  for (const Experiment& e : chosen) {
    fmt::print("\n[{}/{}] {}, after {:.0f} s\n", sections.size() + 1, chosen.size(), e.name,
               seconds_since(begin));
    std::fflush(stdout);
    lab.peaks.push_back(brrr::cpu::fma_peak_gflops());
    sections.push_back(e.run(lab));
    print_section(sections.back());
  }
  const double seconds = seconds_since(begin);
  lab.peaks.push_back(brrr::cpu::fma_peak_gflops());
  write_all(o, lab, sections, seconds);
  fmt::print("\n{} s; the page is {}\n", three_figures(seconds),
             (fs::path(o.out) / "lab.html").string());
  if (!disturbance(lab).empty()) fmt::print("WARNING: {}\n", disturbance(lab));
  if (lab.complaints.empty()) {
    if (lab.compared > 0) {
      fmt::print("both modes had the same results, bit for bit; no step fell back\n");
    }
    return 0;
  }
  std::fflush(stdout);
  fmt::print(stderr, "lab: do not use these figures:\n{}", lab.complaints);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return o.run(argc, argv, [&] { return run(o); });
}
