"""What `partition` found: stages, what crosses between them, the period beside its bounds, memory of each device."""

from typing import Literal

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.pipelines.plan.schedule_file import DeviceLoad, LinkLoad, PipelineBounds, PipelineRequest
from remat_cli.pipelines.report.gantt import PeriodPicture, period_lines, period_svg
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE, EXIT_IMPOSSIBLE, EXIT_NOT_FOUND, EXIT_UNVERIFIED
from remat_cli.report.style import Style, columns, duration, plural, shorten

MOST_NAMES = 3


class StageRow(msgspec.Struct, frozen=True):
    """A stage: ops, times, bytes of all copies of its weights and of what it keeps of a micro-batch, what leaves."""

    device: int
    first_op: str
    last_op: str
    ops: int
    again: int
    forward_ns: int
    backward_ns: int
    weight_bytes: int
    kept_bytes: int
    leaves: tuple[str, ...]
    goes_back: tuple[str, ...]
    cut_bytes: int


class PlannedStages(msgspec.Struct, frozen=True):
    """The plan; `sequential_ns` is a micro-batch on one device, `latency_ns` one through all stages."""

    stages: tuple[StageRow, ...]
    period_ns: float
    latency_ns: int
    sequential_ns: int
    bounds: PipelineBounds
    devices: tuple[DeviceLoad, ...]
    links: tuple[LinkLoad, ...]
    held: tuple[tuple[tuple[int, int], ...], ...]


class Lack(msgspec.Struct, frozen=True):
    """Why nothing fits: the bound, and the part of the model that needs most by itself."""

    needed_bytes: int
    is_proved: bool
    first_op: str
    last_op: str
    alone_bytes: int


Status = Literal["planned", "impossible", "not_found", "differs"]
EXITS = {
    "planned": EXIT_DONE,
    "impossible": EXIT_IMPOSSIBLE,
    "not_found": EXIT_NOT_FOUND,
    "differs": EXIT_UNVERIFIED,
}


class PartitionReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A model in stages, or why there is none; `differs` names an output of the stages that is not the model's."""

    model: str
    status: Status
    is_training: bool
    request: PipelineRequest
    schedule: str | None = None
    plan: PlannedStages | None = None
    lack: Lack | None = None
    differs: str | None = None
    svg: str | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """3: no plan is possible; 4: none was found; 5: the stages compute something else."""
        return EXITS[self.status]

    def lines(self, style: Style) -> list[str]:
        """The stages, what crosses, the period and its bounds, each device."""
        asked = self.request
        kind = f"training step, {plural(asked.micro_batches, 'micro-batch')}" if self.is_training else "forward model"
        kind = kind.replace("batchs", "batches")
        lines = [
            style.paint(f"{self.model} -> {self.schedule}" if self.schedule else self.model, "strong"),
            f"{kind}, {plural(asked.devices, 'device')} of {format_bytes(asked.memory_bytes)}, "
            f"links of {asked.link_bytes_per_second / 1e9:g} GB/s, method {asked.method}",
        ]
        if (lack := self.lack) is not None:
            if self.status != "impossible":
                head = "no plan found; stages of neighbouring ops need"
            elif lack.is_proved:
                head = "impossible: some device needs at least"
            else:
                head = "impossible in stages of neighbouring ops: some device needs at least"
            where = " on some device" if self.status != "impossible" else ""
            ends = lack.first_op if lack.first_op == lack.last_op else f"{lack.first_op} to {lack.last_op}"
            return [
                *lines,
                "",
                style.paint(f"{head} {format_bytes(lack.needed_bytes)}{where}", "bad"),
                f"what needs most by itself: {ends}, {format_bytes(lack.alone_bytes)}",
                "give more memory, more devices or a smaller micro-batch",
            ]
        assert self.plan is not None
        lines += ["", *_stage_lines(self.plan, style), "", *_device_lines(self.plan, asked.micro_batches), ""]
        picture = picture_of(self.plan, asked)
        lines += period_lines(picture, style)
        if self.differs is not None:
            lines += [
                "",
                style.paint(f"output '{self.differs}' differs from the model's: the stages are not to be used", "bad"),
            ]
        elif self.schedule is not None:
            lines += ["", "outputs of the stages equal those of the model to the last bit"]
            lines += [f"run them: remat run {self.schedule} --local"]
        return lines + ([f"picture {self.svg}"] if self.svg else [])


