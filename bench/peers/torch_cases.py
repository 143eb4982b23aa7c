"""PyTorch's counterpart of each op that demi_bench measures: a set of operands, and the call to be timed on it.

A case is built from a name's op, dtype and shape. `make()` gives a fresh set of random operands; `call(operands)`
issues the work and returns the tensors it made. Images are NHWC in memory (channels_last), FP16 and BF16 tensors are
in that dtype themselves, without autocast; weights and statistics of a batch norm are FP32, as they are under it.
"""
import re
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F

aten = torch.ops.aten
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
EPS, MOMENTUM = 1e-5, 0.1
SEQUENCE = "{} calls: {}"


class LeftOut(Exception):
    """Why a name is not measured."""


@dataclass
class Case:
    make: Callable
    call: Callable
    label: str = ""
    sequence: bool = False  # several calls: torch.compile may fuse them


class Maker:
    """Random tensors on a device; `odd` ones start one element past alignment."""

    def __init__(self, device, dtype, odd):
        self.device, self.dtype, self.odd = device, dtype, odd

    def flat(self, *shape, dtype=None, scale=1.0):
        n, start = 1, 1 if self.odd else 0
        for extent in shape:
            n *= extent
        values = torch.randn(n + start, device=self.device).mul_(scale).to(dtype or self.dtype)
        return values[start:].view(shape)

    def image(self, n, h, w, c, dtype=None, scale=1.0):
        """[N, C, H, W] as PyTorch counts axes, NHWC in memory."""
        return self.flat(n, h, w, c, dtype=dtype, scale=scale).permute(0, 3, 1, 2)

    def vector(self, n, value=None):
        v = torch.randn(n, device=self.device)
        return v if value is None else v.fill_(value)


def extents(shape, count=None):
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise LeftOut(f"shape {shape} is not understood")
    numbers = [int(v) for v in shape.split("x")]
    if count and len(numbers) != count:
        raise LeftOut(f"shape {shape} should have {count} extents")
    return numbers


def elementwise(op, m, shape):
    size = extents(shape)
    x = lambda: m.flat(*size)  # noqa: E731
    if op == "copy":
        return Case(lambda: [x(), x()], lambda s: s[1].copy_(s[0]))
    if op == "cast":
        return Case(lambda: [m.flat(*size, dtype=torch.float32), x()], lambda s: s[1].copy_(s[0]))
    if op == "cast_to_fp32":
        return Case(lambda: [x(), m.flat(*size, dtype=torch.float32)], lambda s: s[1].copy_(s[0]))
    if op == "add":
        return Case(lambda: [x(), x(), x()], lambda s: torch.add(s[0], s[1], out=s[2]))
    if op == "axpy":
        return Case(lambda: [x(), x()], lambda s: s[1].add_(s[0], alpha=0.5))
    if op == "bias":
        return Case(lambda: [x(), m.flat(size[-1]), x()], lambda s: torch.add(s[0], s[1], out=s[2]))
    if op == "relu":
        return Case(lambda: [x()], lambda s: torch.relu(s[0]))
    if op == "relu_backward":  # of dy and y
        return Case(lambda: [x(), x().relu_()], lambda s: aten.threshold_backward(s[0], s[1], 0))
    if op == "finite_check":
        def make():
            return [x(), torch.zeros(1, device=m.device), torch.ones(1, device=m.device)]
        return Case(make, lambda s: torch._amp_foreach_non_finite_check_and_unscale_([s[0]], s[1], s[2]),
                    "_amp_foreach_non_finite_check_and_unscale_, which also writes")
    if op == "sum":
        return Case(lambda: [x()], lambda s: torch.sum(s[0], dtype=torch.float32))
    if op == "sum_rows":
        return Case(lambda: [m.flat(*size).view(-1, size[-1])], lambda s: torch.sum(s[0], 0, dtype=torch.float32))
    if op == "amax":
        return Case(lambda: [x()], lambda s: torch.amax(s[0]))
    return None


