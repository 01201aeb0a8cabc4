"""Writes RESULTS.md, beside this file, from what gpu-check left in a folder.

usage: results.py FOLDER
"""
import datetime
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as tree

HERE = pathlib.Path(__file__).parent

# Steps in other programs: a column each, and what their figures' names have behind the step's.
TORCH_STEPS = (("PyTorch eager", ""),
               ("torch.compile default", ", torch.compile default"),
               ("reduce-overhead", ", torch.compile reduce-overhead"),
               ("max-autotune", ", torch.compile max-autotune"),
               ("CUDA graph by hand", ", CUDA graph by hand"))
BRRR_STEPS = (("brrr eager", ""), ("brrr graph", ", graph"), ("brrr frozen", ", frozen"))
CLOSE = 1e-3  # Losses that differ by more, relatively, come from another computation.


def read(path):
    return path.read_text().strip() if path.exists() else ""


def load(path):
    """What a program has written; None where it wrote nothing."""
    return json.loads(path.read_text()) if path.exists() else None


def figures(program):
    return program["figures"] if program else {}


def tests(folder):
    """Counts and the names of what failed or was skipped."""
    path = folder / "tests.xml"
    if not path.exists():
        return ["The tests did not finish."]
    passed, failed, skipped = [], [], []
    for case in tree.parse(path).getroot().iter("testcase"):
        status = case.get("status")
        (passed if status == "run" else failed if status == "fail" else skipped).append(
            case.get("name"))
    lines = [f"Passed {len(passed)}, failed {len(failed)}, skipped {len(skipped)} of the test "
             "program's entries."]
    if failed:
        lines.append("Failed: " + ", ".join(failed) + ".")
    if skipped:
        lines.append("Skipped: " + ", ".join(skipped) + ".")
    return lines


def words(f):
    value = f["value"]
    return (f"{value:.0f}" if value >= 1000 else f"{value:.3g}") + (f" {f['unit']}".rstrip())


def figure(all_figures, name):
    return words(all_figures[name]) if name in all_figures else ""


def rows(cells):
    return ["| " + " | ".join(row) + " |" for row in cells]


def heading(columns):
    return rows([columns, ["---"] + ["---:"] * (len(columns) - 1)])


def micro_table(ours, torch):
    """All figures but the steps': brrr and PyTorch, eagerly."""
    lines = heading(["figure", "brrr eager", "PyTorch eager"])
    return lines + rows([name, figure(ours, name), figure(torch, name)]
                        for name in ours if " step, " not in name)


def same_losses(ours, theirs):
    return len(ours) == len(theirs) and all(
        abs(a - b) <= CLOSE * abs(a) for a, b in zip(ours, theirs))


def step_cell(program, name, what, ours, best):
    """A figure of another program's step, and how many times brrr's best is faster."""
    if program is None:
        return "not installed"
    if name in program["failures"]:
        return "failed"
    if name + what not in program["figures"]:
        return "not measured"
    if not same_losses(ours, program["losses"].get(name, [])):
        return "other losses"
    f = program["figures"][name + what]
    ratio = f" ({f['value'] / best['value']:.2f}x)" if best else ""
    return words(f) + ratio


def step_tables(ours, torch, jax):
    """Time and host time of a step: brrr's modes, then everybody else."""
    if not figures(ours):
        return ["No step was measured."]
    lines, names = [], list(ours["losses"])
    for what, title in (("", "A step, of many in the queue"),
                        (", host", "The host's time for a step")):
        lines += [f"{title}. In brackets: how many times that is brrr graph's.", ""]
        lines += heading(["step"] + [c for c, _ in BRRR_STEPS + TORCH_STEPS] + ["JAX jit"])
        for name in names:
            best = ours["figures"].get(f"{name}, graph{what}")
            cells = [figure(ours["figures"], name + suffix + what) for _, suffix in BRRR_STEPS]
            if best:
                eager = ours["figures"][name + what]["value"]
                cells[0] += f" ({eager / best['value']:.2f}x)"
            cells += [step_cell(torch, name + suffix, what, ours["losses"][name], best)
                      for _, suffix in TORCH_STEPS]
            cells.append(step_cell(jax, name, what, ours["losses"][name], best))
            lines += rows([[name] + cells])
        lines.append("")
    lines += ["Recorded ops of a step and the host's time for each:", ""]
    lines += heading(["step", "ops", "graph", "frozen"])
    lines += rows([name, figure(ours["figures"], f"{name}, graph, recorded ops"),
                   *(figure(ours["figures"], f"{name}, {mode}, host per recorded op")
                     for mode in ("graph", "frozen"))] for name in names)
    return lines + loss_lines(ours, torch, jax)


def loss_lines(ours, torch, jax):
    """Says which programs did something else: their figures are left out above."""
    strange = []
    for program, who in ((torch, "PyTorch"), (jax, "JAX")):
        for name, values in (program or {"losses": {}})["losses"].items():
            step = re.sub(r", (torch\.compile .*|CUDA graph by hand)$", "", name)
            mine = ours["losses"].get(step)
            if mine is None or not same_losses(mine, values):
                strange.append(f"- {who}, {name}: {values[-1]:.6f} at last, "
                               f"brrr {mine[-1] if mine else 'nothing'}")
        for name, why in (program or {"failures": {}})["failures"].items():
            strange.append(f"- {who}, {name}: failed: {why}")
    n = max((len(v) for v in ours["losses"].values()), default=0)
    if strange:
        return ["", f"Losses of the first {n} steps that differ from brrr's by more than "
                f"{CLOSE:g}, and failures:", "", *strange]
    return ["", f"The losses of the first {n} steps agree with brrr's to {CLOSE:g}."]


def version(program, key, name):
    return f"- {name} {program[key] if program else 'is not installed'}"


def main(folder):
    ours, torch, jax = (load(folder / f"{name}.json") for name in ("brrr", "torch", "jax"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True,
                            capture_output=True).stdout.strip()
    lines = ["# Runs on a GPU", "",
             f"`./brrr gpu-check` of {datetime.date.today()}, commit {commit or 'unknown'}.", "",
             f"- Card and driver: {read(folder / 'card.txt')}",
             f"- {ours['device']}: {ours['versions']}" if ours else "- brrr: no figures",
             version(torch, "pytorch", "PyTorch"), version(jax, "jax", "JAX"), ""]
    lines += tests(folder) + [""]
    lines += [read(folder / "sanitizer.txt") or "compute-sanitizer was not there.", ""]
    for run, how in (("cold", "compiled"), ("warm", "from the disk cache")):
        first = figures(load(folder / f"first-{run}.json"))
        lines.append(f"First use of a kernel, {how}: "
                     f"{figure(first, 'first use of a kernel in the process') or 'not measured'}.")
    lines += ["", "## Ops", "", *micro_table(figures(ours), figures(torch)),
              "", "## Steps", "", *step_tables(ours, torch, jax)]
    overhead = read(folder / "overhead.txt")
    if overhead:
        lines += ["", "## Overhead", "", "```", overhead, "```"]
    lines += ["", read(HERE / "NEVER_RUN.md"), ""]
    (HERE / "RESULTS.md").write_text("\n".join(lines))
    print(f"wrote {HERE / 'RESULTS.md'}")


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(pathlib.Path(sys.argv[1]))
