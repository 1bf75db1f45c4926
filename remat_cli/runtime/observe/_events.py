"""Reads from a profile which ops a run executed, in which order, for how long, and with what in memory."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.graph import TensorType, size_bytes
from remat_cli.core.values.runs_on import is_inside_guard
from remat_cli.ort_rules import primers, steady
from remat_cli.ort_rules.bodies import BodyKernel
from remat_cli.ort_rules.versions import COUNTERS_FROM
from remat_cli.runtime.sessions._ort import installed_rules

OURS = (steady.PREFIX, primers.PREFIX)  # of ops that belong to the file's form
SUFFIX = "_kernel_time"
PACKED = re.compile(r"^(u?int[24])x[24]$")
COUNTER = "mem_bytes_requested_in_use"
"""Where this is missing, the others are too."""


class InsideKernel(msgspec.Struct, frozen=True):
    """What kernels of one name showed at most that ran in a subgraph: in use when one ended, and that with workspace.

    `limit_bytes` is the second: no more than that, since less was in use beyond than ever until then.
    """

    name: str
    requested_bytes: int
    limit_bytes: int


class ProfileEvent(msgspec.Struct, frozen=True):
    """One kernel that ran. Bytes are the runtime's exact counters when the kernel ended, before it freed anything.

    `requested_bytes` is what is in use, `growth_bytes` how much more than when the kernel began, `in_use_bytes` the
    same as `requested_bytes` but with the allocator's rounding, `peak_bytes` the most (rounded) in use since the
    session was made, workspace inside kernels included, `held_bytes` what the allocator holds. `nested_bytes` is the
    most in use (exact) when a kernel of a subgraph that this op ran ended, 0 without a subgraph, `nested_full_bytes`
    the most while the subgraph ran, workspace included where more was in use than ever before. `inside` says the same
    of its kernels, those of subgraphs in it too, by name; `kernels` are all of them, in the order in which they ended,
    each with its limit on workspace. `has_counters` is False where the runtime wrote no counters
    of memory (before `COUNTERS_FROM`); all bytes are 0 then.
    """

    name: str
    op_type: str
    start_us: int
    duration_us: int
    requested_bytes: int
    growth_bytes: int
    in_use_bytes: int
    peak_bytes: int
    held_bytes: int
    types: tuple[TensorType, ...]
    nested_bytes: int = 0
    nested_full_bytes: int = 0
    inside: tuple[InsideKernel, ...] = ()
    kernels: tuple[BodyKernel, ...] = ()
    has_counters: bool = True


class ProfiledRun(msgspec.Struct, frozen=True):
    """One run of the model: its kernels in execution order (those of subgraphs left out) and its wall time."""

    events: tuple[ProfileEvent, ...]
    duration_us: int


class _RawArgs(msgspec.Struct, frozen=True, gc=False):
    """What an event says of a kernel, as far as remat reads it; the runtime writes numbers as texts."""

    op_name: str = ""
    mem_bytes_requested_in_use: int | None = None
    mem_requested_in_use_delta: int = 0
    mem_bytes_in_use: int = 0
    mem_in_use_peak: int = 0
    mem_arena_held: int = 0
    output_type_shape: tuple[dict[str, tuple[int, ...]], ...] = ()


class _RawEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of the profile, as far as remat reads it."""

    name: str
    cat: str = ""
    ts: int = 0
    dur: int = 0
    args: _RawArgs = _RawArgs()


