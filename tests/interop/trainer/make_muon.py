#!/usr/bin/env python3
"""Make muon.k2v of tests/unit/trainer/vectors: Muon and QK-clip by torch, in the published form, in float64.

usage: make_muon.py OUT_DIR [SEED]      (exit code 77 with a reason where torch is missing)

zeropower() and the two updates follow MoonshotAI/Moonlight examples/toy_train.py and the Kimi K2 report, with the type a parameter: the
published code casts to bfloat16. For matrix i: "shape:i", "w:i", gradients "g0:i" to "g2:i"; "o:i" the direction of g0; "k2:i" and
"moonlight:i" the weights after three updates with "step" = (lr, weight decay, momentum). "bf16": for each matrix the root mean square of
what bfloat16 changes in the direction, over that of the direction. QK-clip: "dims" (heads, nope, rope, v, q_lora, kv_lora), "tau",
"tops", "q" and "kv" before, "q'" and "kv'" after. Committed: seed 12.
"""
import sys

try:
    import numpy as np
    import torch
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)
import k2v

SHAPES = [(16, 16), (24, 40), (40, 24), (7, 33), (1, 16), (64, 48)]
LR, DECAY, MOMENTUM = 2e-3, 0.1, 0.95
torch.set_num_threads(1)


def zeropower(g, dtype=torch.float64):
    x = g.to(dtype)
    x = x / (x.norm() + 1e-7)
    tall = g.shape[0] > g.shape[1]
    if tall:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).double()


def train(w, grads, nesterov):
    w, buf = w.clone(), torch.zeros_like(w)
    for g in grads:
        buf = MOMENTUM * buf + g
        o = zeropower(g + MOMENTUM * buf if nesterov else buf) * 0.2 * max(w.shape) ** 0.5
        w = w - LR * (o + DECAY * w)
    return w


def main():
    out_dir, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape).astype(np.float32)).double()

    records, changed = {"count": len(SHAPES), "step": [LR, DECAY, MOMENTUM]}, []
    for i, shape in enumerate(SHAPES):
        w, grads = 0.05 * draw(*shape), [0.01 * draw(*shape) for _ in range(3)]
        w = w.float().double()
        grads = [g.float().double() for g in grads]
        o = zeropower(grads[0])
        changed.append(((zeropower(grads[0], torch.bfloat16) - o).norm() / o.norm()).item())
        records.update({f"shape:{i}": list(shape), f"w:{i}": w, f"o:{i}": o,
                        f"k2:{i}": train(w, grads, False), f"moonlight:{i}": train(w, grads, True)})
        records.update({f"g{k}:{i}": g for k, g in enumerate(grads)})
    records["bf16"] = changed

    H, N, R, U, Q, C, tau = 3, 4, 2, 5, 6, 7, 100.0
    tops = np.array([250.0, 99.0, 104.5])
    q, kv = draw(H * (N + R), Q), draw(H * (N + U), C)
    gamma = torch.tensor(np.minimum(1, tau / tops))
    q2, kv2 = q.clone().reshape(H, N + R, Q), kv.clone().reshape(H, N + U, C)
    for h in range(H):
        q2[h, :N] *= gamma[h].sqrt()
        q2[h, N:] *= gamma[h]
        kv2[h, :N] *= gamma[h].sqrt()
    records.update({"dims": [H, N, R, U, Q, C], "tau": tau, "tops": tops, "q": q, "kv": kv,
                    "q'": q2.reshape(q.shape), "kv'": kv2.reshape(kv.shape)})
    k2v.write(f"{out_dir}/muon.k2v", records)


main()
