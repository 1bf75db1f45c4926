"""How many fresh processes verification looks at."""

from pathlib import Path

import pytest

from remat_cli.compiling.process import resident
from remat_cli.compiling.process.resident import PACKED_LOADS, ResidentRequest
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.onnx_io.write.packed import NOTHING_PACKED, PackedWeights
from remat_cli.runtime.sessions.session import SessionSettings

ORIGINAL, REWRITTEN = Path("original.onnx"), Path("rewritten.onnx")


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("is_thorough", [True, False])
def test_a_file_with_packed_copies_is_loaded_in_several_processes(monkeypatch, is_packed, is_thorough):
    """Chance decides what the heap keeps of the copies that loading drops: the original has none."""
    packed = PackedWeights(REWRITTEN, {"w": ((0, 64),)}) if is_packed else NOTHING_PACKED
    monkeypatch.setattr(resident, "packed_weights", lambda path: packed)
    monkeypatch.setattr(resident, "run_fresh", lambda what, job, advance, seconds: job)
    predicted = ProcessMemory(0, 0, 0, 0, 0, 0)
    request = ResidentRequest(
        ORIGINAL, REWRITTEN, {}, SessionSettings(), predicted, None, False, is_thorough, False, is_traced=True
    )
    original, rewritten = (resident._seen(request, path, resident.ignore_progress) for path in (ORIGINAL, REWRITTEN))
    usual = 2 if is_thorough else 1
    assert len(original) == usual
    assert len(rewritten) == (PACKED_LOADS if is_packed else usual)
    assert [job.is_traced for job in rewritten[usual:]] == [False] * (len(rewritten) - usual)
    assert all(job.runs >= 2 for job in rewritten)  # a first run and a later one