def batch_norm(op, m, shape):
    size = extents(shape)
    rows = 1
    for extent in size[:-1]:
        rows *= extent
    if rows < 2:
        raise LeftOut("batch norm trains on more than one row")
    c = size[-1]
    image = lambda: m.image(*size) if len(size) == 4 else m.flat(rows, c)  # noqa: E731
    residual, relu, backward = "_add" in op, "_relu" in op, op.endswith("_backward")

    def forward(x, weight, bias, mean, var, add=None):
        y = F.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS)
        if add is not None:
            y = y.add_(add)
        return y.relu_() if relu else y

    if not backward:
        def make():
            operands = [image(), m.vector(c, 1.0), m.vector(c, 0.0), m.vector(c, 0.0), m.vector(c, 1.0)]
            return operands + [image()] * residual
        calls = ["F.batch_norm"] + ["add_"] * residual + ["relu_"] * relu
        several = len(calls) > 1
        return Case(make, lambda s: forward(*s), SEQUENCE.format(len(calls), ", ".join(calls)) if several else "",
                    several)

    def make():
        x, weight, bias = image(), m.vector(c, 1.0), m.vector(c, 0.0)
        _, mean, inv_std, reserve, which = aten._batch_norm_impl_index(x, weight, bias, None, None, True, MOMENTUM, EPS,
                                                                       torch.backends.cudnn.enabled)
        y = image().relu_() if relu else None  # what matters of it: half of it is 0
        return [image(), x, y, weight, mean, inv_std, reserve, which]

    def call(s):
        dy, x, y, weight, mean, inv_std, reserve, which = s
        g = aten.threshold_backward(dy, y, 0) if relu else dy  # also the residual's gradient
        return g, aten._batch_norm_impl_index_backward(which, x, g, weight, None, None, mean, inv_std, True, EPS,
                                                       [True, True, True], reserve)

    return Case(make, call, SEQUENCE.format(2, "threshold_backward, batch_norm's backward") if relu else "", relu)


