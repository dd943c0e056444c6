#!/usr/bin/env python3
"""Make losses_*.k2v of tests/unit/trainer/vectors: each policy loss and its gradient by torch's autograd in float64.

usage: make_losses.py OUT_DIR [SEED]      (exit code 77 with a reason where torch is missing)

A batch is GROUPS groups of SIZE trajectories of ragged lengths; the losses are written over padded [trajectories, tokens] arrays
with masks, as the papers and the public trainers write them, not trajectory by trajectory as trainer/loss.c has them. Inputs
are rounded to f32 first. One file for each correction (tis, icepop): "scale" (tau, clip_low, clip_high, correction min, max),
"lengths", "size", "reward", "logp", "old", "rollout", "use" (0: out of the loss) in; "weight", and for each loss
"loss:NAME", "dlogp:NAME" out. With the log-probabilities of a frozen model, "reference", the same of each estimator of the distance
to it: "kl K" is the term in the loss alone, "to go K" is REINFORCE++ with it in the reward of each token. Committed: seed 11.
"""
import sys

try:
    import numpy as np
    import torch
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)
import k2v

GROUPS, SIZE, LONGEST = 5, 4, 9
TAU, LOW, HIGH, EPS, KL = 0.3, 0.15, 0.2, 1e-6, 0.5
BOUNDS = {"tis": (0.0, 1.25), "icepop": (0.5, 1.5)}
torch.set_num_threads(1)


def f32(x):
    return torch.tensor(np.asarray(x, np.float32)).double()


def normalised(r):  # [groups, size]
    a = r - r.mean(1, keepdim=True)
    return a / (r.std(1, keepdim=True, unbiased=False) + EPS)


def losses(reward, logp, old, weight, mask):
    """All of them as {name: scalar}. reward [G,S]; the others [G*S, LONGEST]; mask: 1 where a token is in the loss."""
    ratio, w = torch.exp(logp - old), weight * mask
    counts = mask.sum(1)

    def clipped(p, a):
        return torch.minimum(p * a, torch.clamp(p, 1 - LOW, 1 + HIGH) * a)

    def rows(a):
        return a.reshape(-1, 1)

    grpo = rows(normalised(reward))
    flat = (reward == reward[:, :1]).all(1)
    alive = (~flat).repeat_interleave(SIZE).double().reshape(-1, 1)
    mean = rows(reward - reward.mean(1, keepdim=True))
    delta = (w * (logp - old)).sum(1)
    out = {"mirror": ((mean[:, 0] - TAU * delta) ** 2).mean() / (2 * TAU),
           "grpo": -(w * clipped(ratio, grpo)).sum() / mask.sum(),
           "dapo": -(w * alive * clipped(ratio, grpo)).sum() / (mask * alive).sum()}

    kept = mask * (weight != 0)  # a masked correction leaves the sequence's ratio, too
    n = kept.sum(1).clamp(min=1)
    s = torch.exp((kept * (logp - old)).sum(1) / n)
    out["gspo"] = -(w.sum(1) / n * clipped(s, grpo[:, 0])).mean()
    out["cispo"] = -(w * torch.clamp(ratio, 1 - LOW, 1 + HIGH).detach() * grpo * logp).sum() / mask.sum()
    others = (reward.sum(1, keepdim=True) - reward) / (SIZE - 1)
    out["rloo"] = -(rows(reward - others) * w * logp).sum(1).mean()
    r = reward.reshape(-1)
    m = (counts * r).sum() / counts.sum()
    std = torch.sqrt((counts * (r - m) ** 2).sum() / counts.sum())
    out["reinforce++"] = -(w * clipped(ratio, rows((r - m) / (std + EPS)))).sum() / mask.sum()
    return out


ESTIMATES = {"k1": lambda x: x, "k2": lambda x: x ** 2 / 2, "k3": lambda x: torch.exp(-x) - 1 + x}


def held(reward, logp, old, reference, weight, mask):
    """What a frozen model adds, as {name: scalar}. In the reward, a token has what it and those behind it cost."""
    out, r = {}, reward.reshape(-1, 1)
    for name, k in ESTIMATES.items():
        out["kl " + name] = KL * (mask * (weight != 0) * k(logp - reference)).sum() / mask.sum()
        cost = mask * k(old - reference)
        a = r - KL * cost.flip(1).cumsum(1).flip(1)
        m = (mask * a).sum() / mask.sum()
        std = torch.sqrt((mask * (a - m) ** 2).sum() / mask.sum())
        a, ratio = (a - m) / (std + EPS), torch.exp(logp - old)
        clipped = torch.minimum(ratio * a, torch.clamp(ratio, 1 - LOW, 1 + HIGH) * a)
        out["to go " + name] = -(weight * mask * clipped).sum() / mask.sum()
    return out


def main():
    out_dir, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 11
    g = np.random.default_rng(seed)
    n = GROUPS * SIZE
    lengths = g.integers(1, LONGEST + 1, n)
    inside = torch.tensor(np.arange(LONGEST)[None] < lengths[:, None])
    reward = f32(g.integers(0, 5, (GROUPS, SIZE)) / 4)
    reward[-1] = 0.75
    old = f32(-0.1 - 2 * g.random((n, LONGEST)))
    rollout = f32(old.numpy() + 0.5 * g.standard_normal((n, LONGEST)))
    logp = f32(old.numpy() + 0.3 * g.standard_normal((n, LONGEST)))
    use = torch.tensor(g.random((n, LONGEST)) < 0.85) & inside
    reference = f32(old.numpy() + 0.4 * g.standard_normal((n, LONGEST)))
    for kind, (least, most) in BOUNDS.items():
        x = torch.exp(old - rollout)
        weight = torch.clamp(x, least, most) if kind == "tis" else x * ((x >= least) & (x <= most))
        weight = f32(weight * use)
        records = {"scale": [TAU, LOW, HIGH, least, most], "lengths": lengths, "size": SIZE, "reward": reward.reshape(-1).numpy()}
        for name, value in (("logp", logp), ("old", old), ("rollout", rollout), ("weight", weight), ("reference", reference)):
            records[name] = value[inside].numpy()
        records["use"] = use[inside].numpy().astype(np.int32)
        mask = use.double()

        def all_of(x):
            return {**losses(reward, x, old, weight, mask), **held(reward, x, old, reference, weight, mask)}

        for name in all_of(logp):
            leaf = logp.clone().requires_grad_(True)
            value = all_of(leaf)[name]
            value.backward()
            records["loss:" + name] = value.item()
            records["dlogp:" + name] = leaf.grad[inside].numpy()
        k2v.write(f"{out_dir}/losses_{kind}.k2v", records)


main()
