"""Shared by the peers of bench_gpu and bench_steps: weights and batches, timing, figures.

A program's file is written by begin() and after each figure, so that an aborted program keeps its
earlier figures. With --resume it continues the file of a run that was stopped.
"""
import argparse
import json
import os
import statistics
import struct
import time

STEPS, ROUNDS, LOSSES = 200, 15, 10
HOST_STEPS = 3  # As in bench_gpu: few enough that the host never waits for the device.
# On the CPU, as in bench_steps: samples of about a fiftieth of a second, so that the median drops
# preempted ones, and each from the first weights on. Many more steps on one batch would lead to
# denormal numbers, on which CPUs are slow and which not every program flushes to 0.
SAMPLE_SECONDS, MOST_STEPS, FEWEST_SAMPLES = 0.02, 100, 5
figures, losses, failures, done = {}, {}, {}, []
report = {"figures": figures, "losses": losses, "failures": failures, "done": done}
report_path = None


def arguments(about, **inputs):
    """A parser with the common options of all peers."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU; 1 if not given")
    parser.add_argument("--seconds", type=float, default=0.5,
                        help="on the CPU: at least, for each figure")
    parser.add_argument("--only", help="the step of that name")
    parser.add_argument("--json", help="where the figures go, after each of them")
    parser.add_argument("--resume", action="store_true",
                        help="keep what that file has and measure the rest")
    parser.add_argument("--inputs", **inputs)
    return parser


def begin(options, about):
    """Starts the report with `about`, the program; --resume continues one with the same `about`."""
    global report_path
    report_path = path = options.json
    if options.resume and path and os.path.exists(path):
        with open(path) as f:
            before = json.load(f)
        if all(before.get(key) == value for key, value in about.items()):
            figures.update(before["figures"])
            losses.update(before["losses"])
            done.extend(before["done"])
    report.update(about)
    write()


def write():
    """Replaces the file atomically, so that a concurrent reader never sees a partial one."""
    if report_path:
        with open(report_path + ".next", "w") as f:
            json.dump(report, f, indent=2)
        os.replace(report_path + ".next", report_path)


def note(name, value, unit):
    figures[name] = {"value": value, "unit": unit}
    print(f"{name:<44} {value:>12.3f} {unit}", flush=True)
    write()


def note_losses(name, values):
    """Losses of the first steps; results.py compares them with brrr's."""
    losses[name] = [float(v) for v in values]
    print(f"{name}: losses", *(f"{v:.6f}" for v in losses[name]), flush=True)
    write()


def attempt(name, f):
    """Runs f, unless an earlier run has; a failure is recorded, and the next figure is measured."""
    if name in done:
        return
    before = len(failures)
    try:
        f()
        if len(failures) == before:  # No nested attempt failed either.
            done.append(name)
    except Exception as e:
        failures[name] = f"{type(e).__name__}: {e}".splitlines()[0]
        print(f"{name}: {failures[name]}", flush=True)
    write()


def end():
    """Failed steps are in the file; a program without any figure fails itself."""
    if not figures:
        raise SystemExit("nothing measured")


def timed(f, n, wait, until_done):
    """Seconds per f() of n: until all have run if `until_done`, else until all are queued."""
    for _ in range(3):
        f()
    samples = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(n):
            f()
        if until_done:
            wait()
        samples.append((time.perf_counter() - start) / n)
    wait()
    return statistics.median(samples)


def own_clock(seconds):
    """A single process decides by its own clock."""
    return seconds


def timed_on_cpu(f, wait, reset, enough, agree=own_clock):
    """Seconds per f(), the median of samples; and the number of busy cores. Processes that run
    together must call f equally often: agree(seconds) gives all of them the same duration."""
    def sample(n):
        start = time.perf_counter()
        for _ in range(n):
            f()
        wait()
        return time.perf_counter() - start

    def prepare():
        reset()
        sample(3)

    prepare()
    fastest = agree(min(sample(1), sample(3) / 3))
    n = max(1, min(int(SAMPLE_SECONDS / fastest), MOST_STEPS))
    samples, busy, spent = [], 0.0, 0.0
    while spent < enough or len(samples) < FEWEST_SAMPLES:
        prepare()
        before = time.process_time()
        samples.append(sample(n))
        busy += time.process_time() - before
        spent += agree(samples[-1])
    return statistics.median(samples) / n, busy / sum(samples)


def note_step(name, f, wait, reset, options, agree=own_clock):
    """A step's time; on a GPU also the host's part, on the CPU the number of busy cores. `reset`
    restores the first weights."""
    if options.device == "cuda":
        note(name, timed(f, STEPS, wait, True) * 1e6, "us")
        note(name + ", host", timed(f, HOST_STEPS, wait, False) * 1e6, "us")
        return
    seconds, cores = timed_on_cpu(f, wait, reset, options.seconds, agree)
    note(name, seconds * 1e6, "us")
    note(name + ", cores", cores, "")


def header(path):
    """The header of a safetensors file (name -> entry), and the offset of the data."""
    if not os.path.exists(path):
        raise SystemExit(f"{path}: no such file; write it with bench_gpu or bench_steps --inputs")
    with open(path, "rb") as f:
        entries = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        entries.pop("__metadata__", None)
        return entries, f.tell()


class Case:
    """A training step of a file: its name in brrr, whether it is a GPT or an MLP, and its tensors'
    dtype, shape and bytes."""

    def __init__(self, entries, key):
        self.key = key
        shapes = {name[len(key) + 1:]: entry["shape"] for name, entry in entries.items()
                  if name.startswith(key + ".")}
        self.gpt, batch = "wte.weight" in shapes, shapes["x"][0]
        self.sizes = [batch]
        self.name = f"MLP step, batch {batch}"
        if self.gpt:
            layers = sum(name.endswith("ln_1.weight") for name in shapes)
            width = shapes["wte.weight"][1]
            self.sizes = [layers, width, batch]
            self.name = f"GPT step, {layers} layers, width {width}, batch {batch}"

    def load(self, path):
        entries, base = header(path)
        found = {}
        with open(path, "rb") as f:
            for name, entry in entries.items():
                if name.startswith(self.key + "."):
                    begin, end = entry["data_offsets"]
                    f.seek(base + begin)
                    data = f.read(end - begin)
                    found[name[len(self.key) + 1:]] = entry["dtype"], entry["shape"], data
        # Cannot be derived from the weights.
        self.heads = struct.unpack("<q", found.pop("heads")[2])[0] if self.gpt else 0
        return found


def cases(path, only=None):
    """The steps of a file, or the one of that name: the MLP's first, small ones first."""
    entries, _ = header(path)
    found = [Case(entries, key) for key in {name.split(".")[0] for name in entries}]
    return [case for case in sorted(found, key=lambda case: (case.gpt, case.sizes))
            if only in (None, case.name)]
