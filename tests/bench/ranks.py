"""A training step on one process and on several, brrr's and PyTorch's, as `./brrr bench --ranks`
runs them: brrr by mpirun, PyTorch's DistributedDataParallel over gloo by torchrun, each process with
one thread and its own core, interleaved, from the same weights, losses compared first. A ratio is
the median of the rounds' own ratios.
"""
import os
import statistics
import subprocess
import sys
import tempfile

from peers import CLOSE, ROOT, HERE, deviation, parser_of, positive, report_of

STEP = "GPT step, 4 layers, width 128, batch 12"


def options_of(arguments):
    parser = parser_of("ranks", __doc__, 3, 3, "bench_steps")
    parser.add_argument("--ranks", type=positive(int), default=2, help="2 if not given")
    parser.add_argument("--step", default=STEP, help=f"of bench_steps; '{STEP}' if not given")
    options = parser.parse_args(arguments)
    options.cpus, options.threads = sorted(os.sched_getaffinity(0)), 1
    return options


def commands(options, inputs):
    """Program -> its command and the suffix of its figures' names after the step's."""
    common = ["--threads", "1", "--seconds", str(options.seconds)]
    launch = ["bash", str(ROOT / "tests/dist/launch.sh"), "mpirun", str(options.ranks)]
    torch = [str(HERE / "peer_torch.py"), "--device", "cpu", "--inputs", inputs, *common]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(options.ranks),
                "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    found = {"brrr, one process": [options.program, *common],
             "brrr": [*launch, options.program, *common]}
    try:
        subprocess.run([options.python, "-c", "import torch"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"PyTorch is left out: {options.python} does not have it")
        return found
    found["PyTorch, one process"] = [options.python, *torch]
    found["PyTorch DDP"] = [options.python, *torchrun, *torch]
    return found


def main():
    options = options_of(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs.safetensors")
        made = subprocess.run([options.program, "--only", options.step, "--inputs", inputs],
                              stderr=subprocess.PIPE, text=True)
        if made.returncode:
            sys.exit(made.stderr.strip())
        programs = commands(options, inputs)
        us, hidden, losses, left_out = {who: [] for who in programs}, [], [], {}
        for _ in range(options.rounds):
            for who, command in programs.items():
                report = report_of(command, options.step, folder, options)
                name = options.step + (", graph" if who.startswith("brrr") else "")
                if name not in report["figures"]:
                    left_out[who] = report["failures"].get(name, report["why"])
                    continue
                own = report["losses"][name]
                losses = losses or own
                if not deviation(losses, own) <= CLOSE:
                    left_out[who] = f"other losses than brrr's: {own} and not {losses}"
                us[who].append(report["figures"][name]["value"])
                if who == "brrr":
                    hidden.append(report["figures"][name + ", hidden"]["value"])
    print(f"\n{options.step}, {options.ranks} processes of one thread, each on such a batch; "
          f"{options.rounds} rounds")
    batch = int(options.step.split()[-1])
    for who, values in us.items():
        if who in left_out or not values:
            print(f"  {who:<22} left out: {left_out.get(who)}")
            continue
        ranks = 1 if "one" in who else options.ranks
        rate = 1e6 * ranks * batch / statistics.median(values)
        print(f"  {who:<22} {statistics.median(values) / 1e3:8.2f} ms a step  {rate:8.0f} samples/s"
              f"  ({min(values) / 1e3:.2f} to {max(values) / 1e3:.2f} ms)")

    def times(a, b, factor):
        if us.get(a) and us.get(b) and not {a, b} & set(left_out):
            return statistics.median(factor * x / y for x, y in zip(us[a], us[b]))
        return None

    for text, value in (
            (f"brrr on {options.ranks} over one", times("brrr, one process", "brrr", options.ranks)),
            (f"PyTorch on {options.ranks} over one",
             times("PyTorch, one process", "PyTorch DDP", options.ranks)),
            ("brrr over PyTorch DDP", times("PyTorch DDP", "brrr", 1))):
        if value:
            print(f"  {text}: {value:.2f}x")
    if hidden:
        print(f"  of brrr's exchange hidden: {statistics.median(hidden):.0f} %")
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
