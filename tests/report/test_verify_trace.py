"""A verification as a trace: both models as planned, and their processes as measured."""

from __future__ import annotations

import pytest

from remat_cli.core.values.resident import ProcessMemory, ProcessSeen, ProcessTrace
from remat_cli.core.values.told_names import ToldNames
from remat_cli.report.pictures.verify_trace import (
    ORIGINAL,
    ORIGINAL_PROCESS,
    REWRITTEN,
    REWRITTEN_PROCESS,
    verify_trace,
)
from tests.chrome_rules import checked
from tests.report import samples

TRACE = ProcessTrace((0.1, 0.2, 0.4, 0.6), (5, -1, 9, 7), (0.2, 0.5, 0.7))
MEMORY = ProcessMemory(1, 1, 1, 1, 0, 0)


def seen(*traces: ProcessTrace) -> ProcessSeen:
    return ProcessSeen(MEMORY, MEMORY, MEMORY, 0, traces=traces)


@pytest.mark.parametrize("plan", [samples.plan_file(), samples.split_plan_file()], ids=["whole", "split"])
def test_it_keeps_the_rules_and_has_every_step(plan):
    events = checked(verify_trace(plan, seen(TRACE, TRACE)))
    for process, count in (
        (ORIGINAL, len(plan.promise.baseline_memory_bytes)),
        (REWRITTEN, len(plan.promise.order)),
        (ORIGINAL_PROCESS, 3),
        (REWRITTEN_PROCESS, 3),
    ):
        assert sum(event["ph"] == "X" and event["pid"] == process for event in events) == count


def test_memory_is_what_the_plan_says():
    plan = samples.plan_file()
    events = checked(verify_trace(plan, seen(TRACE, TRACE)))
    held = [event["args"]["bytes"] for event in events if event["ph"] == "C" and event["pid"] == REWRITTEN]
    assert tuple(held) == plan.promise.memory_bytes
    resident = [event["args"]["bytes"] for event in events if event["ph"] == "C" and event["pid"] == REWRITTEN_PROCESS]
    assert resident == [5, 0, 9, 7]


def test_an_arrow_leads_to_where_an_op_runs_again():
    plan = samples.plan_file()
    events = checked(verify_trace(plan, seen(TRACE, TRACE)))
    assert sum(event["ph"] == "s" for event in events) == len(plan.schedule.steps) - len(plan.graph.ops) == 1


def test_only_what_was_measured_is_there_and_ops_have_the_names_of_the_user():
    import msgspec

    plan = msgspec.structs.replace(samples.plan_file(), names=ToldNames({"grow": "dec.0 (Resize)"}))
    events = checked(verify_trace(plan, seen(TRACE)))
    assert not any(event["ph"] == "X" and event["pid"] == ORIGINAL_PROCESS for event in events)
    assert any(
        event["name"] == "dec.0 (Resize)" and event["args"]["op"] == "grow" for event in events if "args" in event
    )
