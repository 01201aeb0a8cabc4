#!/usr/bin/env python3
"""Writes gpt2_tiny.safetensors, a checkpoint as transformers' GPT2LMHeadModel saves one, and
gpt2_tiny_logits.safetensors, its logits for the ids 0 .. block - 1.

Needs Python alone and shares no code with brrr: the format is written by struct and json, the
forward pass is lists and loops in double, as transformers defines it (Conv1D: x W + b with W
[in, out]).
"""
import json
import math
import struct

LAYERS, WIDTH, HEADS, VOCAB, BLOCK = 2, 8, 2, 11, 6


def numbers(salt, shape, base=0.0):
    out = []
    for i in range(math.prod(shape)):
        h = (i * 2654435761 + salt * 40503 + 99) % 2**32
        h ^= h >> 15
        h = h * 2246822519 % 2**32
        out.append(base + (((h ^ h >> 13) >> 14) / 2**18 - 0.5))
    return shape, out


def make():
    t = {"wte.weight": numbers(1, (VOCAB, WIDTH)), "wpe.weight": numbers(2, (BLOCK, WIDTH))}
    for n in range(LAYERS):
        h, s = f"h.{n}.", 20 * (n + 1)
        t[h + "ln_1.weight"] = numbers(s, (WIDTH,), 1.0)
        t[h + "ln_1.bias"] = numbers(s + 1, (WIDTH,))
        mask = [float(j <= i) for i in range(BLOCK) for j in range(BLOCK)]
        t[h + "attn.bias"] = (1, 1, BLOCK, BLOCK), mask
        t[h + "attn.masked_bias"] = (), [-1e4]
        t[h + "attn.c_attn.weight"] = numbers(s + 2, (WIDTH, 3 * WIDTH))
        t[h + "attn.c_attn.bias"] = numbers(s + 3, (3 * WIDTH,))
        t[h + "attn.c_proj.weight"] = numbers(s + 4, (WIDTH, WIDTH))
        t[h + "attn.c_proj.bias"] = numbers(s + 5, (WIDTH,))
        t[h + "ln_2.weight"] = numbers(s + 6, (WIDTH,), 1.0)
        t[h + "ln_2.bias"] = numbers(s + 7, (WIDTH,))
        t[h + "mlp.c_fc.weight"] = numbers(s + 8, (WIDTH, 4 * WIDTH))
        t[h + "mlp.c_fc.bias"] = numbers(s + 9, (4 * WIDTH,))
        t[h + "mlp.c_proj.weight"] = numbers(s + 10, (4 * WIDTH, WIDTH))
        t[h + "mlp.c_proj.bias"] = numbers(s + 11, (WIDTH,))
    t["ln_f.weight"] = numbers(3, (WIDTH,), 1.0)
    t["ln_f.bias"] = numbers(4, (WIDTH,))
    return t


def conv1d(x, t, name):
    (rows, cols), w = t[name + ".weight"]
    b = t[name + ".bias"][1]
    return [b[j] + sum(x[i] * w[i * cols + j] for i in range(rows)) for j in range(cols)]


def norm(x, t, name):
    mean = sum(x) / WIDTH
    scale = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / WIDTH + 1e-5)
    w, b = t[name + ".weight"][1], t[name + ".bias"][1]
    return [(v - mean) * scale * w[i] + b[i] for i, v in enumerate(x)]


def gelu_new(v):
    return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def attention(xs, t, h):
    qkv = [conv1d(norm(x, t, h + "ln_1"), t, h + "attn.c_attn") for x in xs]
    d, out = WIDTH // HEADS, []
    for i, row in enumerate(qkv):
        y = []
        for head in range(HEADS):
            q = row[head * d:(head + 1) * d]
            ks = [r[WIDTH + head * d:WIDTH + (head + 1) * d] for r in qkv[: i + 1]]
            vs = [r[2 * WIDTH + head * d:2 * WIDTH + (head + 1) * d] for r in qkv[: i + 1]]
            e = [math.exp(sum(a * b for a, b in zip(q, k)) / math.sqrt(d)) for k in ks]
            y += [sum(w * v[c] for w, v in zip(e, vs)) / sum(e) for c in range(d)]
        out.append(conv1d(y, t, h + "attn.c_proj"))
    return out


def logits(t):
    wte, wpe = t["wte.weight"][1], t["wpe.weight"][1]
    xs = [[wte[i * WIDTH + c] + wpe[i * WIDTH + c] for c in range(WIDTH)] for i in range(BLOCK)]
    for n in range(LAYERS):
        h = f"h.{n}."
        xs = [[a + b for a, b in zip(x, y)] for x, y in zip(xs, attention(xs, t, h))]
        for x in xs:
            hidden = [gelu_new(v) for v in conv1d(norm(x, t, h + "ln_2"), t, h + "mlp.c_fc")]
            x[:] = [a + b for a, b in zip(x, conv1d(hidden, t, h + "mlp.c_proj"))]
    xs = [norm(x, t, "ln_f") for x in xs]
    rows = [wte[i * WIDTH:(i + 1) * WIDTH] for i in range(VOCAB)]
    return (BLOCK, VOCAB), [sum(a * b for a, b in zip(x, w)) for x in xs for w in rows]


def save(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    tensors = make()
    save("gpt2_tiny.safetensors", {"transformer." + k: v for k, v in tensors.items()})
    save("gpt2_tiny_logits.safetensors", {"logits": logits(tensors)})


if __name__ == "__main__":
    main()
