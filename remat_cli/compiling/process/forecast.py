"""What of a file decides what a process holds for it, read from the model: for the forecast of plans, and of models."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel, WrittenModel
from remat_cli.compiling.prepare import Prepared, op_threads
from remat_cli.compiling.process.steady import kinds_of, known_dims, no_kinds, packed_in_bodies, waiting_rank
from remat_cli.core.schedule.graph import Graph, Op, without_buffers
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.promises import ProcessTerm
from remat_cli.core.values.resident import WeightFiles
from remat_cli.onnx_io.read.default_order import subgraphs
from remat_cli.onnx_io.read.interface import inner_uses, weight_uses
from remat_cli.onnx_io.write.arena_copies import arena_copies
from remat_cli.onnx_io.write.kernel_calls import heaps_of
from remat_cli.onnx_io.write.primers import can_be_primed
from remat_cli.onnx_io.write.save import SMALL_BYTES, has_data_file
from remat_cli.onnx_io.write.steady import INLINE_BYTES
from remat_cli.ort_rules.arena_copies import ArenaCopy
from remat_cli.ort_rules.forecast import FileFacts, Forecast, Judged, Steady, predict
from remat_cli.ort_rules.heaps.heap import LARGEST_THRESHOLD_BYTES
from remat_cli.ort_rules.loading import LoadedWeight
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.ort_rules.steady import SteadyBranch

LEAST_COPIES_BYTES = 2**22  # of packed weights: fewer are not worth a longer file
FORM_OPS = 12  # of the steady form, about


def forecast_of(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> Forecast:
    """What a process holds that loads the written model and runs it with default options."""
    weights = _written_weights(written, prepared, files)
    file = FileFacts(
        weights=tuple(weights),
        is_mapped=has_data_file(written.rewritten.model, files.external),
        is_primed=_wants_primers(weights),
        form_ops=0 if written.form is None else FORM_OPS,
        levels=tuple(_levels(prepared.reference.graph)),
        inputs_bytes=_inputs_bytes(prepared),
    )
    return predict(written.sessions.judged, file, prepared.runtime)


def _inputs_bytes(prepared: Prepared) -> tuple[int, ...]:
    return tuple(tensor.size_bytes for tensor in prepared.graph.tensors if tensor.producer is None)


def _levels(graph: Any, level: int = 1) -> Iterator[int]:
    """Of each op in bodies of others, how many of them lie around it."""
    for body in (body for node in graph for body in subgraphs(node)):
        yield from itertools.repeat(level, len(body))
        yield from _levels(body, level + 1)


def saves_packed(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> bool:
    """Whether the model's file is to hold its weights as kernels pack them, too."""
    return any(weight.is_saved for weight in _written_weights(written, prepared, files))


