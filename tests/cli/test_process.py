"""What only a real process shows: start-up time, closed pipes, Ctrl-C, a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FAKE = """
import sys, threading, time
from remat_cli.base.progress import OPTIMISING, SOLVING, SPLITTING, VERIFYING
from tests.report import samples

def compile_model(model, config, progress):
    {body}
    return samples.compile_report()

from remat_cli.commands import compile as story
story.compile_model = compile_model
from remat_cli.cli import main
sys.exit(main(["compile", "net.onnx", "--budget", "80%"]))
"""

WAIT_FOR_STOP = """
    progress.stage(SOLVING)
    progress.incumbent(3.0, None)
    for _ in range(1000):
        if progress.should_stop():
            break
        time.sleep(0.01)
    else:
        raise RuntimeError("never stopped")
    progress.stage(VERIFYING)
"""

HANG = """
    progress.stage({stage})
    for _ in range(300):  # a signal just before a long sleep would be seen after it
        time.sleep(0.1)
"""


def start(tmp_path, body, **streams):
    (tmp_path / "net.onnx").write_bytes(b"")
    code = FAKE.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip())
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        **({"stderr": subprocess.PIPE} | streams),
    )


def interrupt_after(process, line):
    for seen in process.stderr:
        if seen.startswith(line):
            process.send_signal(signal.SIGINT)
            return
    raise AssertionError(f"never said {line}")


def test_ctrl_c_while_solving_goes_on_with_the_best_plan(tmp_path):
    with start(tmp_path, WAIT_FOR_STOP) as process:
        interrupt_after(process, "incumbent")
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "net.remat.onnx" in out
    assert err == "verifying\n"


def test_ctrl_c_while_searching_for_splits_goes_on_with_what_there_is(tmp_path):
    body = WAIT_FOR_STOP.replace("SOLVING", "SPLITTING").replace("progress.incumbent(3.0, None)", "")
    with start(tmp_path, body) as process:
        interrupt_after(process, "searching for splits")
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "net.remat.onnx" in out
    assert err == "verifying\n"


def test_second_ctrl_c_aborts(tmp_path):
    body = """
    progress.stage(SOLVING)
    while not progress.should_stop():
        time.sleep(0.01)
    progress.note("asked to stop")
    for _ in range(300):
        time.sleep(0.1)
    """
    with start(tmp_path, body) as process:
        interrupt_after(process, "solving")
        interrupt_after(process, "note: asked")
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


def test_ctrl_c_elsewhere_aborts_at_once(tmp_path):
    with start(tmp_path, HANG.format(stage="OPTIMISING")) as process:
        interrupt_after(process, "optimising")
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


def test_progress_on_a_terminal_is_one_live_line(tmp_path):
    controller, terminal = pty.openpty()
    with start(tmp_path, "progress.stage(SOLVING); progress.incumbent(2.756, 1.9)", stderr=terminal) as process:
        out, _ = process.communicate(timeout=20)
    os.close(terminal)
    shown = os.read(controller, 10_000).decode()
    os.close(controller)
    assert process.returncode == 0
    assert "incumbent +2.76%  bound +1.90%  gap 0.86%  0 s" in shown
    assert "\x1b[2K" in shown
    assert "incumbent" not in out


def test_reader_that_goes_away_is_no_error(tmp_path):
    with start(tmp_path, "progress.stage(SOLVING)") as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=20)
    assert (process.returncode, err) == (0, "solving\n")


def run(*arguments, **changes):
    return subprocess.run(
        [sys.executable, "-m", "remat_cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **changes},
        capture_output=True,
        check=False,
    )


def test_module_entry_point():
    done = run("frobnicate")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: No such command")


def test_ascii_only_output_never_fails():
    done = run("--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_help_is_instant():
    best = 9.0
    for _ in range(5):
        started = time.perf_counter()
        run("--help")
        best = min(best, time.perf_counter() - started)
    assert best < 0.3
