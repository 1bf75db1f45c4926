"""What one session shows of a compiled file, also where the runtime counts no memory."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.runtime.observe._events import ProfiledRun, ProfileEvent
from remat_cli.runtime.verify.file_runs import session_seen

FIRST = ProfileEvent("first", "Relu", 0, 1, 1100, 100, 1100, 1100, 2000, ())
SECOND = msgspec.structs.replace(FIRST, name="second", requested_bytes=1500, growth_bytes=400)


def test_bytes_beyond_what_lay_in_the_arena_before():
    seen = session_seen([()], ProfiledRun((FIRST, SECOND), 2))
    assert seen.executed == ("first", "second")
    assert (seen.baseline_bytes, seen.live_bytes) == (1000, 500)


@pytest.mark.parametrize("count", [0, 1])
def test_no_bytes_where_the_runtime_has_no_counters(count):
    blind = msgspec.structs.replace(SECOND, has_counters=False, requested_bytes=0, growth_bytes=0)
    seen = session_seen([()], ProfiledRun((*[FIRST] * count, blind), 2))
    assert (seen.baseline_bytes, seen.live_bytes) == (None, None)
