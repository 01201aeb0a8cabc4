"""The gain of graph mode, by the programs' own times and by wall-clock time.

Each model trains in whole runs of train_mlp or train_gpt, eager and graph in turns, short and long.
"Outside", a step's time is that of a long run less that of a short one, over the difference of
their steps: one-time costs, such as making the data, cancel. "Inside", it is the time that the
program itself reports for a step, the median of its lines (--log). The two ratios of eager to graph
should be the same within 5 %: else a program measures something other than what its user waits for.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from peers import check_json

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLOSE = 0.05
MOST = 1e6  # Of --scale: a run of some seconds would take weeks.
GPT = ["train_gpt", "--eval-every", "0", "--eval-batches", "1", "--batch"]
MLP = ["train_mlp", "--eval-every", "0", "--batch"]
# The model's command, and the steps of a long run, which takes some seconds.
CASES = {"MLP, batch 1": (MLP + ["1"], 60000), "MLP, batch 32": (MLP + ["32"], 30000),
         "GPT, batch 1": (GPT + ["1"], 12000), "GPT, batch 8": (GPT + ["8"], 3000)}
MODES = ("eager", "graph")


def run(case, mode, steps, options, log):
    """Seconds of a whole run on one CPU."""
    command, _ = CASES[case]
    if os.path.exists(log):
        os.remove(log)
    argv = [str(ROOT / "build/release/bin" / command[0]), *command[1:], "--mode", mode, "--threads",
            "1", "--steps", str(steps), "--log-every", str(max(1, steps // 20)), "--log", log]
    begin = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          preexec_fn=lambda: os.sched_setaffinity(0, {options.cpu}))
    seconds = time.monotonic() - begin
    if done.returncode:
        lines = done.stdout.strip().splitlines()
        sys.exit(f"outside: {' '.join(argv)}: {lines[-1] if lines else done.returncode}")
    return seconds


def inside_ms(log):
    lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
    return statistics.median(line["ms_per_step"] for line in lines[1:] if "ms_per_step" in line)


def measure(case, options, folder):
    """Milliseconds of a step by mode and round, measured outside and inside."""
    long = max(60, int(CASES[case][1] * options.scale))
    short = long // 4
    log = os.path.join(folder, "log.jsonl")
    outside, inside = {m: [] for m in MODES}, {m: [] for m in MODES}
    for mode in MODES:  # Builds kernels and, once per machine, measures its limits.
        run(case, mode, long, options, log)
    for _ in range(options.rounds):
        for mode in MODES:
            less = run(case, mode, short, options, log)
            more = run(case, mode, long, options, log)
            outside[mode].append(1e3 * (more - less) / (long - short))
            inside[mode].append(inside_ms(log))
    return outside, inside


def ratio(ms):
    return statistics.median(a / b for a, b in zip(ms["eager"], ms["graph"]))


def main():
    parser = argparse.ArgumentParser(prog="./brrr bench --outside", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="5 if not given")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the numbers of steps; 1")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    options = parser.parse_args()
    if options.rounds < 1 or not 0 < options.scale <= MOST:
        parser.error(f"--rounds, --scale: a positive number is needed, for --scale at most {MOST:g}")
    check_json(parser, options.json)
    cases = [c for c in CASES if not options.only or any(text in c for text in options.only)]
    if not cases:
        parser.error(f"no case has {' or '.join(options.only)} in its name: {', '.join(CASES)}")
    options.cpu = max(os.sched_getaffinity(0))
    print(f"{'':<16}{'eager ms':>10}{'graph ms':>10}{'outside':>10}{'inside':>10}{'apart':>9}")
    all_figures, far = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            outside, inside = measure(case, options, folder)
            there, here = ratio(outside), ratio(inside)
            apart = here / there - 1
            print(f"{case:<16}{statistics.median(outside['eager']):>10.3f}"
                  f"{statistics.median(outside['graph']):>10.3f}{there:>9.3f}x{here:>9.3f}x"
                  f"{100 * apart:>+8.1f} %", flush=True)
            all_figures[case] = {"outside_ms": outside, "inside_ms": inside, "outside": there,
                                 "inside": here}
            if abs(apart) > CLOSE:
                far.append(case)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(all_figures, indent=2) + "\n")
    if far:
        print(f"more than {100 * CLOSE:.0f} % apart: {', '.join(far)}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
