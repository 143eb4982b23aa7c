"""Makes elementwise_cases.safetensors: elementwise functions of PyTorch and their gradients, as replay_op_cases reads them.

    python3 elementwise_cases.py [OUT.safetensors]        needs torch (2.11 was used) and safetensors

Computed in FP64 from inputs that FP16 and BF16 hold, so that every dtype is judged by the same values. A function that is
added to demi is one more line of OPS.
"""
import json
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional

OPS = (  # name, function, attributes
    ("leaky_relu", functional.leaky_relu, ({}, {"negative_slope": 0.3}, {"negative_slope": 0.0}, {"negative_slope": 1.5})),
)

torch.manual_seed(0)
tensors, cases = {}, []


def kept(t):
    name = f"t{len(tensors)}"
    tensors[name] = t.detach().float().contiguous()
    return name


for op, function, variants in OPS:
    for attrs in variants:
        for shape in ((), (7,), (3, 1, 5), (2, 3, 4, 5)):
            x = (4 * torch.randn(shape)).bfloat16().half().double()  # BF16's digits in FP16's range
            if x.dim() == 1:
                x[:4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
            x.requires_grad_()
            y = function(x, **attrs)
            seed = torch.randn(shape).bfloat16().half().double()
            y.backward(seed)
            cases.append({"op": op, "name": f"{op}/{len(cases)}", "attrs": attrs, "inputs": {"x": kept(x)},
                          "outputs": {"y": kept(y)}, "grad_output": kept(seed), "grads": {"x": kept(x.grad)}})
save_file(tensors, sys.argv[1] if len(sys.argv) > 1 else "elementwise_cases.safetensors",
          {"format": "demi-op-cases-1", "torch": torch.__version__, "cases": json.dumps(cases)})
