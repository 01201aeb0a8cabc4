"""What the peers of bench_gpu share: its weights and batches, timing, figures.

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
MLP_BATCHES = (32, 256, 1024)
GPT_STEP = "GPT step, 4 layers, width 128, batch 16"
GPT_HEADS = 4
figures, losses, failures, done = {}, {}, {}, []
report = {"figures": figures, "losses": losses, "failures": failures, "done": done}
report_path = None


def mlp_step(batch):
    return f"MLP step, batch {batch}"


def arguments(about, **inputs):
    """A parser with the options that all peers have."""
    parser = argparse.ArgumentParser(description=about)
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


def note_step(name, f, wait):
    note(name, timed(f, STEPS, wait, True) * 1e6, "us")
    note(name + ", host", timed(f, HOST_STEPS, wait, False) * 1e6, "us")


def load(path, key):
    """Name -> (dtype, shape, bytes) of the tensors "<key>.name" in a safetensors file."""
    if not os.path.exists(path):
        raise SystemExit(f"{path}: no such file; write it with bench_gpu --inputs")
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        base, found = f.tell(), {}
        for name, entry in header.items():
            if not name.startswith(key + "."):
                continue
            begin, end = entry["data_offsets"]
            f.seek(base + begin)
            found[name[len(key) + 1:]] = entry["dtype"], entry["shape"], f.read(end - begin)
    if not found:
        raise SystemExit(f"{path}: it holds no tensors of {key}; write it with bench_gpu --inputs")
    return found
