"""The measurements of bench_gpu in PyTorch, eagerly and, for the steps, through torch.compile and
as one CUDA graph captured by hand; those of bench_steps on the CPU, eagerly and through
torch.compile. AdamW is the fused one throughout.

Started by torchrun, several processes make the steps together on the CPU: DistributedDataParallel
over gloo, all of them on the same batch.

usage: peer_torch.py [--device cuda|cpu] [--inputs FILE] [--json FILE [--resume]] [--compile]
"""
import os
import sys

from peer_inputs import (LOSSES, arguments, attempt, begin, cases, end, note, note_losses,
                         note_step, timed as timed_until)

try:
    import torch
except ImportError:
    sys.exit("peer_torch: PyTorch is not installed")

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
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
    """Derives the sizes from the weights, which have brrr's names."""

    def __init__(self, weights, heads):
        super().__init__()
        (vocab, width), block = weights["wte.weight"].shape, weights["wpe.weight"].shape[0]
        layers = sum(name.endswith("ln_1.weight") for name in weights)
        self.wte, self.wpe = torch.nn.Embedding(vocab, width), torch.nn.Embedding(block, width)
        self.h = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)

    def forward(self, x):
        x = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.t()


class MLP(torch.nn.Module):
    def __init__(self, weights, _):
        super().__init__()
        shapes = [weights[f"fc{i}.weight"].shape for i in (1, 2, 3)]
        self.fc1, self.fc2, self.fc3 = (torch.nn.Linear(i, o) for o, i in shapes)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Training:
    """A case's model and optimiser with brrr's weights; `mode` is torch.compile's, or None."""

    def __init__(self, options, case, mode=None, capturable=False):
        if mode:
            torch.compiler.reset()  # Drops what was compiled for earlier steps.
        kinds = {"F32": torch.float32, "I64": torch.int64}
        values = {name: torch.frombuffer(bytearray(data), dtype=kinds[kind]).reshape(shape)
                  for name, (kind, shape, data) in case.load(options.inputs).items()}
        self.x, self.y = (values.pop(name).to(options.device) for name in ("x", "y"))
        self.first = values
        self.model = (GPT if case.gpt else MLP)(values, case.heads)
        self.reset()
        self.model.to(options.device)
        self.run = self.model
        if RANKS > 1:
            self.run = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=1e-2,
                                           fused=True, capturable=capturable)
        self.loss = torch.compile(self.forward, mode=mode) if mode else self.forward

    def reset(self):
        self.model.load_state_dict(self.first)

    def forward(self, x, y):
        out = self.run(x)
        return torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.x, self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def by_hand(options, case):
    """Losses of the first steps, and a function that replays a whole step as one CUDA graph."""
    training = Training(options, case, capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first = [training.step().item() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad()
    with torch.cuda.graph(graph):  # Captures without running.
        loss = training.step()

    def replay():
        graph.replay()
        return loss

    replay.keep = training
    return first + [replay().item() for _ in range(LOSSES - len(first))], replay


def wait_for(options):
    """A function that waits for all queued work."""
    return torch.cuda.synchronize if options.device == "cuda" else lambda: None


def first_ranks_clock(seconds):
    if RANKS > 1:
        value = torch.tensor([seconds], dtype=torch.float64)
        torch.distributed.broadcast(value, 0)
        return value.item()
    return seconds


def measure(label, options, case, mode):
    training = Training(options, case, mode)
    note_losses(label, [training.step().item() for _ in range(LOSSES)])
    note_step(label, training.step, wait_for(options), training.reset, options, first_ranks_clock)


def measure_by_hand(label, options, case):
    losses, replay = by_hand(options, case)
    note_losses(label, losses)
    note_step(label, replay, wait_for(options), replay.keep.reset, options)


def steps(options):
    modes = ()
    if options.compile:  # Other modes use CUDA graphs or autotune GPU kernels.
        modes = ("default",) + (("reduce-overhead", "max-autotune") * (options.device == "cuda"))
    all_cases = cases(options.inputs, options.only)
    for case in all_cases:
        attempt(case.name, lambda: measure(case.name, options, case, None))
    for case in all_cases if options.device == "cuda" else ():
        label = case.name + ", CUDA graph by hand"
        attempt(label, lambda: measure_by_hand(label, options, case))
    for mode in modes:  # Last, as they compile for minutes.
        for case in all_cases:
            label = f"{case.name}, torch.compile {mode}"
            attempt(label, lambda: measure(label, options, case, mode))


def main():
    parser = arguments(__doc__, help="weights and batches that bench_gpu or bench_steps --inputs "
                       "wrote; without them no step is measured")
    parser.add_argument("--compile", action="store_true",
                        help="the steps through torch.compile too")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("peer_torch: no GPU here")
    if not on_gpu:
        torch.set_num_threads(options.threads)
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
        if torch.distributed.get_rank() > 0:
            options.json = None
            sys.stdout = open(os.devnull, "w")
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, threads: {torch.get_num_threads()}"
    print(f"{where} | PyTorch {torch.__version__}")
    begin(options, {"pytorch": torch.__version__})
    if on_gpu and not options.only:
        for name, f in (("host cost", host_cost), ("bandwidth", bandwidth), ("products", products)):
            attempt(name, f)
    if options.inputs:
        steps(options)
    end()
    if RANKS > 1:
        torch.distributed.destroy_process_group()


main()
