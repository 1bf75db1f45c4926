"""Models of many sizes: the sizes that are planned, and dimensions of all tensors, learnt from runs at small ones."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.blame import in_steps, refusals_of
from remat_cli.compiling.original import Original
from remat_cli.compiling.prepare import Prepared, exact_settings, prepare, types_of
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.family import told
from remat_cli.core.values.profile import without_costs
from remat_cli.core.values.sizes import Dim, SizeFamily, SizeRange
from remat_cli.core.values.verification import OneModelSeen
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
    shapes = [(sizes, graph.shapes) for sizes, graph in seen]
    return family.unified(learn_dims(prepared.reference, prepared.graph, shapes, known))


def fullest_sizes(prepared: Prepared) -> dict[str, int]:
    """All named dimensions at the sizes at which a model holds the most, of the largest of its family.

    Limits leave several largest sizes, and what is held at each depends on the model: it is run once at each.

    Raises:
        RuntimeFailure: the model does not run at one of them.
    """
    dims, family = dict(prepared.conditions.dims), prepared.conditions.family
    corners = () if family is None else family.corners
    others = [{**dims, **corner} for corner in corners if not corner.items() <= dims.items()]
    if not others:
        return dims
    graphs = (prepared.graph, *_graphs_at(prepared, prepared.reference_path, others))
    held = [
        baseline(make_problem(graph, without_costs(op.name for op in graph.ops))).peak + graph.input_bytes
        for graph in graphs
    ]
    return [dims, *others][held.index(max(held))]


def fuller_sizes(conditions: Conditions, seen: object) -> dict[str, int] | None:
    """Other largest sizes at which runs of a plan held the most, and more than was promised; None where none did."""
    if (
        conditions.family is None
        or not isinstance(seen, OneModelSeen)
        or not seen.family
        or not seen.family.excess_bytes
    ):
        return None
    sizes = {**conditions.dims, **seen.family.largest.sizes}
    is_corner = any(corner.items() <= sizes.items() for corner in conditions.family.corners)
    return sizes if is_corner and sizes != conditions.dims else None


def prepare_at_fullest(
    path: Path, conditions: Conditions, work: Path, progress: Progress, known: Original | None = None
) -> Prepared:
    """Prepare a model, of many sizes at those at which it holds the most, unless others than the first are given.

    Raises:
        ModelError: the model or the inputs file cannot be used, or ONNX Runtime refuses them.
        RuntimeFailure: the machine has too little memory, time or disk for them.
    """
    first = prepare(path, conditions, work, progress, known)
    is_usual = conditions.family is not None and conditions.family.corners[0].items() <= conditions.dims.items()
    sizes = fullest_sizes(first) if is_usual and conditions.inputs is None else conditions.dims
    if sizes == conditions.dims:
        return first
    fuller = msgspec.structs.replace(conditions, dims=sizes)
    return prepare(path, fuller, Path(tempfile.mkdtemp(prefix="fullest_", dir=work)), progress)


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

    def blamed(number: int) -> AbstractContextManager[None]:
        doing = f"ONNX Runtime fails to run at {told(all_sizes[number])}"
        return refusals_of(prepared.source.path, doing, in_steps(prepared.conditions.family))

    seen = run_each(path, feeds, exact_settings(prepared.conditions), blamed)
    for each, types in zip(inputs, seen, strict=True):
        yield to_graph(prepared.reference, types | {INPUTS: types_of(each)})
