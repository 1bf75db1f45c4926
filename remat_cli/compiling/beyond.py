"""A model whose largest sizes this machine cannot run whole: looked at where it can, and extrapolated from there.

Its tensors at the largest sizes follow from dimensions that runs at small ones show; what ops cost is extrapolated
from two sizes, linearly in the bytes that each reads and makes.
"""

import gc
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.processes import memory_limited, spare_memory_bytes
from remat_cli.base.progress import Event, Note, Progress
from remat_cli.base.units import format_bytes
from remat_cli.compiling.facts import ModelFacts
from remat_cli.compiling.learn.corrections import known_corrections, with_corrections
from remat_cli.compiling.optimise import digest_of, optimise
from remat_cli.compiling.original import Original
from remat_cli.compiling.prepare import (
    Prepared,
    Runnable,
    as_planned,
    prepare,
    read_model,
    types_of,
    with_free_sizes,
    written_interface,
)
from remat_cli.compiling.profile import profile_inside
from remat_cli.compiling.search.family_dims import dims_of_all, prepare_at_fullest
from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.family import told
from remat_cli.core.values.profile import DeviceSpec, OpCost, Profile
from remat_cli.core.values.sizes import SizeFamily
from remat_cli.onnx_io.read.interface import weight_uses
from remat_cli.onnx_io.read.load import inputs_of
from remat_cli.onnx_io.read.to_graph import INPUTS, op_signatures, to_graph
from remat_cli.runtime.sessions.error_text import lacks_memory

EXTRAPOLATED = (
    "this machine, of which a process may take {}, cannot run the model whole at {}: it was measured at {} and "
    "extrapolated from there, and its peak before and its time at the largest sizes are by prediction"
)
IN_A_RANGE = (
    "; this machine, of which a process may take {}, cannot run it whole: give its free sizes as a range, such as "
    "--dim {}, and it is planned from smaller ones"
)
FIXED = "; this machine, of which a process may take {}, cannot run it whole: compile it where there is more"


def prepare_at_any(
    path: Path,
    conditions: Conditions,
    work: Path,
    progress: Progress,
    known: Original | None = None,
    *,
    watches: bool = False,
) -> Prepared:
    """Prepare a model, also where this machine cannot run it whole at the largest of many sizes.

    Outputs of the original may be `known`; its process is watched where that is asked for, at one size.

    Raises:
        ModelError: the model or the inputs file cannot be used, ONNX Runtime refuses them, or how tensors depend on
            sizes follows no rule that remat knows.
        RuntimeFailure: the machine has too little memory, time or disk for them, at any size.
    """
    try:
        if conditions.family is None:
            return prepare(path, conditions, work, progress, known, watches=watches)
        return prepare_at_fullest(path, conditions, work, progress, known)
    except RuntimeFailure as failure:
        if not lacks_memory(failure):
            raise
        if conditions.family is None:
            # What there is for it, and what to do.
            size = format_bytes(spare_memory_bytes())
            longest = max(conditions.dims, key=lambda name: conditions.dims[name], default=None)
            advice = FIXED.format(size)
            if longest is not None:
                advice = IN_A_RANGE.format(size, f"{longest}=1..{conditions.dims[longest]}")
            raise RuntimeFailure(failure.before, failure.file, f"{failure.after}{advice}") from failure
        refused = RuntimeFailure(failure.before, failure.file, failure.after)
    gc.collect()  # what was fed at the largest sizes hangs on the failure, which is no longer needed
    runnable = _runnable(path, conditions, conditions.family, work, _without_notes(progress))
    if runnable is None:
        raise refused
    return _extrapolated(path, conditions, runnable, work, progress)


def _without_notes(progress: Progress) -> Progress:
    """Progress of a model that stands in for the one which is asked for: notes are told of that."""

    def tell(event: Event) -> None:
        if not isinstance(event, Note):
            progress.tell(event)

    return msgspec.structs.replace(progress, tell=tell)


def _runnable(
    path: Path, conditions: Conditions, family: SizeFamily, work: Path, progress: Progress
) -> Runnable | None:
    """The model at the first of ever smaller sizes that this machine runs whole, and at the next smaller ones.

    None where it runs at none.
    """
    found, failed = None, dict(conditions.dims)
    for sizes in _halved(family, conditions.dims):
        at = msgspec.structs.replace(conditions, dims=sizes, inputs=None, more_inputs=())
        try:
            prepared = prepare(path, at, Path(tempfile.mkdtemp(prefix="smaller_", dir=work)), progress)
        except RuntimeFailure as failure:
            if found is None and lacks_memory(failure):
                failed = sizes
                continue
            raise
        if found is not None:
            return Runnable(found, prepared, failed, spare_memory_bytes())
        found = prepared
    return None if found is None else Runnable(found, None, failed, spare_memory_bytes())


