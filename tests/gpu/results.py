"""Writes RESULTS.md, beside this file, from what gpu-check left in a folder.

usage: results.py FOLDER
"""
import datetime
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as tree

HERE = pathlib.Path(__file__).parent


def read(path):
    return path.read_text().strip() if path.exists() else ""


def load(path):
    return json.loads(path.read_text()) if path.exists() else {"figures": {}}


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


def figure(figures, name):
    f = figures.get(name)
    return f"{f['value']:.3g} {f['unit']}" if f else ""


def table(ours, torch):
    """One line a figure: brrr, PyTorch eager, PyTorch compiled where there is such a thing."""
    modes = ("reduce-overhead", "max-autotune")
    lines = ["| figure | brrr eager | PyTorch eager | " +
             " | ".join(f"torch.compile {m}" for m in modes) + " |",
             "| --- | ---: | ---: | ---: | ---: |"]
    for name in ours:
        base, host = (name[:-6], ", host") if name.endswith(", host") else (name, "")
        cells = [figure(ours, name), figure(torch, name)]
        cells += [figure(torch, f"{base}, torch.compile {m}{host}") for m in modes]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main(folder):
    ours, torch = load(folder / "brrr.json"), load(folder / "torch.json")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True,
                            capture_output=True).stdout.strip()
    lines = ["# Runs on a GPU", "",
             f"`./brrr gpu-check` of {datetime.date.today()}, commit {commit or 'unknown'}.", "",
             f"- Card and driver: {read(folder / 'card.txt')}",
             f"- {ours.get('device', '')}: {ours.get('versions', 'no figures')}",
             f"- PyTorch {torch.get('pytorch', 'is not installed')}", ""]
    lines += tests(folder) + [""]
    lines += [read(folder / "sanitizer.txt") or "compute-sanitizer was not there.", ""]
    for run, words in (("cold", "compiled"), ("warm", "from the disk cache")):
        first = load(folder / f"first-{run}.json")["figures"]
        lines.append(f"First use of a kernel, {words}: "
                     f"{figure(first, 'first use of a kernel in the process') or 'not measured'}.")
    lines += ["", *table(ours["figures"], torch["figures"]), "", read(HERE / "NEVER_RUN.md"), ""]
    (HERE / "RESULTS.md").write_text("\n".join(lines))
    print(f"wrote {HERE / 'RESULTS.md'}")


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(pathlib.Path(sys.argv[1]))
