"""What splitting was meant to reach, line by line, computed from the rows of `bench.splitting` and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.compiling import Row
from sample_models.zoo import zoo_names

HALVED = ("vgg19", "zfnet512", "bvlc_alexnet", "squeezenet", "inception_v1", "inception_v2", "resnet50")
EXPERIMENT, ENCODER, TIMED = "experiment", "transformer_1024", "resnet50"
EXPERIMENT_MIB = 6.2
EXTRA_PERCENT, EXPERIMENT_EXTRA_PERCENT = 10.0, 12.0
SETTLED = 1.02  # how near the second least time of a model must be to the least
COLD_SECONDS, CACHED_SECONDS = 120.0, 20.0


@dataclass(frozen=True)
class Target:
    """One line of the list: what was wanted, what the rows show, and whether that is it (None: no row tells)."""

    wanted: str
    found: str
    is_met: bool | None


def predicted_share(row: Row) -> float | None:
    """Predicted peak as a percentage of the baseline, both without the fixed part, which no plan changes."""
    return _share(row, (row["report"].get("solution") or {}).get("peak_bytes"))


def measured_share(row: Row) -> float | None:
    """The same of the peak measured in a default session."""
    return _share(row, (row["report"].get("verification") or {}).get("measured_peak_default_session_bytes"))


def activation_bytes(row: Row) -> int | None:
    """Peak measured in a default session, without the fixed part."""
    verification = row["report"].get("verification")
    if not verification:
        return None
    return int(verification["measured_peak_default_session_bytes"] - row["report"]["solution"]["fixed_bytes"])


def measured_overhead(row: Row) -> float | None:
    """Extra time in percent: the least time of the new model against the original's, over all processes."""
    if not row.get("times_ns"):
        return None
    original, new = (min(pair[which] for pair in row["times_ns"]) for which in (0, 1))
    return float(100 * (new / original - 1))


def is_settled(times_ns: Sequence[Sequence[int]]) -> bool:
    """Whether each model's least time was met again, nearly, in another process: then it is no lucky or unlucky one."""
    columns = [sorted(pair[which] for pair in times_ns) for which in (0, 1)]
    return all(len(times) > 1 and times[1] <= times[0] * SETTLED for times in columns)


def targets(rows: Sequence[Row]) -> tuple[Target, ...]:
    """Every target of the issue."""
    found = [_within(rows, name, 50, EXTRA_PERCENT) for name in HALVED]
    found.append(_mean(rows))
    found.append(_least(rows, "unet", 40))
    found.append(_within(rows, ENCODER, 30, EXTRA_PERCENT))
    found.append(_experiment(rows))
    found += _seconds(rows)
    found.append(_bits(rows))
    return tuple(found)


def _share(row: Row, peak: int | None) -> float | None:
    solution = row["report"].get("solution") or {}
    if peak is None or solution["baseline_peak_bytes"] == solution["fixed_bytes"]:
        return None
    fixed = solution["fixed_bytes"]
    return float(100 * (peak - fixed) / (solution["baseline_peak_bytes"] - fixed))


def _of(rows: Sequence[Row], model: str) -> Iterator[Row]:
    return (row for row in rows if row["model"] == model and not row["again"])


def _kept(row: Row) -> bool:
    """Whether the row's model was verified."""
    return bool(row["exit_code"] == 0)


def _within(rows: Sequence[Row], model: str, most_share: float, most_extra: float) -> Target:
    """A row that is small enough and fast enough; else the fastest that is small enough, else the smallest."""
    wanted = f"{model}: at most {most_share:g} % of baseline within {most_extra:g} % time"
    mine = [row for row in _of(rows, model) if _kept(row)]
    if not mine:
        return _without_row(rows, model, wanted)
    return _best(wanted, mine, lambda row: (measured_share(row) or 0) <= most_share, most_extra)


def _best(wanted: str, rows: Sequence[Row], is_small: Callable[[Row], bool], most_extra: float) -> Target:
    small = [row for row in rows if is_small(row)]
    best = min(small, key=_time) if small else min(rows, key=lambda row: measured_share(row) or 0)
    return Target(wanted, _words(best), bool(small) and _time(best) <= most_extra)


