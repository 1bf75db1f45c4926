"""The tables of a bench, made from the results file alone: medians over seeds, comparisons, text and Markdown."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeAlias

from remat_cli.contest.report.bench_run import BenchReport, BenchRun
from remat_cli.report.style import Style, columns, plural

SAME_PERCENT = 0.005  # overheads nearer than this are equal
LEAST_SECONDS = 1e-4  # times are recorded to this
MOST_WRITTEN = 4  # files whose names are told

Row: TypeAlias = tuple[str, str, str]
"""Instance, budget, order."""


@dataclass(frozen=True)
class Group:
    """The runs of one solver on one instance under one budget: one per seed."""

    row: Row
    label: str
    runs: tuple[BenchRun, ...]

    def median(self, value: Callable[[BenchRun], float | None]) -> float | None:
        """The median over seeds; None counts as larger than any number, and None comes out if the median is that."""
        numbers = [math.inf if (found := value(run)) is None else found for run in self.runs]
        middle = statistics.median(numbers)
        return middle if math.isfinite(middle) else None

    @property
    def overhead_percent(self) -> float | None:
        """Median overhead; None where half the runs or more found no plan."""
        return self.median(lambda run: run.overhead_percent)

    @property
    def bound_percent(self) -> float | None:
        """Median bound; a run without one counts as 0, which every plan takes at least."""
        bounds = [run.lower_bound_percent for run in self.runs if run.status not in ("error", "crashed", "overran")]
        if all(bound is None for bound in bounds):
            return None
        return statistics.median(bound or 0.0 for bound in bounds)

    @property
    def target_percent(self) -> float | None:
        """The published overhead."""
        return self.runs[0].target_percent

    def seconds_to(self, overhead_percent: float) -> float | None:
        """Median time until a plan with at most this overhead was there."""
        return self.median(lambda run: seconds_to(run, overhead_percent))


@dataclass(frozen=True)
class Duel:
    """Two solvers on all rows that both ran: who is better where, and how much sooner one reaches the other's result.

    `speed_up` is the median, over the rows in which the first reaches the median overhead that the second ends with,
    of the second's time to it divided by the first's; `reached` counts these rows. `only_first` and `only_second` are
    rows in which just one of them finds plans.
    """

    first: str
    second: str
    rows: int
    better: int
    equal: int
    worse: int
    only_first: int
    only_second: int
    reached: int
    speed_up: float | None


def group_runs(runs: Iterable[BenchRun]) -> tuple[Group, ...]:
    """Runs by row and solver, rows in the order of the file."""
    found: dict[tuple[Row, str], list[BenchRun]] = {}
    for run in runs:
        found.setdefault(((run.instance, run.budget, run.order), run.label), []).append(run)
    rows = list(dict.fromkeys(row for row, _ in found))
    labels = list(dict.fromkeys(label for _, label in found))
    pairs = sorted(found, key=lambda pair: (rows.index(pair[0]), labels.index(pair[1])))
    return tuple(Group(row, label, tuple(found[row, label])) for row, label in pairs)


def seconds_to(run: BenchRun, overhead_percent: float) -> float | None:
    """When a run first had a plan with at most this overhead (printed figures are rounded: a hair more is allowed)."""
    limit = overhead_percent + 1e-9
    times = (seconds for seconds, overhead, _ in run.trace if overhead is not None and overhead <= limit)
    return next((max(LEAST_SECONDS, seconds) for seconds in times), None)


def speed_up(group: Group, reference: Group | None) -> float | None:
    """How many times sooner than the reference a solver is at the target.

    Where there is no target, or the reference never gets there, at what the reference ends with.
    """
    if reference is None or reference is group:
        return None
    goals = [goal for goal in (group.target_percent, reference.overhead_percent) if goal is not None]
    reached = next((goal for goal in goals if reference.seconds_to(goal) is not None), None)
    return _sooner(group, reference, reached)


def duel(groups: Sequence[Group], first: str, second: str) -> Duel:
    """Compare two solvers on the rows that both ran."""
    mine = {group.row: group for group in groups if group.label == first}
    theirs = {group.row: group for group in groups if group.label == second}
    pairs = [(mine[row], theirs[row]) for row in mine if row in theirs]
    signs = [_compare(one.overhead_percent, other.overhead_percent) for one, other in pairs]
    ratios = [ratio for one, other in pairs if (ratio := _sooner(one, other, other.overhead_percent)) is not None]
    return Duel(
        first=first,
        second=second,
        rows=len(pairs),
        better=signs.count("better"),
        equal=signs.count("equal"),
        worse=signs.count("worse"),
        only_first=signs.count("only first"),
        only_second=signs.count("only second"),
        reached=len(ratios),
        speed_up=statistics.median(ratios) if ratios else None,
    )


def _compare(one: float | None, other: float | None) -> str:
    if one is None or other is None:
        return "neither" if one is other else ("only second" if one is None else "only first")
    if abs(one - other) <= SAME_PERCENT:
        return "equal"
    return "better" if one < other else "worse"


def _sooner(one: Group, other: Group, goal: float | None) -> float | None:
    """The other's time to an overhead divided by this one's."""
    slow, fast = (None, None) if goal is None else (other.seconds_to(goal), one.seconds_to(goal))
    return None if slow is None or fast is None else slow / fast


def smallest_fraction(runs: Iterable[BenchRun]) -> float | None:
    """The smallest budget, as a fraction of the baseline's peak, under which one of these runs found a plan."""
    fractions = [float(run.budget) for run in runs if run.has_plan]
    return min(fractions, default=None)


