"""What a process holds that loads and runs a model: forecast from a plan, and seen in fresh processes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel, WrittenModel
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.steady import forecast, kept_by_default, known_dims
from remat_cli.core.schedule.graph import Graph, Op, without_buffers
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.resident import LimitedRuns, ProcessMemory, ProcessSeen, RunsForecast, WeightFiles
from remat_cli.core.values.reuse import KeptBuffers
from remat_cli.onnx_io.read.interface import weight_uses
from remat_cli.onnx_io.write.arena_copies import arena_copies
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.onnx_io.write.primers import can_be_primed
from remat_cli.onnx_io.write.save import SMALL_BYTES, data_path, has_data_file
from remat_cli.onnx_io.write.steady import INLINE_BYTES, waiting_input
from remat_cli.ort_rules.arena import loaded_arena
from remat_cli.ort_rules.arena_copies import ArenaCopy
from remat_cli.ort_rules.heap import LARGEST_THRESHOLD_BYTES
from remat_cli.ort_rules.load_rules import load_rules
from remat_cli.ort_rules.loading import STREAM_BYTES, LoadedFile, LoadedWeight, LoadForecast, load_forecast
from remat_cli.ort_rules.primers import STUCK_COPIES
from remat_cli.ort_rules.requests import run_requests
from remat_cli.ort_rules.steady import SteadyBranch, steady_requests
from remat_cli.runtime.observe.hard_limit import HardLimitJob, limit_kind, runs_under_limit
from remat_cli.runtime.observe.resident import ResidentFigures, ResidentJob, can_measure_resident, measure_resident
from remat_cli.runtime.sessions._ort import Advance, ignore_progress, pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings, runtime_version
from remat_cli.runtime.sessions.weights import can_save_packed, packs_weight

RUNS, THOROUGH_RUNS = 3, 5
LEAST_RUNS = 2  # a first one and a later one
PACKED_LOADS = 3  # processes that load packed copies
LIMITED_RUNS = 3
LEAST_BETWEEN_BYTES = 4 * 2**20  # closer than this, noise of a process decides which one dies
LEAST_COPIES_BYTES = 2**22  # of packed weights: fewer are not worth a longer file
RUN_BYTES = 2**20  # of code and tables that kernels read in when they run first, about
GATHERED_FACTOR = 2  # a row of a table touches whole pages of a mapped file
FORM_OPS = 12  # of the steady form, about
LIMIT_SHARES = (0.5, 0.8, 0.95)  # of the way from what ours needs to what the original needs


@dataclass(frozen=True)
class ResidentRequest:
    """Two models, how they are run, and what was predicted of the second; `is_mapped`: the first has a data file."""

    reference: Path
    rewritten: Path
    feeds: Mapping[str, Any]
    settings: SessionSettings
    predicted: ProcessMemory
    budget_bytes: int | None
    with_mapped: bool
    is_thorough: bool
    is_limited: bool
    is_traced: bool = False
    is_mapped: bool = False


def see_processes(request: ResidentRequest, advance: Advance = ignore_progress) -> ProcessSeen | None:
    """Load and run both models in fresh processes and watch resident memory; None where the system does not tell."""
    if not can_measure_resident():
        return None
    paths = (request.reference, request.rewritten)
    found = tuple(_seen(request, path, advance) for path in paths)
    are_mapped = (request.is_mapped, data_path(request.rewritten).exists())
    original, rewritten = (worst_of(figures, is_mapped=each) for figures, each in zip(found, are_mapped, strict=True))
    job = HardLimitJob("", pack_all(request.feeds), 0, request.settings, LIMITED_RUNS)
    return ProcessSeen(
        original=original,
        rewritten=rewritten,
        predicted=request.predicted,
        input_bytes=sum(array.nbytes for array in request.feeds.values()),
        budget_bytes=request.budget_bytes,
        with_mapped=request.with_mapped,
        limited=limited_pair(paths, found, job) if request.is_limited else None,
        traces=tuple(figures[0].trace for figures in found if figures[0].trace is not None),
    )


def _seen(request: ResidentRequest, model: Path, advance: Advance) -> list[ResidentFigures]:
    """Outputs held until the next run has ended; with thorough checks also dropped before.

    Where copies as kernels pack them are saved, in more processes: what the heap keeps of those that loading makes and
    drops may differ from one to the next.
    """
    feeds, runs = pack_all(request.feeds), THOROUGH_RUNS if request.is_thorough else RUNS
    once = ResidentJob(str(model.resolve()), feeds, request.settings, runs, 1, request.is_traced)
    jobs = [once, msgspec.structs.replace(once, held=0)] if request.is_thorough else [once]
    if model == request.rewritten and packed_weights(model).copies:
        again = msgspec.structs.replace(once, runs=LEAST_RUNS, is_traced=False)
        jobs += [again] * (PACKED_LOADS - len(jobs))
    return [run_fresh(measure_resident, job, advance, request.settings.run_seconds) for job in jobs]


def worst_of(found: list[ResidentFigures], *, is_mapped: bool) -> ProcessMemory:
    """The most that processes held in each phase; `is_mapped`: weights lie in a file of their own."""
    return ProcessMemory(
        load_peak_bytes=max(each.load_peak_bytes.total_bytes for each in found),
        loaded_bytes=max(each.loaded_bytes.total_bytes for each in found),
        first_run_bytes=max(each.run_peak_bytes[0].total_bytes for each in found),
        later_runs_bytes=max(peak.total_bytes for each in found for peak in each.run_peak_bytes[1:]),
        mapped_bytes=max(each.after_bytes.mapped_bytes for each in found),
        anonymous_bytes=max(_anonymous_bytes(each, is_mapped=is_mapped) for each in found),
    )


def _anonymous_bytes(figures: ResidentFigures, *, is_mapped: bool) -> int:
    """The most that is no page of a file; what is read of a data file to be packed leaves before loading ends."""
    loading = figures.loaded_bytes if is_mapped else figures.load_peak_bytes
    return max(each.anonymous_bytes for each in (loading, *figures.run_peak_bytes))


def limited_pair(
    paths: Sequence[Path], found: Sequence[Sequence[ResidentFigures]], job: HardLimitJob
) -> LimitedRuns | None:
    """The original and our model, with their figures, under a limit between what they need; `job` says how they run.

    None where there is no room between, or no limit can be set.
    """
    kind = limit_kind()
    if kind is None:
        return None
    original, rewritten = found
    if kind == "RLIMIT_DATA":  # where no block can be had, later runs do without: the first one decides
        mapped = _mapped_while_loading(paths[1])
        theirs, ours = (
            max(each.data_bytes[1] for each in original),
            max(_reserved_bytes(each, mapped) for each in rewritten),
        )
    else:
        theirs, ours = (
            max(_anonymous_bytes(each, is_mapped=True) for each in figures) for figures in (original, rewritten)
        )
    if theirs - ours < LEAST_BETWEEN_BYTES:
        return None
    reference, written = (msgspec.structs.replace(job, model=str(path.resolve())) for path in paths)
    for share in LIMIT_SHARES:  # loading reserves more for a moment than shows when it has ended
        limit_bytes = ours + int(share * (theirs - ours))
        first = runs_under_limit(msgspec.structs.replace(written, limit_bytes=limit_bytes))
        if first.survived:
            break
    second = runs_under_limit(msgspec.structs.replace(reference, limit_bytes=limit_bytes))
    return LimitedRuns(kind, limit_bytes, job.runs, first.survived, second.survived, second.ended)


def _mapped_while_loading(model: Path) -> int:
    """The bytes of a model's data file, which the runtime maps private and writable, some of it for a moment only."""
    data = data_path(model)
    return data.stat().st_size if data.exists() else 0


