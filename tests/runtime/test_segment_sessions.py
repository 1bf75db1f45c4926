"""Which weights sessions share, what lies outside of their arena, and what the caller gets."""

from __future__ import annotations

import numpy as np

from remat_cli.core.schedule.program import (
    CopyAction,
    InputSpec,
    Program,
    SegmentFile,
    SessionAction,
    StoredWeight,
    Value,
    WeightUse,
)
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.segments._segment_sessions import as_array, outside_bytes, placed_weights
from remat_cli.runtime.sessions.providers import placed_value

SIZES = {"big": 4096, "twice": 8192, "small": 512, "half": 2048}


def session(device, weights, drops=()):
    uses = {name: WeightUse("float", (SIZES[name] // 4,), SIZES[name], ()) for name in weights}
    return SessionAction(device, SegmentFile("s.onnx", (), (), (), (), uses), drops)


def gpu_program(tmp_path):
    """x is copied to the GPU twice, as a and b; a is dropped before b is there, c comes beside b."""
    values = {"a": 100, "b": 300, "c": 50, "back": 1000}
    return Program(
        folder=str(tmp_path),
        devices=(named_spec("cpu"), named_spec("cuda:0"), named_spec("openvino")),
        memories=("cpu", "cuda:0"),
        memory_of=(0, 1, 0),
        budgets=(1, 1),
        actions=(
            session(0, ["big", "twice"]),
            session(0, ["twice", "small"]),
            session(2, ["big"]),
            CopyAction(0, 1, "x", "a"),
            session(1, ["twice", "small", "half"], ("a",)),
            CopyAction(0, 1, "x", "b"),
            CopyAction(0, 1, "x", "c"),
            CopyAction(1, 0, "b", "back", ("b", "c")),
            session(1, ["twice"]),
        ),
        inputs=(InputSpec("x", "float", (25,)),),
        outputs=("back",),
        values={name: Value("uint8", (n,), n, 0 if name == "back" else 1) for name, n in values.items()},
        weights={
            name: StoredWeight("w", 0, "bfloat16" if name == "half" else "float", (size // 4,), size)
            for name, size in SIZES.items()
        },
    )


def test_on_the_host_weights_of_several_sessions_are_shared_elsewhere_all_large_ones(tmp_path):
    assert sorted(placed_weights(gpu_program(tmp_path))) == [(0, "twice"), (1, "twice")]


def test_outside_of_the_arena_are_placed_weights_and_the_most_copies_at_once(tmp_path):
    program = gpu_program(tmp_path)
    assert outside_bytes(program, 1) == 8192 + 300 + 50
    assert outside_bytes(program, 0) == 8192 + 1000


def test_what_the_caller_gets_of_a_value_outlives_the_array_behind_it():
    """A copy that came from another memory is a value over an array of ours; a view of it would end with the run."""
    array = np.arange(1000, dtype=np.float32)
    found = as_array(placed_value(array, ("cpu", 0)))
    assert found.tobytes() == array.tobytes()
    assert not np.shares_memory(found, array)
