"""How large a network of the papers is made."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto, helper

from sample_models.network import Network

BATCH = "batch"  # name of the batch dimension where it is left open


@dataclass(frozen=True)
class ImageSizes:
    """Sizes of a network that reads images; `width` multiplies its channels, `resolution` is height and width."""

    batch: int | None = None
    resolution: tuple[int, int] = (224, 224)
    classes: int = 1000
    width: float = 1.0

    def scaled(self, channels: int) -> int:
        """Channels at this width."""
        return max(1, round(channels * self.width))

    def network(self, name: str, divisor: int = 1) -> Network:
        """An empty network over images whose sides `divisor` divides."""
        if any(side < 1 or side % divisor for side in self.resolution):
            text = "x".join(map(str, self.resolution))
            raise ValueError(f"resolution {text}: {name} needs sides that are multiples of {divisor}")
        shape = [self.batch or BATCH, 3, *self.resolution]
        return Network(name, helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), channels=3)


@dataclass(frozen=True)
class TextSizes:
    """Sizes of a network that reads tokens; `width` multiplies its heads.

    `length` tokens are read of at most `context`; `classes` are told apart by a classifier, where there is one.
    """

    batch: int | None = None
    length: int = 512
    context: int = 512
    vocabulary: int = 30522
    layers: int = 12
    heads: int = 12
    head_width: int = 64
    classes: int = 2
    width: float = 1.0

    @property
    def head_count(self) -> int:
        """Heads at this width."""
        return max(1, round(self.heads * self.width))

    @property
    def hidden(self) -> int:
        """Elements per token."""
        return self.head_count * self.head_width

    def network(self, name: str) -> Network:
        """An empty network over tokens."""
        if not 1 <= self.length <= self.context:
            raise ValueError(f"length {self.length}: {name} has positions for 1 to {self.context} tokens")
        shape = [self.batch or BATCH, self.length]
        return Network(name, helper.make_tensor_value_info("tokens", TensorProto.INT64, shape), channels=1)
