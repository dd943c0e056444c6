"""bf16_linear.py PROGRAM - a linear layer in bf16, forward and backward, against torch's.

Rounding must be torch's to the bit. Sums are f32 on both sides, in another order: each of ours may be off from the exact sum of the
rounded operands by terms * 2^-24 of the sum of their sizes, and from torch's, which is rounded to bf16 at the end, by 2^-8 of itself
besides. The python is K2_PYTHON, or the one that runs this; without torch: exit code 77.
"""
import os
import subprocess
import sys

if os.environ.get("K2_PYTHON") and os.environ["K2_PYTHON"] != sys.executable:
    os.execv(os.environ["K2_PYTHON"], [os.environ["K2_PYTHON"], *sys.argv])
try:
    import torch
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

SHAPES = [(1, 16, 8), (5, 33, 17), (64, 192, 512), (37, 264, 129), (130, 128, 64)]  # tokens, outputs, inputs
worst = [0.0, 0.0]


def compare(name, ours, exact, size, terms, theirs):
    bound = (terms + 2) * 2.0**-24 * size + 1e-37
    off = (ours.double() - exact).abs()
    if (off > bound).any():
        sys.exit(f"{name}: off by {(off / bound).max():.3g} times what f32 sums allow")
    to_torch = (ours.double() - theirs.double()).abs()
    if (to_torch > 2.0**-8 * theirs.double().abs() + 2 * bound).any():
        sys.exit(f"{name}: off from torch by {to_torch.max():.3g}")
    worst[0] = max(worst[0], float((off / size.clamp_min(1e-30)).max()))
    worst[1] = max(worst[1], float((to_torch / size.clamp_min(1e-30)).max()))


def one(t, n, k, seed):
    g = torch.Generator().manual_seed(seed)
    x, w, dy = (torch.randn(s, generator=g) for s in ((t, k), (n, k), (t, n)))
    x[0, :4] = torch.tensor([1.00390625, 1.01171875, -3.3895314e38, 2.0**-126])[: min(4, k)]  # ties, the largest, the least normal
    x[0, 2] *= 1e-30
    out = subprocess.run([sys.argv[1], str(t), str(n), str(k)], check=True, stdout=subprocess.PIPE,
                         input=b"".join(v.numpy().tobytes() for v in (x, w, dy))).stdout
    rounded = torch.frombuffer(bytearray(out[: 2 * t * k]), dtype=torch.bfloat16).reshape(t, k)
    rest = torch.frombuffer(bytearray(out[2 * t * k :]), dtype=torch.float32)
    y, dx, dw = (v.reshape(s) for v, s in zip(rest.split([t * n, t * k, n * k]), ((t, n), (t, k), (n, k))))
    xb, wb, dyb = x.bfloat16(), w.bfloat16(), dy.bfloat16()
    if not torch.equal(rounded.view(torch.int16), xb.view(torch.int16)):
        sys.exit("rounding is not torch's")
    a, b = xb.clone().requires_grad_(), wb.clone().requires_grad_()
    theirs = torch.nn.functional.linear(a, b)
    theirs.backward(dyb)
    xd, wd, dyd = xb.double(), wb.double(), dyb.double()
    compare("y", y, xd @ wd.T, xd.abs() @ wd.abs().T, k, theirs.detach())
    compare("dx", dx, dyd @ wd, dyd.abs() @ wd.abs(), n, a.grad)
    compare("dw", dw, dyd.T @ xd, dyd.abs().T @ xd.abs(), t, b.grad)


for i, shape in enumerate(SHAPES):
    one(*shape, seed=i)
print(f"{len(SHAPES)} layers: off by at most {worst[0]:.2g} of the sum of sizes, from torch {torch.__version__} by {worst[1]:.2g}")