def _reserved_bytes(figures: ResidentFigures, file_bytes: int) -> int:
    """The most that RLIMIT_DATA counts of a process, its data file too, whole, while that is mapped to be loaded."""
    loaded_bytes = figures.data_bytes[0]
    untouched_bytes = max(0, loaded_bytes - figures.loaded_bytes.anonymous_bytes)  # of it the file, where still mapped
    return max(*figures.data_bytes, loaded_bytes + max(0, file_bytes - untouched_bytes))


def process_forecast(
    written: WrittenModel, prepared: Prepared, files: WeightFiles, stuck_copies: int = 0
) -> ProcessMemory:
    """What a process holds that loads the written model and runs it with default options.

    Of copies that it makes and drops, so many stay although there are primers; in nearly all processes none.
    """
    weights = _written_weights(written, prepared, files)
    ops = len(written.graph.ops) + (FORM_OPS if written.formed.form is not None else 0)
    is_mapped = has_data_file(written.rewritten.model, files.external)
    branch_ops = 0 if written.formed.form is None else len(written.graph.ops)
    copies = arena_copies(written.rewritten.model)
    file = LoadedFile(
        ops,
        branch_ops,
        _wants_primers(weights),
        packing_order(written.graph),
        _arena_extra_bytes(copies, weights),
        stuck_copies,
    )
    return _process(
        load_forecast(weights, file, load_rules(runtime_version())), written.formed.runs, is_mapped=is_mapped
    )


