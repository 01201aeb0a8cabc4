#!/usr/bin/env python3
"""Writes gpt.safetensors: logits, loss and gradients of a small GPT as PyTorch computes them.

Needs PyTorch only (Debian: python3-torch; 1.13.1 made the committed file). The model is spelled out
in PyTorch's functions in float64; its weights come from an integer recurrence that the test repeats,
so the file holds results only.
"""
import json
import math
import struct
import sys

import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, VOCAB, BLOCK, BATCH = 2, 32, 4, 17, 8, 2


def number(salt, i):
    """In [-0.25, 0.25), exact in float32."""
    h = (i * 2654435761 + salt * 40503 + 12345) % 2**32
    h ^= h >> 15
    h = h * 2246822519 % 2**32
    h ^= h >> 13
    return ((h >> 8) / 2**24 - 0.5) * 0.5


def shapes():
    yield "wte.weight", (VOCAB, WIDTH)
    yield "wpe.weight", (BLOCK, WIDTH)
    for n in range(LAYERS):
        h = f"h.{n}."
        yield h + "ln_1.weight", (WIDTH,)
        yield h + "ln_1.bias", (WIDTH,)
        yield h + "attn.c_attn.weight", (3 * WIDTH, WIDTH)
        yield h + "attn.c_attn.bias", (3 * WIDTH,)
        yield h + "attn.c_proj.weight", (WIDTH, WIDTH)
        yield h + "attn.c_proj.bias", (WIDTH,)
        yield h + "ln_2.weight", (WIDTH,)
        yield h + "ln_2.bias", (WIDTH,)
        yield h + "mlp.c_fc.weight", (4 * WIDTH, WIDTH)
        yield h + "mlp.c_fc.bias", (4 * WIDTH,)
        yield h + "mlp.c_proj.weight", (WIDTH, 4 * WIDTH)
        yield h + "mlp.c_proj.bias", (WIDTH,)
    yield "ln_f.weight", (WIDTH,)
    yield "ln_f.bias", (WIDTH,)


def make_parameters():
    parameters = {}
    for salt, (name, shape) in enumerate(shapes()):
        one = 1.0 if ".weight" in name and "ln_" in name else 0.0
        values = [one + number(salt, i) for i in range(math.prod(shape))]
        # Through float32, which is what the test's model holds.
        t = torch.tensor(values, dtype=torch.float64).float().double().view(shape)
        parameters[name] = t.requires_grad_()
    return parameters


def forward(p, ids):
    x = p["wte.weight"][ids] + p["wpe.weight"][: ids.shape[1]]
    for n in range(LAYERS):
        h = f"h.{n}."

        def linear(y, name):
            return F.linear(y, p[h + name + ".weight"], p[h + name + ".bias"])

        def norm(y, name):
            return F.layer_norm(y, (WIDTH,), p[h + name + ".weight"], p[h + name + ".bias"], 1e-5)

        q, k, v = linear(norm(x, "ln_1"), "attn.c_attn").split(WIDTH, dim=2)
        q, k, v = (t.view(BATCH, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + linear(y.transpose(1, 2).reshape(x.shape), "attn.c_proj")
        y = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")
        x = x + linear(y, "mlp.c_proj")
    x = F.layer_norm(x, (WIDTH,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    return x @ p["wte.weight"].T


def save(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        values = t.detach().float().flatten().tolist()
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    p = make_parameters()
    ids = torch.tensor([(7 * i * i + 3 * i) % VOCAB for i in range(BATCH * BLOCK)])
    targets = torch.tensor([(5 * i * i + i + 2) % VOCAB for i in range(BATCH * BLOCK)])
    logits = forward(p, ids.view(BATCH, BLOCK))
    loss = F.cross_entropy(logits.view(-1, VOCAB), targets)
    loss.backward()
    tensors = {"logits": logits, "loss": loss}
    tensors.update({"grad." + name: t.grad for name, t in p.items()})
    save(sys.argv[1] if len(sys.argv) > 1 else "gpt.safetensors", tensors)


if __name__ == "__main__":
    main()
