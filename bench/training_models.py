"""Small networks of torch as people train them, exported to ONNX with their weights open: what steps are made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

OPSET = 17
SIDE, COLOURS, CLASSES = 32, 3, 10
VOCABULARY, LENGTH = 96, 48


class Block(nn.Module):
    """A basic block of ResNet18."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions and what goes around them."""
        inside = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inside + self.shortcut(x))


class ResNet18(nn.Module):
    """Eight basic blocks in four stages, narrow, for small images."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(COLOURS, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages, inner = [], width
        for stage in range(4):
            outer = width << stage
            stages += [Block(inner, outer, 1 if stage == 0 else 2), Block(outer, outer, 1)]
            inner = outer
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inner, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        features = self.stages(F.relu(self.bn1(self.conv1(x))))
        found: torch.Tensor = self.fc(torch.flatten(F.adaptive_avg_pool2d(features, 1), 1))
        return found


class Attention(nn.Module):
    """Attention with heads, causal or not; adapters of low rank on queries and values where a rank is given."""

    def __init__(self, width: int, heads: int, is_causal: bool, rank: int = 0) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.lora_q = Adapter(width, rank) if rank else None
        self.lora_v = Adapter(width, rank) if rank else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position reads the others, or those before it."""
        batch, length, width = x.shape
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if self.lora_q is not None and self.lora_v is not None:
            query, value = query + self.lora_q(x), value + self.lora_v(x)
        query, key, value = (
            each.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for each in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        found: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return found


class Adapter(nn.Module):
    """A product of low rank beside a frozen one; its second factor begins at zero."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is added to the frozen product."""
        found: torch.Tensor = self.up(self.down(x))
        return found


class Layer(nn.Module):
    """A transformer layer with its norms in front."""

    def __init__(self, width: int, heads: int, is_causal: bool, dropout: float = 0.0, rank: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, is_causal, rank)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and a perceptron, each added to what it reads."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        found: torch.Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return found


class ViT(nn.Module):
    """Patches of an image and a class token through transformer layers."""

    def __init__(self, width: int = 48, layers: int = 4, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(COLOURS, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + (SIDE // patch) ** 2, width) / 50)
        self.layers = nn.Sequential(*(Layer(width, 4, is_causal=False) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], dim=1) + self.positions
        found: torch.Tensor = self.head(self.norm(self.layers(rows))[:, 0])
        return found


class Decoder(nn.Module):
    """A small GPT-2: causal layers, scores of the next token; with adapters where a rank is given."""

    def __init__(self, width: int = 64, layers: int = 3, dropout: float = 0.1, rank: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Layer(width, 4, True, dropout, rank) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the next token at each place."""
        places = torch.arange(x.shape[1])
        found: torch.Tensor = self.head(self.norm(self.layers(self.tokens(x) + self.places(places))))
        return found


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet18": ResNet18,
    "vit": ViT,
    "gpt2": Decoder,
    "lora": lambda: Decoder(layers=4, dropout=0.0, rank=4),
}


def example(name: str) -> torch.Tensor:
    """An input of one item."""
    is_text = name in ("gpt2", "lora")
    return torch.zeros(1, LENGTH, dtype=torch.int64) if is_text else torch.zeros(1, COLOURS, SIDE, SIDE)


def export(name: str, path: Path) -> Path:
    """Write a network with seeded weights as torch does it for training: nothing folded, ops in training form."""
    torch.manual_seed(0)
    network = NETWORKS[name]().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example(name),),
            str(path),
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes={"x": {0: "batch"}, "scores": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING,
        )
    return path
