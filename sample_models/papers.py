"""The networks that papers on rematerialization evaluate, built in seconds with seeded random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from sample_models.network import Network
from sample_models.papers_language import bert, gpt2
from sample_models.papers_segmentation import fcn8, segnet, segnet_vgg, unet, unet_vgg
from sample_models.papers_vision import mobilenet, resnet18, resnet34, resnet50, vgg16, vgg19
from sample_models.sizes import ImageSizes, TextSizes

Resolution = int | tuple[int, int]

CLASSIFIER = ImageSizes()
LABELLER = ImageSizes(resolution=(416, 608), classes=19)


@dataclass(frozen=True)
class Paper:
    """How a network is built, and how large in its paper."""

    recipe: Callable[[Any], Network]
    sizes: ImageSizes | TextSizes

    @property
    def size_names(self) -> frozenset[str]:
        """What can be chosen."""
        return frozenset(field.name for field in fields(self.sizes))


PAPERS: Mapping[str, Paper] = MappingProxyType(
    {
        **{
            recipe.__name__: Paper(recipe, CLASSIFIER)
            for recipe in (vgg16, vgg19, resnet18, resnet34, resnet50, mobilenet)
        },
        **{recipe.__name__: Paper(recipe, LABELLER) for recipe in (unet_vgg, fcn8, segnet, segnet_vgg)},
        "unet": Paper(unet, replace(LABELLER, classes=2)),
        "gpt2": Paper(gpt2, TextSizes(length=1024, context=1024, vocabulary=50257)),
        "bert": Paper(bert, TextSizes()),
    }
)


def paper_names() -> tuple[str, ...]:
    """Names that `paper_model` accepts."""
    return tuple(PAPERS)


def paper_network(name: str, batch: int | None = None, resolution: Resolution | None = None, **sizes: float) -> Network:
    """A network without the values of its weights: for counting, and for shapes.

    Args:
        name: One of `paper_names()`.
        batch: Fixed batch size; None leaves a dimension `batch` open.
        resolution: Height and width of images, or one number for both.
        sizes: Other fields of `ImageSizes` (classes, width) or `TextSizes` (length, vocabulary, layers, width, ...).

    Raises:
        ValueError: no such network or size.
    """
    if name not in PAPERS:
        raise ValueError(f"unknown model {name!r}, choose from {', '.join(PAPERS)}")
    paper = PAPERS[name]
    both = (resolution, resolution) if isinstance(resolution, int) else resolution
    asked: dict[str, Any] = {"batch": batch, "resolution": both, **sizes}
    given = {key: value for key, value in asked.items() if value is not None}
    if unknown := given.keys() - paper.size_names:
        raise ValueError(f"{name} has no {', '.join(sorted(unknown))}, but {', '.join(sorted(paper.size_names))}")
    return paper.recipe(replace(paper.sizes, **given))


def paper_model(
    name: str, batch: int | None = None, resolution: Resolution | None = None, **sizes: float
) -> onnx.ModelProto:
    """The forward graph of a network, from `x` (images) or `tokens` to `logits`; sizes as in `paper_network`."""
    return paper_network(name, batch, resolution, **sizes).build()


def write_papers(folder: Path, names: Sequence[str], sizes: Mapping[str, Any]) -> Iterator[Path]:
    """Write models to the folder, one by one, and give their paths; a size counts for those that have it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PAPERS:
        own = {key: value for key, value in sizes.items() if name not in PAPERS or key in PAPERS[name].size_names}
        path = folder / f"{name}.onnx"
        path.write_bytes(paper_model(name, **own).SerializeToString(deterministic=True))
        yield path
