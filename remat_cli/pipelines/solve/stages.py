"""Stages of a chain as the layers of a shorter chain, and schedules of the one as schedules of the other."""

from collections.abc import Sequence
from itertools import accumulate

from remat_cli.base.errors import InputError
from remat_cli.pipelines.plan.chain import PeriodicSchedule, PipelineChain, PipelineStage
from remat_cli.pipelines.solve.memory import StageFigures


def stages_of(devices: Sequence[int]) -> tuple[PipelineStage, ...]:
    """Maximal runs of layers on one device."""
    found: list[PipelineStage] = []
    for layer, device in enumerate(devices, 1):
        if found and found[-1].device == device:
            found[-1] = PipelineStage(found[-1].first, layer, device)
        else:
            found.append(PipelineStage(layer, layer, device))
    return tuple(found)


def merge(chain: PipelineChain, stages: Sequence[PipelineStage]) -> PipelineChain:
    """The chain whose layers are these stages.

    What a stage works on is more than its ends show: gradients within it count too.

    Raises:
        InputError: the stages do not follow one another from the first layer to the last.
    """
    ends = [stage.last for stage in stages]
    if [stage.first for stage in stages] != [1, *(end + 1 for end in ends[:-1])] or ends[-1] != chain.layers:
        raise InputError(f"stages that end at layers {ends} do not cover layers 1..{chain.layers} one after another")
    figures = StageFigures(chain)
    work = [figures.work_bytes(stage.first, stage.last) for stage in stages]
    return PipelineChain(
        forward=tuple(sum(chain.forward[stage.first - 1 : stage.last]) for stage in stages),
        backward=tuple(sum(chain.backward[stage.first - 1 : stage.last]) for stage in stages),
        weights=tuple(sum(chain.weights[stage.first - 1 : stage.last]) for stage in stages),
        sizes=(chain.sizes[0], *(chain.sizes[end] for end in ends)),
        transfers=tuple(chain.transfers[end - 1] for end in ends[:-1]),
        copies=chain.copies,
        saved=tuple(figures.saved_bytes(stage.first, stage.last) for stage in stages),
        forward_work=tuple(forward for forward, _ in work),
        backward_work=tuple(backward for _, backward in work),
        has_gradients=chain.has_gradients,
        drops_at_end=chain.drops_at_end,
    )


def spell_out(chain: PipelineChain, stages: Sequence[PipelineStage], schedule: PeriodicSchedule) -> PeriodicSchedule:
    """A schedule of the merged chain as one of the layers: those of a stage run back to back."""
    devices = tuple(stage.device for stage in stages for _ in range(stage.first, stage.last + 1))
    starts = []
    for each in schedule.starts:
        forwards: list[int] = []
        backwards: list[int] = []
        for at, stage in enumerate(stages):
            forwards += accumulate(chain.forward[stage.first - 1 : stage.last - 1], initial=each[at])
        for at, stage in enumerate(reversed(stages)):
            times = reversed(chain.backward[stage.first : stage.last])
            backwards += accumulate(times, initial=each[len(stages) + at])
        starts.append((*forwards, *backwards))
    moves = []
    for moved in schedule.transfers:
        found: list[int | None] = [None] * (2 * chain.layers - 1)
        for at, stage in enumerate(stages[:-1]):
            found[stage.last - 1] = moved[at]
            found[2 * chain.layers - stage.last - 1] = moved[2 * len(stages) - at - 2]
        moves.append(tuple(found))
    return PeriodicSchedule(schedule.period, devices, tuple(starts), tuple(moves))
