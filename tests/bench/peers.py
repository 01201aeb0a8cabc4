"""Training steps of brrr, libtorch, PyTorch, JAX on the CPU, as `./brrr bench --peers` runs them.

All programs start from the same weights and batch, which bench_steps writes. For each step, in each
round, bench_steps and the peers run one after the other, each in a fresh process on the same CPUs.
A program whose first losses differ from brrr's is left out. The median of the rounds counts; a ratio
is the median of the rounds' own ratios, so that a slow spell of the machine cancels.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from peer_inputs import cases

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = "build/peers"  # Default virtual environment with the peers.
INSTALL = (f"python3 -m venv {ENVIRONMENT} && {ENVIRONMENT}/bin/pip install torch jax"
           "    (torch without CUDA: --index-url https://download.pytorch.org/whl/cpu)")
INSTALL_LIBTORCH = "apt-get install libtorch-dev    (older than what torch above brings)"
CLOSE = 1e-3  # A larger relative difference of losses means another computation.
WHOLE = 0.9  # A smaller share of a core means that other load used it.
LIMIT = 900  # Seconds of a process: the first torch.compile is slow.

# The table's columns: the program, and the suffix of its figures' names after the step's.
BEST = "brrr graph"
COLUMNS = {BEST: ("brrr", ", graph"),
           "brrr eager": ("brrr", ""),
           "libtorch": ("libtorch", ""),
           "PyTorch eager": ("torch", ""),
           "torch.compile": ("torch", ", torch.compile default"),
           "JAX jit": ("jax", "")}
PACKAGES = {"torch": "PyTorch", "jax": "JAX"}
NAMES = {"libtorch": "libtorch", **PACKAGES}


def check_json(parser, path):
    """Ends the program before it measures anything if the file could not be written."""
    if not path:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path) and not os.path.isfile(path):
        parser.error(f"--json: {path} is no file")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        parser.error(f"--json: no file can be written in {folder}: {e.strerror}")


def positive(kind):
    """Reads a positive number of that kind."""
    def number(text):
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError("a positive number is needed")
        return value
    number.__name__ = kind.__name__  # argparse prints this name for an invalid word.
    return number


def parser_of(name, about, rounds, seconds, program):
    """A parser with the options of all comparisons; `program` is brrr's part of this one."""
    parser = argparse.ArgumentParser(prog=f"./brrr bench --{name}", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive(int), default=rounds,
                        help=f"{rounds} if not given")
    parser.add_argument("--seconds", type=positive(float), default=seconds,
                        help=f"for each figure in each round, at least; {seconds} if not given")
    own = ROOT / ENVIRONMENT / "bin/python"
    parser.add_argument("--python", metavar="PATH",
                        default=str(own) if own.exists() else sys.executable,
                        help="that has the peers installed; if not given, "
                        f"{ENVIRONMENT}/bin/python if that exists, else the one that runs this")
    parser.add_argument("--program", metavar="PATH", help=f"{program}, if it is elsewhere",
                        default=str(ROOT / "build/release/bin" / program))
    return parser


def options_of(arguments):
    parser = parser_of("peers", __doc__, 3, 0.5, "bench_steps")
    parser.add_argument("--threads", type=positive(int), default=1,
                        help="of every program; 1 if not given")
    parser.add_argument("--only", action="append", metavar="TEXT",
                        help="steps with TEXT in their name, such as 'MLP' or 'batch 8'")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    options = parser.parse_args(arguments)
    check_json(parser, options.json)
    options.cpus = sorted(os.sched_getaffinity(0))[-options.threads:]
    if len(options.cpus) < options.threads:
        parser.error(f"--threads: this process may use {len(options.cpus)} CPUs")
    return options