def moves_per_second(run: BenchRun) -> float | None:
    """Search moves per second and core: as the solver says, else moves by CPU time, bounds and all included."""
    said = _find(run.facts, "moves_per_second_per_core")
    if said:
        return max(said)
    moves = _find(run.facts, "moves")
    return sum(moves) / run.cpu_seconds if moves and run.cpu_seconds else None


def _find(facts: Mapping[str, Any], key: str) -> list[float]:
    """All numbers of that name in nested facts."""
    own = [facts[key]] if isinstance(facts.get(key), int | float) else []
    nested = [found for value in facts.values() if isinstance(value, dict) for found in _find(value, key)]
    return own + nested


HEAD = (
    "instance", "ops", "budget", "order", "solver", "result", "overhead %", "bound %", "gap %", "first s", "best s",
    "target %", "to target s", "x sooner", "recomputed", "moves/s", "CPU s", "peak MiB",
)  # fmt: skip
DUEL_HEAD = ("solver", "against", "rows", "better", "equal", "worse", "only it", "only other", "reached", "x sooner")
TIGHT_HEAD = ("instance", "ops", "order", "solver", "smallest budget", "over the seeds", "working sets")
NOTES = (
    "Medians over seeds; what a run did not reach counts as worst, and a dash means that half or more did not.",
    "Seconds of wall time in a process that has loaded everything, from problem to plan: first plan, best plan, first",
    "plan with at most the target overhead (a published result). *x sooner*: time of the reference solver to the",
    "target (where it never gets there, or none is given: to its own result) divided by the time of this one to it.",
    "*moves/s*: search moves per second and core. *peak MiB*: memory of all processes of a run.",
)
DUEL_NOTES = (
    "Rows (instance, budget, order) that both ran, by median overhead. *reached*: rows in which the first gets to what",
    "the other ends with; *x sooner*: the median over these of the other's time to it divided by the first's.",
)
TIGHT_NOTES = (
    "The smallest budget, as a fraction of the baseline's peak, under which a plan was found in the time limit of one",
    "attempt; median and range over seeds. *working sets*: below this fraction no plan exists.",
)


@dataclass(frozen=True)
class BenchTable:
    """A title, what a reader must know, and cells; `align` has one `<` or `>` per column."""

    title: str
    notes: tuple[str, ...]
    head: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]


def bench_lines(report: BenchReport, style: Style) -> list[str]:
    """The tables for a terminal, then what was done."""
    lines: list[str] = []
    for table in bench_tables(report.runs):
        lines += [style.paint(table.title, "strong"), *columns((table.head, *table.rows), table.align), ""]
    lines += [f"skipped {text}: it is not there" for text in report.skipped]
    lines += [f"{plural(len(report.runs), 'run')} in {report.results}, {report.new_runs} of them new"]
    failed = [run for run in report.runs if run.message]
    lines += [style.paint(f"{run.instance} {run.budget} {run.label}: {run.message}", "bad") for run in failed]
    lines += [f"wrote {path}" for path in report.written[:MOST_WRITTEN]]
    more = len(report.written) - MOST_WRITTEN
    return [*lines, f"wrote ... and {more} more"] if more > 0 else lines


