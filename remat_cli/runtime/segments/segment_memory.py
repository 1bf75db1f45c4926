"""What each memory held in a run of a plan that is cut into sessions, by the runtime's own counters."""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.files import WORK_FOLDER
from remat_cli.core.schedule.program import LoadAction, Program, RunRecord, SeenMemory, SessionAction
from remat_cli.devices.provider_table import PROVIDERS, cache_of
from remat_cli.runtime.observe._events import ProfiledRun, ProfileEvent, read_runs
from remat_cli.runtime.segments._segment_sessions import Opening, has_counters
from remat_cli.runtime.segments.segment_run import PlanRunner, ProgramJob, open_runner
from remat_cli.runtime.sessions._ort import (
    LONGEST_RUN_SECONDS,
    Advance,
    installed_rules,
    pack_all,
    run_fresh,
    unpack_all,
)
from remat_cli.runtime.sessions.session import baseline_bytes

COPIES = ("MemcpyToHost", "MemcpyFromHost")
"""Ops that the runtime adds to a session that a device and the host share."""


def see_memory(program: Program, feeds: Mapping[str, Any], seconds: float = LONGEST_RUN_SECONDS) -> SeenMemory:
    """Run a program once in a fresh process and say what each memory held.

    Raises:
        MissingDependency: a device is not here.
        RuntimeFailure: the runtime fails, or tells nothing for `seconds`.
    """
    return run_fresh(see_memory_here, ProgramJob(program, pack_all(feeds)), seconds=seconds)


def see_memory_here(job: ProgramJob, advance: Advance) -> SeenMemory:
    """Look in this process."""
    feeds = unpack_all(job.feeds)
    program = job.program
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
        with open_runner(program, Opening({}, Path(folder), may_misplace=True)) as runner:
            misplaced = runner.misplaced_op if isinstance(runner, PlanRunner) else None
            _, record = runner.run_recorded(feeds)
            files = runner.end_profiling()
        runs = {n: read_runs(Path(f))[0] for n, f in enumerate(files) if f and Path(f).exists()}
    profiles = {n: run for n, run in runs.items() if has_counters(program.devices[program.sessions[n].device])}
    shared = {}  # what ran on the host in sessions that a device shares
    for number, run in runs.items():
        action = program.sessions[number]
        # Where an op is not where it was planned, the order is not what is wrong.
        ran = tuple(event.name for event in run.events if not (action.host_ops and event.op_type in COPIES))
        if misplaced is None and ran != action.segment.ops:
            raise RuntimeFailure(f"segment {action.segment.file} did not run in the plan's order: report this")
        if action.host_ops:
            shared[number] = msgspec.structs.replace(run, events=_on_host(program, action, run))
    caches = (cache_of(spec) for spec, m in zip(program.devices, program.memory_of, strict=True) if m == program.host)
    cache = next(caches, None)  # of the memory that the caller's inputs are counted in
    fed = sum(array.nbytes if cache is None else cache.rounded(array.nbytes) for array in feeds.values())
    packed = _packed(program, profiles, shared)
    # Devices whose sessions do not tell what they hold: all of them where the runtime has no counters.
    is_counted = any(event.requested_bytes for run in profiles.values() for event in run.events)
    used = {action.device for action in program.sessions}
    silent = frozenset(device for device in used if not is_counted or not has_counters(program.devices[device]))
    kept = _kept(program, packed, silent)
    hidden = {program.memory_of[device] for device in silent}
    return SeenMemory(
        fixed_bytes=tuple(bytes_ + (fed if m == program.host else 0) for m, bytes_ in enumerate(kept)),
        packed_bytes=packed,
        action_bytes=_action_bytes(program, record, profiles, shared),
        is_hidden=tuple(memory in hidden for memory in range(len(program.memories))),
        misplaced_op=misplaced,
    )


def _on_host(program: Program, action: SessionAction, run: ProfiledRun) -> tuple[ProfileEvent, ...]:
    """The events whose counters are those of the host, in a session that a device shares.

    Where the provider has counters too, an event has those of the memory that its op works in.
    """
    mine = set(action.host_ops) if has_counters(program.devices[action.device]) else None
    return tuple(event for event in run.events if event.has_counters and (mine is None or event.name in mine))


def _packed(
    program: Program, profiles: Mapping[int, ProfiledRun], shared: Mapping[int, ProfiledRun]
) -> tuple[int, ...]:
    """What sessions that stay open hold before their first op, by memory."""
    total, away = [0] * len(program.memories), program.away_weights
    for number, run in profiles.items():
        if number in away:
            continue
        total[program.memory_of[program.sessions[number].device]] += baseline_bytes(run.events)
    for number, run in shared.items():
        total[program.memory_of[program.sessions[number].host_device]] += baseline_bytes(run.events)
    return tuple(total)


def _kept(program: Program, packed: tuple[int, ...], silent: Collection[int]) -> list[int]:
    """Bytes of weights by memory: packed ones, and once each those whose original some session reads.

    Where sessions share none, once for each session.
    """
    outside: list[dict[tuple[int, str], int]] = [{} for _ in program.memories]
    away, packing = program.away_weights, installed_rules().packing
    for number, action in enumerate(program.sessions):
        parts = [(action.device, action.segment.weights)]
        if action.host_ops:
            parts.append((action.host_device, action.host_weights))
        for device, weights in parts:
            spec, memory = program.devices[device], program.memory_of[device]
            session = -1 if PROVIDERS[spec.provider].shares_weights else number
            cache = cache_of(spec)
            for name, use in weights.items():
                if name in away.get(number, ()):
                    continue
                if device in silent or packing.kept_weight_bytes([use], 0) > 0:
                    taken_bytes = use.size_bytes if cache is None else cache.weight_bytes(use.size_bytes)
                    outside[memory][session, name] = taken_bytes
            if cache is not None:
                packed_ops = set(cache.packed_ops)
                uses = weights.values()
                twice = [use.size_bytes for use in uses if packed_ops & {reader.op_type for reader in use.readers}]
                outside[memory][number, ""] = cache.weight_bytes(max(twice, default=0))
    return [bytes_ + sum(each.values()) for bytes_, each in zip(packed, outside, strict=True)]


def _action_bytes(
    program: Program, record: RunRecord, profiles: Mapping[int, ProfiledRun], shared: Mapping[int, ProfiledRun]
) -> tuple[tuple[int, ...], ...]:
    sessions, away = 0, program.away_weights
    found = []
    for action, seen in zip(program.actions, record.actions, strict=True):
        held = list(seen.after_bytes)
        if isinstance(action, LoadAction) and action.session in profiles:
            held[program.memory_of[program.sessions[action.session].device]] += baseline_bytes(
                profiles[action.session].events
            )
        elif isinstance(action, SessionAction):
            memory = program.memory_of[action.device]
            if sessions in profiles:
                packed = baseline_bytes(profiles[sessions].events) if sessions in away else 0
                held[memory] = seen.before_bytes[memory] + packed + _inside(action, profiles[sessions])
            elif sessions in shared:
                host = program.memory_of[action.host_device]
                held[host] = max(held[host], seen.before_bytes[host] + _inside(action, shared[sessions]))
            sessions += 1
        found.append(tuple(held))
    return tuple(found)


def _inside(action: SessionAction, run: ProfiledRun) -> int:
    """The most that a session held beyond what it was given: live tensors and workspace."""
    base = baseline_bytes(run.events)
    held = (e.requested_bytes - base + action.workspace_bytes.get(e.name, 0) for e in run.events)
    return max(held, default=0)