def kept_in_branch_bytes(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> int:
    """Bytes of the weights in the model file that the branch of the steady form has itself."""
    weights = _written_weights(written, prepared, files)
    return sum(weight.inside_bytes for weight in weights if weight.is_of_branch)


def wants_primers(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> bool:
    """Whether chance would decide how many of the copies stay on the heap that a session makes and drops."""
    return _wants_primers(_written_weights(written, prepared, files))


def _wants_primers(weights: Iterable[LoadedWeight]) -> bool:
    return any(weight.is_saved and weight.copy_bytes < LARGEST_THRESHOLD_BYTES for weight in weights)


def _written_weights(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> list[LoadedWeight]:
    """The weights of a written model as they will be in its files."""
    is_mapped, is_steady = has_data_file(written.rewritten.model, files.external), written.form is not None
    copies = arena_copies(written.rewritten.model, prepared.rules.packing.in_arena)
    weights = list(_loaded_weights(written.graph, prepared, copies, is_steady=is_steady, is_mapped=is_mapped))
    is_packed = files.packed and _is_alone(prepared) and can_be_primed(written.rewritten.model)
    copies_bytes = sum(weight.packed_bytes for weight in weights if weight.is_saved)
    return weights if is_packed and copies_bytes >= LEAST_COPIES_BYTES else _without_saved_copies(weights)


def _without_saved_copies(weights: Iterable[LoadedWeight]) -> list[LoadedWeight]:
    return [msgspec.structs.replace(weight, is_saved=False) for weight in weights]


def model_forecast(prepared: Prepared, profile: Profile, runtime: Runtime | None = None) -> Forecast:
    """What a process holds that loads a model as it is, optimised beforehand, and runs it with default options.

    `runtime` is the one that loads it; None: the one that is installed here.
    """
    form, copies = prepared.source.form, arena_copies(prepared.reference, prepared.rules.packing.in_arena)
    is_mapped = bool(prepared.source.data_files)
    # In its own order as the judge sees it; what the form of one of ours makes beforehand is no buffer.
    graph, form, sizes = prepared.graph, prepared.source.form, tuple(copy.bytes for copy in copies)
    heaps = heaps_of(prepared.reference, graph, op_threads(prepared.conditions), prepared.rules.loading)
    if form is None:
        plan = baseline(make_problem(graph, profile))
        kinds = kinds_of(graph, known_dims(prepared.reference, graph, prepared.conditions))
        judged = Judged(graph, plan, profile.fixed_bytes, kinds, sizes, bodies=profile.bodies, heaps=heaps)
    else:
        all_bytes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
        early = {name: all_bytes[name] for name in form.early if name in all_bytes}
        branch = SteadyBranch(waiting_rank(prepared.reference), tuple(early.values()))
        graph = without_buffers(graph, early)
        plan = baseline(make_problem(graph, profile))
        steady = Steady(form, branch)
        judged = Judged(graph, plan, profile.fixed_bytes, no_kinds(graph), sizes, steady, profile.bodies, heaps)
    weights = list(_loaded_weights(judged.graph, prepared, copies, is_steady=form is not None, is_mapped=is_mapped))
    if not prepared.source.has_packed:
        weights = _without_saved_copies(weights)
    file = FileFacts(
        weights=tuple(weights),
        is_mapped=is_mapped,
        is_primed=prepared.source.is_primed,
        levels=tuple(_levels(prepared.reference.graph)),
        inputs_bytes=_inputs_bytes(prepared),
    )
    return predict(judged, file, runtime or prepared.runtime)


def _loaded_weights(
    graph: Graph, prepared: Prepared, copies: Sequence[ArenaCopy], *, is_steady: bool, is_mapped: bool
) -> Iterator[LoadedWeight]:
    """The weights of a file in the order in which ops read them first, with all copies saved that can be.

    `copies` are those in the arena, of which every op that reads the weight has one of its own.
    """
    packing, in_arena = prepared.rules.packing, dict[str, list[int]]()
    for copy in copies:
        in_arena.setdefault(copy.weight, []).append(copy.bytes)
    uses = dict(zip(prepared.reference.graph.initializers, weight_uses(prepared.reference), strict=True))
    gathered = _gathered_bytes(graph, prepared.rules.loading.gathered_factor)
    packings = Counter(weight for op in graph.ops for weight in op.weights)
    in_bodies, of_branch = inner_uses(prepared.reference), packed_in_bodies(prepared.reference, packing)
    for number in dict.fromkeys(weight for op in graph.ops for weight in op.weights):
        weight = graph.weights[number]
        use = uses.get(weight.name)
        readers = () if use is None else use.readers
        packers = {each for each in readers if use is not None and packing.packs_weight(each, use.dtype, use.shape)}
        in_file = is_mapped and weight.size_bytes > SMALL_BYTES
        is_of_branch = is_steady and weight.name in of_branch
        is_outside = weight.size_bytes > INLINE_BYTES if is_steady else weight.name in in_bodies
        read_bytes = min(weight.size_bytes, gathered.get(number, weight.size_bytes)) if in_file else weight.size_bytes
        copies_bytes = [weight.size_bytes + each.beside_bytes for each in packers]
        yield LoadedWeight(
            size_bytes=read_bytes,
            packed_bytes=sum(in_arena.get(weight.name, copies_bytes)),
            copies=max(1, len(packers), len(in_arena.get(weight.name, ()))),
            packings=packings[number],
            is_read_plainly=len(packers) < len(set(readers)),
            is_mapped=in_file,
            is_captured=is_outside and not is_of_branch,
            is_of_branch=is_of_branch,
            is_read_early=not packers and any(each.is_copied for each in readers),
            is_saved=in_file and not is_of_branch and bool(packers) and all(map(packing.can_save_packed, packers)),
        )


def _gathered_bytes(graph: Graph, factor: int) -> dict[int, int]:
    """What ops read of weights of which they take rows only, pages of short rows included, by weight."""
    readers: dict[int, list[Op]] = {}
    for op in graph.ops:
        for weight in op.weights:
            readers.setdefault(weight, []).append(op)
    return {
        weight: factor * sum(graph.tensors[tensor].size_bytes for op in ops for tensor in op.outputs)
        for weight, ops in readers.items()
        if all(op.op_type == "Gather" and op.weights[0] == weight for op in ops)
    }


def needed_bytes(planned: OneModel, request: CompileRequest) -> int:
    """What a process needs for a planned model, its inputs included, in whatever process it is.

    A budget is kept in all of them, so that room is left for what few hold more.
    """
    memory = forecast_of(planned.written, planned.prepared, request.files).process_at_most
    return memory.counted_bytes(with_mapped=request.count_mapped) + planned.prepared.graph.input_bytes


def process_terms(planned: OneModel, request: CompileRequest) -> tuple[ProcessTerm, ...]:
    """What `needed_bytes` adds up, by what it is for: while the process runs the model, or while it loads that."""
    written, prepared = planned.written, planned.prepared
    found, with_mapped = forecast_of(written, prepared, request.files), request.count_mapped
    memory, loaded_bytes = found.process_at_most, found.loading.loaded_bytes
    counted_bytes = loaded_bytes if with_mapped else loaded_bytes - found.loading.mapped_bytes
    weights = _written_weights(written, prepared, request.files)
    mapped_bytes = found.loading.mapped_bytes if with_mapped else 0
    weight_bytes = min(counted_bytes, sum(weight.own_bytes for weight in weights) + mapped_bytes)
    live_bytes = found.default_session.peak_bytes - found.default_session.fixed_bytes
    total_bytes = memory.counted_bytes(with_mapped=with_mapped)
    is_loading = total_bytes == memory.load_peak_bytes > counted_bytes
    run = () if is_loading else (ProcessTerm("activations and workspace of a run", live_bytes, is_live=True),)
    terms = (
        ProcessTerm("weights, as kernels hold them", weight_bytes),
        *run,
        ProcessTerm("inputs, which the caller holds", prepared.graph.input_bytes),
    )
    rest = "reading and packing weights, while it loads" if is_loading else "the session, gaps in its arena, code"
    rest_bytes = total_bytes + prepared.graph.input_bytes - sum(term.bytes for term in terms)
    parts = (*terms, ProcessTerm(rest, rest_bytes))
    return tuple(sorted((term for term in parts if term.bytes), key=lambda term: -term.bytes))


def uncounted_bytes(prepared: Prepared, profile: Profile, request: CompileRequest) -> int:
    """What of the weights' live bytes is mapped from the file that is written, and does not count against a budget.

    Rather too much than too little, since what is left over is said to be needed whatever the plan.
    """
    if request.count_mapped or not has_data_file(prepared.reference, request.files.external):
        return 0
    copies = arena_copies(prepared.reference, prepared.rules.packing.in_arena)
    weights = list(_loaded_weights(prepared.graph, prepared, copies, is_steady=True, is_mapped=True))
    if not (request.files.packed and _is_alone(prepared)):
        weights = _without_saved_copies(weights)
    own_bytes = sum(weight.own_bytes for weight in weights)
    return max(0, profile.fixed_bytes - prepared.graph.input_bytes - own_bytes)


def _is_alone(prepared: Prepared) -> bool:
    """Whether the file is for sessions on the CPU that do not change it."""
    return prepared.conditions.may_be_alone and not prepared.conditions.portable
