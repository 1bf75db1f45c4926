"""From a model to stages on several devices: profiled, laid along a line, planned, judged, written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from remat_cli.base import progress as stages
from remat_cli.base.errors import ModelError
from remat_cli.base.progress import Progress
from remat_cli.compiling.prepare import Prepared, prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.core.values.conditions import Conditions
from remat_cli.onnx_io.read.load import STATE_FILE_KEY, DimBindings, inputs_of, load, outputs_of
from remat_cli.onnx_io.read.told_inputs import told_inputs
from remat_cli.pipelines.plan.chain import PeriodicSchedule, PipelineChain
from remat_cli.pipelines.plan.judge import PipelineRun
from remat_cli.pipelines.plan.line import Line, StepLinks, lay_out, merge_places
from remat_cli.pipelines.plan.schedule_file import (
    SCHEDULE_FILE,
    DeviceLoad,
    LinkLoad,
    PipelineBounds,
    PipelineFile,
    PipelineRequest,
    SessionFile,
    StageFile,
    device_loads,
    link_loads,
)
from remat_cli.pipelines.plan.stage_parts import (
    LineCosts,
    Parts,
    StageParts,
    chain_of,
    least_place_bytes,
    place_times,
    stages_between,
)
from remat_cli.pipelines.run.local import PipelineRunRequest, run_locally
from remat_cli.pipelines.solve.integer_program import ProgramEffort
from remat_cli.pipelines.solve.planner import (
    RECOMPUTING,
    PipelineQuestion,
    blocks_of,
    least_bytes,
    lower_bounds,
    neediest_layer,
    plan_stages,
)
from remat_cli.pipelines.write.stage_models import write_stages
from remat_cli.pipelines.write.step_pieces import StepPieces, is_step, split_step, update_model
from remat_cli.runtime.sessions.array_file import read_arrays, write_arrays

MOST_BLOCKS = 48
FINE_BLOCKS = 192
MOST_TRIES = 10
SHARES = 20
FINEST_PLACES = 300


@dataclass(frozen=True)
class LaidModel:
    """A model along a line, with what its ops cost; `pieces` of a training step."""

    prepared: Prepared
    pieces: StepPieces | None
    line: Line
    costs: LineCosts

    def chain(self, ends: Sequence[int], again: Parts = ()) -> PipelineChain:
        """The chain of the stages that end there, of which parts may run again."""
        return chain_of(self.line, ends, self.costs, again)

    def op_at(self, place: int) -> str:
        """Name of the op at a place."""
        return self.prepared.graph.ops[self.line.forward[place]].name


@dataclass(frozen=True)
class PipelineShortage:
    """No plan fits; `needed_bytes` is a lower bound of any plan where `is_proved`, else of plans that were looked at.

    `first_op` and `last_op` are the ends of the part of the model that needs most by itself.
    """

    needed_bytes: int
    is_proved: bool
    first_op: str
    last_op: str
    alone_bytes: int
    is_impossible: bool


@dataclass(frozen=True)
class PlannedPipeline:
    """Stages with their judged schedule."""

    laid: LaidModel
    ends: tuple[int, ...]
    chain: PipelineChain
    schedule: PeriodicSchedule
    run: PipelineRun
    loads: tuple[DeviceLoad, ...]
    bounds: PipelineBounds
    parts: tuple[StageParts, ...]

    @property
    def links(self) -> tuple[LinkLoad, ...]:
        """What crosses between devices."""
        return link_loads(self.chain, self.schedule)


def lay(path: Path, conditions: Conditions, bytes_per_second: float, work: Path, progress: Progress) -> LaidModel:
    """Read, optimise and profile a model, and lay it along a line; of a training step the part that is run each time.

    Raises:
        InputError: the model cannot be used.
        RuntimeFailure: ONNX Runtime refuses it.
    """
    bindings = DimBindings(conditions.dims, conditions.input_shapes, summed=conditions.summed)
    source = load(path, bindings, has_custom_ops=bool(conditions.custom_ops))
    pieces, links, remembered = None, StepLinks(), 0
    if is_step(source.ir):
        pieces = split_step(source)
        links = pieces.links
        if pieces.first is not None:  # what gives gradients begins with the state of the step
            pieces.gradients.metadata_props.add(key=STATE_FILE_KEY, value=str(pieces.first.resolve()))
        path, conditions = work / "gradients.onnx", msgspec.structs.replace(conditions, dims={}, input_shapes={})
        path.write_bytes(pieces.gradients.SerializeToString())
        read = {value.name for value in pieces.gradients.graph.input}
        remembered = max((len(set(group.states) - read) for group in pieces.links.groups), default=0)
    prepared = prepare(path, conditions, work, progress)
    made = {tensor.name for tensor in prepared.graph.tensors if tensor.producer is not None}
    if loose := [name for name in outputs_of(prepared.source.ir) if name not in made]:
        raise ModelError(f"output '{loose[0]}' is an input or a constant, so no stage makes it: leave it out")
    platform = profile_model(prepared, conditions, progress)
    costs = LineCosts(
        times_ns=tuple(cost.time_ns for cost in platform.profile.ops),
        workspace_bytes=tuple(cost.workspace_bytes for cost in platform.profile.ops),
        bytes_per_ns=bytes_per_second / 1e9,
        states_per_weight=remembered,
    )
    return LaidModel(prepared, pieces, lay_out(prepared.graph, links), costs)


def plan_pipeline(
    laid: LaidModel, request: PipelineRequest, effort: ProgramEffort, progress: Progress
) -> PlannedPipeline | PipelineShortage:
    """Plan the stages: what a plan of blocks needs beyond the memory once its stages are whole is kept free next time.

    Raises:
        ConfigError: the method cannot take the model.
    """
    progress.stage(stages.SOLVING)
    line = laid.line
    loads = place_times(line, laid.costs.times_ns)
    for most in (MOST_BLOCKS, FINE_BLOCKS):
        ends = merge_places(line, loads, blocks_of(request.method, most))
        found = _planned(laid, ends, request, effort)
        if found is not None:
            return found
        if len(ends) < most:
            break
    # Why nothing fits, by the finest chain that can be looked at.
    ends, is_whole = _finest(laid)
    chain = laid.chain(ends)
    layer, alone = neediest_layer(chain)
    bound = _bounds(laid, request, None).memory_bytes
    contiguous = least_bytes(chain, request.devices)
    is_proved = bound > request.memory_bytes
    is_impossible = is_proved or (request.method == "1f1b-star" and is_whole and contiguous > request.memory_bytes)
    first = ends[layer - 1] if layer else 0
    ends_of = laid.op_at(first), laid.op_at(ends[layer] - 1)
    return PipelineShortage(bound if is_proved else contiguous, is_proved, *ends_of, alone, is_impossible)


def _planned(
    laid: LaidModel, ends: tuple[int, ...], request: PipelineRequest, effort: ProgramEffort
) -> PlannedPipeline | None:
    """Plan stages that are made of these blocks; None where none is found that fits."""
    chain, memory, bounds = laid.chain(ends), request.memory_bytes, (0, *ends)
    for _ in range(MOST_TRIES):
        plan = plan_stages(PipelineQuestion(chain, request.devices, memory, effort), request.method)
        if plan.schedule is None:
            break
        last = tuple(ends[stage.last - 1] for stage in plan.stages)
        # The plan counts layers that run again from 1; here they are ranges of places.
        again = tuple(tuple((bounds[first - 1], bounds[end]) for first, end in parts) for parts in plan.again)
        whole = laid.chain(last, again)
        run, loads = device_loads(whole, plan.schedule)
        excess = max(run.peak_bytes.values()) - request.memory_bytes
        if excess <= 0:
            proved = _bounds(laid, request, plan.bound if memory == request.memory_bytes else None)
            parts = stages_between(laid.line, last, again)
            return PlannedPipeline(laid, last, whole, plan.schedule, run, loads, proved, parts)
        memory -= min(excess, request.memory_bytes // SHARES)  # another plan may miss by less
    return None


def _finest(laid: LaidModel) -> tuple[tuple[int, ...], bool]:
    """Ends of the shortest stages that can be looked at, and whether there are none shorter."""
    places = len(laid.line.forward)
    if places <= FINEST_PLACES:
        return tuple(cut for cut in range(1, places + 1) if cut not in laid.line.glued), True
    return merge_places(laid.line, place_times(laid.line, laid.costs.times_ns), FINEST_PLACES), False


def _bounds(laid: LaidModel, request: PipelineRequest, method_ns: int | None) -> PipelineBounds:
    """What no schedule of any stages can beat; where stages may recompute, they may keep nothing."""
    loads = place_times(laid.line, laid.costs.times_ns)
    least_ns = max(*loads, -(-sum(loads) // request.devices))
    ends, is_whole = _finest(laid)
    chain = laid.chain(ends)
    if laid.line.has_gradients and request.method in RECOMPUTING:
        least = max(*least_place_bytes(laid.line, laid.costs), -(-sum(chain.weights) // request.devices))
        return PipelineBounds(least_ns, least, method_ns)
    shared = -(-sum(map(sum, zip(chain.weights, chain.saved_bytes, strict=True))) // request.devices)
    return PipelineBounds(least_ns, lower_bounds(chain, request.devices)[1] if is_whole else shared, method_ns)


def write_pipeline(planned: PlannedPipeline, request: PipelineRequest, model: Path, folder: Path) -> PipelineFile:
    """Write every stage, its first state, and the schedule."""
    laid = planned.laid
    prepared, pieces = laid.prepared, laid.pieces
    sessions = write_stages(prepared.reference, prepared.graph, planned.parts, folder)
    first = {} if pieces is None or pieces.first is None else read_arrays(pieces.first)
    records = []
    for number, (part, device, files) in enumerate(
        zip(planned.parts, planned.schedule.devices, sessions, strict=True), 1
    ):
        record = _record(laid, part, files, device)
        if pieces is not None:
            record = _trained(record, pieces, first, number, folder)
        records.append(record)
    told = told_inputs(prepared.source.ir)
    if told:
        write_arrays(folder / "told.npz", told)
    states = set() if pieces is None else {name for record in records for name in record.states}
    gradients = {name for record in records for name in (*record.gradients, *record.forward_states)}
    found = PipelineFile(
        model=str(model),
        model_sha256=prepared.source.sha256,
        is_training=pieces is not None,
        request=request,
        method=request.method,
        period_ns=float(planned.run.normalized_period),
        bounds=planned.bounds,
        inputs=tuple(spec for spec in inputs_of(prepared.source.ir) if spec.name not in states),
        outputs=tuple(name for name in outputs_of(prepared.source.ir) if name not in gradients),
        settings=() if pieces is None else pieces.settings,
        told="told.npz" if told else None,
        optimization=prepared.conditions.optimization,
        custom_ops=prepared.conditions.custom_ops,
        stages=tuple(records),
        devices=planned.loads,
        links=planned.links,
        chain=planned.chain,
        schedule=planned.schedule,
    )
    (folder / SCHEDULE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return found


def _record(laid: LaidModel, part: StageParts, files: tuple[SessionFile, SessionFile | None], device: int) -> StageFile:
    graph = laid.prepared.graph

    def names(tensors: Sequence[int]) -> tuple[str, ...]:
        return tuple(graph.tensors[tensor].name for tensor in tensors)

    forward, backward = files
    moving = {} if laid.pieces is None else laid.pieces.links.forward_states
    mine = {output: state for output, state in moving.items() if output in forward.makes}
    states = names(part.states)
    return StageFile(
        device=device,
        first_op=laid.op_at(part.first),
        last_op=laid.op_at(part.last - 1),
        ops=len(part.forward) + len(part.backward),
        again=sum(op not in laid.line.backward_ops for op in part.backward),
        forward=forward,
        backward=backward,
        arrives=names(part.arrives),
        leaves=names(part.leaves),
        returns=names(part.returns),
        goes_back=names(part.goes_back),
        kept=names(part.kept),
        fed=names(part.fed),
        weights=tuple(name for name in states if name not in mine.values()),
        states=states,
        gradients=names(part.gradients),
        forward_states=mine,
    )


def _trained(
    record: StageFile, pieces: StepPieces, first: Mapping[str, np.ndarray], number: int, folder: Path
) -> StageFile:
    """The stage with the slice of the step that updates its weights, and with a file of its first state."""
    if mine := [group for group in pieces.links.groups if group.gradients[0] in record.gradients]:
        moved = (*sorted(name for group in mine for name in group.states), *pieces.links.shared)
        model = update_model(pieces, moved)
        file = f"stage_{number}.update.onnx"
        (folder / file).write_bytes(model.SerializeToString(deterministic=True))
        reads = tuple(value.name for value in model.graph.input)
        makes = tuple(value.name for value in model.graph.output)
        record = msgspec.structs.replace(
            record,
            update=SessionFile(file, reads, makes),
            states=tuple(dict.fromkeys((*record.states, *moved))),
            next_of={state: pieces.next_of[state] for state in moved},
        )
    if missing := [name for name in record.states if name not in first]:
        raise ModelError(f"the step has no first value of '{missing[0]}': write it anew with `remat train`")
    if not record.states:
        return record
    file = f"stage_{number}.state.npz"
    write_arrays(folder / file, {name: first[name] for name in record.states})
    return msgspec.structs.replace(record, first=file)


def differing_output(planned: PlannedPipeline, written: PipelineFile, folder: Path) -> str | None:
    """Run the stages one after another in this process; the first output that is not the model's to the last bit.

    Raises:
        RuntimeFailure: ONNX Runtime refuses or fails to run a stage.
    """
    prepared = planned.laid.prepared
    settings = {name: np.array(0.0, np.float32) for name in written.settings}
    asked = PipelineRunRequest(1, 1, False, lambda batch: prepared.feeds, settings)
    without_update = msgspec.structs.replace(
        written, stages=tuple(msgspec.structs.replace(stage, update=None) for stage in written.stages)
    )
    wanted = prepared.outputs
    whole = msgspec.structs.replace(without_update, outputs=tuple(wanted))
    threads = prepared.conditions.intra_op_threads
    (block,) = run_locally(whole, folder, asked, threads)
    (given,) = block.given
    return next((name for name, array in wanted.items() if not _is_same(given.get(name), array)), None)


def _is_same(one: np.ndarray | None, other: np.ndarray) -> bool:
    if one is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool((one == other).all()) if one.dtype.kind == "O" else one.tobytes() == other.tobytes()
