"""A model optimised as before planning, its regions cut at random, and split models held against the whole one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import reject
from hypothesis import strategies as st

from remat_cli.core.schedule.floor import working_set_bytes
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.opset import lowered, opset_of, raise_opset
from remat_cli.splitting.tiles.build import FILL_SINCE, split_model
from remat_cli.splitting.tiles.estimate import Estimate, estimate
from remat_cli.splitting.tiles.steps import TiledRegion, region_steps
from remat_cli.splitting.tiles.tiling import Cutting, exit_axes, overwritten
from remat_cli.splitting.tiles.timeline import NeedyTimeline, TensorTimeline
from remat_cli.splitting.tiles.view import ModelView, view_model
from tests.helpers import free_problem, observe, optimise, to_bytes
from tests.splitting.random_models import Sample
from tests.splitting.sliced_op import block_size

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    """An optimised model and inputs for it."""

    view: ModelView
    reference: ir.Model
    feeds: Mapping[str, np.ndarray]

    @property
    def may_fill(self) -> bool:
        """Whether the model could be raised to the opset that has the op for it."""
        return self.view.model.graph.opset_imports[""] >= FILL_SINCE

    @cached_property
    def timeline(self) -> TensorTimeline:
        """Ops in baseline order, without workspace."""
        plan = baseline(free_problem(self.view.graph))
        return TensorTimeline(self.view, tuple(range(len(self.view.graph.ops))), plan.memory_bytes[0])

    @cached_property
    def needy(self) -> NeedyTimeline:
        """The same ops where nothing waits, without workspace."""
        problem = free_problem(self.view.graph)
        needed = tuple(working_set_bytes(problem, op) for op in problem.ops)
        return NeedyTimeline(self.view, needed, self.timeline.order)

    @cached_property
    def outputs(self) -> tuple[Arrays, Arrays]:
        """Of the whole model, under exact and under default options."""
        data = to_bytes(self.reference)
        return run_exact(data, self.feeds), run_default(data, self.feeds)

    def split(self, cuttings: Sequence[Cutting]) -> ir.Model | None:
        """The model with regions in tiles, None where one cannot be cut."""
        steps = [region_steps(self.view, cutting) for cutting in cuttings]
        if any(found is None for found in steps):
            return None
        regions = [TiledRegion(c.ops, found or ()) for c, found in zip(cuttings, steps, strict=True)]
        return self.lean(split_model(self.view, self.timeline.order, regions))

    def lean(self, split: ir.Model) -> ir.Model:
        """A split model under the opset of the whole one, unless it needs the newer one; as `compile` has it."""
        return lowered(split, opset_of(self.reference))


def make_case(sample: Sample) -> Case:
    """Optimise a model until nothing changes, and see its shapes in one run."""
    reference = optimised(sample.model)
    graph = to_graph(reference, observe(reference, sample.feeds))
    made = {tensor.name: tensor.shape for tensor in graph.tensors if tensor.kept}
    declared = {value.name: value.shape for value in reference.graph.outputs}
    if any(declared[name] != shape for name, shape in made.items()):
        reject()  # pooling that rounds up: the runtime decides
    block = block_size() if uses_blocks(reference) else 1
    raised = raise_opset(reference, FILL_SINCE, graph)
    whole = Case(view_model(reference, graph, block), reference, sample.feeds)
    if raised is None or not _is_same(whole, raised):  # kernels of another opset may give other bits
        return whole
    return Case(view_model(raised, graph, block), reference, sample.feeds)


def _is_same(case: Case, model: ir.Model) -> bool:
    data = to_bytes(model)
    found = (run_exact(data, case.feeds), run_default(data, case.feeds))
    pairs = (
        (a, b) for ones, others in zip(found, case.outputs, strict=True) for a, b in zip(ones, others, strict=True)
    )
    return all(one.shape == other.shape and one.tobytes() == other.tobytes() for one, other in pairs)


def optimised(model: onnx.ModelProto | ir.Model) -> ir.Model:
    """What the runtime makes of a model; models that it cannot optimise twice are not looked at.

    Its shapes of blocked pooling that rounds up contradict themselves at times.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            return optimise(model, Path(folder))
        except ort.capi.onnxruntime_pybind11_state.Fail as error:
            if "ShapeInferenceError" in str(error):
                reject()
            raise


