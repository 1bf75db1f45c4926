"""What people read of a file that was verified without its plan."""

from __future__ import annotations

from remat_cli.core.values.file_check import FileVerification, ProcessPair
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.report.file_report import FileReport
from remat_cli.report.style import Style

MIB = 2**20


def report(**changes) -> FileReport:
    figures = {
        "outputs_identical": True,
        "order_honoured": True,
        "predicted_peak_bytes": 4 * MIB,
        "budget_bytes": 5 * MIB,
        "measured_peak_bytes": 4 * MIB,
        "measured_peak_default_session_bytes": 4 * MIB,
        "original_default_session_peak_bytes": 8 * MIB,
        "measured_overhead_percent": 2.5,
        "runtime_version": "1.32.0",
        "inferences": 5,
    }
    seen = FileVerification(**{**figures, **changes})
    return FileReport(model="net.remat.onnx", source="net.onnx", verification=seen, promises=seen.promises)


def text(found: FileReport) -> list[str]:
    return found.lines(Style())


def test_a_file_that_keeps_its_promises():
    found = report()
    assert found.exit_code == 0
    assert text(found)[0] == "the file keeps its promises on ONNX Runtime 1.32.0"
    assert "  time, measured               +2.50 %" in text(found)


def test_what_was_not_kept_comes_first():
    found = report(outputs_identical=False, measured_peak_bytes=6 * MIB)
    assert found.exit_code == 5
    assert text(found)[:3] == [
        "NOT KEPT by the file on ONNX Runtime 1.32.0",
        "  the outputs differ from the original's",
        "  live tensors of 6,291,456 bytes, more than 4,194,304",
    ]


def test_memory_alone_has_a_code_of_its_own():
    assert report(measured_peak_default_session_bytes=6 * MIB).exit_code == 4


def test_what_was_not_checked_is_named():
    found = report(order_honoured=None, measured_peak_bytes=None, notes=("why",))
    assert found.exit_code == 0
    assert text(found)[0].endswith("; not checked: order, live tensors")
    assert "  live tensors, measured       not known" in text(found)
    assert text(found)[-1] == "  note: why"


def test_processes_stand_beside_each_other():
    memory = ProcessMemory(MIB, MIB, 4 * MIB, 6 * MIB, 0, 6 * MIB)
    less = ProcessMemory(MIB, MIB, 2 * MIB, 3 * MIB, 0, 3 * MIB)
    lines = text(report(process=ProcessPair(memory, less)))
    assert any(line.split() == ["later", "runs", "6.00", "MiB", "3.00", "MiB", "-50.00", "%"] for line in lines)
