"""The dimensions of all tensors of a model for many sizes, learnt from runs at a few small ones."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from remat_cli.compiling.blame import in_steps, refusals_of
from remat_cli.compiling.prepare import Prepared, exact_settings, types_of
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.values.sizes import Dim, SizeFamily, SizeRange
from remat_cli.onnx_io.read.to_graph import INPUTS, to_graph
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import run_each
from remat_cli.splitting.loops.learn_dims import learn_dims

SMALL = (6, 9, 11, 16, 12, 13)  # above the least sizes, with all rests of division by two, three and four


def dims_of_all(
    prepared: Prepared, path: Path, family: SizeFamily, known: Mapping[str, tuple[Dim, ...]] = MappingProxyType({})
) -> dict[str, tuple[Dim, ...]]:
    """The dimensions of every tensor for all sizes, learnt from runs at small sizes, right at the largest.

    Those that are `known` need not be learnt. Of those that are the same for all sizes each is written as the first.

    Raises:
        ModelError: a dimension follows no rule that remat knows.
        RuntimeFailure: the model does not run at a small size.
    """
    seen = [(dict(prepared.conditions.dims), prepared.graph)]
    sizes = [{**prepared.conditions.dims, **small} for small in small_sizes(family)]
    seen += zip(sizes, _graphs_at(prepared, path, sizes), strict=True)
    shapes = [(sizes, {tensor.name: tensor.shape for tensor in graph.tensors}) for sizes, graph in seen]
    return family.unified(learn_dims(prepared.reference, prepared.graph, shapes, known))


def small_sizes(family: SizeFamily) -> list[dict[str, int]]:
    """A few small sizes: each dimension changes alone, all together, and each is odd and even."""
    ranges = family.ranges
    first = {each.name: _near(each, at) for at, each in enumerate(ranges)}
    found = [first]
    found += [{**first, each.name: _near(each, at + more)} for at, each in enumerate(ranges) for more in range(1, 4)]
    found.append({each.name: _near(each, at + 2) for at, each in enumerate(ranges)})
    distinct = {tuple(sorted(sizes.items())): sizes for sizes in found}
    return [sizes for sizes in distinct.values() if family.admits({**family.fixed, **sizes})]


def _near(each: SizeRange, at: int) -> int:
    """A size a little above the least; of few sizes, one after another."""
    above = SMALL[at % len(SMALL)] if max(SMALL) < len(each.sizes) else at
    return each.sizes[above % len(each.sizes)]


def _graphs_at(prepared: Prepared, path: Path, all_sizes: list[dict[str, int]]) -> Iterator[Graph]:
    """The graphs of a model as it runs at other sizes, all in one session.

    Raises:
        RuntimeFailure: it does not run.
    """
    inputs = [prepared.source.inputs_at(sizes) for sizes in all_sizes]
    feeds = (make_feeds(each, prepared.conditions.seed) for each in inputs)

    def told(number: int) -> AbstractContextManager[None]:
        sizes = ", ".join(f"{name}={size}" for name, size in all_sizes[number].items())
        doing = f"ONNX Runtime fails to run at {sizes}"
        return refusals_of(prepared.source.path, doing, in_steps(prepared.conditions.family))

    seen = run_each(path, feeds, exact_settings(prepared.conditions), told)
    for each, types in zip(inputs, seen, strict=True):
        yield to_graph(prepared.reference, types | {INPUTS: types_of(each)})