def run(command, options):
    """Runs a process on the measured CPUs only, so that it cannot run more threads in parallel than
    these, however many it starts. If it fails, throws with the last line that it wrote."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads),
                       MKL_NUM_THREADS=str(options.threads),
                       # Else torch.compile keeps worker processes.
                       TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, options.cpus))
    if done.returncode:
        lines = done.stdout.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")
    return done.stdout


def libtorch_program(options):
    """The path of libtorch's program, in the folder of brrr's."""
    return pathlib.Path(options.program).with_name("peer_torch_steps")


def build_libtorch(options):
    """Builds libtorch's program in brrr's build folder, with the libtorch of --python's PyTorch,
    else with Debian's; returns the version. Throws RuntimeError that names what is missing."""
    program = libtorch_program(options)
    build = program.parent.parent
    if (build / "CMakeCache.txt").exists():
        code = "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)"
        try:
            folder = run([options.python, "-c", code], options).splitlines()[-1]
        except (OSError, RuntimeError):
            folder = ""
        target = ["cmake", "--build", str(build), "--target", program.name]
        try:
            run(["cmake", f"-DBRRR_TORCH={folder}", str(build)], options)
            run(target, options)
        except RuntimeError:
            raise RuntimeError(f"its program cannot be built: {' '.join(target)}")
    if not program.exists():
        raise RuntimeError(f"neither {options.python} nor Debian's libtorch-dev has it")
    return run([str(program), "--version"], options).strip()


def installed(options):
    """Program -> its version, for installed peers; and a line for each that is missing."""
    versions, missing = {}, []
    try:
        versions["libtorch"] = build_libtorch(options)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as e:
        missing.append(f"libtorch is left out: {e}")
    for module, name in PACKAGES.items():
        code = f"import {module}; print({module}.__version__)"
        try:
            versions[module] = run([options.python, "-c", code], options).split()[-1]
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as e:
            missing.append(f"{name} is left out: {e}")
    return versions, missing


def commands(options, versions, inputs):
    """Program -> its command, to which --only and --json are appended."""
    common = ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    found = {"brrr": [options.program, *common]}
    if "libtorch" in versions:
        found["libtorch"] = [str(libtorch_program(options)), "--inputs", inputs, *common]
    for module, more in (("torch", ["--compile"]), ("jax", [])):
        if module in versions:
            found[module] = [options.python, str(HERE / f"peer_{module}.py"), "--device", "cpu",
                             "--inputs", inputs, *common, *more]
    return found


def report_of(command, step, folder, options):
    """A program's report of a step. A failure is in the report, or recorded here."""
    path = os.path.join(folder, "figures.json")
    if os.path.exists(path):
        os.remove(path)
    why = "it wrote no figures"
    try:
        run([*command, "--only", step, "--json", path], options)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as e:
        why = str(e)
    try:
        report = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        report = {"figures": {}, "losses": {}, "failures": {}}
    report["why"] = why
    return report


def deviation(ours, theirs):
    """The largest relative deviation; infinite if a loss is missing or not finite."""
    if not ours or len(ours) != len(theirs):
        return math.inf
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in (*ours, *theirs)):
        return math.inf
    return max(abs(a - b) / abs(a) if a else abs(b) for a, b in zip(ours, theirs))


class Step:
    """The measurements of one training step."""

    def __init__(self, name, programs):
        self.name = name
        self.us = {who: [] for who, (program, _) in COLUMNS.items() if program in programs}
        self.cores = {who: [] for who in self.us}
        self.deviations, self.left_out, self.losses, self.warning = {}, {}, [], ""

    def add(self, program, report):
        """A program's turn; brrr's comes first."""
        self.warning = self.warning or report.get("warning", "")
        for who in self.wanted(program):
            name = self.name + COLUMNS[who][1]
            losses = report["losses"].get(name, [])
            if program == "brrr" and not self.losses:
                self.losses = report["losses"].get(self.name, [])
            apart = deviation(self.losses, losses)
            if name not in report["figures"]:
                why = report["failures"].get(name, report["why"])
                self.left_out[who] = "failed: " + (why.splitlines() or [""])[0]
            elif not apart <= CLOSE:
                self.left_out[who] = f"other losses than brrr's: {losses} and not {self.losses}"
            else:
                self.us[who].append(report["figures"][name]["value"])
                self.cores[who].append(report["figures"][name + ", cores"]["value"])
                self.deviations[who] = max(apart, self.deviations.get(who, 0))

    def wanted(self, program):
        return [who for who in self.us
                if COLUMNS[who][0] == program and who not in self.left_out]

    def measured(self, who):
        return who in self.us and who not in self.left_out

    def shared(self, who):
        """Whether other load used its CPU, so that the time is too long."""
        return bool(self.cores[who]) and min(self.cores[who]) < WHOLE

    def ratio(self, who):
        """The ratio of the time to brrr's graph mode; None if one of them is missing."""
        if not (self.measured(who) and self.measured(BEST)):
            return None
        return statistics.median(a / b for a, b in zip(self.us[who], self.us[BEST]))

    def show(self):
        print(f"\n{self.name}")
        for who, us in self.us.items():
            if who in self.left_out:
                print(f"  {who:<14} left out: {self.left_out[who]}")
                continue
            ratio = self.ratio(who)
            times = f"{ratio:6.2f}x" if ratio else ""
            spread = f"{min(us):.1f} .. {max(us):.1f}"
            print(f"  {who:<14} {statistics.median(us):>10.1f} us  {spread:>22}  {times:>8}  "
                  f"losses within {self.deviations[who]:.0e}"
                  + (f", had {min(self.cores[who]):.2f} cores" if self.shared(who) else ""),
                  flush=True)

    def as_json(self):
        def of(who):
            if who in self.left_out:
                return {"left_out": self.left_out[who]}
            us = self.us[who]
            return {"us": statistics.median(us), "min": min(us), "max": max(us), "rounds": us,
                    "to_brrr_graph": self.ratio(who), "cores": self.cores[who],
                    "loss_deviation": self.deviations[who]}
        return {"losses": self.losses, **{who: of(who) for who in self.us}}


