"""What bench_gpu measures, in PyTorch's eager mode and, for the steps, through torch.compile.

usage: peer_torch_gpu.py [--json FILE] [--compile]
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("peer_torch_gpu: PyTorch is not installed")

N, COLUMNS, MATRIX, STEPS, ROUNDS = 64 << 20, 4096, 4096, 200, 15
figures = {}


def note(name, value, unit):
    figures[name] = {"value": value, "unit": unit}
    print(f"{name:<44} {value:>12.3f} {unit}", flush=True)


def timed(f, n, wait):
    """Seconds of one f() among n: until all has run if `wait`, else until all is queued."""
    for _ in range(3):
        f()
    samples = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            f()
        if wait:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / n)
    torch.cuda.synchronize()
    return statistics.median(samples)


def host_cost():
    a, b = torch.rand(1, device="cuda"), torch.rand(1, device="cuda")
    w = torch.rand(1, device="cuda", requires_grad=True)
    note("host cost: add of one element", timed(lambda: a + b, 500, False) * 1e6, "us")
    note("host cost: the same, gradient recorded", timed(lambda: w + b, 500, False) * 1e6, "us")


def bandwidth():
    x, y = torch.rand(N, device="cuda"), torch.rand(N, device="cuda")
    z = torch.empty_like(x)
    size = 8.0 * N
    copy = size / timed(lambda: z.copy_(x), 5, True)
    note("device to device copy", copy / 1e9, "GB/s")

    def report(name, moved, f):
        rate = moved / timed(f, 5, True)
        note(name, rate / 1e9, "GB/s")
        note(name + ", of the copy", 100 * rate / copy, "%")

    functional = torch.nn.functional
    report("pointwise: x * 2", size, lambda: x * 2.0)
    report("pointwise: x + y", 1.5 * size, lambda: x + y)
    report("pointwise: gelu(x)", size, lambda: functional.gelu(x))
    h = x.to(torch.bfloat16)
    report("pointwise: bfloat16 h * 2", size / 2, lambda: h * 2.0)
    m, bias = x.view(-1, COLUMNS), torch.rand(COLUMNS, device="cuda")
    report("pointwise: rows plus a bias", size, lambda: m + bias)
    report("pointwise: a transposed copy", size, lambda: m.t().contiguous())
    report("reduction: sum of all", size / 2, lambda: x.sum())
    report("reduction: sum of columns", size / 2, lambda: m.sum(0))
    report("rows: softmax", size, lambda: m.softmax(-1))
    g = torch.ones(COLUMNS, device="cuda")
    report("rows: layer_norm", size, lambda: functional.layer_norm(m, (COLUMNS,), g, bias))


def products():
    flops = 2.0 * MATRIX**3
    a, b = torch.randn(MATRIX, MATRIX, device="cuda"), torch.randn(MATRIX, MATRIX, device="cuda")

    def report(name, u, v):
        note(name, flops / timed(lambda: u @ v, 10, True) / 1e12, "TFLOP/s")

    torch.backends.cuda.matmul.allow_tf32 = False
    report("matmul: float32", a, b)
    torch.backends.cuda.matmul.allow_tf32 = True
    report("matmul: float32 by TF32", a, b)
    torch.backends.cuda.matmul.allow_tf32 = False
    p, q = a.to(torch.bfloat16), b.to(torch.bfloat16)
    report("matmul: bfloat16", p, q)
    report("matmul: bfloat16, right one transposed", p, q.t())


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, w // self.heads).unbind(2)
        a = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, vocab=65, block=64, layers=4, heads=4, width=128):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocab, width), torch.nn.Embedding(block, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.tokens.weight.t()


def train(name, model, x, y, modes):
    """The step eagerly and, for each mode of torch.compile, with forward and loss compiled."""
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = torch.nn.functional.cross_entropy

    def forward(x, y):
        out = model(x)
        return loss_of(out.view(-1, out.shape[-1]), y.view(-1))

    for mode in modes:
        run = forward if mode is None else torch.compile(forward, mode=mode)
        label = name if mode is None else f"{name}, torch.compile {mode}"

        def step():
            optimizer.zero_grad()
            run(x, y).backward()
            optimizer.step()

        note(label, timed(step, STEPS, True) * 1e6, "us")
        note(label + ", host", timed(step, STEPS, False) * 1e6, "us")


def steps(modes):
    for batch in (32, 256, 1024):
        layers = []
        for i, o in ((784, 256), (256, 128), (128, 10)):
            layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
        x, y = torch.randn(batch, 784, device="cuda"), torch.randint(10, (batch,), device="cuda")
        train(f"MLP step, batch {batch}", torch.nn.Sequential(*layers[:-1]), x, y, modes)
    x, y = torch.randint(65, (16, 64), device="cuda"), torch.randint(65, (16, 64), device="cuda")
    train("GPT step, 4 layers, width 128, batch 16", GPT(), x, y, modes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--compile", action="store_true", help="the steps through torch.compile too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("peer_torch_gpu: no GPU here")
    print(f"{torch.cuda.get_device_name()} | PyTorch {torch.__version__}")
    host_cost()
    bandwidth()
    products()
    steps([None] + (["reduce-overhead", "max-autotune"] if options.compile else []))
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"pytorch": torch.__version__, "figures": figures}, f, indent=2)


main()
