"""Compares runs of a written model with what was predicted: where they part, and what workspace they showed."""

from collections.abc import Collection, Mapping, Sequence

from remat_cli.core.values.learning import NOTHING, Learnt, Session
from remat_cli.ort_rules.forecast import SessionForecast
from remat_cli.ort_rules.lessons import Lesson, lessons
from remat_cli.runtime.measure.turns import RunFigures
from remat_cli.runtime.sessions._ort import installed_rules

WORKSPACE_TOLERANCE = 0.05


def lessons_of(
    forecast: SessionForecast | None, sessions: Sequence[tuple[Session, RunFigures]], workspace: Mapping[str, int]
) -> tuple[Lesson, ...]:
    """Where runs left what was predicted: the first session that did, or the op that took more workspace.

    `sessions` begin with an exact one, which tells of workspace too; `workspace` is by op name.
    """
    if forecast is None:
        return ()
    for kind, figures in sessions:
        found = lessons(forecast, figures.curve, kind)
        if not found and kind == "exact":
            more = seen_workspace(workspace, figures).items() - workspace.items()
            kinds = {op.name: op.op_type for op in forecast.judged.graph.ops}
            found = tuple(
                Lesson(Learnt(name, kinds[name], "workspace", "exact", workspace.get(name, 0), measured), NOTHING)
                for name, measured in more
            )
        if found:
            return found
    return ()


def seen_workspace(workspace: Mapping[str, int], exact: RunFigures) -> dict[str, int]:
    """Workspace by op: as predicted, but as measured at the one op where that is known and clearly more."""
    predicted, measured = workspace.get(exact.peak_op, 0), exact.peak_workspace_bytes
    if measured is None or _units(measured) <= _units(int(predicted * (1 + WORKSPACE_TOLERANCE))) + 1:
        return dict(workspace)
    return {**workspace, exact.peak_op: measured}


def _units(bytes_: int) -> int:
    return -(-bytes_ // installed_rules().arena.unit_bytes)


def out_of_order(expected: Sequence[str], gates: Collection[str], sessions: Sequence[RunFigures]) -> str | None:
    """The first op of the plan that did not run in its turn, in any of the sessions."""
    for figures in sessions:
        executed = [op for op in figures.executed if op not in gates]
        for number, op in enumerate(expected):
            if number >= len(executed) or executed[number] != op:
                return op
    return None
