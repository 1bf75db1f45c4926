"""What a file takes of a process that loads and runs it: the one place where that is predicted.

`predict` says all of it. A search, which compares plans before it is known how their weights will be written, asks
`predict_sessions` for the part that does not depend on that.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add

import msgspec

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import own_bytes, tensor_ids
from remat_cli.core.values.resident import ProcessMemory, RunsForecast, SessionMemory
from remat_cli.ort_rules.arena import LoadedSession, RunMemory, pattern_bytes, simulate_runs
from remat_cli.ort_rules.at_once import simulate_at_once
from remat_cli.ort_rules.heaps.heap import threshold_after
from remat_cli.ort_rules.heaps.kernel_heap import HeapUse
from remat_cli.ort_rules.loading import LoadedFile, LoadedWeight, LoadForecast, LoadRules, load_forecast, packing_order
from remat_cli.ort_rules.no_arena import FEW_HEAPS, HEAPS, LoadedHeap, simulate_runs_without_arena
from remat_cli.ort_rules.records import each_judged, rules_for
from remat_cli.ort_rules.requests import InKernels, Request, run_requests
from remat_cli.ort_rules.reuse import KeptBuffers, Kind, kept_buffers
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm, steady_requests

RUNS = 128  # or until the arena is left as it was found, mostly after a few
HELD = (1, 0)  # runs whose outputs the caller still holds: callers drop them before the next run, or after it


@dataclass(frozen=True)
class Steady:
    """The steady form in which a file is written, and what its requests depend on."""

    form: SteadyForm
    branch: SteadyBranch


@dataclass(frozen=True)
class Judged:
    """A plan of a file as the judge sees it, every op of the graph once in order, and what the runtime knows of it.

    `kinds` are, by tensor of the graph, what the runtime knows of its shape before a run. `copies` are bytes of weights
    that kernels pack in the arena, in order, before the first run. `bodies` are what bodies of ops ask for, by op;
    `heaps` what kernels take of the process's heap, by op.
    """

    graph: Graph
    plan: Plan
    fixed_bytes: int
    kinds: tuple[Kind, ...]
    copies: tuple[int, ...] = ()
    steady: Steady | None = None
    bodies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    heaps: Mapping[str, tuple[HeapUse, ...]] = field(default_factory=dict)


class FileFacts(msgspec.Struct, frozen=True):
    """How a file is written: its weights, in the order in which ops read them first, and where they lie.

    `is_mapped`: those that are not small lie in data files.
    `is_primed`: it has primers. `form_ops` are those of the steady form that the graph does not have, `levels` say of
    each op in bodies of others how many of them lie around it. `inputs_bytes` are those of each of its inputs, which a
    process has made before it loads it.
    """

    weights: tuple[LoadedWeight, ...]
    is_mapped: bool
    is_primed: bool
    form_ops: int = 0
    levels: tuple[int, ...] = ()
    inputs_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class SessionForecast:
    """What sessions hold, exact and default ones, in the first run and later."""

    judged: Judged
    exact: SessionMemory
    default_session: SessionMemory
    runs: RunsForecast


@dataclass(frozen=True)
class Forecast(SessionForecast):
    """The same with what a process holds, while it loads the file and afterwards.

    `process_at_most` is what few processes come to, in which the heap keeps copies that were dropped.
    """

    loading: LoadForecast
    process: ProcessMemory
    process_at_most: ProcessMemory


def predict(judged: Judged, file: FileFacts, runtime: Runtime) -> Forecast:
    """What a process holds that loads the file of a plan and runs it with the runtime's options.

    Of several versions that the file is for it is the most of each figure.
    """
    sessions = predict_sessions(judged, runtime, HEAPS)
    found = [_predict(judged, file, each, sessions) for each in each_judged(runtime, lambda rules: rules)]
    worst = max(found, key=lambda each: each.loading.load_peak_bytes)
    return replace(
        worst,
        process=_most_of_process([each.process for each in found]),
        process_at_most=_most_of_process([each.process_at_most for each in found]),
    )


def _most_of_process(found: Sequence[ProcessMemory]) -> ProcessMemory:
    names = ProcessMemory.__struct_fields__
    return ProcessMemory(**{name: max(getattr(each, name) for each in found) for name in names})


def _predict(judged: Judged, file: FileFacts, runtime: Runtime, sessions: SessionForecast) -> Forecast:
    rules = rules_for(runtime)
    # Beyond copies of weights a loaded session's arena holds tables of its regions, and whole units. Small regions lie
    # in the heap where reading weights of the model file has raised its threshold. What is not used of them may be
    # there all the same: the heap hands out again what was written before.
    in_heap_bytes = min(rules.loading.stream_bytes, sum(each.inside_bytes for each in file.weights))
    arena = LoadedSession(rules.arena, judged.copies).arena()
    unused_bytes = sum(
        region_bytes - sum(end - start for start, end in arena.touched[at])
        for at, region_bytes in enumerate(arena.regions)
        if region_bytes <= in_heap_bytes
    )
    extra_bytes = arena.resident_bytes - sum(judged.copies) + unused_bytes if runtime.options.has_arena else 0
    ops = len(judged.graph.ops)

    def loaded(stuck_copies: int) -> LoadForecast:
        what = LoadedFile(
            ops=ops + file.form_ops + len(file.levels),
            nested_ops=sum(file.levels) + (0 if judged.steady is None else ops + len(file.levels)),
            is_primed=file.is_primed,
            packing_order=packing_order(judged.graph),
            arena_extra_bytes=extra_bytes,
            stuck_copies=stuck_copies,
            threshold_bytes=threshold_after((*file.inputs_bytes, sum(file.inputs_bytes))),
        )
        return load_forecast(file.weights, what, rules.loading)

    crowd_runs = predict_at_once(judged, runtime, sessions.runs)

    def process(found: LoadForecast) -> ProcessMemory:
        one = _process(found, sessions.runs, rules.loading, is_mapped=file.is_mapped)
        weights_bytes = min(found.loaded_bytes, sum(each.own_bytes for each in file.weights) + found.mapped_bytes)
        crowd = _process(found, crowd_runs, rules.loading, is_mapped=file.is_mapped)
        return _at_once(one, crowd, runtime.options.runs_at_once, weights_bytes)

    loading, at_most = loaded(0), loaded(rules.loading.stuck_copies)
    return Forecast(
        judged=judged,
        exact=sessions.exact,
        default_session=sessions.default_session,
        runs=sessions.runs,
        loading=loading,
        process=process(loading),
        process_at_most=process(at_most),
    )


def predict_sessions(judged: Judged, runtime: Runtime, heaps: int = FEW_HEAPS) -> SessionForecast:
    """What sessions on the file of a plan hold, however its weights are written; without an arena in so many heaps."""
    exact, default = in_one_run(judged, runtime)
    form = None if judged.steady is None else judged.steady.form
    versions = each_judged(runtime, lambda rules: (rules.arena, rules.malloc, rules.workspaces))
    runs = [predict_runs(asked_for(judged, each), each, form, judged.copies, heaps) for each in versions]
    return SessionForecast(judged, exact, default, most_of(runs))


def in_one_run(judged: Judged, runtime: Runtime) -> tuple[SessionMemory, SessionMemory]:
    """What one run of a plan holds, in an exact session and in a default one."""
    kept, plan = kept_by_default(judged, runtime), judged.plan
    live_bytes = tuple(live - judged.fixed_bytes for live in plan.live_bytes[0])
    exact = SessionMemory(plan.memory_bytes[0], live_bytes, (0,) * len(live_bytes), judged.fixed_bytes)
    default = SessionMemory(
        tuple(map(add, exact.held_bytes, kept.held_bytes)),
        tuple(map(add, exact.live_bytes, kept.held_bytes)),
        kept.reused_bytes,
        judged.fixed_bytes,
    )
    return exact, default


def kept_by_default(judged: Judged, runtime: Runtime) -> KeptBuffers:
    """What a session keeps of dead buffers for later tensors whose shape it knows."""
    ids, own = tensor_ids(judged.graph), own_bytes(judged.graph)
    made = [ids[instance.tensor] for instance in judged.plan.instances]
    is_asked = runtime.options.reuses_dead_buffers
    kinds = [judged.kinds[tensor] if own[tensor] and is_asked else None for tensor in made]
    return kept_buffers(judged.plan, [own[tensor] for tensor in made], kinds)


def own_requests(judged: Judged, runtime: Runtime) -> tuple[Request, ...]:
    """What one run of the plan asks for, without its form."""
    kept, rules = kept_by_default(judged, runtime), rules_for(runtime)
    inside, with_views = InKernels(judged.bodies, judged.heaps), not runtime.options.has_arena
    return run_requests(judged.graph, judged.plan, kept, rules.workspaces, inside, with_views=with_views)


def asked_for(judged: Judged, runtime: Runtime) -> tuple[Request, ...]:
    """What one run of the file asks for, with its form."""
    found = own_requests(judged, runtime)
    if judged.steady is not None:
        return steady_requests(found, judged.steady.branch, judged.steady.form)
    if runtime.options.has_memory_pattern:
        return found
    return tuple(replace(request, in_block=False) for request in found)


def predict_runs(
    requests: Sequence[Request],
    runtime: Runtime,
    form: SteadyForm | None = None,
    copies: tuple[int, ...] = (),
    heaps: int = FEW_HEAPS,
) -> RunsForecast:
    """What a process holds for so many requests a run, beside copies of weights that loading puts into the arena.

    Without an arena: the most in so many heaps that differ in what the process did before.
    """
    rules = rules_for(runtime)
    if runtime.options.has_arena:
        found = [
            simulate_runs(requests, RUNS, held, LoadedSession(rules.arena, copies, newest_first))
            for held, newest_first in itertools.product(HELD, (True, False))
        ]
    else:
        found = [
            simulate_runs_without_arena(requests, held, LoadedHeap(seed), rules.malloc, rules.arena)
            for held, seed in itertools.product(HELD, range(heaps))
        ]
    return _runs(found, requests, runtime, form)


def most_of(found: Sequence[RunsForecast]) -> RunsForecast:
    """The most of each figure, where the same file runs in several ways."""
    return RunsForecast(
        first_run_bytes=max(each.first_run_bytes for each in found),
        later_runs_bytes=max(each.later_runs_bytes for each in found),
        block_bytes=max(each.block_bytes for each in found),
        reserved_bytes=max(each.reserved_bytes for each in found),
        ballast_bytes=found[0].ballast_bytes,
    )


def predict_runs_below(
    most_bytes: int, requests: Sequence[Request], runtime: Runtime, form: SteadyForm, copies: tuple[int, ...]
) -> RunsForecast | None:
    """Predict runs as `predict_runs` does; None as soon as they hold no less than `most_bytes`."""
    if not runtime.options.has_arena:
        all_runs = predict_runs(requests, runtime, form)
        return all_runs if all_runs.most_bytes < most_bytes else None
    found = list[tuple[RunMemory, ...]]()
    arena = rules_for(runtime).arena
    for held, newest_first in itertools.product(HELD, (True, False)):
        runs = simulate_runs(requests, RUNS, held, LoadedSession(arena, copies, newest_first), most_bytes)
        if len(runs) < RUNS or runs[-1].resident_bytes >= most_bytes:
            return None
        found.append(runs)
    return _runs(found, requests, runtime, form)


def _runs(
    found: Sequence[Sequence[RunMemory]], requests: Sequence[Request], runtime: Runtime, form: SteadyForm | None
) -> RunsForecast:
    """The most of all."""
    return RunsForecast(
        first_run_bytes=max(runs[0].resident_bytes for runs in found),
        later_runs_bytes=max(run.resident_bytes for runs in found for run in runs[1:]),
        block_bytes=pattern_bytes([request for request in requests if request.in_block], rules_for(runtime).arena),
        reserved_bytes=max(runs[-1].reserved_bytes for runs in found),
        ballast_bytes=None if form is None else form.ballast_bytes,
    )


def _process(loading: LoadForecast, runs: RunsForecast, rules: LoadRules, *, is_mapped: bool) -> ProcessMemory:
    """Add up what a process holds for loading and for runs."""
    anonymous_bytes, run_bytes = loading.loaded_bytes - loading.mapped_bytes, runs.most_bytes + rules.run_bytes
    return ProcessMemory(
        load_peak_bytes=loading.load_peak_bytes,
        loaded_bytes=anonymous_bytes + loading.read_bytes,
        first_run_bytes=loading.loaded_bytes + runs.first_run_bytes + rules.run_bytes,
        later_runs_bytes=loading.loaded_bytes + runs.later_runs_bytes + rules.run_bytes,
        mapped_bytes=loading.mapped_bytes,
        anonymous_bytes=max(anonymous_bytes + run_bytes, 0 if is_mapped else loading.load_peak_bytes),
    )


def predict_at_once(judged: Judged, runtime: Runtime, one: RunsForecast) -> RunsForecast:
    """What the arena holds for so many runs at once as the runtime's options say; as of `one` where that is one."""
    count = runtime.options.runs_at_once
    if count == 1 or not runtime.options.has_arena:
        return one
    arena, requests = rules_for(runtime).arena, asked_for(judged, runtime)
    sessions = (LoadedSession(arena, judged.copies, newest_first) for newest_first in (True, False))
    found = [simulate_at_once(requests, count, session) for session in sessions]
    return msgspec.structs.replace(
        one,
        first_run_bytes=max(runs[0].resident_bytes for runs in found),
        later_runs_bytes=max(runs[-1].resident_bytes for runs in found),
    )


def _at_once(one: ProcessMemory, crowd: ProcessMemory, count: int, weights_bytes: int) -> ProcessMemory:
    """What a process holds while so many runs are under way in one session: weights once, all else for each of them.

    Or more, by what `crowd` holds, whose runs meet by chance: regions that one of them made may not serve another.
    """
    more = count - 1
    return msgspec.structs.replace(
        one,
        first_run_bytes=max(crowd.first_run_bytes, one.first_run_bytes + more * (one.first_run_bytes - weights_bytes)),
        later_runs_bytes=max(
            crowd.later_runs_bytes, one.later_runs_bytes + more * (one.later_runs_bytes - weights_bytes)
        ),
        anonymous_bytes=max(crowd.anonymous_bytes, one.anonymous_bytes + more * (one.peak_bytes - weights_bytes)),
    )
