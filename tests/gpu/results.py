"""Writes RESULTS.md, beside this file, from the record that gpu-check left in a folder.

usage: results.py FOLDER
"""
import datetime
import json
import math
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent

# What each phase shows if it has passed.
PHASES = {
    "build": "with the CUDA Toolkit that is there",
    "module": "`brrr_cuda` alone: driver, streams, memory, NVRTC, cuBLASLt, captures",
    "kernels": "every kernel's results, the tensor cores' too",
    "steps": "steps as CUDA graphs, ordinary tests on the device, `train_mlp`, `train_gpt`",
    "sanitizer": "memcheck and racecheck over the kernels' tests",
    "figures": "every kernel's speed, steps in all modes, `overhead`, `roofline`",
    "peers": "the same in PyTorch and in JAX",
}

# Columns of the step tables: heading, and suffix to the step's name in the program's figures.
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
    """The JSON that a program has written; None if there is none or it is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def figures(program):
    return program["figures"] if program else {}


def notes(folder):
    """phase -> part -> (state, seconds, why), as recorded last; part "*" is the whole phase."""
    found = {phase: {} for phase in PHASES}
    for line in read(folder / "parts.tsv").splitlines():
        phase, part, state, seconds, why = (line.split("\t") + [""] * 5)[:5]
        found.setdefault(phase, {})[part] = state, seconds, why.strip()
    return found


def phase_result(parts):
    if "*" not in parts:
        return "**has not run**"
    state, seconds, why = parts["*"]
    states = [s for part, (s, _, _) in parts.items() if part != "*"]
    passed = f"{states.count('passed')} of the {len(states)} parts that began have passed"
    if state == "passed":
        return f"passed, {len(states)} part{'s' * (len(states) != 1)}, {seconds} s"
    if state == "cut":
        return f"**did not end**: it {why}; {passed}"
    return f"**FAILED**: {why or passed}"


def phase_table(all_notes):
    cells = [(phase, what, phase_result(all_notes[phase])) for phase, what in PHASES.items()]
    lines = rows([("phase", "what it shows", "result"), ("---", "---", "---"), *cells])
    bad = [f"- {phase}, {part}: {'did not end' if state == 'cut' else state}"
           + (f": {why}" if why else "")
           for phase, parts in all_notes.items()
           for part, (state, _, why) in parts.items() if part != "*" and state != "passed"]
    return lines + (["", "Not passed:", "", *bad] if bad else [])


def finite(value):
    """JSON has no NaN and no infinity: the programs write null."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def times(one, other):
    """The ratio of `one` to `other` in brackets; empty if it is undefined."""
    if not (finite(one["value"]) and finite(other["value"]) and other["value"]):
        return ""
    return f" ({one['value'] / other['value']:.2f}x)"


def format_value(f):
    value = f["value"]
    if not finite(value):
        return "**not finite**"
    return (f"{value:.0f}" if value >= 1000 else f"{value:.3g}") + (f" {f['unit']}".rstrip())


def figure(all_figures, name):
    return format_value(all_figures[name]) if name in all_figures else ""


def rows(cells):
    return ["| " + " | ".join(row) + " |" for row in cells]


def heading(columns):
    return rows([columns, ["---"] + ["---:"] * (len(columns) - 1)])


def micro_table(ours, torch):
    """All figures but those of steps: brrr and PyTorch in eager mode."""
    if not ours:
        return ["No op was measured."]
    lines = heading(["figure", "brrr eager", "PyTorch eager"])
    return lines + rows([name, figure(ours, name), figure(torch, name)]
                        for name in ours if " step, " not in name)


def same_losses(ours, theirs):
    return len(ours) == len(theirs) and all(
        finite(a) and finite(b) and abs(a - b) <= CLOSE * abs(a) for a, b in zip(ours, theirs))


def step_cell(program, name, what, ours, best):
    """A figure of another program's step, and its ratio to brrr's graph mode."""
    if program is None:
        return "no figures"
    if name in program["failures"]:
        return "failed"
    if name + what not in program["figures"]:
        return "not measured"
    if not same_losses(ours, program["losses"].get(name, [])):
        return "other losses"
    f = program["figures"][name + what]
    return format_value(f) + (times(f, best) if best else "")


