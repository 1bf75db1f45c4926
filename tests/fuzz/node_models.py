"""ONNX's backend node tests, and its other small ones: every model that the installed runtime loads."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

from tests.fuzz.batch import OUTPUT
from tests.fuzz.outcomes import WHOLE, Case

ACTIONS = ("inspect", WHOLE, "min")


@functools.cache
def node_models() -> dict[str, bytes]:
    """Models by the name of their test."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their references, overflow and all
        found = collect_testcases(None)
    return {case.name: case.model.SerializeToString() for case in found if case.model is not None}


def node_cases() -> list[Case]:
    """Each model looked at, and compiled to its own peak and to the least."""
    return [Case("node", name, action) for name in sorted(node_models()) for action in ACTIONS]


def kept(materials: Path) -> Path:
    """The folder in which they lie by name, filled once: collecting them computes all references for 8 s."""
    place = materials / "nodes"
    if not place.exists():
        place.mkdir()
        for name, content in node_models().items():
            (place / name).write_bytes(content)
    return place


def prepare_node(case: Case, work: Path, materials: Path) -> list[str] | None:
    """The model as a file; None where the runtime does not load it as it is."""
    content = (kept(materials) / case.name).read_bytes()
    if not is_loaded(content):
        return None
    path = work / "model.onnx"
    path.write_bytes(content)
    return words_for(case.action, path, work)


def words_for(action: str, path: Path, work: Path) -> list[str]:
    """What is asked of remat."""
    if action == "inspect":
        return ["inspect", str(path)]
    rest = ["--verify", "fast", "--time-limit", "1s", "--threads", "1", "--intra-op-threads", "1"]
    return ["compile", str(path), "--budget", action, "-o", str(work / OUTPUT), *rest]


def is_loaded(content: bytes) -> bool:
    """Whether the runtime makes a session of a model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


def as_is(case: Case, outcome: str) -> str:
    """No correction."""
    del case
    return outcome
