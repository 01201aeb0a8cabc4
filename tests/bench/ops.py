"""Single ops of brrr and PyTorch on the CPU, eagerly, as `./brrr bench --ops` runs them.

bench_ops and PyTorch run one after the other, each in a fresh process on the same CPUs, all ops in
each round. The least of the rounds counts, as disturbances only make times longer. An op whose
mean result is not brrr's is left out. Figures below 1 are ops that PyTorch does faster.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time

from peers import CLOSE, INSTALL, check_json, parser_of, positive, processor, run

LEAST = 15  # Microseconds: shortest gradient, the difference of two times, that counts.


def cases():
    """Name -> the differentiable operands, if any, and a function of them, as in bench_ops.cpp."""
    import torch
    import torch.nn.functional as F

    def wave(sizes, salt=0.0):
        n = math.prod(sizes)
        return (torch.arange(n).float() * 0.37 + salt).sin().view(sizes)

    def ids(sizes, end):
        return (torch.arange(math.prod(sizes)) * 7919 % end).view(sizes)

    square = (1024, 1024)
    a, b, row, column = wave(square), wave(square, 1), wave((1024,), 2), wave((1024, 1), 3)
    p, mask, thin, half = a.abs() + 0.1, a > 0, wave((1 << 18, 4)), a.bfloat16()
    one, eight, cube = wave((1, 1024), 2), wave((8, 1024), 2), wave((64, 128, 128))
    heads, table = wave((8, 64, 64, 32)), wave((50257, 64))
    few, many, words, classes = ids((4096,), 1024), ids(square, 1024), ids((8192,), 50257), ids(
        (1024,), 1024)

    def chunks(x):
        part = x.chunk(4, 1)
        return part[0] * part[1] + part[2] * part[3]

    def attention(x):
        h = x.transpose(1, 2)
        return F.scaled_dot_product_attention(h, h, h, is_causal=True)

    return {
        "add": (a, lambda x: x + b),
        "add of a row": (row, lambda x: a + x),
        "mul of a column": (column, lambda x: a * x),
        "add of a transpose": (a, lambda x: x + b.t()),
        "add of bfloat16": (half, lambda x: x + half),
        "div": (p, lambda x: b / x),
        "exp": (a, torch.exp),
        "log": (p, torch.log),
        "tanh": (a, torch.tanh),
        "gelu": (a, F.gelu),
        "silu": (a, F.silu),
        "pow 3": (a, lambda x: x.pow(3.0)),
        "pow 2.5": (p, lambda x: x.pow(2.5)),
        "clamp": (a, lambda x: x.clamp(-0.5, 0.5)),
        "maximum": (a, lambda x: torch.maximum(x, b)),
        "where": (a, lambda x: torch.where(mask, x, 0.0)),
        "mul of a bool": (a, lambda x: x * mask.float()),
        "and": (None, lambda x: mask & mask),
        "less": (None, lambda x: a < b),
        "bfloat16 and back": (a, lambda x: x.bfloat16().float()),
        "tril": (a, torch.tril),
        "sum": (a, torch.sum),
        "sum of columns": (a, lambda x: x.sum(0)),
        "sum of rows": (a, lambda x: x.sum(1)),
        "sum of a transpose": (a, lambda x: x.t().sum()),
        "sum of its columns": (a, lambda x: x.t().sum(0)),
        "sum of its rows": (a, lambda x: x.t().sum(1)),
        "amax of rows": (a, lambda x: x.amax(1)),
        "var of rows": (a, lambda x: x.var(1)),
        "norm of rows": (a, lambda x: x.norm(dim=1)),
        "argmax of rows": (None, lambda x: a.argmax(1)),
        "cumsum": (a, lambda x: x.cumsum(1)),
        "softmax": (a, lambda x: x.softmax(1)),
        "softmax of columns": (a, lambda x: x.softmax(0)),
        "softmax of 4": (thin, lambda x: x.softmax(1)),
        "log_softmax": (a, lambda x: x.log_softmax(1)),
        "logsumexp": (a, lambda x: x.logsumexp(1)),
        "layer_norm": (a, lambda x: F.layer_norm(x, (1024,), row, row)),
        "mse_loss": (a, lambda x: F.mse_loss(x, b)),
        "cross_entropy": (a, lambda x: F.cross_entropy(x, classes)),
        "transposed copy": (a, lambda x: x.t().contiguous()),
        "heads to rows": (heads, lambda x: x.transpose(1, 2).contiguous()),
        "channels last": (heads, lambda x: x.permute(0, 3, 1, 2).contiguous()),
        "every second column": (a, lambda x: x[:, ::2] * 1.0),
        "cat": (a, lambda x: torch.cat([x, b], 1)),
        "stack": (a, lambda x: torch.stack([x, b], 2)),
        "chunk": (a, chunks),
        "index_select": (a, lambda x: x.index_select(0, few)),
        "gather": (a, lambda x: x.gather(1, many)),
        "scatter_add": (b, lambda x: a.scatter_add(1, many, x)),
        "embedding": (table, lambda x: F.embedding(words, x)),
        "sort": (a, lambda x: x.sort(1)[0]),
        "topk": (a, lambda x: x.topk(10, 1)[0]),
        "matmul": (a, lambda x: x @ b),
        "linear": (a, lambda x: F.linear(x, b)),
        "linear of one row": (one, lambda x: F.linear(x, b)),
        "linear of eight rows": (eight, lambda x: F.linear(x, b)),
        "matrix times vector": (row, lambda x: a @ x),
        "vector times matrix": (row, lambda x: x @ a),
        "dot": (a, lambda x: x.view(-1) @ b.view(-1)),
        "outer": (row, lambda x: torch.outer(x, row)),
        "64 products of 128": (cube, lambda x: x @ cube),
        "attention": (heads, attention),
        "randn": (None, lambda x: torch.randn(1024, 1024) * 0.0),
        "dropout": (a, lambda x: F.dropout(x, 0.1, True) * 0.0),
    }


def measure_torch(options):
    """PyTorch's part; writes figures like bench_ops."""
    import torch
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    report = {"figures": {}, "losses": {}}

    def timed(calls):
        for call in calls:
            call()
        samples = [[] for _ in calls]
        while len(samples[0]) < 3 or (sum(map(sum, samples)) < options.seconds * len(calls)
                                      and len(samples[0]) < 1000):
            for call, of in zip(calls, samples):
                start = time.perf_counter()
                call()
                of.append(time.perf_counter() - start)
        return [statistics.median(of) * 1e6 for of in samples]

    for name, (value, f) in cases().items():
        if options.only not in name:
            continue
        with torch.no_grad():
            y = f(value)
        report["losses"][name] = [y.double().mean().item()]

        def forward():
            with torch.no_grad():
                return f(value)
        if value is None:
            times = timed([forward])
        else:
            x, g = value.detach().clone().requires_grad_(), torch.ones_like(y)
            times = timed([forward, lambda: torch.autograd.grad(f(x), x, g)])
            report["figures"][name + ", gradient"] = {"value": times[1] - times[0]}
        report["figures"][name] = {"value": times[0]}
    pathlib.Path(options.json).write_text(json.dumps(report))


