"""What one fresh process holds that loads a model and runs it; needs numpy and onnxruntime only, of any version.

`python loading_measure.py MODEL RUNS SHAPES` (of its inputs, in JSON, by name) prints one JSON line: bytes above a
process with a tiny session, at most while loading (`load`), then (`loaded`), at most in the first run and in any later
one (`first`, `later`), outputs of a run held until the next has ended.
"""

import json
import sys

import numpy as np
import onnxruntime as ort

TINY = bytes.fromhex(
    "08083a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02"
    "080142040a00100d"
)  # y = Relu(x), one number


def status() -> dict[str, int]:
    """What the system says of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        pairs = (line.split() for line in file if line.endswith(" kB\n"))
        return {name[:-1]: int(kib) * 1024 for name, kib, _ in pairs}


def reset() -> None:
    """Let the high-water mark begin anew."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def session(model: str | bytes) -> ort.InferenceSession:
    """One thread, all else as it comes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def main(model: str, runs: int, shapes: dict[str, list[int]]) -> None:
    """Load and run."""
    tiny = session(TINY)
    tiny.run(None, {"x": np.ones(1, np.float32)})
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    reset()
    before = status()["VmRSS"]
    loaded = session(model)
    after = status()
    peaks, held = [], None
    for _ in range(runs):
        reset()
        made = loaded.run(None, feeds)
        peaks.append(status()["VmHWM"] - before)
        held = made
    assert held is not None
    found = {
        "runtime": ort.__version__,
        "load": after["VmHWM"] - before,
        "loaded": after["VmRSS"] - before,
        "first": peaks[0],
        "later": max(peaks[1:]),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
