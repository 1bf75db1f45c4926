"""The page of drawn models: how many of each kind compiled, what was broken, and why the others did not compile."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from bench.bench import Bench, of_lines
from bench.compiling import Row, table_lines
from bench.drawn.drawn import SIZES

BUDGET = "60%"
SEEDS = 200  # of each kind, when all are run
BEFORE = "older, unsaid"
EXITS = {
    0: "compiled",
    1: "failed",
    2: "refused",
    3: "proved impossible",
    4: "no plan found",
    5: "compiled, a promise broken",
}
CLASSES = {
    "what was written took more than it promised, and was not delivered": "^NOT KEPT",
    "an op computes from all of it (mean of a picture, recurrence)": r"\((InstanceNorm\w*|LSTM|GRU|RNN)\)",
    "tiles would have other bits": "may have other bits|proved to have the same bits",
    "loops join, or hold, too much at once": "even in loops|it is a model output",
    "how an op pads depends on the size": "auto_pad",
    "an op runs graphs of its own": r"\((If|Loop|Scan)\)",
    "the search was cut": "search was cut",
    "every plan takes longer than is allowed": "costs so little time",
}
"""By what a reason says; the first that is found. Where an op computes from all of it no tiles have the same bits."""
HEAD = f"""# Random models with open sizes

Made by `python -m bench.drawn.measure`; `make bench-drawn` measures the rows that are missing. The models are drawn
with dice: networks of pictures, words and sounds that torch's tracing exporter writes, and graphs as older exporters
write them. Each is compiled for ranges of one to three sizes to {BUDGET} of its activations, then run at {SIZES} sizes
one after the other in one session: large, small, the least, large again, then any. Bits are compared with those of the
file itself in an ordinary session, peaks with what was promised for all sizes. A search is late that took more than a
tenth and five seconds beyond its `--time-limit`. Rows are counted apart by the commit whose code they are of.
"""


def is_kept(row: Row) -> bool:
    """Whether it compiled, and everything was as promised."""
    return row["exit_code"] == 0 and not (row["wrong_bits"] or row["above_promise"])


def is_late(row: Row) -> bool:
    """Whether the search went on after its time."""
    return bool((row["search_seconds"] or 0) > 1.1 * row["limit_seconds"] + 5)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each kind, then what did not compile, by its reason."""
    yield HEAD
    kinds = sorted({(row["kind"], code_of(row)) for row in rows})
    head = ("kind", "code", "models", "compiled", "wrong bits", "above the promise", "late", "exits of the others")
    yield from table_lines(
        head, [_cells(kind, [row for row in rows if (row["kind"], code_of(row)) == kind]) for kind in kinds]
    )
    failed = [row for row in rows if not is_kept(row) or is_late(row)]
    if failed:
        yield "\n## Why, by class\n"
        counted = Counter(class_of(row) for row in failed)
        yield from table_lines(("why", "models"), [[name, str(count)] for name, count in counted.most_common()])
        yield "\n## What did not compile, or broke a promise\n"
    for row in failed:
        sizes = ", ".join(f"{name}={each}" for name, each in row["ranges"].items())
        families = ", ".join(row["families"])
        yield f"- {row['kind']} {row['seed']} ({families}; {sizes}; code: {code_of(row)}): {told(row)}"


def class_of(row: Row) -> str:
    """What stands in the way of a model, in a few words."""
    return next(
        (name for name, words in CLASSES.items() if re.search(words, row["reason"])), "something else, or unsaid"
    )


def code_of(row: Row) -> str:
    """The commit, with its time, whose code a row is of."""
    return str(row.get("code") or BEFORE)


def _cells(kind: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    others = Counter(EXITS.get(row["exit_code"], f"exit {row['exit_code']}") for row in rows if row["exit_code"] != 0)
    counts = (
        f"{len(rows)} of {SEEDS}",
        sum(map(is_kept, rows)),
        sum(len(row["wrong_bits"]) for row in rows),
        sum(len(row["above_promise"]) for row in rows),
        sum(map(is_late, rows)),
    )
    return [*kind, *map(str, counts), ", ".join(f"{count} {exit_}" for exit_, count in others.most_common())]


def told(row: Row) -> str:
    """What became of a model, with the reason."""
    broken = [f"other bits at {each}" for each in row["wrong_bits"]]
    broken += [f"more than promised at {each}" for each in row["above_promise"]]
    if is_late(row):
        broken.append(f"{row['search_seconds']:.0f} s of search")
    return "; ".join([EXITS.get(row["exit_code"], f"exit {row['exit_code']}"), *broken, *filter(None, [row["reason"]])])


def line(row: Row) -> str:
    """What is printed of a fresh row."""
    shares = f"{100 * row['promised_bytes'] / row['original_bytes']:.0f} %" if row["promised_bytes"] else ""
    times = f"{row['seconds']:.0f} s, search {row['search_seconds'] or 0:.0f} s"
    return f"{row['kind']} {row['seed']}: {told(row)} {shares} {times} {json.dumps(row['families'])}"


BENCH = Bench("drawn", ("kind", "seed"), of_lines(table), line, place=lambda row: (row["kind"], row["seed"]))
