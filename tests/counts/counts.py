"""Compares what brrr::Profile says of kernels with the instructions that they execute.

    counts.py count_kernels [text]   all kernels, or those with the text in their name

callgrind tells how often each instruction of a call ran, objdump what it is. Whatever adds,
subtracts, multiplies, divides, takes a root, rounds, compares or picks the larger or smaller is an
operation in each of its lanes, a multiply-add two: as ops/vocabulary/scalar_math.h counts them.
A row counts everything once; what a kernel is known to do again is added to it. Bytes are compared
where a kernel touches nothing but its operands: an address does not tell what is the compiler's.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TOLERANCE = 0.02
ONE = re.compile(r"v?(?:add|sub|mul|div|sqrt|round|min|max|cmp\w*|u?comi)([ps])([sd])$")
TWO = re.compile(r"vfn?m(?:add|sub)\d+([ps])([sd])$")
GAP = 1 << 16  # Executed addresses that lie closer are disassembled in one go.


def operations(name, operands):
    """Of one execution of an instruction."""
    one, two = ONE.match(name), TWO.match(name)
    if not one and not two:
        return 0
    packed, double = (one or two)[1] == "p", (one or two)[2] == "d"
    lanes = (8 if "%ymm" in operands else 4) >> double if packed else 1
    return lanes * (2 if two else 1)


def moved(name, operands):
    """Bytes that one execution reads or writes with vectors, constants and the stack left out."""
    if not name.startswith("v") or not re.search(r"\((?!%rip|%rsp)", operands):
        return 0
    if re.search(r"s[sd]$|^vmovd$", name):
        return 4
    return 32 if "%ymm" in operands else 16


def executions(dump):
    """How often each instruction ran, by its object and address; the kernel's name."""
    counts, object_, kernel, inclusive = collections.Counter(), None, None, False
    with open(dump, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("desc: Trigger: Client Request: "):
                kernel = line.split(": ", 3)[3].strip()
            elif line.startswith("ob="):
                object_ = line[3:].strip()
            elif line.startswith("calls="):
                inclusive = True  # What was called is in the next line, and counted by itself.
            elif line.startswith("0x"):
                if not inclusive:
                    at, n = line.split()
                    counts[object_, int(at, 16)] += int(n)
                inclusive = False
    return kernel, counts


def instructions(object_, addresses):
    """(operations, bytes) of one execution of what is at each of these addresses."""
    ranges = []
    for at in sorted(addresses):
        if ranges and at - ranges[-1][1] < GAP:
            ranges[-1][1] = at
        else:
            ranges.append([at, at])
    found = {}
    for first, last in ranges:
        text = subprocess.run(
            ["objdump", "-dw", "--no-show-raw-insn", f"--start-address={first}",
             f"--stop-address={last + 16}", object_],
            check=True, capture_output=True, text=True, errors="replace").stdout
        for at, name, operands in re.findall(r"^ *([0-9a-f]+):\t(\S+) *(\S*)", text, re.M):
            found[int(at, 16)] = operations(name, operands), moved(name, operands)
    return found


def count(program, text):
    """Operations and bytes of each kernel by its instructions."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["valgrind", "--quiet", "--tool=callgrind", "--dump-instr=yes", "--dump-line=no",
             "--compress-strings=no", "--compress-pos=no", "--collect-atstart=no",
             f"--callgrind-out-file={folder}/out", program, text],
            check=True, stdout=subprocess.DEVNULL)
        dumps = dict(executions(f) for f in pathlib.Path(folder).iterdir())
        dumps.pop(None, None)
        addresses = collections.defaultdict(set)
        for counts in dumps.values():
            for object_, at in counts:
                addresses[object_].add(at)
        known = {o: instructions(o, a) for o, a in addresses.items() if os.path.exists(o)}
    result = {}
    for kernel, counts in dumps.items():
        sums = [0, 0]
        for (object_, at), n in counts.items():
            for k, one in enumerate(known.get(object_, {}).get(at, (0, 0))):
                sums[k] += n * one
        result[kernel] = sums
    return result


def part(executed, expected):
    return executed / expected if expected else float(executed == 0)


def main():
    program, text = sys.argv[1], (sys.argv + [""])[2]
    # First without valgrind: this builds the kernels of steps.
    said = subprocess.run([program, text], check=True, stdout=subprocess.PIPE, text=True).stdout
    counted = count(program, text)
    print(f"{'kernel':<24}{'FLOPs by row':>14}{'again':>10}{'executed':>12}{'ratio':>7}"
          f"{'bytes by row':>14}{'executed':>12}{'ratio':>7}")
    wrong = 0
    for line in said.splitlines():
        name, *numbers = line.split("\t")
        flops, again, size = map(float, numbers)
        executed, streamed = counted[name]
        ratios = [part(executed, flops + again), part(streamed, size) if size else 1]
        shown = f"{name:<24}{flops:>14.0f}{again:>10.0f}{executed:>12}{ratios[0]:>7.3f}"
        print(shown + (f"{size:>14.0f}{streamed:>12}{ratios[1]:>7.3f}" if size else ""))
        wrong += any(abs(r - 1) > TOLERANCE for r in ratios)
    return f"{wrong} of these differ by more than {TOLERANCE:.0%}" if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
