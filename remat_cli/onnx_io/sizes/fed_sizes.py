"""What the user's own inputs say of the sizes that a model leaves open; several of them propose ranges."""

import math
import shlex
from collections.abc import Mapping, Sequence

from remat_cli.base.errors import ModelError
from remat_cli.core.values.sizes import SizeRange

Declared = Sequence[int | str | None] | None
Shapes = Mapping[str, tuple[int, ...]]


def fed_sizes(declared: Mapping[str, Declared], fed: Mapping[str, Shapes], bound: Mapping[str, int]) -> dict[str, int]:
    """The sizes of named dimensions that are not `bound` yet, as files of inputs have them, by the shapes in each.

    Raises:
        ModelError: a file contradicts itself, the model or what is bound; or files have different sizes: for which
            ranges they ask is told.
    """
    all_sizes = [_sizes_in(file, shapes, declared, bound) for file, shapes in fed.items()]
    names = dict.fromkeys(name for sizes in all_sizes for name in sizes)
    seen = {name: sorted({sizes[name] for sizes in all_sizes if name in sizes}) for name in names}
    if any(len(sizes) > 1 for sizes in seen.values()):
        words = " ".join(f"--dim {shlex.quote(str(proposed(name, sizes)))}" for name, sizes in seen.items())
        raise ModelError(f"inputs files {', '.join(fed)} have different sizes: in place of --inputs give {words}")
    for name in declared:
        found = {file: shapes[name] for file, shapes in fed.items() if name in shapes}
        if len(set(found.values())) > 1:
            told = " and ".join(f"{list(shape)} in {file}" for file, shape in found.items())
            raise ModelError(f"input '{name}' has the shapes {told}, and what differs has no name: give one file")
    return {name: sizes[0] for name, sizes in seen.items()}


def proposed(name: str, sizes: Sequence[int]) -> SizeRange | str:
    """A range that has all these sizes, in the largest steps of which all are multiples."""
    low, high = min(sizes), max(sizes)
    return f"{name}={low}" if low == high else SizeRange(name, low, high, math.gcd(*sizes))


def with_fed(shape: list[int | str | None] | None, fed: tuple[int, ...] | None) -> list[int | str | None] | None:
    """A shape in which sizes without a name are those that are fed."""
    if fed is None:
        return shape
    if shape is None:
        return list(fed)
    return [size if dim is None else dim for dim, size in zip(shape, fed, strict=True)]


def _sizes_in(file: str, shapes: Shapes, declared: Mapping[str, Declared], bound: Mapping[str, int]) -> dict[str, int]:
    """The sizes of named dimensions in one file that are not bound yet."""
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        dims = declared.get(name)
        if dims is None:
            continue
        if len(dims) != len(shape):
            raise ModelError(
                f"inputs file {file}: '{name}' has shape {list(shape)}, and the model declares {len(dims)} dimensions"
            )
        for dim, size in zip(dims, shape, strict=True):
            wanted = bound.get(dim, found.setdefault(dim, size)) if isinstance(dim, str) else size
            if wanted != size:
                whose = "by --dim or --input-shape" if dim in bound else "by another one"
                raise ModelError(
                    f"inputs file {file}: '{name}' has shape {list(shape)}, and dimension '{dim}' is {wanted} {whose}"
                )
    return {name: size for name, size in found.items() if name not in bound}
