"""What Chrome's Trace Event Format asks of a file, so that Perfetto opens it without a warning."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

PHASES = {"X", "C", "M", "s", "f"}


def checked(data: bytes) -> list[dict[str, Any]]:
    """The events of a trace that keeps the rules."""
    events: list[dict[str, Any]] = json.loads(data)["traceEvents"]
    slices, ends = defaultdict(list), defaultdict(list)
    for event in events:
        assert event["ph"] in PHASES
        assert {"name", "pid", "tid"} <= event.keys()
        assert isinstance(event["name"], str)
        assert event["name"]
        assert event["ph"] == "M" or event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(number, int) and number >= 0 for number in event["args"].values())
        elif event["ph"] in "sf":
            ends[event["cat"], event["name"], event["id"], event["pid"]].append(event)
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert named == {event["pid"] for event in events}
    for spans in slices.values():  # on one track they lie apart, or one in the other
        open_ends: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start + 1e-9:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-9
            open_ends.append(end)
    for pair in ends.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        assert pair[0]["ts"] <= pair[1]["ts"]
        assert pair[1]["bp"] == "e"
        for event in pair:
            assert any(start <= event["ts"] <= end for start, end in slices[event["pid"], event["tid"]])
    return events