def picture_of(plan: PlannedStages, request: PipelineRequest) -> PeriodPicture:
    """What is drawn of a plan."""
    period = max(1, round(plan.period_ns))
    return PeriodPicture(period, request.memory_bytes, plan.devices, plan.links, plan.held)


def partition_picture(report: PartitionReport) -> bytes:
    """The period and the memory of each device.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    assert report.plan is not None
    name = report.model.replace("\\", "/").rpartition("/")[2]
    return period_svg(picture_of(report.plan, report.request), f"Pipeline: {name}")


def _stage_lines(plan: PlannedStages, style: Style) -> list[str]:
    """The stages; where the model is cut, and what crosses there."""
    rows = [["stage", "device", "ops", "again", "from", "to", "forward", "backward", "weights", "per micro-batch"]]
    width = max(12, (style.width - 70) // 2)
    for number, stage in enumerate(plan.stages, 1):
        ends = [shorten(stage.first_op, width), shorten(stage.last_op, width)]
        times = [duration(stage.forward_ns), duration(stage.backward_ns) if stage.backward_ns else "-"]
        sizes = [format_bytes(stage.weight_bytes), format_bytes(stage.kept_bytes) if stage.kept_bytes else "-"]
        rows.append([str(number), str(stage.device), str(stage.ops), str(stage.again or "-"), *ends, *times, *sizes])
    lines = []
    for number, stage in enumerate(plan.stages[:-1], 1):
        back = plan.stages[number].goes_back
        more = f" and {len(stage.leaves) - MOST_NAMES} more" if len(stage.leaves) > MOST_NAMES else ""
        named = ", ".join(shorten(name, 30) for name in stage.leaves[:MOST_NAMES])
        text = f"{plural(len(stage.leaves), 'tensor')} ({named}{more})"
        text += f", back {plural(len(back), 'tensor')}" if back else ""
        lines.append(f"cut {number} after {shorten(stage.last_op, 30)}: {format_bytes(stage.cut_bytes)}: {text}")
    return [*columns(rows, ">>>><<>>>>"), "", *(lines or ["one stage: nothing is cut"])]


def _device_lines(plan: PlannedStages, batches: int) -> list[str]:
    """The period and its bounds, and what each device does and holds."""
    above = 100 * (plan.period_ns / plan.bounds.period_ns - 1) if plan.bounds.period_ns else 0.0
    lines = [
        f"period {duration(plan.period_ns)} per micro-batch; no schedule is below {duration(plan.bounds.period_ns)} "
        f"(+{above:.1f} %); one device takes {duration(plan.sequential_ns)}, "
        f"{plan.sequential_ns / max(1.0, plan.period_ns):.2f} times as long"
    ]
    if plan.bounds.method_ns is not None:
        lines.append(f"of the schedules that this method looks at none is below {duration(plan.bounds.method_ns)}")
    whole = plan.latency_ns + (batches - 1) * plan.period_ns
    lines.append(f"{batches} in a row take {duration(whole)}; one alone {duration(plan.latency_ns)}")
    lines.append(f"the fullest device of any plan holds at least {format_bytes(plan.bounds.memory_bytes)}")
    rows = [["device", "busy", "memory", "weights", "buffers", "micro-batches alive"]]
    for number, device in enumerate(plan.devices):
        alive = ", ".join(f"stage {stage}: {count}" for stage, count in device.alive.items())
        sizes = [format_bytes(size) for size in (device.peak_bytes, device.static_bytes, device.buffer_bytes)]
        has_alive = any(stage.kept_bytes for stage in plan.stages)
        in_pattern = 1 + max((task.slot for task in device.order), default=0)  # micro-batches that the pattern has
        busy = f"{100 * device.busy_ns / plan.period_ns / in_pattern:.0f} %" if plan.period_ns else "-"
        rows.append([str(number), busy, *sizes, alive if has_alive else "-"])
    return [*lines, "", *columns(rows, ">>>>><")]
