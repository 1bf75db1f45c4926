"""`schedule.json`: a model cut into stages for several devices, when each runs, and what this takes of each device."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from remat_cli.base.errors import InvalidSchedule, ModelError
from remat_cli.core.schedule.program import InputSpec
from remat_cli.pipelines.plan.chain import PeriodicSchedule, PipelineChain
from remat_cli.pipelines.plan.judge import PipelineRun, simulate_pipeline

FORMAT, VERSION = "remat-pipeline", 1
SCHEDULE_FILE = "schedule.json"
METHODS = ("auto", "1f1b-star", "madpipe", "pipeline-ilp", "pipedream", "joint")
"""Ways to plan a pipeline; the planners are in `pipelines/solve`."""


class SessionFile(msgspec.Struct, frozen=True):
    """A model file in the folder of the schedule; `reads` and `makes` are its inputs and outputs, in order."""

    file: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


class StageFile(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: the models that it runs, and what goes in and out of it; all by name.

    `arrives` comes from the stage before, `leaves` goes on to the next one, `returns` comes back from it, and
    `goes_back` goes to the stage before. `again` of its `ops` are of the forward, and run again in the backward. `kept`
    stays from the forward of a micro-batch to its backward. `fed` are
    inputs of the model. `weights` are states that sessions read and updates move, `states` all that stays from step to
    step; their first values are in the file `first`. `forward_states` maps outputs of the forward to the states they
    become, `next_of` states to outputs of the update.
    """

    device: int
    first_op: str
    last_op: str
    ops: int
    again: int = 0
    forward: SessionFile
    backward: SessionFile | None = None
    update: SessionFile | None = None
    arrives: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    goes_back: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    fed: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    forward_states: dict[str, str] = {}
    next_of: dict[str, str] = {}
    first: str | None = None


class PeriodTask(msgspec.Struct, frozen=True):
    """Work of a device in each period: the forward (F) or backward (B) of a stage, counted from 1.

    It begins `offset_ns` after the period, on the micro-batch that is `shift` ahead of the one whose first stage then
    runs its backward; `slot` says which of the pattern's micro-batches.
    """

    stage: int
    kind: Literal["F", "B"]
    offset_ns: int
    shift: int
    duration_ns: int
    slot: int = 0


class DeviceLoad(msgspec.Struct, frozen=True):
    """What a device does in a period, in order, and what it holds.

    `static_bytes` are weights in all copies, `buffer_bytes` what its links need, `peak_bytes` the most at any time.
    `alive` is the most micro-batches that its stages hold at one time, by stage.
    """

    static_bytes: int
    buffer_bytes: int
    peak_bytes: int
    busy_ns: int
    alive: dict[int, int]
    order: tuple[PeriodTask, ...]


class LinkTransfer(msgspec.Struct, frozen=True):
    """What crosses a link in a period, after which stage, on the way there (F) or back (B)."""

    after_stage: int
    kind: Literal["F", "B"]
    offset_ns: int
    duration_ns: int
    size_bytes: int


class LinkLoad(msgspec.Struct, frozen=True):
    """Transfers of the link between two devices, in order."""

    devices: tuple[int, int]
    order: tuple[LinkTransfer, ...]


class PipelineRequest(msgspec.Struct, frozen=True):
    """What was asked for."""

    devices: int
    memory_bytes: int
    link_bytes_per_second: float
    micro_batches: int
    method: str


class PipelineBounds(msgspec.Struct, frozen=True):
    """What no schedule can beat; `method_ns` holds among the schedules that the method looks at."""

    period_ns: int
    memory_bytes: int
    method_ns: int | None = None