def summary(steps):
    """The time of brrr's graph mode, and the others' times as multiples of it."""
    others = [who for who in COLUMNS if who != BEST and any(who in s.us for s in steps)]
    print(f"\n{'step':<40} {BEST:>13}" + "".join(f"{who:>15}" for who in others))
    for step in steps:
        best = f"{statistics.median(step.us[BEST]):.1f} us" if step.measured(BEST) else "failed"
        cells = []
        for who in others:
            ratio = step.ratio(who)
            doubt = "?" if ratio and (step.shared(who) or step.shared(BEST)) else " "
            cells.append(f"{ratio:.2f}x{doubt}" if ratio else "left out ")
        print(f"{step.name:<40} {best:>13}" + "".join(f"{cell:>15}" for cell in cells))


def warnings(steps, threads):
    """Reasons to doubt the figures: OpenBLAS's settings; a program that used more cores than
    allowed, or less than one whole core."""
    lines = sorted({step.warning for step in steps if step.warning})
    lines += [f"{step.name}, {who}: {max(cores):.2f} cores were at work"
              for step in steps for who, cores in step.cores.items()
              if cores and max(cores) > threads + 0.05]
    shared = sum(step.shared(who) for step in steps for who in step.cores)
    if shared:
        lines.append(f"Something else ran on these CPUs: {shared} of the times are too long, and "
                     "the ratios with a ? mean little.")
    return lines


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if "model name" in line)
    except (OSError, StopIteration):
        return "unknown CPU"


def main():
    options = options_of(sys.argv[1:])
    if not os.path.exists(options.program):
        sys.exit(f"peers: {options.program}: no such program; ./brrr bench --peers builds it")
    versions, missing = installed(options)
    about = {"cpu": processor(), "threads": options.threads, "cpus": options.cpus,
             "rounds": options.rounds, "versions": versions, "missing": missing}
    known = " | ".join(f"{NAMES[program]} {version}" for program, version in versions.items())
    print(f"{about['cpu']} | threads: {options.threads} | rounds: {options.rounds}"
          + (f" | {known}" if known else ""))
    for line in missing:
        print(line)
    if missing:
        print(f"To install what is missing: {INSTALL}")
    if "libtorch" not in versions:
        print(f"libtorch alone: {INSTALL_LIBTORCH}")
    print("A step's time, median (least .. most of the rounds), how many times brrr's graph")
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs.safetensors")
        try:
            run([options.program, "--inputs", inputs], options)
        except RuntimeError as e:
            sys.exit(f"peers: {options.program} could not write the weights: {e}")
        programs = commands(options, versions, inputs)
        for case in cases(inputs):
            if options.only and not any(text in case.name for text in options.only):
                continue
            step = Step(case.name, programs)
            for _ in range(options.rounds):
                for program, command in programs.items():
                    if step.wanted(program):
                        step.add(program, report_of(command, case.name, folder, options))
            step.show()
            steps.append(step)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(
                    {**about, "steps": {s.name: s.as_json() for s in steps}}, indent=2) + "\n")
    if not steps:
        sys.exit("peers: no step has such a name")
    summary(steps)
    strange = warnings(steps, options.threads)
    if strange:
        print("\n" + "\n".join(strange))
    return 0 if all(step.measured(BEST) for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
