"""Makes torch_state.safetensors: state dicts of PyTorch models, an input, and the logits that each gives for it.

    python3 torch_state.py [OUT.safetensors]        needs torch (2.11 was used) and safetensors

Three models, the names of their tensors prefixed: "cifar." and "imagenet." are ResNet-18 as in torchvision (its names,
3/64 of its width), the first with a 3x3 stem and no pooling; "mixed." is a Sequential with a grouped convolution, a
batch norm without weights, and a linear layer on flattened images. Running statistics come from training forwards.
Logits are computed in FP64 from the FP32 weights, in eval mode.
"""
import sys

import torch
from safetensors.torch import save_file
from torch import nn

CHANNELS, CLASSES, HEIGHT, WIDTH = (3, 6, 12, 24), 7, 36, 44  # not square, so that exchanged axes show


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, cifar_stem):
        super().__init__()
        first = CHANNELS[0]
        self.conv1 = nn.Conv2d(3, first, 3, 1, 1, bias=False) if cifar_stem else nn.Conv2d(3, first, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.maxpool = nn.Identity() if cifar_stem else nn.MaxPool2d(3, 2, 1)
        channels_in = first
        for i, channels in enumerate(CHANNELS):
            stride = 1 if i == 0 else 2
            setattr(self, f"layer{i + 1}",
                    nn.Sequential(BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1)))
            channels_in = channels
        self.fc = nn.Linear(channels_in, CLASSES)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


def mixed():
    return nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6, affine=False), nn.ReLU(),
                         nn.Conv2d(6, 8, 3, groups=2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 8 * 10, CLASSES))


torch.manual_seed(0)
rows, columns = torch.linspace(0, 1, HEIGHT).view(-1, 1), torch.linspace(0, 1, WIDTH)
ramps = torch.stack([rows + 0 * columns, 2 * columns * rows, columns - rows])  # each axis means something
images = 4 * torch.stack([ramps, ramps.flip(0) ** 2]) + torch.rand(2, 3, HEIGHT, WIDTH)
content = {"input": images}
for name, model in (("cifar", ResNet18(True)), ("imagenet", ResNet18(False)), ("mixed", mixed())):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d) and m.affine:
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.uniform_(m.bias, -0.5, 0.5)
        if isinstance(m, nn.Linear):
            nn.init.uniform_(m.weight, -1, 1)  # logits that tell images apart
    model.train()
    with torch.no_grad():
        for _ in range(5):
            model(2 * torch.rand(8, 3, HEIGHT, WIDTH) - 0.5)
        content.update({f"{name}.{k}": v.clone() for k, v in model.state_dict().items()})
        content[f"{name} logits"] = model.double().eval()(images.double()).float()
save_file(content, sys.argv[1] if len(sys.argv) > 1 else "torch_state.safetensors", {"torch": torch.__version__})