class PipelineFile(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and the stages that it is for; times in nanoseconds.

    `outputs` are what the model gives for each micro-batch. `settings` are inputs of updates that the caller chooses,
    such as a learning rate. `told` is a file with values of inputs for which random ones will not do. `chain` has a
    layer per stage, and `schedule` is one of it: what `devices` and `links` say follows from these two.
    """

    format: str = FORMAT
    version: int = VERSION
    model: str
    model_sha256: str
    is_training: bool
    request: PipelineRequest
    method: str
    period_ns: float
    bounds: PipelineBounds
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    settings: tuple[str, ...] = ()
    told: str | None = None
    optimization: str = "all"
    custom_ops: tuple[str, ...] = ()
    stages: tuple[StageFile, ...]
    devices: tuple[DeviceLoad, ...]
    links: tuple[LinkLoad, ...]
    chain: PipelineChain
    schedule: PeriodicSchedule

    @property
    def most_alive(self) -> int:
        """The most micro-batches that any stage holds: an update that comes late must come no sooner."""
        return max(count for device in self.devices for count in device.alive.values())


def device_loads(chain: PipelineChain, schedule: PeriodicSchedule) -> tuple[PipelineRun, tuple[DeviceLoad, ...]]:
    """The judge's verdict on a schedule of stages, and what each device does by it."""
    run = simulate_pipeline(chain, schedule, "full")
    loads = []
    cuts = list(enumerate(pairwise(schedule.devices), 1))
    for device in range(max(schedule.devices) + 1):
        mine = [stage for stage, owner in enumerate(schedule.devices, 1) if owner == device]
        n = chain.layers
        found = []
        for slot, starts in enumerate(schedule.starts):
            turn = starts[2 * n - 1] // schedule.period
            for stage in mine:
                ways = [("F", stage - 1, chain.forward)] + [("B", 2 * n - stage, chain.backward)] * chain.has_gradients
                for kind, task, times in ways:
                    rounds, offset = divmod(starts[task], schedule.period)
                    found.append(PeriodTask(stage, kind, offset, turn - rounds, times[stage - 1], slot))  # type: ignore[arg-type]
        tasks = sorted(found, key=lambda task: (task.offset_ns, task.stage, task.kind))
        crossed = [cut for cut, (here, there) in cuts if here != there and device in (here, there)]
        loads.append(
            DeviceLoad(
                static_bytes=sum(chain.copies * chain.weights[stage - 1] for stage in mine),
                buffer_bytes=sum(chain.ways * chain.sizes[cut] for cut in crossed),
                peak_bytes=run.peak_bytes.get(device, 0),
                busy_ns=sum(task.duration_ns for task in tasks),
                alive={stage: run.live[stage - 1] for stage in mine},
                order=tuple(tasks),
            )
        )
    return run, tuple(loads)


def link_loads(chain: PipelineChain, schedule: PeriodicSchedule) -> tuple[LinkLoad, ...]:
    """Transfers by pair of devices."""
    found: dict[tuple[int, int], list[LinkTransfer]] = {}
    n = chain.layers
    for moves in schedule.transfers:
        for cut in range(1, n):
            ends = tuple(sorted(schedule.devices[cut - 1 : cut + 1]))
            if ends[0] == ends[1]:
                continue
            for kind, task in [("F", cut - 1)] + [("B", 2 * n - cut - 1)] * chain.has_gradients:
                start = moves[task]
                assert start is not None
                transfer = LinkTransfer(cut, kind, start % schedule.period, chain.transfers[cut - 1], chain.sizes[cut])  # type: ignore[arg-type]
                found.setdefault((ends[0], ends[1]), []).append(transfer)
    return tuple(
        LinkLoad(pair, tuple(sorted(moves, key=lambda move: move.offset_ns))) for pair, moves in sorted(found.items())
    )


def read_pipeline(path: Path) -> PipelineFile:
    """Read a schedule and judge it again.

    Raises:
        ModelError: the file is missing, no schedule of stages, of a newer version, damaged, or contradicts itself.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"schedule {path} cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=PipelineFile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"schedule {path} is damaged: {error}; partition again") from None
    if found.format != FORMAT or found.version > VERSION:
        raise ModelError(f"{path} is '{found.format}' version {found.version}, not '{FORMAT}' up to {VERSION}")
    try:
        _check(path, found)
    except (InvalidSchedule, ModelError) as error:
        raise ModelError(f"schedule {path} is damaged: {error}; partition again") from None
    return found


def _check(path: Path, found: PipelineFile) -> None:
    if found.chain.layers != len(found.stages) or [s.device for s in found.stages] != list(found.schedule.devices):
        raise ModelError("stages, chain and schedule are not of one pipeline")
    run, loads = device_loads(found.chain, found.schedule)
    if loads != found.devices or link_loads(found.chain, found.schedule) != found.links:
        raise ModelError("what devices and links do is not what the schedule says")
    if Fraction(found.period_ns) != Fraction(float(run.normalized_period)):
        raise ModelError(f"its period is {float(run.normalized_period):.0f} ns, not {found.period_ns:.0f}")
    sessions = [each for stage in found.stages for each in (stage.forward, stage.backward, stage.update)]
    names = [found.told, *(stage.first for stage in found.stages), *(each.file for each in sessions if each)]
    for name in (name for name in names if name is not None):
        if Path(name).name != name:
            raise ModelError(f"file '{name}' is not beside it")
        if not (path.parent / name).is_file():
            raise ModelError(f"file '{name}' is gone")
