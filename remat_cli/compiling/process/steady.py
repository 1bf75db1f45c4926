"""What the runtime knows of a written model's tensors, as it is written and in the branch of the steady form."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.core.values.conditions import Conditions
from remat_cli.onnx_io.read.interface import inner_uses, weight_uses
from remat_cli.onnx_io.read.to_graph import known_kind
from remat_cli.onnx_io.sizes.free_shapes import Dims, dims_at_load
from remat_cli.onnx_io.write.opset import raise_opset
from remat_cli.onnx_io.write.rewrite import Rewritten
from remat_cli.onnx_io.write.steady import OLDEST_OPSET, as_in_branch, can_be_steady, waiting_input
from remat_cli.ort_rules.forms import NO_BALLAST
from remat_cli.ort_rules.packing import PackingRules
from remat_cli.ort_rules.reuse import Kind
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm
from remat_cli.runtime.sessions.loading import shapes_at_load

EARLY_SHARE = 1 / 16  # of the peak, that outputs may take which are made before the graph's first op


def kinds_of(graph: Graph, known: Mapping[str, Dims]) -> tuple[Kind, ...]:
    """What is known of the shape of each tensor, as the runtime compares it with others."""
    return tuple(known_kind(tensor, known) for tensor in graph.tensors)


def no_kinds(graph: Graph) -> tuple[Kind, ...]:
    """As many kinds as there are tensors, where the runtime knows no shape."""
    return (None,) * len(graph.tensors)


@dataclass(frozen=True)
class Inside:
    """A written model as it is in the branch of the steady form: what the runtime knows of shapes there.

    `model` is the written one, under the oldest operator set that has sequences if it was under an older one. `early`
    are the outputs that are made before the branch begins, with their bytes.
    """

    model: Any
    known: Mapping[str, Dims]
    early: Mapping[str, int]
    rank: int
    form: SteadyForm = NO_BALLAST

    @property
    def branch(self) -> SteadyBranch:
        """What the form adds depends on."""
        return SteadyBranch(self.rank, tuple(self.early.values()))


def known_dims(model: Any, graph: Graph, conditions: Conditions) -> dict[str, Dims]:
    """What the runtime knows of the shape of every value before a run; `graph` is that of the model."""
    types = {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors}
    return dims_at_load(model, types, partial(shapes_at_load, custom_ops=conditions.custom_ops))


def inside(rewritten: Rewritten, graph: Graph, conditions: Conditions) -> Inside | None:
    """What the runtime knows in the branch of the steady form; None where the form is not wanted or not possible."""
    model = raise_opset(rewritten.model, OLDEST_OPSET, graph) if conditions.may_be_steady else None
    if model is None or not can_be_steady(model):
        return None
    return _inside(model, graph, conditions, NO_BALLAST)


def with_early_outputs(found: Inside, graph: Graph, conditions: Conditions, most_bytes: int) -> Inside | None:
    """The same where small outputs, of so many bytes together, are made before the branch begins; None: there are none.

    They are what a training step hands back of its weights: made between tensors that come and go, and held until the
    next run has ended, they would leave that one other gaps than the run before had, and so on from run to run.
    """
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    late = [
        value.name or ""
        for value in found.model.graph.outputs
        if value.name not in found.early
        and value.shape is not None
        and all(isinstance(dim, int) for dim in value.shape)
    ]
    smallest_first = sorted(late, key=lambda name: sizes[name])
    fit = sum(total <= most_bytes for total in itertools.accumulate(sizes[name] for name in smallest_first))
    chosen = frozenset(smallest_first[:fit])
    if not chosen:
        return None
    return _inside(found.model, graph, conditions, SteadyForm(early=tuple(name for name in late if name in chosen)))


def _inside(model: Any, graph: Graph, conditions: Conditions, form: SteadyForm) -> Inside:
    known = known_dims(as_in_branch(model, form.early), graph, conditions)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    outputs = [value.name or "" for value in model.graph.outputs]
    early = {
        name: sizes[name] for name in outputs if name in known and all(isinstance(dim, int) for dim in known[name])
    }
    return Inside(model, known, early, waiting_rank(model), form)


def packed_in_bodies(model: Any, packing: PackingRules) -> frozenset[str]:
    """Names of weights that kernels right inside bodies of the main graph's ops pack."""
    uses = dict(zip(model.graph.initializers, weight_uses(model), strict=True))
    return frozenset(
        name
        for name, readers in inner_uses(model).items()
        if any(packing.packs_weight(reader, uses[name].dtype, uses[name].shape) for reader in readers)
    )


def waiting_rank(model: Any) -> int:
    """How many dimensions the input has whose readers wait for the sequence of the form; 0 where there is none."""
    waiting = waiting_input(model)
    return 0 if waiting is None else len(waiting.shape or ())