def bench_markdown(report: BenchReport) -> str:
    """The tables as a Markdown page."""
    kinds = Counter(", ".join(f"{key} {value}" for key, value in sorted(run.versions.items())) for run in report.runs)
    made = "; ".join(f"{plural(count, 'run')} with {kind}" for kind, count in kinds.most_common())
    lines = ["# Solvers, measured", "", f"Made by `remat bench` from its results file; nothing is typed. {made}.", ""]
    for table in bench_tables(report.runs):
        lines += [f"## {table.title}", "", *table.notes, "", _markdown_row(table.head)]
        lines += ["|" + "".join(" ---: |" if side == ">" else " --- |" for side in table.align)]
        lines += [*map(_markdown_row, table.rows), ""]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def bench_tables(runs: Sequence[BenchRun]) -> list[BenchTable]:
    """Per suite: all rows, and solver against solver; for tight suites the smallest budgets."""
    tables = []
    for suite in dict.fromkeys(run.suite for run in runs):
        mine = [run for run in runs if run.suite == suite]
        probes = [run for run in mine if run.probe]
        groups = group_runs(run for run in mine if not run.probe)
        limits = " or ".join(f"{limit:g} s" for limit in sorted({run.time_limit_seconds for run in mine}))
        threads = " or ".join(map(str, sorted({run.threads for run in mine})))
        title = f"{suite} ({plural(len({run.seed for run in mine}), 'seed')}, {limits} a run, {threads} threads)"
        if groups:
            by_row = {(group.row, group.label): group for group in groups}
            rows = tuple(_row(group, by_row.get((group.row, group.runs[0].reference or ""))) for group in groups)
            # Without columns that hold nothing.
            table = BenchTable(title, NOTES, HEAD, "<>><<<>>>>>>>>>>>>", rows)
            kept = [place for place in range(len(table.head)) if any(row[place] for row in table.rows)]
            tables.append(
                BenchTable(
                    table.title,
                    table.notes,
                    tuple(table.head[place] for place in kept),
                    "".join(table.align[place] for place in kept),
                    tuple(tuple(row[place] for place in kept) for row in table.rows),
                )
            )
            tables += _duel_table(suite, groups)
        if probes:
            found: dict[tuple[str, str, str], list[BenchRun]] = {}
            for run in probes:
                found.setdefault((run.instance, run.order, run.label), []).append(run)
            rows = tuple(_tight_row(key, seeds) for key, seeds in sorted(found.items()))
            tables.append(BenchTable(title, TIGHT_NOTES, TIGHT_HEAD, "<><<>>>", rows))
    return tables


def _row(group: Group, reference: Group | None) -> tuple[str, ...]:
    instance, budget, order = group.row
    target = group.target_percent
    # `optimal`, or `3 optimal, 2 feasible` where the seeds differ.
    counts = Counter(run.status.replace("_", " ") for run in group.runs)
    parts = list(counts) if len(counts) == 1 else [f"{count} {status}" for status, count in counts.most_common()]
    return (
        instance,
        _count(next((run.ops for run in group.runs if run.ops is not None), None)),
        budget,
        order,
        group.label,
        ", ".join(parts),
        _percent(group.overhead_percent),
        _percent(group.bound_percent),
        _percent(group.median(lambda run: run.gap_percent)),
        _seconds(group.median(lambda run: run.seconds_to_first)),
        _seconds(group.median(lambda run: run.seconds_to_best)),
        "" if target is None else f"{target:g}",
        "" if target is None else _seconds(group.seconds_to(target)),
        _ratio(group, reference),
        _count(group.median(lambda run: run.recomputed_ops)),
        _count(group.median(moves_per_second), ""),
        _seconds(group.median(lambda run: run.cpu_seconds)),
        _count(group.median(lambda run: run.peak_rss_mib)),
    )


def _ratio(group: Group, reference: Group | None) -> str:
    if reference is None:
        return ""
    if reference is group:
        return "reference"
    ratio = speed_up(group, reference)
    if ratio is None:
        return "no other" if reference.overhead_percent is None and group.overhead_percent is not None else "-"
    return _factor(ratio)


def _factor(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _duel_table(suite: str, groups: Sequence[Group]) -> list[BenchTable]:
    labels = list(dict.fromkeys(group.label for group in groups))
    rows = []
    for one, other in permutations(labels, 2):
        found = duel(groups, one, other)
        compared = (found.rows, found.better, found.equal, found.worse)
        counts = (*compared, found.only_first, found.only_second, found.reached)
        sooner = "-" if found.speed_up is None else _factor(found.speed_up)
        if found.rows:
            rows.append((one, other, *map(str, counts), sooner))
    title = f"{suite}: solver against solver"
    return [BenchTable(title, DUEL_NOTES, DUEL_HEAD, "<<>>>>>>>>", tuple(rows))] if rows else []


def _tight_row(key: tuple[str, str, str], runs: Sequence[BenchRun]) -> tuple[str, ...]:
    instance, order, label = key
    seeds = {run.seed for run in runs}
    # Nothing below the baseline's peak found: the baseline itself is the smallest.
    smallest = [smallest_fraction(run for run in runs if run.seed == seed) or 1.0 for seed in seeds]
    floors = [run.floor_bytes / run.baseline_peak_bytes for run in runs if run.floor_bytes and run.baseline_peak_bytes]
    ops = next((run.ops for run in runs if run.ops is not None), None)
    spread = f"{min(smallest):g} to {max(smallest):g}" if min(smallest) < max(smallest) else ""
    median = f"{statistics.median(smallest):g}"
    return (instance, _count(ops), order, label, median, spread, f"{min(floors):.3f}" if floors else "-")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def _count(value: float | None, absent: str = "-") -> str:
    return absent if value is None else f"{value:,.0f}"
