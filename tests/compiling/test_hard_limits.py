"""A limit of the system between two models is a fair one, and where it tells nothing of either the report says so."""

import msgspec
import pytest

from remat_cli.compiling.process import resident
from remat_cli.core.values.resident import LimitedRuns, ProcessMemory, ProcessSeen
from remat_cli.report.process_text import process_lines
from remat_cli.runtime.observe.hard_limit import HardLimitAnswer, HardLimitJob
from remat_cli.runtime.observe.resident import ResidentBytes, ResidentFigures

MIB = 2**20
MEMORY = ProcessMemory(MIB, MIB, 3 * MIB, 4 * MIB, 0, 4 * MIB)


def figures(loaded_bytes, reserved_bytes):
    held = ResidentBytes(loaded_bytes, 0)
    return ResidentFigures(held, held, (held,), held, 0.0, (0.0,), reserved_bytes, "hwm")


def pair(tmp_path, monkeypatch, ours, theirs, file_bytes, needs_bytes):
    """Both under RLIMIT_DATA, where our model lives with `needs_bytes` and the original needs more than any limit."""
    (tmp_path / "o.onnx").touch()
    (tmp_path / "r.onnx").touch()
    if file_bytes:
        (tmp_path / "r.onnx.data").write_bytes(bytes(file_bytes))

    def run(job):
        survived = job.model.endswith("r.onnx") and job.limit_bytes >= needs_bytes
        return HardLimitAnswer(survived, 3 * survived, "RLIMIT_DATA", "" if survived else "bad_alloc")

    monkeypatch.setattr(resident, "limit_kind", lambda: "RLIMIT_DATA")
    monkeypatch.setattr(resident, "runs_under_limit", run)
    job = HardLimitJob("", (), 0)
    return resident.limited_pair((tmp_path / "o.onnx", tmp_path / "r.onnx"), ([theirs], [ours]), job)


def test_weights_that_are_mapped_while_loading_count_as_the_limit_counts_them(tmp_path, monkeypatch):
    ours, theirs = figures(2 * MIB, (2 * MIB, 10 * MIB)), figures(60 * MIB, (60 * MIB, 90 * MIB))
    found = pair(tmp_path, monkeypatch, ours, theirs, 40 * MIB, 50 * MIB)
    assert (found.ours, found.original) == (True, False)
    assert found.limit_bytes == 42 * MIB + 24 * MIB  # half way from what ours needs, with the file while it is mapped


def test_weights_that_stay_mapped_are_not_counted_twice(tmp_path, monkeypatch):
    ours, theirs = figures(2 * MIB, (42 * MIB, 50 * MIB)), figures(60 * MIB, (60 * MIB, 90 * MIB))
    assert pair(tmp_path, monkeypatch, ours, theirs, 40 * MIB, 50 * MIB).limit_bytes == 70 * MIB


def test_where_the_file_leaves_no_room_no_limit_is_tried(tmp_path, monkeypatch):
    ours, theirs = figures(2 * MIB, (2 * MIB, 10 * MIB)), figures(30 * MIB, (30 * MIB, 43 * MIB))
    assert pair(tmp_path, monkeypatch, ours, theirs, 40 * MIB, 0) is None


@pytest.mark.parametrize(
    ("ours", "original", "told"),
    [
        (True, False, "this model runs 3 times, the original dies (bad_alloc)"),
        (True, True, "this model runs 3 times, the original runs 3 times"),
        (False, False, "showed nothing: neither model runs under it, as it also counts what is reserved"),
    ],
)
def test_a_limit_under_which_both_die_showed_nothing(ours, original, told):
    limited = LimitedRuns("RLIMIT_DATA", 90 * MIB, 3, ours, original, "bad_alloc")
    line = process_lines(ProcessSeen(MEMORY, MEMORY, MEMORY, 0, limited=limited))[-1]
    assert told in line
    assert ("dies" in line) == (ours != original)
    cgroup = msgspec.structs.replace(limited, kind="cgroup v2")
    assert "reserved" not in process_lines(ProcessSeen(MEMORY, MEMORY, MEMORY, 0, limited=cgroup))[-1]
