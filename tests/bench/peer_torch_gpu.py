"""What bench_gpu measures, in PyTorch: eagerly and, for the steps, through torch.compile and as one
CUDA graph captured by hand. AdamW is the fused one throughout.

usage: peer_torch_gpu.py [--inputs FILE] [--json FILE [--resume]] [--compile]
"""
import sys

from peer_inputs import (GPT_HEADS, GPT_STEP, LOSSES, MLP_BATCHES, arguments, attempt, begin, end,
                         load, mlp_step, note, note_losses, note_step, timed as timed_until)

try:
    import torch
except ImportError:
    sys.exit("peer_torch_gpu: PyTorch is not installed")

N, COLUMNS, MATRIX = 64 << 20, 4096, 4096


def timed(f, n, until_done):
    return timed_until(f, n, torch.cuda.synchronize, until_done)


def host_cost():
    a, b = torch.rand(1, device="cuda"), torch.rand(1, device="cuda")
    w = torch.rand(1, device="cuda", requires_grad=True)

    def report(name, f):
        attempt(name, lambda: note(name, timed(f, 500, False) * 1e6, "us"))

    report("host cost: add of one element", lambda: a + b)
    report("host cost: the same, gradient recorded", lambda: w + b)


def bandwidth():
    x, y = torch.rand(N, device="cuda"), torch.rand(N, device="cuda")
    z = torch.empty_like(x)
    size = 8.0 * N
    copy = size / timed(lambda: z.copy_(x), 5, True)
    note("device to device copy", copy / 1e9, "GB/s")

    def measure_rate(name, moved, f):
        rate = moved / timed(f, 5, True)
        note(name, rate / 1e9, "GB/s")
        note(name + ", of the copy", 100 * rate / copy, "%")

    def report(name, moved, f):
        attempt(name, lambda: measure_rate(name, moved, f))

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
        attempt(name, lambda: note(name, flops / timed(lambda: u @ v, 10, True) / 1e12, "TFLOP/s"))

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
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attn = torch.nn.ModuleDict({"c_attn": torch.nn.Linear(width, 3 * width),
                                         "c_proj": torch.nn.Linear(width, width)})
        self.mlp = torch.nn.ModuleDict({"c_fc": torch.nn.Linear(width, 4 * width),
                                        "c_proj": torch.nn.Linear(4 * width, width)})

    def forward(self, x):
        b, t, w = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.unbind(2)
        a = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.attn["c_proj"](a.transpose(1, 2).reshape(b, t, w))
        up = torch.nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](up)


class GPT(torch.nn.Module):
    """Sizes from the weights, whose names are brrr's."""

    def __init__(self, weights):
        super().__init__()
        (vocab, width), block = weights["wte.weight"].shape, weights["wpe.weight"].shape[0]
        layers = sum(name.endswith("ln_1.weight") for name in weights)
        self.wte, self.wpe = torch.nn.Embedding(vocab, width), torch.nn.Embedding(block, width)
        self.h = torch.nn.ModuleList(Block(width, GPT_HEADS) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)

    def forward(self, x):
        x = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.t()


class MLP(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        shapes = [weights[f"fc{i}.weight"].shape for i in (1, 2, 3)]
        self.fc1, self.fc2, self.fc3 = (torch.nn.Linear(i, o) for o, i in shapes)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def tensors(path, key):
    kinds = {"F32": torch.float32, "I64": torch.int64}
    return {name: torch.frombuffer(bytearray(data), dtype=kinds[kind]).reshape(shape)
            for name, (kind, shape, data) in load(path, key).items()}


class Training:
    """A model with its optimiser, at bench_gpu's weights; `mode` is torch.compile's, or None."""

    def __init__(self, make, values, mode=None, capturable=False):
        if mode:
            torch.compiler.reset()  # What was compiled for the steps before.
        values = dict(values)
        self.x, self.y = values.pop("x").cuda(), values.pop("y").cuda()
        self.model = make(values)
        self.model.load_state_dict(values)
        self.model.cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=1e-2,
                                           fused=True, capturable=capturable)
        self.loss = torch.compile(self.forward, mode=mode) if mode else self.forward

    def forward(self, x, y):
        out = self.model(x)
        return torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.x, self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def by_hand(make, values):
    """Losses of the first steps, and what replays a whole step as one CUDA graph."""
    training = Training(make, values, capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first = [training.step().item() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad()
    with torch.cuda.graph(graph):  # Captures, and runs nothing.
        loss = training.step()

    def replay():
        graph.replay()
        return loss

    replay.keep = training
    return first + [replay().item() for _ in range(LOSSES - len(first))], replay


def measure(label, make, values, mode):
    training = Training(make, values, mode)
    note_losses(label, [training.step().item() for _ in range(LOSSES)])
    note_step(label, training.step, torch.cuda.synchronize)


def measure_by_hand(label, make, values):
    losses, replay = by_hand(make, values)
    note_losses(label, losses)
    note_step(label, replay, torch.cuda.synchronize)


def steps(path, compiled):
    cases = [(mlp_step(batch), MLP, f"mlp-{batch}") for batch in MLP_BATCHES]
    modes = ("default", "reduce-overhead", "max-autotune") if compiled else ()
    for name, make, key in cases + [(GPT_STEP, GPT, "gpt")]:
        values = tensors(path, key)
        for mode in (None, *modes):
            label = f"{name}, torch.compile {mode}" if mode else name
            attempt(label, lambda: measure(label, make, values, mode))
        label = name + ", CUDA graph by hand"
        attempt(label, lambda: measure_by_hand(label, make, values))


def main():
    parser = arguments(__doc__, help="weights and batches that bench_gpu --inputs wrote; without "
                       "them no step is measured")
    parser.add_argument("--compile", action="store_true",
                        help="the steps through torch.compile too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("peer_torch_gpu: no GPU here")
    print(f"{torch.cuda.get_device_name()} | PyTorch {torch.__version__}")
    begin(options, {"pytorch": torch.__version__})
    for name, f in (("host cost", host_cost), ("bandwidth", bandwidth), ("products", products)):
        attempt(name, f)
    if options.inputs:
        steps(options.inputs, options.compile)
    end()


main()