def saves_packed(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> bool:
    """Whether the model's file is to hold its weights as kernels pack them, too."""
    return any(weight.is_saved for weight in _written_weights(written, prepared, files))


def wants_primers(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> bool:
    """Whether chance would decide how many of the copies stay on the heap that a session makes and drops."""
    return _wants_primers(_written_weights(written, prepared, files))


def _wants_primers(weights: Iterable[LoadedWeight]) -> bool:
    return any(weight.is_saved and weight.copy_bytes < LARGEST_THRESHOLD_BYTES for weight in weights)


def _written_weights(written: WrittenModel, prepared: Prepared, files: WeightFiles) -> list[LoadedWeight]:
    """The weights of a written model as they will be in its files."""
    is_mapped, is_steady = has_data_file(written.rewritten.model, files.external), written.formed.form is not None
    copies = arena_copies(written.rewritten.model)
    weights = list(_loaded_weights(written.graph, prepared, copies, is_steady=is_steady, is_mapped=is_mapped))
    is_packed = files.packed and _is_alone(prepared) and can_be_primed(written.rewritten.model)
    copies_bytes = sum(weight.packed_bytes for weight in weights if weight.is_saved)
    return weights if is_packed and copies_bytes >= LEAST_COPIES_BYTES else _without_saved_copies(weights)


def _without_saved_copies(weights: Iterable[LoadedWeight]) -> list[LoadedWeight]:
    return [msgspec.structs.replace(weight, is_saved=False) for weight in weights]


def model_forecast(
    prepared: Prepared, profile: Profile, version: str | None = None
) -> tuple[ProcessMemory, RunsForecast]:
    """What a process holds that loads a model as it is, optimised beforehand, and runs it with default options.

    `version` is that of the runtime which loads it; None: the one that is installed here.
    """
    graph, form = prepared.graph, prepared.source.form
    plan = baseline(make_problem(graph, profile))
    is_mapped = bool(prepared.source.data_files)
    if form is None:
        kept = kept_by_default(graph, plan, known_dims(prepared.reference, graph, prepared.conditions))
        requests = run_requests(graph, plan, kept)
    else:
        waiting = waiting_input(prepared.reference)
        sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
        early = {name: sizes[name] for name in form.early if name in sizes}
        graph = without_buffers(graph, early)
        plan = baseline(make_problem(graph, profile))
        branch = SteadyBranch(0 if waiting is None else len(waiting.shape or ()), tuple(early.values()))
        requests = steady_requests(run_requests(graph, plan, KeptBuffers((), ())), branch, form)
    copies = arena_copies(prepared.reference)
    weights = list(_loaded_weights(graph, prepared, copies, is_steady=form is not None, is_mapped=is_mapped))
    if not prepared.source.has_packed:
        weights = _without_saved_copies(weights)
    runs = forecast(requests, form, [copy.bytes for copy in copies])
    branch_ops = 0 if form is None else len(graph.ops)
    file = LoadedFile(
        len(graph.ops), branch_ops, prepared.source.is_primed, packing_order(graph), _arena_extra_bytes(copies, weights)
    )
    return _process(
        load_forecast(weights, file, load_rules(version or runtime_version())), runs, is_mapped=is_mapped
    ), runs


def _process(loading: LoadForecast, runs: RunsForecast, *, is_mapped: bool) -> ProcessMemory:
    """Loading and runs together."""
    anonymous_bytes, run_bytes = loading.loaded_bytes - loading.mapped_bytes, runs.most_bytes + RUN_BYTES
    return ProcessMemory(
        load_peak_bytes=loading.load_peak_bytes,
        loaded_bytes=anonymous_bytes + loading.read_bytes,
        first_run_bytes=loading.loaded_bytes + runs.first_run_bytes + RUN_BYTES,
        later_runs_bytes=loading.loaded_bytes + runs.later_runs_bytes + RUN_BYTES,
        mapped_bytes=loading.mapped_bytes,
        anonymous_bytes=max(anonymous_bytes + run_bytes, 0 if is_mapped else loading.load_peak_bytes),
    )


def _arena_extra_bytes(copies: Sequence[ArenaCopy], weights: Sequence[LoadedWeight]) -> int:
    """What a loaded session's arena holds beyond the copies of weights in it: tables of its regions, whole units.

    Small regions lie in the heap where reading weights of the model file has raised its threshold. What is not used of
    them may be there all the same: the heap hands out again what was written before.
    """
    sizes, in_heap_bytes = (
        [copy.bytes for copy in copies],
        min(STREAM_BYTES, sum(each.inside_bytes for each in weights)),
    )
    arena = loaded_arena(sizes)
    regions = zip(arena.regions, arena.touched, strict=True)
    unused_bytes = (
        region - sum(end - start for start, end in spans) for region, spans in regions if region <= in_heap_bytes
    )
    return arena.resident_bytes - sum(sizes) + sum(unused_bytes)


def _loaded_weights(
    graph: Graph, prepared: Prepared, copies: Sequence[ArenaCopy], *, is_steady: bool, is_mapped: bool
) -> Iterator[LoadedWeight]:
    """The weights of a file in the order in which ops read them first, with all copies saved that can be.

    `copies` are those in the arena, of which every op that reads the weight has one of its own.
    """
    in_arena: dict[str, list[int]] = {}
    for copy in copies:
        in_arena.setdefault(copy.weight, []).append(copy.bytes)
    uses = dict(zip(prepared.reference.graph.initializers, weight_uses(prepared.reference), strict=True))
    gathered = _gathered_bytes(graph)
    packings = Counter(weight for op in graph.ops for weight in op.weights)
    for number in dict.fromkeys(weight for op in graph.ops for weight in op.weights):
        weight = graph.weights[number]
        use = uses.get(weight.name)
        readers = () if use is None else use.readers
        packing = {reader for reader in readers if use is not None and packs_weight(reader, use.dtype, use.shape)}
        in_file = is_mapped and weight.size_bytes > SMALL_BYTES
        read_bytes = min(weight.size_bytes, gathered.get(number, weight.size_bytes)) if in_file else weight.size_bytes
        yield LoadedWeight(
            size_bytes=read_bytes,
            packed_bytes=sum(in_arena.get(weight.name, [len(packing) * weight.size_bytes])),
            copies=max(1, len(packing), len(in_arena.get(weight.name, ()))),
            packings=packings[number],
            is_read_plainly=len(packing) < len(set(readers)),
            is_mapped=in_file,
            is_captured=is_steady and weight.size_bytes > INLINE_BYTES,
            is_saved=in_file and bool(packing) and all(map(can_save_packed, packing)),
        )


def packing_order(graph: Graph) -> tuple[int, ...]:
    """Places of weights, among those that ops read, in the order in which ops read them."""
    numbers = [weight for op in graph.ops for weight in op.weights]
    places = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
    return tuple(places[number] for number in numbers)


def _gathered_bytes(graph: Graph) -> dict[int, int]:
    """What ops read of weights of which they take rows only, pages of short rows included, by weight."""
    readers: dict[int, list[Op]] = {}
    for op in graph.ops:
        for weight in op.weights:
            readers.setdefault(weight, []).append(op)
    return {
        weight: GATHERED_FACTOR * sum(graph.tensors[tensor].size_bytes for op in ops for tensor in op.outputs)
        for weight, ops in readers.items()
        if all(op.op_type == "Gather" and op.weights[0] == weight for op in ops)
    }


def needed_bytes(planned: OneModel, request: CompileRequest) -> int:
    """What a process needs for a planned model, its inputs included, in whatever process it is.

    A budget is kept in all of them, so that room is left for what few hold more.
    """
    memory = process_forecast(planned.written, planned.prepared, request.files, STUCK_COPIES)
    return memory.counted_bytes(with_mapped=request.count_mapped) + planned.prepared.graph.input_bytes


def uncounted_bytes(prepared: Prepared, profile: Profile, request: CompileRequest) -> int:
    """What of the weights' live bytes is mapped from the file that is written, and does not count against a budget.

    Rather too much than too little, since what is left over is said to be needed whatever the plan.
    """
    if request.count_mapped or not has_data_file(prepared.reference, request.files.external):
        return 0
    copies = arena_copies(prepared.reference)
    weights = list(_loaded_weights(prepared.graph, prepared, copies, is_steady=True, is_mapped=True))
    if not (request.files.packed and _is_alone(prepared)):
        weights = _without_saved_copies(weights)
    own_bytes = sum(weight.own_bytes for weight in weights)
    return max(0, profile.fixed_bytes - prepared.graph.input_bytes - own_bytes)


def _is_alone(prepared: Prepared) -> bool:
    """Whether the file is for sessions on the CPU that do not change it."""
    return prepared.conditions.may_be_alone and not prepared.conditions.portable
