from __future__ import annotations

from bench.webgpu import GPU, staged_copies
from remat_cli.core.schedule.program import CopyAction, InputSpec, Program, SegmentFile, SessionAction, Value
from remat_cli.devices.provider_table import named_spec


def session(device, reads, makes, drops=()):
    return SessionAction(device, SegmentFile("s.onnx", reads, makes, (), (), {}), drops)


def program(values, actions, outputs):
    return Program(
        folder="",
        devices=(named_spec("cpu"), named_spec(GPU)),
        memories=("cpu", GPU),
        memory_of=(0, 1),
        budgets=(1, 1),
        actions=actions,
        inputs=(InputSpec("x", "float", (4,)),),
        outputs=outputs,
        values=values,
    )


def value(size_bytes, memory):
    return Value("float", (size_bytes // 4,), size_bytes, memory)


def test_copies_that_take_a_staging_buffer_are_counted():
    """An input that a session there reads, a planned copy each way, and an output: four."""
    values = {"x": value(16, 0), "a": value(16, 1), "b": value(16, 0), "c": value(16, 0), "d": value(16, 1)}
    values["y"] = value(16, 1)
    actions = (
        session(1, ("x",), ("a",)),
        CopyAction(1, 0, "a", "b"),
        session(0, ("b",), ("c",)),
        CopyAction(0, 1, "c", "d"),
        session(1, ("d",), ("y",)),
    )
    assert staged_copies(program(values, actions, ("y",))) == 4


def test_what_has_no_bytes_takes_no_staging_buffer():
    values = {"x": value(0, 0), "a": value(0, 1), "b": value(0, 0)}
    actions = (session(1, ("x",), ("a",)), CopyAction(1, 0, "a", "b"))
    assert staged_copies(program(values, actions, ("a", "b"))) == 0
