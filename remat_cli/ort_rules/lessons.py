"""Where a measured run left what was predicted of it, op by op, why, and what follows for the op."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import own_bytes
from remat_cli.core.values.learning import NOTHING, Cause, Correction, Learnt, Session
from remat_cli.ort_rules.forecast import SessionForecast

MOST_DIFFERENCES = 8


@dataclass(frozen=True)
class MeasuredCurve:
    """What a run showed of each op, by name: bytes in use when it ended, and by how many they grew meanwhile."""

    live_bytes: Mapping[str, int]
    grown_bytes: Mapping[str, int]


@dataclass(frozen=True)
class Lesson:
    """A difference, and what follows from it for the op, if anything does."""

    learnt: Learnt
    correction: Correction


def lessons(forecast: SessionForecast, curve: MeasuredCurve, session: Session) -> tuple[Lesson, ...]:
    """Compare a run with its prediction: the first few ops that differ, in order, and what follows for each."""
    graph, plan = forecast.judged.graph, forecast.judged.plan
    own = own_bytes(graph)
    memory = forecast.exact if session == "exact" else forecast.default_session
    found: list[Lesson] = []
    before = 0
    for number, op in enumerate(graph.ops):
        if op.name not in curve.live_bytes:
            return tuple(found)  # another graph ran: bytes say nothing
        measured, predicted = curve.live_bytes[op.name], memory.live_bytes[number]
        change = measured - predicted - before
        before += change
        if change:
            born_bytes = sum(own[tensor] for tensor in _born(graph, plan, number))
            made = curve.grown_bytes[op.name] - (born_bytes - memory.reused_bytes[number])
            found.extend(_explained(graph, plan, number, (made, change - made), (predicted, measured, session)))
        if len(found) >= MOST_DIFFERENCES:
            break
    return tuple(found)


def _explained(
    graph: Graph, plan: Plan, number: int, changes: tuple[int, int], figures: tuple[int, int, Session]
) -> Iterator[Lesson]:
    """What may have happened at an op that took another amount than predicted, or before which another was freed."""
    op, (made, freed) = graph.ops[number], changes
    predicted, measured, session = figures

    def lesson(cause: Cause, correction: Correction = NOTHING) -> Lesson:
        return Lesson(Learnt(op.name, op.op_type, cause, session, predicted, measured), correction)

    if made > 0:
        # A result that the judge put into another buffer may have got one of its own.
        own = _born(graph, plan, number)
        apart = ((at, graph.tensors[result]) for at, result in enumerate(op.outputs) if result not in own)
        at, result = next(((at, tensor) for at, tensor in apart if tensor.size_bytes == made), (0, None))
        if result is None:
            yield lesson("a kernel took another amount")
        elif result.view_of is not None:
            yield lesson("a view was copied", Correction(copies=(at,)))
        else:
            yield lesson("an in-place share was not taken", Correction(apart=(at,)))
    elif made < 0:
        # A result may have taken the buffer of an input that is as large, and made by an op.
        sizes = [tensor.size_bytes if tensor.producer is not None else -1 for tensor in graph.tensors]
        results = [at for at, tensor in enumerate(op.outputs) if sizes[tensor] == -made]
        sources = [at for at, tensor in enumerate(op.inputs) if sizes[tensor] == -made]
        if results and sources:
            yield lesson("an in-place share was taken", Correction(shares=((sources[0], results[0]),)))
        else:
            yield lesson("a kernel took another amount")
    if freed:
        yield lesson("a buffer was held longer" if freed > 0 else "a buffer was freed earlier")


def _born(graph: Graph, plan: Plan, number: int) -> set[int]:
    """Results of a step for which the judge takes a new buffer."""
    older = {instance.storage for instance in plan.instances if instance.birth < number}
    results = graph.ops[number].outputs
    makes = plan.makes[number]
    return {each for at, each in enumerate(results) if plan.instances[makes[at]].storage not in older}
