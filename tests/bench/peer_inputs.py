"""What the peers of bench_gpu and bench_steps share: weights and batches, timing, figures.

A program's figures are in its file from begin() on and after each of them, so that whatever ends it
leaves those before. With --resume it goes on with the file of a run that was stopped.
"""
import argparse
import json
import os
import statistics
import struct
import time

STEPS, ROUNDS, LOSSES = 200, 15, 10
HOST_STEPS = 3  # As in bench_gpu: so few that the host never waits for the device.
# On the CPU, as in bench_steps: samples of about a fiftieth of a second, so that a median drops
# what a preemption hits, and each from the first weights on. Many more steps on one batch would
# lead to numbers so small that the CPU is slow at them, and not every program rounds them to 0.
SAMPLE_SECONDS, MOST_STEPS, FEWEST_SAMPLES = 0.02, 100, 5
figures, losses, failures, done = {}, {}, {}, []
report = {"figures": figures, "losses": losses, "failures": failures, "done": done}
report_path = None


def arguments(about, **inputs):
    """A parser with the options that all peers have."""
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
    """What measures, by name: whatever fails later, it was there."""
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
    """Whoever reads the file meanwhile sees all of the older or all of the newer one."""
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
    """Runs f, unless an earlier run has; one that fails is noted, and the next one goes on."""
    if name in done:
        return
    before = len(failures)
    try:
        f()
        if len(failures) == before:  # None of an attempt inside it either.
            done.append(name)
    except Exception as e:
        failures[name] = f"{type(e).__name__}: {e}".splitlines()[0]
        print(f"{name}: {failures[name]}", flush=True)
    write()


def end():
    """Steps that failed are in the file; a program without any figure has failed itself."""
    if not figures:
        raise SystemExit("nothing measured")


def timed(f, n, wait, until_done):
    """Seconds of one f() among n: until all has run if `until_done`, else until all is queued."""
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
    """A program alone decides by its own clock."""
    return seconds


def timed_on_cpu(f, wait, reset, enough, agree=own_clock):
    """Seconds of one f(), the median of samples; and how many cores were at work meanwhile.
    Programs that run together must call it as often: what decides it is agree(seconds)."""
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
    """A step's time; on a GPU also the host's part, on the CPU the cores that it took. `reset`
    brings the first weights back."""
    if options.device == "cuda":
        note(name, timed(f, STEPS, wait, True) * 1e6, "us")
        note(name + ", host", timed(f, HOST_STEPS, wait, False) * 1e6, "us")
        return
    seconds, cores = timed_on_cpu(f, wait, reset, options.seconds, agree)
    note(name, seconds * 1e6, "us")
    note(name + ", cores", cores, "")


def header(path):
    """Of a safetensors file: name -> its entry; and where the data begins."""
    if not os.path.exists(path):
        raise SystemExit(f"{path}: no such file; write it with bench_gpu or bench_steps --inputs")
    with open(path, "rb") as f:
        entries = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        entries.pop("__metadata__", None)
        return entries, f.tell()


class Case:
    """A training step of a file: its name, which is brrr's, whether it is the GPT's or the MLP's,
    and its tensors' dtype, shape and bytes."""

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
        # The one size that the weights do not tell.
        self.heads = struct.unpack("<q", found.pop("heads")[2])[0] if self.gpt else 0
        return found


def cases(path, only=None):
    """Those of a file, or the one of that name: the MLP's first, the small ones first."""
    entries, _ = header(path)
    found = [Case(entries, key) for key in {name.split(".")[0] for name in entries}]
    return [case for case in sorted(found, key=lambda case: (case.gpt, case.sizes))
            if only in (None, case.name)]
