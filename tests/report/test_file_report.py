"""What people read of a file that was verified without its plan."""

from __future__ import annotations

from remat_cli.core.values.file_check import FileVerification, ProcessPair
from remat_cli.core.values.process_promise import ProcessPromise
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
    assert text(found)[0] == "fits: 4.00 MiB of 5.00 MiB live (was 8.00 MiB), same bits, +2 % time"
    assert text(found)[3] == "the file keeps its promises on ONNX Runtime 1.32.0"
    assert "  budget of the file           5,242,880 bytes (5.00 MiB), live" in text(found)
    assert "  time, measured               +2.50 %" in text(found)


def test_what_was_not_kept_comes_first():
    found = report(outputs_identical=False, measured_peak_bytes=6 * MIB)
    assert found.exit_code == 5
    assert text(found)[0] == "NOT KEPT: the outputs differ from the original's (and 1 more promise)"
    assert text(found)[3:6] == [
        "NOT KEPT by the file on ONNX Runtime 1.32.0",
        "  the outputs differ from the original's",
        "  live tensors of 6,291,456 bytes, more than 4,194,304",
    ]


def test_memory_alone_has_a_code_of_its_own():
    assert report(measured_peak_default_session_bytes=6 * MIB).exit_code == 4


def test_what_was_not_checked_is_named():
    found = report(order_honoured=None, measured_peak_bytes=None, notes=("why",))
    assert found.exit_code == 0
    assert text(found)[3].endswith("; not checked: order, live tensors")
    assert "  live tensors, measured       not known" in text(found)
    assert text(found)[-1] == "  note: why"


def test_processes_stand_beside_each_other():
    memory = ProcessMemory(MIB, MIB, 4 * MIB, 6 * MIB, 0, 6 * MIB)
    less = ProcessMemory(MIB, MIB, 2 * MIB, 3 * MIB, 0, 3 * MIB)
    lines = text(report(process=ProcessPair(memory, less)))
    assert any(line.split() == ["later", "runs", "6.00", "MiB", "3.00", "MiB", "-50.00", "%"] for line in lines)


def of_process(needed_bytes: int, **changes) -> FileReport:
    """A file with a budget of 5 MiB on the process, which is predicted to take 4 MiB, beside inputs of 1 MiB."""
    predicted, original = (ProcessMemory(MIB, MIB, most, most, 0, most) for most in (3 * MIB, 8 * MIB))
    seen = ProcessMemory(MIB, MIB, needed_bytes - MIB, needed_bytes - MIB, 0, needed_bytes - MIB)
    words = {"process_promise": ProcessPromise(5 * MIB, False, predicted), "input_bytes": MIB}
    return report(**{"process": ProcessPair(original, seen), **words, **changes})


def test_a_budget_on_the_process_is_judged_by_the_process():
    found = of_process(4 * MIB)
    assert found.exit_code == 0
    assert text(found)[0] == "fits: 4.00 MiB of 5.00 MiB in the process (was 9.00 MiB), same bits, +2 % time"
    told = {" ".join(line.split()) for line in text(found)}
    assert "budget of the file 5,242,880 bytes (5.00 MiB), in the process, mapped pages not counted" in told


def test_a_process_above_its_budget_is_not_kept():
    found = of_process(6 * MIB)
    assert (found.exit_code, found.fits) == (4, False)
    assert found.verdict == "NOT KEPT: the process holds 6,291,456 bytes, more than the budget of 5,242,880"


def test_a_process_above_its_prediction_is_told_only():
    """3 % and 2 MiB above what was predicted of runs, with room in the budget."""
    wide = ProcessPromise(9 * MIB, False, ProcessMemory(MIB, MIB, 3 * MIB, 3 * MIB, 0, 3 * MIB))
    found = of_process(7 * MIB, process_promise=wide)
    assert (found.exit_code, found.fits) == (0, True)
    assert "; WARNING, not kept: the first run held 6.00 MiB, promised 3.00 MiB (and 1 more promise)" in found.verdict
    assert of_process(6 * MIB, process_promise=wide).verification.warned == ()


def test_a_process_that_was_not_measured_fits_by_prediction():
    found = of_process(0, process=None)
    assert found.verdict == "fits by prediction: 4.00 MiB of 5.00 MiB in the process, same bits, +2 % time"
    assert text(found)[3].endswith("; not checked: the process")


def test_no_counters_no_measurement():
    found = report(measured_peak_bytes=None, measured_peak_default_session_bytes=None)
    assert found.verdict.startswith("fits by prediction: 4.00 MiB of 5.00 MiB live")
