"""The page of exported models: what each exporter wrote, what failed at first, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.bench import Bench, of_lines
from bench.compiling import Row, table_lines
from bench.drawn.report import EXITS

ONE, RANGES, LEAST = "one size", "ranges", "ranges, min"
ASKS = {ONE: "60%", RANGES: "60%", LEAST: "min"}
KEY = ("model", "ask")
HEAD = """# Small models of many exporters

Made by `python -m bench.exporters.measure`; `make bench-exporters` exports the models, in an environment for each group
of exporters (`bench/exporters/environments`), and measures the rows that are missing. Each model is compiled to 60 % of
what planning can change at its largest size and for ranges of all sizes that it leaves open, and for these to the
least, in searches of 10 s. The original and what was made of it then run in one session each, at sizes in turn: large,
small, the least, large, three drawn ones, large again. Bits are compared at each, peaks with what was promised. Shares
in the table are of all that is held at most, inputs among it. *At first* is what was so before anything was mended for
models of this list; those rows were measured beside other work on two cores, so that a search that found nothing may
have lacked time.
"""
MENDED = (
    "Classes that come out as maps (catboost, skl_pca_18, skl_columns_17) ended as an unexpected error, exit 1. They "
    "are refused with the option that leaves the maps out.",
    "A function that is called in a body and around it (script_18): the runtime does not read the optimised file that "
    "it writes itself. It is read; what is in the loop's body stays whole.",
    "Recurrent ops whose unread states have names, and lengths asked for by a Shape with bounds (keras_lstm, "
    "tf_lstm_13, f16_lstm_13, paddle_rec_12, torch_recurrent_9), were in no loop.",
    "Dense layers on a batch of sequences that is laid flat for the product (tf_attn_14, keras_attn) were in no loop.",
    "Counts of words (skl_tfidf_15, skl_ngrams_16) were in no loop; the classifier behind them still is in none.",
    "The reason told of a tensor of 576 bytes where others of 384 KiB were in the way (tf_gru_10).",
)


def is_kept(row: Row) -> bool:
    """Whether it compiled, and everything was as promised."""
    return row["exit_code"] == 0 and not (row["wrong_bits"] or row["above_promise"] or row["broken"])


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Counts, a line for each model, then why those that did not compile did not."""
    first = {BENCH.key_of(row): row for row in FIRST.rows()}
    yield HEAD
    yield from _counts(rows, first)
    yield "\n## What was mended\n"
    yield from (f"- {each}" for each in MENDED)
    yield "\n## The models\n"
    models = {row["model"]: row for row in rows}
    found = {BENCH.key_of(row): row for row in rows}
    head = ("exporter", "model", "shows", "opset", *ASKS, "at first")
    yield from table_lines(head, [_cells(models[name], found, first) for name in sorted(models)])
    yield "\n## What is left\n"
    yield from (f"- {row['model']}, {row['ask']}: {outcome(row)}" for row in rows if not is_kept(row))


def _counts(rows: Sequence[Row], first: Mapping[tuple[str, ...], Row]) -> Iterator[str]:
    exporters = sorted({row["exporter"].split()[0] for row in rows})
    yield f"- {len({row['model'] for row in rows})} models of {len(exporters)} exporters: {', '.join(exporters)}"
    for ask, budget in ASKS.items():
        now = [row for row in rows if row["ask"] == ask]
        if not now:
            continue
        before = [row for key, row in first.items() if key[1] == ask]
        at_first = f"; at first {sum(map(is_kept, before))} of {len(before)}" if before else ""
        exits = Counter(EXITS[row["exit_code"]] for row in now if row["exit_code"] != 0)
        others = ", ".join(f"{count} {what}" for what, count in exits.most_common())
        kept = f"{sum(map(is_kept, now))} of {len(now)} compiled and kept all"
        yield f"- {ask} at {budget}: {kept}{at_first}; {others}"
    for what in ("wrong_bits", "above_promise", "broken"):
        yield f"- {what.replace('_', ' ')}: {sum(bool(row[what]) for row in rows)} rows"


def _cells(model: Row, found: Mapping[tuple[str, ...], Row], first: Mapping[tuple[str, ...], Row]) -> list[str]:
    name = model["model"]
    now = [_short(row) if (row := found.get((name, ask))) else "" for ask in ASKS]
    failed = [f"{ask}: {_short(row)}" for ask in ASKS if (row := first.get((name, ask))) and not is_kept(row)]
    opset = "" if model["opset"] is None else str(model["opset"])
    return [model["exporter"], name, model["shows"], opset, *now, "; ".join(failed)]


def _short(row: Row) -> str:
    """A share, or why there is none, in a cell."""
    if row["exit_code"] == 0:
        share = f"{100 * row['promised_bytes'] / row['original_bytes']:.0f} %"
        time = "" if row["overhead_percent"] is None else f", {row['overhead_percent']:+.0f} % time"
        return f"{share}{time}" + ("" if is_kept(row) else ", BROKEN")
    return EXITS.get(row["exit_code"], f"exit {row['exit_code']}")


def outcome(row: Row) -> str:
    """What became of it, with the reason."""
    broken = [f"other bits at {each}" for each in row["wrong_bits"]]
    broken += [f"more than promised at {each}" for each in row["above_promise"]]
    broken += [f"{each} not kept" for each in row["broken"]]
    exit_ = EXITS.get(row["exit_code"], f"exit {row['exit_code']}")
    return "; ".join(filter(None, [exit_, *broken, row["reason"].removeprefix("error: ")]))


def line(row: Row) -> str:
    """What is printed of a fresh row."""
    share = f"{100 * row['promised_bytes'] / row['original_bytes']:.0f} %, " if row["promised_bytes"] else ""
    return f"{row['model']}, {row['ask']}: {outcome(row)}; {share}{row['seconds']} s"


BENCH = Bench("exporters", KEY, of_lines(table), line, place=lambda row: (row["model"], list(ASKS).index(row["ask"])))
FIRST = Bench("exporters_first", KEY, of_lines(table), line, place=BENCH.place)