def _halved(family: SizeFamily, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """All named dimensions at ever smaller sizes of a family: half of what varies, a quarter, down to the least."""
    while True:
        smaller = {**sizes, **{each.name: each.down_from(sizes[each.name] // 2) for each in family.ranges}}
        if smaller == sizes or not family.admits(smaller):
            return
        yield smaller
        sizes = smaller


def _extrapolated(path: Path, conditions: Conditions, runnable: Runnable, work: Path, progress: Progress) -> Prepared:
    """The model at its largest sizes, of which everything but what it is fed follows from smaller ones."""
    near, family = runnable.at, conditions.family
    read = read_model(path, conditions)
    found = optimise(with_free_sizes(read.source, conditions), conditions, work, near.optimised_as)
    ports = written_interface(read.source, conditions)
    reference = as_planned(found.path, read.source.ir, ports, near.optimised_as)
    dims = dims_of_all(near, near.reference_path, family) if family is not None else {}
    types = {INPUTS: types_of(inputs_of(read.source.ir))}
    for node in reference.graph:
        seen = zip((value.name for value in node.outputs if value.name), near.facts.types[node.name], strict=True)
        types[node.name] = tuple(
            TensorType(kind.dtype, tuple(dim.at(conditions.dims) for dim in dims[name])) for name, kind in seen
        )
    graph = to_graph(reference, types)
    signatures = op_signatures(reference, graph, near.original.key)
    corrections = known_corrections(signatures, conditions)
    measured_at = [told(each.conditions.dims) for each in (near, runnable.smaller) if each is not None]
    note = EXTRAPOLATED.format(format_bytes(runnable.memory_bytes), told(conditions.dims), " and at ".join(measured_at))
    for each in (*near.notes, note):
        progress.note(each)
    return replace(
        near,
        conditions=conditions,
        source=read.source.typed_as(reference),
        reference=reference,
        reference_path=found.path,
        reference_sha256=digest_of(found, conditions, near.optimised_as),
        graph=with_corrections(graph, signatures, corrections),
        signatures=signatures,
        feeds=read.feeds,
        more_feeds=read.more_feeds,
        facts=ModelFacts(types, near.facts.packed_bytes),
        corrections=corrections,
        notes=(*near.notes, note),
        first_outputs=None,
        was_long=False,
        runnable=runnable,
    )


def extrapolated_profile(prepared: Prepared, runnable: Runnable, spec: DeviceSpec, progress: Progress) -> Profile:
    """What a model costs at sizes that this machine cannot run, from what it costs at two that it can.

    Each figure of an op grows linearly in the bytes that the op reads and makes, and is never below the measured one.
    What bodies of ops ask for one by one is known at the measured sizes only; their most is part of the workspace.

    Raises:
        RuntimeFailure: the model fails to run where it did before.
    """
    # The model at sizes that run here, with its costs, the larger first.
    measured, failures = [], []
    for each in (runnable.at, runnable.smaller):
        if each is None:
            continue
        try:
            with memory_limited(spare_memory_bytes()):
                measured.append((each, profile_inside(each, each.conditions, spec, progress)))
        except RuntimeFailure as failure:
            if not lacks_memory(failure):
                raise
            failures.append(failure)
    if not measured:
        raise failures[0]
    profile = measured[0][1]
    larger, smaller = [*(_Costs.of(each.graph, costs) for each, costs in measured), _Costs({}, {})][:2]
    ops = tuple(larger.grown(smaller, *each) for each in _touched_bytes(prepared.graph).items())
    before_ns, after_ns = (sum(cost.time_ns for cost in each) for each in (profile.ops, ops))
    uses = weight_uses(prepared.reference)
    return msgspec.structs.replace(
        profile,
        model_sha256=prepared.reference_sha256,
        ops=ops,
        weight_bytes=prepared.rules.packing.loaded_weight_bytes(prepared.graph, uses, profile.packed_bytes),
        input_bytes=prepared.graph.input_bytes,
        run_ns=None if profile.run_ns is None else profile.run_ns * after_ns // max(1, before_ns),
        bodies={},
        extrapolated_from=tuple(dict(each.conditions.dims) for each, _ in measured),
    )


@dataclass(frozen=True)
class _Costs:
    """What ops cost at some sizes, and how many bytes each reads and makes there, by name."""

    costs: Mapping[str, OpCost]
    touched: Mapping[str, int]

    @classmethod
    def of(cls, graph: Graph, profile: Profile) -> "_Costs":
        """Those of a measured model."""
        return cls({cost.name: cost for cost in profile.ops}, _touched_bytes(graph))

    def grown(self, smaller: "_Costs", name: str, bytes_: int) -> OpCost:
        """What an op costs that reads and makes more: on the line through the costs at smaller sizes and these."""
        cost, less = self.costs[name], smaller.costs.get(name, OpCost(name, 0))
        first, second = smaller.touched.get(name, 0), self.touched[name]
        steps = max(0, bytes_ - second) / (second - first) if second > first else 0
        return msgspec.structs.replace(
            cost,
            time_ns=cost.time_ns + round(steps * max(0, cost.time_ns - less.time_ns)),
            workspace_bytes=cost.workspace_bytes + round(steps * max(0, cost.workspace_bytes - less.workspace_bytes)),
        )


def _touched_bytes(graph: Graph) -> dict[str, int]:
    """How many bytes each op reads and makes, by name, in the order of the graph."""
    return {op.name: sum(graph.tensors[each].size_bytes for each in (*op.inputs, *op.outputs)) for op in graph.ops}
