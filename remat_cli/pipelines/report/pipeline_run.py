"""What running a pipeline showed: what the model gave, and time, overlap and memory beside the plan's."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.pipelines.plan.orders import TurnSpan
from remat_cli.pipelines.plan.schedule_file import DeviceLoad, PipelineFile
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE
from remat_cli.report.style import Style, columns, duration, plural

MOST_LOSSES = 6


class RanStage(msgspec.Struct, frozen=True):
    """The most micro-batches that a stage held at a time; planned and seen."""

    stage: int
    planned_alive: int
    alive: int


class RanActor(msgspec.Struct, frozen=True):
    """A device's own process: how long it was busy, and the most that it held; 0: not seen.

    `held_bytes` is resident memory of its own, beyond a process with the runtime and a tiny session open;
    `mapped_bytes` are pages of files and of the object store that it had mapped beyond that, which others may share.
    """

    device: int
    busy_ns: int
    planned_bytes: int
    held_bytes: int
    mapped_bytes: int = 0


class PipelineRunReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """How a schedule ran. `losses` are means over the micro-batches of each update, `given` one entry per micro-batch.

    `overlap` is the share of the time in which something ran when at least two devices ran; None: one after another.
    `period_ns` is the time from one micro-batch to the next where none had to wait for an update.
    """

    schedule: str
    where: str
    is_training: bool
    is_late: bool
    updates: int
    updates_before: int
    micro_batches: int
    losses: tuple[float, ...]
    given: tuple[float, ...]
    planned_period_ns: float
    period_ns: float | None
    overlap: float | None
    stages: tuple[RanStage, ...]
    actors: tuple[RanActor, ...]
    output: str | None = None
    state: str | None = None
    trace: str | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: a run that fails is an error."""
        return EXIT_DONE

    def lines(self, style: Style) -> list[str]:
        """What came out, and how it went."""
        lines = [style.paint(f"{self.schedule}: {self.where}", "strong")]
        batches = f"{self.micro_batches} micro-batches"
        if self.is_training:
            how = "updates come late, the pipeline never empty" if self.is_late else "empty before each update"
            before = f" after {self.updates_before} before" if self.updates_before else ""
            shown = [f"{loss:.6g}" for loss in self.losses]
            if len(shown) > MOST_LOSSES:
                shown = [*shown[: MOST_LOSSES // 2], "...", *shown[-MOST_LOSSES // 2 :]]
            lines.append(f"{plural(self.updates, 'update')}{before} of {batches} each; {how}")
            lines.append(f"loss {', '.join(shown)}" if shown else "no output is a single number")
        else:
            lines.append(f"{batches}, {plural(self.updates, 'round')}")
        measured = "" if self.period_ns is None else f"; measured {duration(self.period_ns)}"
        lines += ["", f"period planned {duration(self.planned_period_ns)}{measured}"]
        if self.overlap is not None:
            lines.append(f"at least two devices at work: {100 * self.overlap:.0f} % of the time that any was")
        if self.is_training and self.overlap is not None:
            rows = [["stage", "micro-batches alive, planned", "seen"]]
            rows += [[str(each.stage), str(each.planned_alive), str(each.alive)] for each in self.stages]
            lines += ["", *columns(rows, ">>>")]
        if any(actor.held_bytes for actor in self.actors):
            rows = [["device", "busy", "memory planned", "held beyond an empty process", "mapped"]]
            for each in self.actors:
                sizes = [format_bytes(size) for size in (each.planned_bytes, each.held_bytes, each.mapped_bytes)]
                rows.append([str(each.device), duration(each.busy_ns), *sizes])
            lines += ["", *columns(rows, ">>>>>")]
        made = {"outputs": self.output, "state": self.state, "trace": self.trace}
        files = [f"{what} {path}" for what, path in made.items() if path]
        return lines + (["", *files] if files else [])


def ran_stages(plan: PipelineFile, spans: Sequence[TurnSpan]) -> tuple[RanStage, ...]:
    """The most micro-batches that each stage held after a forward, as planned and as seen."""
    most: dict[int, int] = defaultdict(int)
    for span in spans:
        most[span.stage] = max(most[span.stage], span.alive)
    planned = {stage: count for device in plan.devices for stage, count in device.alive.items()}
    return tuple(RanStage(stage, planned[stage], most[stage]) for stage in sorted(planned))


def ran_actors(devices: Sequence[DeviceLoad], spans: Sequence[TurnSpan]) -> tuple[RanActor, ...]:
    """How long each device was busy, and the most that it held."""
    found = []
    for number, device in enumerate(devices):
        mine = [span for span in spans if span.device == number]
        busy = sum(span.end_ns - span.start_ns for span in mine)
        held = max((span.held_bytes for span in mine), default=0)
        mapped = max((span.mapped_bytes for span in mine), default=0)
        found.append(RanActor(number, busy, device.peak_bytes, held, mapped))
    return tuple(found)


def measured_period(blocks: Sequence[Sequence[TurnSpan]], is_training: bool, stages: int) -> float | None:
    """Median over updates of the time from one micro-batch to the next; None where there is but one."""
    kind, stage = ("B", 1) if is_training else ("F", stages)
    found = []
    for spans in blocks:
        ends = sorted(span.end_ns for span in spans if span.kind == kind and span.stage == stage)
        if len(ends) > 1:
            found.append((ends[-1] - ends[0]) / (len(ends) - 1))
    return statistics.median(found) if found else None


def overlap(spans: Sequence[TurnSpan]) -> float | None:
    """Of the time in which some device ran, the share in which at least two did."""
    changes = sorted(
        change for span in spans if span.end_ns > span.start_ns for change in ((span.start_ns, 1), (span.end_ns, -1))
    )
    busy = both = running = before = 0
    for now, change in changes:
        busy += (now - before) if running else 0
        both += (now - before) if running > 1 else 0
        running, before = running + change, now
    return both / busy if busy else None
