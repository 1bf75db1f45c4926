"""Run by tests in processes of its own: what a session asks for (`traced`), or its log of the arena (`logged`).

`traced MODEL LIBRARY`, `logged MODEL RUNS HELD`: outputs of so many runs before are held while the next one runs.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import onnxruntime as ort

from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.sessions.feeds import make_feeds

INFO = 1


def main() -> None:
    kind, model, *rest = sys.argv[1:]
    feeds = make_feeds(inputs_of(load(Path(model), DimBindings()).ir), 0)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if kind == "traced":
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        sys.stdout.write(json.dumps(traced(session, feeds, ctypes.CDLL(rest[0]))))
        return
    ort.set_default_logger_severity(INFO)
    options.log_severity_level = INFO
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    runs, held = map(int, rest)
    outputs: list[object] = []
    for _ in range(runs):
        sys.stderr.write("RUN\n")
        sys.stderr.flush()
        outputs.append(session.run(None, feeds))
        outputs = outputs[-held:] if held else []


def traced(
    session: ort.InferenceSession, feeds: dict[str, object], library: ctypes.CDLL
) -> list[tuple[int, int, bool]]:
    """Requests of one run: number, bytes, whether it takes or gives back. Outputs are not given back."""
    library.request_place.restype, library.request_size.restype = ctypes.c_void_p, ctypes.c_long
    library.requests_start()
    outputs = session.run(None, feeds)
    count = library.requests_stop()
    live: dict[int, tuple[int, int]] = {}
    found: list[tuple[int, int, bool]] = []
    number = 0
    for at in range(count):
        size, place = library.request_size(at), library.request_place(at)
        if size >= 0:
            live[place] = number, size
            found.append((number, size, True))
            number += 1
        elif place in live:
            found.append((*live.pop(place), False))
    del outputs
    return found


if __name__ == "__main__":
    main()
