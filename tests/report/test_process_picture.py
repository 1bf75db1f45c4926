"""What two processes held over time, as a picture."""

import pytest

from remat_cli.core.values.resident import ProcessMemory, ProcessSeen, ProcessTrace
from remat_cli.report.pictures.process_picture import phases_of, process_svg
from remat_cli.report.process_text import process_lines

MIB = 2**20
TRACE = ProcessTrace((0.0, 0.5, 1.0, 2.0, 3.0, 4.0), (0, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 4 * MIB), (1.0, 3.0, 4.0))
MEMORY = ProcessMemory(MIB, MIB, 3 * MIB, 4 * MIB, 0, 4 * MIB)


def test_each_phase_has_the_same_width():
    assert phases_of(TRACE) == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]


def test_a_point_after_the_last_mark_lies_at_the_end():
    assert phases_of(ProcessTrace((5.0,), (1,), (1.0, 2.0))) == [2.0]


def test_both_processes_and_the_budget_are_drawn():
    pytest.importorskip("matplotlib")
    seen = ProcessSeen(MEMORY, MEMORY, MEMORY, 0, 5 * MIB, traces=(TRACE, TRACE))
    picture = process_svg(seen)
    assert picture.startswith(b"<?xml")
    assert picture == process_svg(seen)


def test_the_table_says_what_changed():
    less = ProcessMemory(MIB, MIB, 2 * MIB, 2 * MIB, MIB // 2, 2 * MIB)
    lines = process_lines(ProcessSeen(MEMORY, less, less, 1024, 3 * MIB))
    later = next(line for line in lines if "later runs" in line)
    assert "4.00 MiB" in later
    assert "-50.00 %" in later
    assert lines[-1] == f"the process needs {2 * MIB + 1024:,} bytes (2.00 MiB), inputs included"
