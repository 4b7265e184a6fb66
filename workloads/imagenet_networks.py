"""Define ResNet-50 and VGG16 for imagenet_torch.py, as in their papers and torchvision.

Begin with :func:`build`. ResNet-50 is version 1.5 (the stride is in the 3 x 3 convolution) with 25,557,032
parameters for 1,000 classes. VGG16 has no batch normalisation, and 138,357,544 parameters. ``width``
multiplies the number of channels. Tests use values below 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training pixels by channel, for pixels scaled to 0..1."""

BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Stages of ResNet-50, with channels, blocks, and the stride of the first block."""

LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""VGG16's convolutions by channels; 0 is a pooling layer."""


class Bottleneck(nn.Module):
    """Three convolutions parallel to a shortcut. The last has four times as many channels as the second."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        after = 4 * channels
        self.conv1 = nn.Conv2d(before, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: Any = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


def resnet50(classes: int, width: float) -> nn.Sequential:
    """Return ResNet-50. The last normalisation of each block starts at 0 (Goyal et al., 2017)."""
    stem = max(8, int(64 * width))
    layers: list[nn.Module] = [
        nn.Conv2d(3, stem, 7, 2, 3, bias=False),
        nn.BatchNorm2d(stem),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = stem
    for channels, blocks, stride in BLOCKS:
        scaled = max(8, int(channels * width))
        for index in range(blocks):
            layers.append(Bottleneck(before, scaled, stride if index == 0 else 1))
            before = 4 * scaled
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    network = nn.Sequential(*layers)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)
    return network


def vgg16(classes: int, width: float) -> nn.Sequential:
    """Return VGG16."""
    layers: list[nn.Module] = []
    before = 3
    for channels in LAYERS:
        if channels == 0:
            layers.append(nn.MaxPool2d(2, 2))
            continue
        scaled = max(8, int(channels * width))
        layers += [nn.Conv2d(before, scaled, 3, padding=1), nn.ReLU(inplace=True)]
        before = scaled
    hidden = max(16, int(4096 * width))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    layers += [nn.Linear(before * 49, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(hidden, classes)]
    network = nn.Sequential(*layers)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
    return network


class Classifier(nn.Module):
    """A network that takes pixels (N, 3, H, W) as uint8, and normalises them on its device.

    The host sends one byte per value instead of four.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        shape = (1, 3, 1, 1)
        self.register_buffer("mean", torch.tensor(MEAN).mul(255).view(shape), persistent=False)
        self.register_buffer("scale", torch.tensor(DEVIATION).mul(255).reciprocal().view(shape), False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return a score for each class (N, classes)."""
        return self.network((pixels.float() - self.mean) * self.scale)


def build(name: str, classes: int, width: float) -> Classifier:
    """Return the network with the name ``resnet50`` or ``vgg16``."""
    return Classifier({"resnet50": resnet50, "vgg16": vgg16}[name](classes, width))
