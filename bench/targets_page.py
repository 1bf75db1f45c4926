"""The page of the bench of targets: what became of each file on each processor, in Node and in WebAssembly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.compiling import Row, table_lines
from remat_cli.ort_rules.versions import SAME_BITS_FROM, numbers_of

HERE = "here"
MIB = 2**20
WRONG = frozenset({"DIED", "DIFFERENT", "FAILED LATE"})
UNTRIED = frozenset({"not compiled", "the original does not run"})


def page(found: Sequence[Row]) -> list[str]:
    """A line per model, a column per processor; then one per package of Node."""
    tried = [row for row in found if row["outcome"] not in UNTRIED]
    wrong = [row for row in tried if is_wrong(row)]
    in_node = [row for row in found if "memory" in row]
    runtimes = sorted({row["runtime"] for row in tried if "runtime" in row and "memory" not in row})
    return [
        "# Compiled here, run elsewhere",
        "",
        "Files made by `make bench-targets` on a processor with AVX-512, run on it and on others that an emulator",
        f"plays, with ONNX Runtime {', '.join(runtimes)}. *bits*: outputs are those of the original on that processor,",
        "bit for bit. *refused*: an error that names the processor, at load or in the first step of the first run,",
        "before anything of the model is computed. *order*, *peak*: these were looked at too, and are as promised.",
        "",
        *_lines([row for row in found if "memory" not in row], _cell),
        "",
        *_in_node(in_node),
        f"{len(tried)} cells, of which {len(wrong)} are wrong: other numbers in silence, a failure later than that,",
        "more live tensors than promised, or another order.",
    ]


def _in_node(found: Sequence[Row]) -> list[str]:
    if not found:
        return []
    named = [{**row, "processor": f"{row['processor'].partition(',')[0]} {row['runtime']}"} for row in found]
    return [
        "## Node, browsers and WebAssembly",
        "",
        "onnxruntime-node and onnxruntime-web, run in Node on this processor, and onnxruntime-web on a page in",
        "Chromium without a window. Outputs are compared with the original's there. MiB, original → file.",
        "Of Node: resident memory above a process with a session on one op,",
        "with the outputs of one run held during the next and older ones collected; in brackets the most of 20 runs",
        "that follow without a call of the collector, in which old outputs go late; *promised* is what the plan",
        "predicts of later runs. Of WebAssembly: its memory, which starts at 16 MiB and never shrinks. Bits are",
        f"promised from {SAME_BITS_FROM} on.",
        "",
        *_lines(named, _node_cell),
        "",
    ]


def _lines(found: Sequence[Row], cell: Callable[[Row], str]) -> list[str]:
    names = list(dict.fromkeys(row["processor"] for row in found))
    models = list(dict.fromkeys(row["model"] for row in found))
    budgets = {row["model"]: row.get("budget", "") for row in found}
    cells = {(row["model"], row["processor"]): row for row in found}
    lines = [
        [model, budgets[model], *(cell(cells[model, name]) if (model, name) in cells else "" for name in names)]
        for model in models
    ]
    return table_lines(["model", "budget", *names], lines)


def _cell(row: Row) -> str:
    shown = row["outcome"]
    if shown == "DIFFERENT":
        shown = f"different by {row['difference'] or 0:.1e}"
        shown += ", as the file says" if row.get("is_told") else ""
        return f"**{shown}**" if is_wrong(row) else shown
    if shown in WRONG:
        return f"**{shown.lower()}**"
    if row.get("order") is False:
        return f"{shown}, **another order**"
    if not is_kept(row):
        return f"{shown}, **{_mib(row['peak_bytes'])} MiB live for {_mib(row['promised_bytes'])}**"
    return f"{shown}, order, peak" if row.get("order") and row.get("peak_bytes") is not None else str(shown)


def is_wrong(row: Row) -> bool:
    """Whether a cell shows what must not be, on a version and a processor on which files promise bits."""
    is_older = "runtime" in row and numbers_of(row["runtime"]) < numbers_of(SAME_BITS_FROM)
    may_differ = is_older or row.get("is_told", False)
    return not is_kept(row) or (row["outcome"] in WRONG and not (may_differ and row["outcome"] == "DIFFERENT"))


def is_kept(row: Row) -> bool:
    """Whether order and live tensors are as promised, as far as they were looked at."""
    peak, promised = row.get("peak_bytes"), row.get("promised_bytes")
    return row.get("order") is not False and (peak is None or promised is None or peak <= promised)


def _node_cell(row: Row) -> str:
    before, after = row["memory"]["original"], row["memory"]["file"]
    if after is None:
        return _cell(row)
    held = f"{_mib(before['collected_bytes'])} → {_mib(after['collected_bytes'])}"
    if before["late_bytes"] is not None:
        held += f" ({_mib(before['late_bytes'])} → {_mib(after['late_bytes'])}), {_mib(row['held_bytes'])} promised"
    return f"{_cell(row)}; {held}"


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"