def pooling(op, m, shape):
    """As demi_bench's: max 3x3 with stride 2 and padding 1, average 2x2 with stride 2."""
    n, h, w, c = extents(shape, 4)
    if op.startswith("avg") and min(h, w) < 2:
        raise LeftOut(f"the window is larger than the image of {shape}")
    image = lambda: m.image(n, h, w, c)  # noqa: E731
    max_window, avg_window = ([3, 3], [2, 2], [1, 1]), ([2, 2], [2, 2], [0, 0])
    if op == "max_pool":
        return Case(lambda: [image()], lambda t: aten.max_pool2d_with_indices(t[0], *max_window))
    if op == "max_pool_backward":
        def make():
            x = image()
            y, index = aten.max_pool2d_with_indices(x, *max_window)
            return [m.image(n, y.size(2), y.size(3), c), x, index]
        return Case(make, lambda t: aten.max_pool2d_with_indices_backward(t[0], t[1], *max_window, [1, 1], False, t[2]))
    if op == "avg_pool":
        return Case(lambda: [image()], lambda t: F.avg_pool2d(t[0], *avg_window))
    if op == "avg_pool_backward":
        return Case(lambda: [m.image(n, h // 2, w // 2, c), image()],
                    lambda t: aten.avg_pool2d_backward(t[0], t[1], *avg_window, False, True, None))
    if op == "global_avg_pool":
        return Case(lambda: [image()], lambda t: torch.mean(t[0], (2, 3)))
    # dy / (H W) repeated: one kernel that reads dy [N, 1, 1, C] and writes NHWC.
    return Case(lambda: [m.flat(n, 1, 1, c).expand(n, h, w, c), m.flat(n, h, w, c)],
                lambda t: torch.div(t[0], h * w, out=t[1]))


def cross_entropy(op, m, shape):
    n, c = extents(shape, 2)
    labels = lambda: torch.randint(0, c, (n,), device=m.device)  # noqa: E731
    if op == "cross_entropy":
        return Case(lambda: [m.flat(n, c), labels()], lambda s: F.cross_entropy(s[0], s[1]),
                    SEQUENCE.format(2, "log_softmax, nll_loss (F.cross_entropy)"))

    def make():
        logp = F.log_softmax(m.flat(n, c), 1)
        _, total = aten.nll_loss_forward(logp, target := labels(), None, 1, -100)
        return [torch.ones((), dtype=m.dtype, device=m.device), logp, target, total]

    def call(s):
        g = aten.nll_loss_backward(s[0], s[1], s[2], None, 1, -100, s[3])
        return aten._log_softmax_backward_data(g, s[1], 1, m.dtype)

    return Case(make, call, SEQUENCE.format(2, "nll_loss_backward, _log_softmax_backward_data"), True)


def optimizer(op, m, shape):
    """One fused step over flat FP32 masters. 16-bit gradients and copies cost a cast before it and one after it;
    the loss scale is left out, which the fused steps divide out at the price of writing the gradients once more."""
    (n,) = extents(shape, 1)
    half = m.dtype != torch.float32
    wide = lambda scale=1.0: m.flat(n, dtype=torch.float32, scale=scale)  # noqa: E731

    def make():
        states = [wide(1e-2)] if op == "sgd" else [wide(1e-2), wide(1e-2).square_()]
        step = torch.ones((), device=m.device)
        return [wide(), wide(1e-2), states, step] + [m.flat(n, scale=1e-2), m.flat(n)] * half

    def call(s):
        w, g, states, step = s[:4]
        if half:
            g.copy_(s[4])
        if op == "sgd":
            torch._fused_sgd_([w], [g], [states[0]], weight_decay=5e-4, momentum=0.9, lr=1e-3, dampening=0.0,
                              nesterov=False, maximize=False, is_first_step=False)
        else:
            torch._fused_adamw_([w], [g], [states[0]], [states[1]], [], [step], lr=1e-3, beta1=0.9, beta2=0.999,
                                weight_decay=1e-2, eps=1e-8, amsgrad=False, maximize=False)
        if half:
            s[5].copy_(w)

    fused = "_fused_sgd_" if op == "sgd" else "_fused_adamw_"
    return Case(make, call, SEQUENCE.format(3, f"copy_ to FP32, {fused}, copy_ to 16 bits") if half else fused)


def product(op, m, shape):
    rows, columns, k = extents(shape, 3)
    scale = k ** -0.5
    if op == "matmul":
        return Case(lambda: [m.flat(rows, k), m.flat(k, columns, scale=scale), m.flat(rows, columns)],
                    lambda s: torch.mm(s[0], s[1], out=s[2]))
    return Case(lambda: [m.flat(rows, k), m.flat(columns, k, scale=scale), m.flat(columns)],
                lambda s: F.linear(s[0], s[1], s[2]))


def convolution(op, m, shape):
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)_k(\d+)_r(\d+)_s(\d+)", shape)
    if not found:
        raise LeftOut(f"shape {shape} is not NxHxWxC_kK_rR_sS")
    n, h, w, c, k, r, s = map(int, found.groups())
    pad = r // 2
    if h + 2 * pad < r or w + 2 * pad < r:
        raise LeftOut(f"the kernel of {shape} is larger than its image")
    p, q = (h + 2 * pad - r) // s + 1, (w + 2 * pad - r) // s + 1
    x = lambda: m.image(n, h, w, c)  # noqa: E731
    weight = lambda: m.image(k, r, r, c, scale=(r * r * c) ** -0.5)  # noqa: E731
    if op == "conv_fprop":
        return Case(lambda: [x(), weight()], lambda t: F.conv2d(t[0], t[1], None, s, pad))
    if op == "conv_fprop_bias":
        return Case(lambda: [x(), weight(), m.flat(k)], lambda t: F.conv2d(t[0], t[1], t[2], s, pad))
    if op in ("conv_dgrad", "conv_wgrad"):
        mask = [op == "conv_dgrad", op == "conv_wgrad", False]
        return Case(lambda: [m.image(n, p, q, k), x(), weight()],
                    lambda t: aten.convolution_backward(t[0], t[1], t[2], None, [s, s], [pad, pad], [1, 1], False,
                                                        [0, 0], 1, mask))

    def fused(t):
        y = F.conv2d(t[0], t[1], None, s, pad)
        return F.batch_norm(y, t[4], t[5], t[2], t[3], True, MOMENTUM, EPS).relu_()

    return Case(lambda: [x(), weight(), m.vector(k, 1.0), m.vector(k, 0.0), m.vector(k, 0.0), m.vector(k, 1.0)], fused,
                SEQUENCE.format(3, "F.conv2d, F.batch_norm, relu_"), True)


GROUPS = (("batch_norm", batch_norm), ("max_pool|avg_pool|global_avg_pool", pooling), ("cross_entropy", cross_entropy),
          ("sgd|adam", optimizer), ("matmul|linear", product),
          ("conv_fprop_bias|conv_fprop|conv_dgrad|conv_wgrad|conv_bn_relu", convolution),
          ("copy|cast|cast_to_fp32|add|axpy|bias|relu|relu_backward|finite_check|sum|sum_rows|amax", elementwise))
SUFFIXES = {batch_norm: "(_add)?(_relu)?(_backward)?", pooling: "(_backward)?", cross_entropy: "(_backward)?"}


def case_of(op, dtype, shape, device):
    """The case of a name's parts; LeftOut says why there is none."""
    group = next((g for pattern, g in GROUPS if re.fullmatch(f"(?:{pattern}){SUFFIXES.get(g, '')}", op)), None)
    if group is None:
        raise LeftOut("PyTorch has no counterpart")
    odd = shape.endswith("_odd")
    return group(op, Maker(device, DTYPES[dtype], odd), shape.removesuffix("_odd"))