def step_tables(ours, torch, jax):
    """Time and host time of a step: brrr's modes, then the other programs."""
    if not (ours and ours["losses"]):
        return ["No step was measured."]
    lines, names = [], list(ours["losses"])
    for what, title in (("", "A step, of many in the queue"),
                        (", host", "The host's time for a step")):
        lines += [f"{title}. In brackets: how many times that is brrr graph's.", ""]
        lines += heading(["step"] + [c for c, _ in BRRR_STEPS + TORCH_STEPS] + ["JAX jit"])
        for name in names:
            best = ours["figures"].get(f"{name}, graph{what}")
            eager = ours["figures"].get(name + what)
            cells = [figure(ours["figures"], name + suffix + what) for _, suffix in BRRR_STEPS]
            if best and eager:
                cells[0] += times(eager, best)
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
    """Lists failures and programs whose losses differ; their figures are left out above."""
    strange = [f"- brrr, {name}: a loss is not finite" for name, values in ours["losses"].items()
               if not all(map(finite, values))]
    for program, who in ((torch, "PyTorch"), (jax, "JAX")):
        for name, values in (program or {"losses": {}})["losses"].items():
            step = re.sub(r", (torch\.compile .*|CUDA graph by hand)$", "", name)
            mine = ours["losses"].get(step)
            if mine is None or not same_losses(mine, values):
                last = [v[-1] if v else "nothing" for v in (values, mine)]
                last = ["not finite" if v is None else v for v in last]
                strange.append(f"- {who}, {name}: {last[0]} at last, brrr {last[1]}")
    for program, who in ((ours, "brrr"), (torch, "PyTorch"), (jax, "JAX")):
        for name, why in (program or {"failures": {}})["failures"].items():
            strange.append(f"- {who}, {name}: failed: {why.splitlines()[0] if why else ''}")
    n = max((len(v) for v in ours["losses"].values()), default=0)
    if strange:
        return ["", f"Losses of the first {n} steps that differ from brrr's by more than "
                f"{CLOSE:g}, and failures:", "", *strange]
    return ["", f"The losses of the first {n} steps agree with brrr's to {CLOSE:g}."]


def about(folder, ours, torch, jax):
    if not read(folder / "card.txt"):
        return ["None yet: no part of brrr has run on a GPU. What there is was tried on an",
                "emulator (`tests/emulator`), which runs the same kernels on the CPU. On a machine",
                "with a GPU `./brrr gpu-check` writes this file, of whatever has run until then."]
    commit = read(folder / "commit.txt").replace("\n", " ")
    return [f"`./brrr gpu-check` of {datetime.date.today()}, commit {commit or 'unknown'}, sources "
            f"{read(folder / 'sources.txt')}.", "",
            f"- Card and driver: {read(folder / 'card.txt')}",
            f"- {ours['device']}: {ours['versions']}" if ours else "- brrr: no figures",
            f"- PyTorch {torch['pytorch']}" if torch else "- PyTorch: no figures",
            f"- JAX {jax['jax']}" if jax else "- JAX: no figures"]


def measured(folder, ours, torch, jax):
    lines = ["## Ops", ""]
    for run, how in (("cold", "compiled"), ("warm", "from the disk cache")):
        first = figures(load(folder / f"figures-first-{run}.json"))
        lines.append(f"First use of a kernel, {how}: "
                     f"{figure(first, 'first use of a kernel in the process') or 'not measured'}.")
    lines += ["", *micro_table(figures(ours), figures(torch)),
              "", "## Steps", "", *step_tables(ours, torch, jax)]
    for program in ("overhead", "roofline"):
        said = read(folder / f"figures-{program}.txt")
        lines += ["", f"## {program.capitalize()}", "",
                  *(["```", said, "```"] if said else ["Not measured."])]
    return lines


def main(folder):
    ours, torch, jax = (load(folder / f"{name}.json")
                        for name in ("figures-brrr", "peers-torch", "peers-jax"))
    lines = ["# Runs on a GPU", "", *about(folder, ours, torch, jax), "",
             *phase_table(notes(folder)), ""]
    if any(folder.glob("figures-*")) or torch or jax:
        lines += measured(folder, ours, torch, jax) + [""]
    lines += [read(HERE / "AIMS.md"), ""]
    (HERE / "RESULTS.md").write_text("\n".join(lines))


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(pathlib.Path(sys.argv[1]))