def _time(row: Row) -> float:
    found = measured_overhead(row)
    return math.inf if found is None else found


def _words(row: Row) -> str:
    solution = row["report"]["solution"]
    noise = "" if is_settled(row["times_ns"]) else " (not settled)"
    return (
        f"{measured_share(row) or 0:.1f} %, {_time(row):+.1f} % time measured{noise}, "
        f"{solution['overhead_percent']:+.1f} % predicted (budget {row['budget']})"
    )


def _without_row(rows: Sequence[Row], model: str, wanted: str) -> Target:
    codes = [f"{row['budget']} exit {row['exit_code']}" for row in _of(rows, model)]
    return Target(wanted, ", ".join(codes) or "not run", False if codes else None)


def _least(rows: Sequence[Row], model: str, most_share: float) -> Target:
    """The share at `min`."""
    wanted = f"{model}: `min` at most {most_share:g} % of baseline"
    row = next((row for row in _of(rows, model) if row["budget"] == "min" and _kept(row)), None)
    if row is None:
        return _without_row(rows, model, wanted)
    return Target(wanted, _words(row), (measured_share(row) or 0) <= most_share)


def _mean(rows: Sequence[Row]) -> Target:
    """Geometric mean over the zoo of the shares at `min`."""
    wanted = "geometric mean of `min` over the nine zoo graphs at most 45 %"
    found = {row["model"]: measured_share(row) for row in rows if row["budget"] == "min" and not row["again"]}
    shares = [share for name in zoo_names() if (share := found.get(name)) is not None]
    if not shares:
        return Target(wanted, "not run", None)
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    is_complete = len(shares) == len(zoo_names())
    slow = sum(_time(row) > EXTRA_PERCENT for name in zoo_names() for row in _of(rows, name) if row["budget"] == "min")
    words = f"{mean:.1f} % over {len(shares)} graphs; {slow} of them took more than {EXTRA_PERCENT:g} % extra time"
    return Target(wanted, words, mean <= 45 if is_complete else None)


def _experiment(rows: Sequence[Row]) -> Target:
    wanted = f"{EXPERIMENT}: at most {EXPERIMENT_MIB} MiB of activations within {EXPERIMENT_EXTRA_PERCENT:g} % time"
    mine = [row for row in _of(rows, EXPERIMENT) if _kept(row)]
    if not mine:
        return _without_row(rows, EXPERIMENT, wanted)
    small = [row for row in mine if (activation_bytes(row) or math.inf) <= EXPERIMENT_MIB * 2**20]
    best = min(small or mine, key=_time)
    words = f"{(activation_bytes(best) or 0) / 2**20:.2f} MiB, {_words(best)}"
    return Target(wanted, words, bool(small) and _time(best) <= EXPERIMENT_EXTRA_PERCENT)


def _seconds(rows: Sequence[Row]) -> Iterator[Target]:
    """The slowest compile of the timed model, with an empty profile cache and right after."""
    mine = [row for row in rows if row["model"] == TIMED]
    for again, most, words in ((False, COLD_SECONDS, "with an empty cache"), (True, CACHED_SECONDS, "cached")):
        wanted = f"{TIMED}: compiles in less than {most:g} s {words}"
        seconds = {row["budget"]: row["report"].get("seconds", math.inf) for row in mine if row["again"] == again}
        found = ", ".join(f"{value:.1f} s ({budget})" for budget, value in seconds.items())
        yield Target(wanted, found or "not run", max(seconds.values()) < most if seconds else None)


def _bits(rows: Sequence[Row]) -> Target:
    compared = [row for row in rows if row["report"].get("verification")]
    differ = [f"{r['model']} {r['budget']}" for r in compared if not r["report"]["verification"]["outputs_identical"]]
    words = f"{len(compared) - len(differ)} of {len(compared)} verified runs"
    found = words + (f"; not {', '.join(differ)}" if differ else "")
    return Target("outputs bit-identical in every run", found, not differ if compared else None)
