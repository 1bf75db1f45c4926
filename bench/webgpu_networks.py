"""Tiny networks of the kinds that the papers use, small enough for a GPU driver in software."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from bench.compiling import ROOT
from sample_models.network import Network
from sample_models.papers import paper_model
from sample_models.sizes import ImageSizes

LEVELS = 3
STAGES = (4, 8, 16, 32)  # channels; two blocks each, as in ResNet-18
TRAIN = ("--loss", "cross-entropy", "--batch", "4")


def unet() -> onnx.ModelProto:
    """A U-Net of three levels; 4 channels at 32 x 32."""
    n = ImageSizes(resolution=(32, 32)).network("unet")
    x, skips = "x", []
    for level in range(LEVELS):
        x = n.relu(f"down{level}.relu", n.conv(f"down{level}", x, 4 << level))
        skips.append(x)
        x = n.pool(f"pool{level}", x)
    x = n.relu("bottom.relu", n.conv("bottom", x, 4 << LEVELS))
    for level in reversed(range(LEVELS)):
        x = n.concat(f"concat{level}", skips[level], n.double(f"double{level}", x, 4 << level))
        x = n.relu(f"up{level}.relu", n.conv(f"up{level}", x, 4 << level))
    n.conv("head", x, 2, 1)
    return n.build()


def vgg() -> onnx.ModelProto:
    """VGG-16 of the paper: 4 channels at 32 x 32, 10 classes."""
    return paper_model("vgg16", resolution=32, width=1 / 16, classes=10)


def resnet() -> onnx.ModelProto:
    """ResNet-18's blocks without normalization, which makes five ops of one in training; 4 channels at 32 x 32."""
    n = ImageSizes(resolution=(32, 32)).network("resnet")
    x = n.relu("stem.relu", n.conv("stem", "x", STAGES[0]))
    for stage, width in enumerate(STAGES):
        for block in range(2):
            x = _block(n, f"stage{stage}.{block}", x, width, 2 if stage and not block else 1)
    n.dense("classes", n.flatten("flatten", n.op("pool", "GlobalAveragePool", x), 1), 10)
    return n.build()


def _block(n: Network, name: str, x: str, width: int, stride: int) -> str:
    """Two convolutions beside a shortcut, which is a convolution of its own where the size changes."""
    inner = n.relu(f"{name}.relu1", n.conv(f"{name}.conv1", x, width, 3, stride))
    inner = n.conv(f"{name}.conv2", inner, width)
    short = n.conv(f"{name}.short", x, width, 1, stride) if stride > 1 else x
    return n.relu(f"{name}.relu2", n.add(f"{name}.add", inner, short))


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {"unet": unet, "vgg16": vgg, "resnet18": resnet}


def write_network(name: str, folder: Path) -> Path:
    """The model file of a network's training step with SGD."""
    path, forward = folder / f"{name}.onnx", folder / "forward.onnx"
    onnx.save(NETWORKS[name](), forward)
    command = [sys.executable, "-m", "remat_cli", "train", str(forward), *TRAIN, "--output", str(path), "--force", "-q"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return path
