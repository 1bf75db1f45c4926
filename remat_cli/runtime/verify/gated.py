"""Tries a model with gates in a session on a device, opened as a user opens one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.core.schedule.graph import size_bytes
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.runtime.segments.segment_memory import COPIES
from remat_cli.runtime.sessions._ort import (
    LONGEST_RUN_SECONDS,
    Advance,
    Array,
    PackedArray,
    import_ort,
    pack_all,
    run_fresh,
    run_session,
    runtime_errors,
    unpack_all,
)
from remat_cli.runtime.sessions.assignment import ask_for_assignment, assigned, can_report
from remat_cli.runtime.sessions.session import (
    SessionSettings,
    device_settings,
    profiled_session,
    session_device,
    session_options,
)


class GatedJob(msgspec.Struct, frozen=True):
    """A model to run once on a device, with these feeds."""

    path: str
    spec: DeviceSpec
    feeds: tuple[PackedArray, ...]
    custom_ops: tuple[str, ...] = ()


class SeenGated(msgspec.Struct, frozen=True):
    """What ran, in order, and which of it on the device; the bytes of each copy of the runtime's; and the outputs."""

    ran: tuple[str, ...]
    on_device: tuple[str, ...]
    copied_bytes: tuple[int, ...]
    outputs: tuple[PackedArray, ...]

    @property
    def arrays(self) -> dict[str, Array]:
        """The outputs by name."""
        return unpack_all(self.outputs)


def gated_job(path: Path, spec: DeviceSpec, feeds: Mapping[str, Any], custom_ops: tuple[str, ...] = ()) -> GatedJob:
    """The job of running a model once."""
    return GatedJob(str(path), spec, pack_all(feeds), custom_ops)


def see_gated(job: GatedJob, seconds: float = LONGEST_RUN_SECONDS) -> SeenGated:
    """Run a model in a fresh process, in a session that optimises what does not fuse ops.

    Raises:
        MissingDependency: the device is not here.
        RuntimeFailure: the runtime refuses the model or fails.
    """
    return run_fresh(see_gated_here, job, seconds=seconds)


def see_gated_here(job: GatedJob, advance: Advance) -> SeenGated:
    """Run it in this process."""
    path, feeds = Path(job.path), unpack_all(job.feeds)
    settings = device_settings(job.spec, SessionSettings(exact=False, custom_ops=job.custom_ops))
    settings = msgspec.structs.replace(settings, is_alone=False)
    options = session_options(settings)
    options.graph_optimization_level = import_ort().GraphOptimizationLevel.ORT_ENABLE_BASIC
    if can_report():
        ask_for_assignment(options)
    with profiled_session(path, settings, options) as (session, runs), runtime_errors("ONNX Runtime fails to run it"):
        outputs = run_session(session, feeds)
        places = assigned(session) if can_report() else {}
    events = runs[0].events
    here = session_device(settings).provider.runtime_name
    return SeenGated(
        ran=tuple(event.name for event in events),
        on_device=tuple(event.name for event in events if places.get(event.name, here) == here),
        copied_bytes=tuple(sum(map(size_bytes, event.types)) for event in events if event.op_type in COPIES),
        outputs=pack_all(outputs),
    )