def run_exact(data: bytes, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Just the file, one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_reuse = options.enable_mem_pattern = False
    options.intra_op_num_threads = 1
    return _run(data, feeds, options)


def run_default(data: bytes, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """With everything the runtime does by default, two threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    return _run(data, feeds, options)


def run_in(data: bytes, feeds: Mapping[str, np.ndarray], threads: int, is_exact: bool) -> Arrays:
    """With so many threads, and the ops of the file or what the runtime makes of them."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if is_exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _run(data, feeds, options)


def _run(data: bytes, feeds: Mapping[str, np.ndarray], options: ort.SessionOptions) -> Arrays:
    options.log_severity_level = 4
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    outputs: Arrays = session.run(None, dict(feeds))
    return outputs


@st.composite
def cuttings(draw: st.DrawFn, case: Case, most_tiles: int = 8) -> Cutting | None:
    """Consecutive ops with an axis, a tile count, and halos computed again, kept, or kept in part; or None."""
    count = len(case.timeline.order)
    start = draw(st.integers(0, count - 1))
    return draw(cutting_of(case, start, draw(st.integers(start + 1, count)), most_tiles))


@st.composite
def cutting_of(draw: st.DrawFn, case: Case, start: int, stop: int, most_tiles: int = 8) -> Cutting | None:
    """A cut of the ops at positions `start` to `stop` along any axis of their first exit; None where there is none."""
    view, ops = case.view, case.timeline.order[start:stop]
    exits = case.timeline.surroundings(start, stop).exits
    shape = view.tensors[exits[0]].shape if exits else ()
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    found = exit_axes(view, ops, exits, draw(st.sampled_from(wide))) if wide else None
    if found is None:
        return None
    least = min(view.tensors[name].shape[axis] for name, axis in found.items())
    tiles = draw(st.integers(2, max(2, min(least, most_tiles))))
    inside = sorted(name for op in ops for name in view.makes[op] if name)
    kept = draw(st.one_of(st.just(()), st.just(inside), st.lists(st.sampled_from(inside), unique=True)))
    fillable = [name for name in exits if case.may_fill and not view.tensors[name].kept]
    fills = draw(st.lists(st.sampled_from(fillable), unique=True)) if fillable else ()
    cutting = Cutting(ops, tuple(found.items()), tiles, frozenset(kept), frozenset(fills))
    dying = case.timeline.surroundings(start, stop).dying
    return replace(cutting, over=overwritten(view, cutting, dying)) if draw(st.booleans()) else cutting


def check_same(case: Case, split: ir.Model, label: object) -> None:
    """Outputs of a split model are those of the whole one bit for bit, under exact and under default options."""
    data = to_bytes(split)
    for run, wanted in zip((run_exact, run_default), case.outputs, strict=True):
        for one, other in zip(run(data, case.feeds), wanted, strict=True):
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes(), f"{run.__name__} differs: {label}"


def describe(case: Case, cutting: Cutting) -> str:
    """A cut in words, for messages."""
    ops = [f"{case.view.graph.ops[op].name}:{case.view.graph.ops[op].op_type}" for op in cutting.ops]
    return (
        f"{ops} into {cutting.tiles} along {cutting.exits}, kept {sorted(cutting.kept)}, "
        f"filled {sorted(cutting.fills)}, over {cutting.over}"
    )


def judged_peak_bytes(case: Case, split: ir.Model, cutting: Cutting) -> int:
    """Most bytes held while the region's new ops run in file order, less what lives on beside the region."""
    graph = to_graph(split, observe(split, case.feeds))
    number = {op.name: index for index, op in enumerate(graph.ops)}
    names = [node.name or "" for node in split.graph]
    plan = simulate(free_problem(graph), Schedule.of_ops([number[name] for name in names]))
    whole = {op.name for op in case.view.graph.ops}
    inside = [held for name, held in zip(names, plan.memory_bytes[0], strict=True) if name not in whole]
    around = case.timeline.surroundings(cutting.ops[0], cutting.ops[-1] + 1)
    return max(inside) - around.context_bytes


def estimated(case: Case, cutting: Cutting) -> Estimate:
    """What the quick estimate says of a region, every op taken to cost nothing."""
    steps = region_steps(case.view, cutting)
    assert steps is not None
    costs = [OpCost(op.name, 0) for op in case.view.graph.ops]
    around = case.timeline.surroundings(cutting.ops[0], cutting.ops[-1] + 1)
    return estimate(case.view, costs, steps, around.dying, cutting.ops)
