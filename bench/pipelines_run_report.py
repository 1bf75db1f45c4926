"""What `bench/pipelines_run.py` measured, as a section of Markdown, from its rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from remat_cli.base.units import format_bytes

INTRODUCTION = """## Run for real

From `pipelines_run.jsonl` (`python -m bench.pipelines_run`, extra `cluster`): training steps cut with `1f1b-star`, an
actor per device on a local Ray, 20 updates of 8 micro-batches, one thread per session. *Bits* says whether all losses
of the actors and the state after the last update equal those of `--local`; *whole* is the largest relative difference
of a loss from the step in one stage with gradient accumulation. The machine has two processors, so that four actors
and the driver share them, and other work ran beside: the measured period says what was left of two processors, and is
no test of the planned one, which counts on a processor per device."""
MEMORY = """What actors held at most, in turns and updates alike, beside the plan, device by device: resident memory
of their own, beyond a process that has Ray, the runtime and a tiny session open. Pages of the object store that an
actor has mapped stand beside it (*mapped*): they are there once for all actors of a machine, and the plan counts of
them only the buffers of links."""
HEAD = "| model | devices | mode | bits | whole | period planned | measured | two at work | alive, planned | seen |"


def run_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The section; nothing where nothing was run."""
    if not rows:
        return
    yield from ("", INTRODUCTION, "", HEAD, "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- | --- |")
    for row in rows:
        report = row["report"]
        bits = "equal" if row["same_losses"] and row["same_state"] else "DIFFER"
        whole = "-" if row["same_as_whole"] is None else f"{row['same_as_whole']:.1e}"
        times = [_milliseconds(report[name]) for name in ("planned_period_ns", "period_ns")]
        alive = [", ".join(str(stage[name]) for stage in report["stages"]) for name in ("planned_alive", "alive")]
        overlap = f"{100 * report['overlap']:.0f} %"
        cells = [row["model"], str(row["devices"]), row["mode"], bits, whole, *times, overlap, *alive]
        yield f"| {' | '.join(cells)} |"
    yield from ("", *_memory_lines(rows))


def _memory_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Per actor; what an empty actor holds is taken off."""
    actors = [actor for row in rows for actor in row["report"]["actors"]]
    shares = [100 * actor["held_bytes"] / actor["planned_bytes"] for actor in actors]
    yield MEMORY
    yield ""
    yield "| model | devices | mode | planned | held | mapped |"
    yield "| --- | ---: | --- | --- | --- | --- |"
    for row in rows:
        sizes = [
            ", ".join(format_bytes(actor[name]) for actor in row["report"]["actors"])
            for name in ("planned_bytes", "held_bytes", "mapped_bytes")
        ]
        yield f"| {row['model']} | {row['devices']} | {row['mode']} | {' | '.join(sizes)} |"
    above = sum(share > 100 for share in shares)
    yield ""
    yield f"Held is {min(shares):.0f} to {max(shares):.0f} % of planned; {above} of {len(shares)} actors held more."
    yield "What is above is not of tensors: sessions hold structures of their own, and the arena has gaps."


def _milliseconds(time_ns: float | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e6:.1f} ms"
