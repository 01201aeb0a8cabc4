"""The training steps of bench_gpu or, on the CPU, bench_steps in JAX: a whole step, AdamW written
out, is one jax.jit.

usage: peer_jax.py [--device cuda|cpu] --inputs FILE [--json FILE [--resume]]
"""
import functools
import math
import os
import sys

from peer_inputs import LOSSES, arguments, attempt, begin, cases, end, note_losses, note_step

OPTIONS = arguments(__doc__, required=True, help="weights and batches that bench_gpu or "
                    "bench_steps --inputs wrote").parse_args()
if OPTIONS.device == "cpu":
    # JAX has no setting for its threads. XLA sizes its pool by NPROC at the start, else by the
    # number of CPUs; only the CPU affinity bounds the whole process, and peers.py restricts it to
    # --threads CPUs.
    os.environ["NPROC"] = str(OPTIONS.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"

try:
    import jax
    import jax.numpy as jnp
    import numpy
except ImportError:
    sys.exit("peer_jax: JAX is not installed")

# float32 products as in the other programs: by default JAX would round their operands to TF32.
jax.config.update("jax_default_matmul_precision", "highest")

LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2


def linear(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def layer_norm(p, name, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    x = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return x * p[name + ".weight"] + p[name + ".bias"]


def cross_entropy(logits, y):
    logits = logits.reshape(-1, logits.shape[-1])
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y.reshape(-1, 1), axis=1)
    return -picked.mean()


def mlp_loss(p, x, y):
    h = jax.nn.relu(linear(p, "fc1", x))
    h = jax.nn.relu(linear(p, "fc2", h))
    return cross_entropy(linear(p, "fc3", h), y)


def attention(p, name, x, heads):
    b, t, w = x.shape
    qkv = linear(p, name + ".c_attn", x).reshape(b, t, 3, heads, w // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(w // heads)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, w)
    return linear(p, name + ".c_proj", mixed)


def gpt_loss(p, x, y, heads):
    h = p["wte.weight"][x] + p["wpe.weight"][: x.shape[1]]
    for i in range(sum(name.endswith("ln_1.weight") for name in p)):
        at = f"h.{i}."
        h = h + attention(p, at + "attn", layer_norm(p, at + "ln_1", h), heads)
        up = linear(p, at + "mlp.c_fc", layer_norm(p, at + "ln_2", h))
        up = jax.nn.gelu(up, approximate=True)
        h = h + linear(p, at + "mlp.c_proj", up)
    return cross_entropy(layer_norm(p, "ln_f", h) @ p["wte.weight"].T, y)


def compiled_step(loss_of):
    """(parameters, first moments, second moments, number of the step), x, y -> the same, the loss.
    The state is donated, so that XLA updates it in place."""

    def step(state, x, y):
        p, m, v, n = state
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        n = n + 1
        m = {k: BETA1 * m[k] + (1 - BETA1) * g[k] for k in p}
        v = {k: BETA2 * v[k] + (1 - BETA2) * g[k] ** 2 for k in p}
        left1, left2 = 1 - BETA1**n, 1 - BETA2**n
        p = {k: p[k] * (1 - LR * DECAY) - LR * (m[k] / left1) / (jnp.sqrt(v[k] / left2) + EPS)
             for k in p}
        return (p, m, v, n), loss

    return jax.jit(step, donate_argnums=0)


def train(case):
    kinds = {"F32": numpy.float32, "I64": numpy.int64}  # JAX converts int64 to int32.
    values = {name: numpy.frombuffer(data, kinds[kind]).reshape(shape)
              for name, (kind, shape, data) in case.load(OPTIONS.inputs).items()}
    x, y = jnp.asarray(values.pop("x")), jnp.asarray(values.pop("y"))
    loss_of = functools.partial(gpt_loss, heads=case.heads) if case.gpt else mlp_loss
    zeros = [{k: jnp.zeros(v.shape) for k, v in values.items()} for _ in range(2)]
    state, loss = (None, *zeros, jnp.float32(0)), None
    run = compiled_step(loss_of)

    def reset():
        """A copy, because a step donates its state and `values` are needed again."""
        nonlocal state
        state = ({k: jnp.array(v) for k, v in values.items()}, *state[1:])

    def step():
        nonlocal state, loss
        state, loss = run(state, x, y)
        return loss

    reset()
    note_losses(case.name, [step() for _ in range(LOSSES)])
    note_step(case.name, step, lambda: jax.block_until_ready((state, loss)), reset, OPTIONS)


def main():
    if OPTIONS.device == "cuda" and jax.default_backend() not in ("gpu", "cuda"):
        sys.exit("peer_jax: no GPU here, or JAX is installed without CUDA")
    print(f"{jax.devices()[0].device_kind} | JAX {jax.__version__}")
    begin(OPTIONS, {"jax": jax.__version__})
    for case in cases(OPTIONS.inputs, OPTIONS.only):
        attempt(case.name, lambda: train(case))
    end()


main()
