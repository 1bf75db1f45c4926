"""The trace of a run: valid events, nested in time, a track per device and link, counters per memory."""

from __future__ import annotations

import json

import msgspec
import pytest

from remat_cli.runtime.observe.trace import MEASURED, PLANNED, chrome_trace
from tests.chrome_rules import checked
from tests.commands.run_samples import PROGRAM, RECORD, SEEN


@pytest.fixture(scope="module")
def events():
    return json.loads(chrome_trace(PROGRAM, RECORD, SEEN))["traceEvents"]


def test_every_event_has_what_viewers_need(events):
    for event in events:
        assert {"name", "ph", "pid", "tid", "args"} <= event.keys()
        assert event["pid"] in (PLANNED, MEASURED)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        elif event["ph"] == "C":
            assert all(isinstance(number, int) for number in event["args"].values())
        else:
            assert event["ph"] in "Msf"


def test_tracks_are_devices_and_links(events):
    for process in (PLANNED, MEASURED):
        named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == process}
        assert list(named.values()) == ["cpu:1threads", "cpu:2threads", "cpu -> node1"]
        assert {e["tid"] for e in events if e["ph"] == "X" and e["pid"] == process} == set(named)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["planned", "measured"]


def test_events_of_a_track_are_nested_or_apart(events):
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 6
    for spans in tracks.values():
        for start, end in spans:
            for other_start, other_end in spans:
                is_apart = end <= other_start or other_end <= start
                is_nested = start <= other_start <= other_end <= end or other_start <= start <= end <= other_end
                assert is_apart or is_nested


def test_ops_lie_in_their_planned_session(events):
    ops = [(e["ts"], e["dur"]) for e in events if e["name"] in ("a", "b") and e["ph"] == "X"]
    assert ops == [(0.0, 1.0), (1.0, 2.0)]


def test_counters_are_total_bytes(events):
    counters = [(e["name"], e["pid"], e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert ("memory cpu", PLANNED, 0.0, 140) in counters
    assert ("memory cpu", MEASURED, 0.1, 100 + 45) in counters
    assert ("memory node1", MEASURED, 5.2, 10 + 16) in counters


def test_it_keeps_the_rules_of_the_format():
    checked(chrome_trace(PROGRAM, RECORD, SEEN))


def test_arrows_lead_to_a_copy_and_on_to_who_reads_it(events):
    arrows = [(e["pid"], e["ph"], e["ts"]) for e in events if e["name"] == "copy" and e["ph"] in "sf"]
    assert arrows == [
        *((PLANNED, *end) for end in (("s", 1.5), ("f", 3.0), ("s", 3.5), ("f", 4.0))),
        *((MEASURED, *end) for end in (("s", 2.55), ("f", 5.2), ("s", 5.7), ("f", 6.3))),
    ]


def test_ops_that_run_again_and_what_is_held_meanwhile():
    first, _, last = PROGRAM.actions
    again = msgspec.structs.replace(
        last, planned_ops_ns={"a/remat_1": (4000, 5000), "c": (5000, 6000)}, planned_ops_bytes={"a/remat_1": 7, "c": 8}
    )
    program = msgspec.structs.replace(PROGRAM, actions=(first, _, again))
    events = checked(chrome_trace(program, RECORD, SEEN))
    assert [e["ts"] for e in events if e["name"] == "run again"] == [0.5, 4.0]
    held = [
        (e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == "memory cpu" and e["pid"] == 1
    ]
    assert held == [(0.0, 140), (3.0, 116), (4.0, 7), (5.0, 8)]
