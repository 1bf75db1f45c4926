"""A model that an exporter writes, with what it is fed and which of its sizes are open: a file, and words beside it.

Exporters live in environments of their own, of other versions of Python's packages: this module needs only ONNX and
NumPy, and so runs in all of them.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx

from bench.drawn.drawn import Drawn, Feed, Range

Write = Callable[[Path], object]


@dataclass(frozen=True)
class Recipe:
    """How a model is written; sizes have the names that feeds give them, whatever the file calls them."""

    name: str
    exporter: str
    shows: str
    feeds: Mapping[str, Feed]
    ranges: Mapping[str, Range]
    write: Write


@dataclass(frozen=True)
class Exported:
    """A model as it was written; `names` has what its file calls each open size."""

    path: Path
    exporter: str
    shows: str
    drawn: Drawn
    names: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> Exported:
        """The model of a file, with the words beside it."""
        told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        feeds = {
            name: Feed(tuple(each["shape"]), each["kind"], np.dtype(each["dtype"]).type)
            for name, each in told["feeds"].items()
        }
        ranges = {name: Range(*numbers) for name, numbers in told["ranges"].items()}
        drawn = Drawn(onnx.load(path), feeds, ranges)
        return cls(path, told["exporter"], told["shows"], drawn, told["names"])

    def dims(self, sizes: Mapping[str, object]) -> list[str]:
        """Sizes as the compiler is told them, under the names of the file."""
        return [f"{name}={sizes[size]}" for size, names in self.names.items() for name in names]


def export(recipes: Sequence[Recipe]) -> None:
    """Write the models into the folder that is named on the command line; what fails is told, and leaves no file."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in recipes:
        if len(sys.argv) > 2 and recipe.name not in sys.argv[2:]:
            continue
        path = folder / f"{recipe.name}.onnx"
        path.with_suffix(".json").unlink(missing_ok=True)
        try:
            recipe.write(path)
            path.with_suffix(".json").write_text(json.dumps(_told(recipe, path), indent=1), encoding="utf-8")
            print(f"{recipe.name}: {path.stat().st_size:,} bytes", flush=True)  # noqa: T201
        except Exception as error:
            path.unlink(missing_ok=True)
            traceback.print_exc(limit=-3)
            print(f"{recipe.name}: FAILED: {str(error)[:300]}", flush=True)  # noqa: T201


def _told(recipe: Recipe, path: Path) -> dict[str, object]:
    """What stands beside the file: only inputs and open sizes that the file has."""
    model = onnx.load(str(path))
    weights = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in weights]
    if len(inputs) != len(recipe.feeds):
        raise ValueError(f"the file has {len(inputs)} inputs, the recipe feeds {len(recipe.feeds)}")
    feeds = dict(zip((each.name for each in inputs), recipe.feeds.values()))  # noqa: B905  Python 3.9 too
    names: dict[str, list[str]] = {}
    for value in inputs:
        for axis, size in _open_axes(feeds[value.name], value):
            names.setdefault(size, []).append(_name(value, axis))
    return {
        "exporter": f"{recipe.exporter} {version(recipe.exporter)}",
        "shows": recipe.shows,
        "feeds": {
            name: {"shape": each.shape, "kind": each.kind, "dtype": np.dtype(each.dtype).name}
            for name, each in feeds.items()
        },
        "ranges": {name: [each.least, each.most, each.step] for name, each in recipe.ranges.items()},
        "names": {size: sorted(set(each)) for size, each in names.items()},
    }


def _open_axes(feed: Feed, value: onnx.ValueInfoProto) -> Iterator[tuple[int, str]]:
    for axis, size in enumerate(feed.shape):
        if isinstance(size, str):
            if value.type.tensor_type.shape.dim[axis].dim_value > 0:
                raise ValueError(f"input '{value.name}': the exporter fixed its axis {axis}, '{size}' of the recipe")
            yield axis, size


def _name(value: onnx.ValueInfoProto, axis: int) -> str:
    """What the compiler calls the length of an axis: its own name, or where it stands."""
    name = value.type.tensor_type.shape.dim[axis].dim_param
    is_name = any(map(str.isalpha, name)) and name.lower() not in ("none", "null", "unknown")
    return name if is_name else f"{value.name}_dim_{axis}"