def options_of(arguments):
    parser = parser_of("ops", __doc__, 2, 0.05, "bench_ops")
    parser.add_argument("--threads", type=positive(int), default=1, help="of both; 1 if not given")
    parser.add_argument("--only", default="", metavar="TEXT", help="ops with TEXT in their name")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    check_json(parser, options.json)
    options.cpus = sorted(os.sched_getaffinity(0))[-options.threads:]
    return options


def rounds(options):
    """The minimum time of each figure, for brrr and PyTorch; and the means of the results."""
    common = ["--threads", str(options.threads), "--seconds", str(options.seconds), "--only",
              options.only]
    programs = {"brrr": [options.program, *common],
                "torch": [options.python, __file__, "--torch", *common]}
    least, means = {who: {} for who in programs}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        for _ in range(options.rounds):
            for who, command in programs.items():
                run([*command, "--json", str(path)], options)
                report = json.loads(path.read_text())
                means[who] = {name: values[0] for name, values in report["losses"].items()}
                for name, figure in report["figures"].items():
                    known = least[who].get(name, math.inf)
                    least[who][name] = min(known, figure["value"])
    return least, means


def main():
    options = options_of(sys.argv[1:])
    if options.torch:
        return measure_torch(options)
    if not os.path.exists(options.program):
        sys.exit(f"ops: {options.program}: no such program; ./brrr bench --ops builds it")
    try:
        version = run([options.python, "-c", "import torch; print(torch.__version__)"], options)
    except (OSError, RuntimeError) as e:
        sys.exit(f"ops: PyTorch is needed: {e}\nTo install it: {INSTALL}")
    print(f"{processor()} | threads: {options.threads} | rounds: {options.rounds} | PyTorch "
          f"{version.split()[-1]}\nus, and how many times brrr's that PyTorch takes")
    try:
        least, means = rounds(options)
    except RuntimeError as e:
        sys.exit(f"ops: {e}")
    brrr, torch = least["brrr"], least["torch"]
    for who, names in (("brrr", means["torch"]), ("PyTorch", means["brrr"])):
        of = means["brrr" if who == "brrr" else "torch"]
        for name in sorted(set(names) - set(of)):
            print(f"{name}: {who} has no such op")
    print(f"\n{'op':<24}{'brrr':>9}{'PyTorch':>10}{'':>8}{'gradient':>11}{'PyTorch':>10}{'':>8}"
          f"{'graph over eager':>18}")
    ratios, slower, wrong = [], [], []
    for name in means["brrr"]:
        if name not in means["torch"] or name not in brrr:
            continue
        apart = abs(means["brrr"][name] - means["torch"][name])
        if not apart <= CLOSE * max(1, abs(means["brrr"][name])):
            wrong.append(f"{name}: its mean is {means['brrr'][name]}, PyTorch's "
                         f"{means['torch'][name]}")
            continue
        line = f"{name:<24}"
        for figure in (name, name + ", gradient"):
            width = 9 if figure == name else 11
            # An incoming gradient that is returned itself, or as a view, is no work.
            if min(brrr.get(figure, 0), torch.get(figure, 0)) < LEAST:
                line += " " * (width + 18)
                continue
            ratios.append(torch[figure] / brrr[figure])
            if ratios[-1] < 1:
                slower.append((ratios[-1], figure))
            line += f"{brrr[figure]:>{width}.0f}{torch[figure]:>10.0f}{ratios[-1]:>7.2f}x"
        if name + ", graph" in brrr:
            eager = brrr[name] + brrr[name + ", gradient"]
            line += f"{eager / brrr[name + ', graph']:>17.2f}x"
        print(line)
    if ratios:
        print(f"\n{len(ratios)} figures: PyTorch takes {statistics.geometric_mean(ratios):.2f} times "
              f"brrr's time (geometric mean); it is faster in {len(slower)}"
              + (": " + ", ".join(f"{n} ({r:.2f})" for r, n in sorted(slower)) if slower else ""))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(least, indent=2) + "\n")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