def read_runs(path: Path) -> tuple[ProfiledRun, ...]:
    """The runs recorded in a profile file, oldest first.

    Raises:
        RuntimeFailure: the file is not such a profile.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=list[_RawEvent], strict=False)
    except (OSError, msgspec.MsgspecError) as error:
        raise RuntimeFailure(f"the runtime's profile cannot be read: {error}") from None
    runs: list[ProfiledRun] = []
    events: list[ProfileEvent] = []
    for event in raw:
        if event.cat == "Node" and event.name.endswith(SUFFIX):
            args = event.args
            requested = args.mem_bytes_requested_in_use
            kernel = ProfileEvent(
                name=event.name.removesuffix(SUFFIX),
                op_type=args.op_name,
                start_us=event.ts,
                duration_us=event.dur,
                requested_bytes=requested or 0,
                growth_bytes=args.mem_requested_in_use_delta,
                in_use_bytes=args.mem_bytes_in_use,
                peak_bytes=args.mem_in_use_peak,
                held_bytes=args.mem_arena_held,
                # from `{"float": [1, 3]}`; only here small types have capitals, and say how many are in a byte
                types=tuple(
                    TensorType(PACKED.sub(r"\1", dtype.lower()), shape)
                    for entry in args.output_type_shape
                    for dtype, shape in entry.items()
                ),
                has_counters=requested is not None,
            )
            events.append(kernel)
        elif event.cat == "Session" and event.name == "model_run":
            runs.append(ProfiledRun(without_nested(events), event.dur))
            events = []
    return tuple(runs)


def require_counters(run: ProfiledRun) -> None:
    """Check that the runtime counted memory.

    Raises:
        RuntimeFailure: it did not.
    """
    without = next((event for event in run.events if not event.has_counters), None)
    if without is not None:
        raise RuntimeFailure(
            f"the profile of op '{without.name}' has no '{COUNTER}': this version of ONNX Runtime or this device "
            f"reports no memory counters; install onnxruntime {COUNTERS_FROM} or newer"
        )


def without_nested(events: Sequence[ProfileEvent]) -> tuple[ProfileEvent, ...]:
    """Drop the kernels of subgraphs: they are listed before the control-flow op that ran them, but began after it.

    Of a file in the steady form only the graph inside is of interest, as if there were no form, and no primers; of a
    guard only that it ran: what is inside takes so little time that it may seem to begin with it.
    """
    kept: list[ProfileEvent] = []
    full: list[int] = []  # of each of them, the most in use during it
    highest, rules = 0, installed_rules().bodies
    for event in events:
        before, highest = highest, max(highest, event.peak_bytes)
        if event.name.startswith(OURS) or is_inside_guard(event.name):
            continue
        nested: list[ProfileEvent] = []
        nested_full_bytes = 0
        while kept and kept[-1].start_us > event.start_us:
            nested.append(kept.pop())
            nested_full_bytes = max(nested_full_bytes, full.pop())
        rose = event.peak_bytes > before
        if nested:
            results_bytes = min(event.growth_bytes, sum(map(size_bytes, event.types)))  # of sequences it says none
            end_bytes = rules.end_bytes(event.op_type, nested[0].requested_bytes, results_bytes)
            nested_full_bytes = max(nested_full_bytes, end_bytes if rose else 0)
            most_bytes = max(max(each.requested_bytes, each.nested_bytes) for each in nested)
            found = {"nested_bytes": most_bytes, "nested_full_bytes": nested_full_bytes}
            kernels = tuple(kernel for each in reversed(nested) for kernel in (*each.kernels, body_kernel(each)))
            kept.append(msgspec.structs.replace(event, inside=_inside(nested, end_bytes), kernels=kernels, **found))
        else:
            kept.append(event)
        # a loop's own counters say what the allocator rounds buffers up to, those of its kernels what they take
        workspace_bytes = event.peak_bytes - event.in_use_bytes if rose and not nested else 0
        full.append(max(event.requested_bytes + workspace_bytes, nested_full_bytes))
    return tuple(kept)


def body_kernel(event: ProfileEvent) -> BodyKernel:
    """What a kernel of a subgraph, or an op that has one, showed, with the most that its workspace may be."""
    rules = installed_rules().bodies
    return BodyKernel(
        name=event.name,
        begin_bytes=event.requested_bytes - event.growth_bytes,
        end_bytes=event.requested_bytes,
        result_bytes=tuple(map(size_bytes, event.types)),
        workspace_bytes=max(0, event.peak_bytes - event.in_use_bytes),
        has_body=bool(event.kernels),
        copies=event.op_type in rules.copies_results,
        lists=event.op_type in rules.lists,
    )


def _inside(nested: Sequence[ProfileEvent], end_bytes: int) -> tuple[InsideKernel, ...]:
    """The most that kernels of a subgraph showed, by name, and what was in use when they had ended."""
    most = {"": InsideKernel("", end_bytes, end_bytes)}
    for event in nested:
        limit_bytes = event.requested_bytes + max(0, event.peak_bytes - event.in_use_bytes)
        for each in (InsideKernel(event.name, event.requested_bytes, limit_bytes), *event.inside):
            known = most.get(each.name, each)
            most[each.name] = InsideKernel(
                each.name,
                max(each.requested_bytes, known.requested_bytes),
                max(each.limit_bytes, known.limit_bytes),
            )
    return tuple(most.values())
