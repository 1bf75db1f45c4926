"""Run a compiled file beside the model that it was made from, and say what both gave and took, as one JSON.

It stands alone, so that it runs wherever there are Python 3.7, numpy and onnxruntime, of any newer version:

    python check.py COMPILED.onnx --original MODEL.onnx [--inputs FILE.npz] [--dim NAME=SIZE ...]

remat itself sends it through the standard input of a Python that it started, and the files behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from typing import Any

PIECE_BYTES = 1 << 20
SPARE_BYTES = 1 << 26  # of the disk, which outputs and profiles may take
RUNS = 3  # of each model while its process is watched
TURN_SECONDS = 20.0
MOST_TURNS = 7
TELL = "REMAT "
COUNTERS = (
    "op_name",
    "mem_bytes_requested_in_use",
    "mem_requested_in_use_delta",
    "mem_bytes_in_use",
    "mem_in_use_peak",
    "mem_arena_held",
)
RELU = bytes.fromhex(
    "08083a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02"
    "080142040a00100d"
)  # an ONNX file: y = Relu(x), one number
NUMBERS = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(uint16)": "uint16",
    "tensor(int32)": "int32",
    "tensor(uint32)": "uint32",
    "tensor(int64)": "int64",
    "tensor(uint64)": "uint64",
}


class CannotGoOn(Exception):
    """Something that the user must know, in one line."""


# What this place is.


def place() -> dict[str, Any]:
    """The machine, its Python, and the packages that models need; raises `CannotGoOn` where one is missing."""
    os.putenv("ORT_DISABLE_TELEMETRY", "1")  # only the native library reads it; what the import begins, no call undoes
    try:
        import numpy
        import onnxruntime
    except ImportError as error:
        raise CannotGoOn(
            f"{sys.executable} cannot import {error.name or error}: install numpy and onnxruntime there"
        ) from None
    with contextlib.suppress(Exception):  # before any session is made; not all versions can
        onnxruntime.disable_telemetry_events()
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def processor_name() -> str:
    """What the system calls the processor."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor()


# Each look at a model is in a process of its own, forked before any session was made.

_children: list[int] = []  # that are at work


def apart(function: Any, *arguments: Any) -> Any:
    """What a function returns, called in a process of its own where the system can fork."""
    if not hasattr(os, "fork"):
        return function(*arguments)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(function(*arguments)).encode())
            code = 0
        os._exit(code)
    _children.append(child)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    _children.remove(child)
    if not told:
        signal = status & 0x7F
        how = f"was killed by signal {signal}" if signal else f"ended with code {status >> 8}"
        return {"stage": "died", "message": f"the process {how}"}
    return json.loads(told.decode())


def new_options(asked: dict[str, Any], exact: Any = None) -> Any:
    """Options of a session of those that a file is made for; `exact` are those under which one runs exactly its file.

    `asked` are a file's own, where they are not the runtime's: arena, pattern, optimisation, threads, mode.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = asked.get("threads", 0)
    options.enable_cpu_mem_arena = asked.get("arena", True)
    if exact is None:
        options.enable_mem_pattern = asked.get("pattern", True)
        level = asked.get("optimisation", "all")
        name = "ORT_DISABLE_ALL" if level == "disabled" else f"ORT_ENABLE_{level.upper()}"
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)
        if asked.get("mode") == "parallel":
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    else:
        if not exact["is_optimised"]:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if exact["is_priority_based"] and hasattr(ort, "ExecutionOrder"):
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_reuse = exact["reuses_dead_buffers"]
        options.enable_mem_pattern = exact["has_memory_pattern"]
    return options


def opened(path: Any, options: Any = None) -> Any:
    """A session on the CPU."""
    import onnxruntime as ort

    return ort.InferenceSession(path, options or new_options({}), providers=["CPUExecutionProvider"])


def fed(path: str) -> dict[str, Any]:
    """What a model is fed, from a file."""
    import numpy as np

    with np.load(path) as stored:
        arrays = dict(stored)
    return {name: each.astype(object) if each.dtype.kind == "U" else each for name, each in arrays.items()}


def outputs_seen(
    path: str, feeds: list[str], folder: str, kept: str, asked: dict[str, Any], exact: Any
) -> dict[str, Any]:
    """How far a model comes in one session, what it gives for each of the feeds, and its first run's profile."""
    import numpy as np

    options, stage = new_options(asked, exact), "load"
    with contextlib.suppress(Exception):  # threads that wait by spinning cost an emulator most; not all versions can
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(folder, kept)
    try:
        session = opened(path, options)
        stage, names, prints = "run", [each.name for each in session.get_outputs()], []
        for number, file in enumerate(feeds):
            outputs = session.run(None, fed(file))
            prints.append([print_of(name, each) for name, each in zip(names, outputs)])  # noqa: B905 -- Python 3.7
            for at, each in enumerate(outputs):
                if isinstance(each, np.ndarray) and each.dtype.kind != "O":
                    np.save(os.path.join(folder, f"{kept}_{number}_{at}.npy"), each)
            del outputs
        profile = session.end_profiling()
    except Exception as error:  # whatever the runtime raises is what is asked for
        return {"stage": stage, "message": str(error)[:4000]}
    events = first_run(profile)
    os.remove(profile)
    return {"stage": "done", "prints": prints, "events": events}


def print_of(name: str, array: Any) -> dict[str, Any]:
    """A hash of an output's type, shape and every bit, and whether all its elements are equal."""
    import numpy as np

    if not isinstance(array, np.ndarray):
        text = repr(array).encode()
        return {"name": name, "sha256": hashlib.sha256(text).hexdigest(), "is_constant": False}
    told = f"{array.dtype.str} {array.shape} ".encode()
    data = repr(array.tolist()).encode() if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()
    flat = array.reshape(-1)
    same = bool(array.size and array.dtype.kind != "O" and (flat == flat[:1]).all())
    return {"name": name, "sha256": hashlib.sha256(told + data).hexdigest(), "is_constant": same}


def first_run(profile: str) -> list[dict[str, Any]]:
    """The kernels of the first run, with their counters of memory, as the runtime's profile has them."""
    with open(profile) as file:
        raw = json.load(file)
    kept = []
    for event in raw:
        name, category = event.get("name", ""), event.get("cat", "")
        if category == "Node" and name.endswith("_kernel_time"):
            said = event.get("args", {})
            args = {key: said[key] for key in COUNTERS if key in said}
            kept.append({"name": name, "cat": category, "ts": event["ts"], "dur": event["dur"], "args": args})
        elif category == "Session" and name == "model_run":
            kept.append({"name": name, "cat": category, "ts": event["ts"], "dur": event["dur"]})
            break
    return kept


def difference(folder: str, one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """The largest difference of two models' outputs, relative to the largest magnitude; None: they do not compare."""
    import numpy as np

    most = 0.0
    for number, prints in enumerate(one["prints"]):
        for at in range(len(prints)):
            files = [os.path.join(folder, f"{kept}_{number}_{at}.npy") for kept in ("original", "file")]
            if not all(map(os.path.exists, files)):
                continue
            ours, theirs = map(np.load, files)
            if ours.shape != theirs.shape:
                return None
            if ours.size:
                first, second = ours.astype(np.float64), theirs.astype(np.float64)
                apart_by = float(np.max(np.abs(first - second)))
                if not np.isfinite(apart_by):
                    return None
                most = max(most, apart_by / max(float(np.max(np.abs(first))), 1e-30))
    return most


# Resident memory, as the system tells it.


def status() -> dict[str, int]:
    """All that the system says of this process's memory; empty where it says nothing."""
    try:
        with open("/proc/self/status") as file:
            pairs = [line.split() for line in file if line.endswith(" kB\n")]
    except OSError:
        return {}
    return {pair[0].rstrip(":"): int(pair[1]) * 1024 for pair in pairs}


def held() -> list[int]:
    """Pages of its own, and of files."""
    found = status()
    return [found["RssAnon"], found["RssFile"] + found.get("RssShmem", 0)]


def lowered() -> bool:
    """Let the system's high-water mark begin anew; whether it does."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


def resident(path: str, feeds: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """How far resident memory rises while a model is loaded and run, above a process with the runtime at work."""
    import gc

    import numpy as np

    if not {"RssAnon", "RssFile", "VmHWM"} <= status().keys() or not lowered():
        return None
    values = fed(feeds)
    tiny = opened(RELU)
    tiny.run(None, {"x": np.ones(1, np.float32)})
    gc.collect()
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    base, data = held(), [status().get("VmData", 0)]

    def watched(do: Any) -> tuple[Any, list[int], float]:
        lowered()
        begin = time.perf_counter()
        done = do()
        seconds = time.perf_counter() - begin
        peak, mapped = status()["VmHWM"], held()[1]
        data.append(status().get("VmData", 0))
        return done, [peak - mapped - base[0], mapped - base[1]], seconds

    try:
        session, load_peak, load_seconds = watched(lambda: opened(path, new_options(asked)))
        now = held()
        loaded = [now[0] - base[0], now[1] - base[1]]
        peaks, seconds, outputs = [], [], None
        for _ in range(RUNS):
            outputs, peak, took = watched(lambda: session.run(None, values))
            peaks.append(peak)
            seconds.append(took)
        del outputs
        after = held()
    except Exception:  # that it does not run was told before
        return None
    return {
        "load_peak": max(load_peak, loaded, key=sum),
        "loaded": loaded,
        "run_peaks": peaks,
        "after": [after[0] - base[0], after[1] - base[1]],
        "load_seconds": load_seconds,
        "run_seconds": seconds,
        "data_bytes": [each - data[0] for each in data[1:]],
    }


def turns(paths: list[str], feeds: str, asked: dict[str, Any]) -> list[float] | None:
    """The least seconds of a run of each model, run in turn."""
    values, begin = fed(feeds), time.perf_counter()
    try:
        sessions = [opened(path, new_options(asked)) for path in paths]
        for session in sessions:
            session.run(None, values)
        least = [float("inf")] * len(sessions)
        for turn in range(MOST_TURNS):
            if turn and time.perf_counter() - begin > TURN_SECONDS:
                break
            for at, session in enumerate(sessions):
                start = time.perf_counter()
                session.run(None, values)
                least[at] = min(least[at], time.perf_counter() - start)
    except Exception:  # that it does not run was told before
        return None
    return least


def checked(job: dict[str, Any], folder: str, tell: Any) -> dict[str, Any]:
    """All that is asked for of the two models; `tell` hears how many of how many looks are done."""
    original, file, feeds, asked = job["original"], job["file"], job["feeds"], job["session"]
    total, done = (6 if job["watches"] else 3), 0

    def look(function: Any, *arguments: Any) -> Any:
        nonlocal done
        found = apart(function, *arguments)
        done += 1
        tell(done, total)
        return found

    found: dict[str, Any] = {
        "original": look(outputs_seen, original, feeds, folder, "original", asked, None),
        "file": look(outputs_seen, file, feeds, folder, "file", asked, None),
    }
    if any(each["stage"] != "done" for each in found.values()):
        return found
    found["exact"] = look(outputs_seen, file, feeds[:1], folder, "exact", asked, job["exact"])
    if found["original"]["prints"] != found["file"]["prints"]:
        found["difference"] = difference(folder, found["original"], found["file"])
    if job["watches"]:
        found["resident"] = [look(resident, path, feeds[0], asked) for path in (original, file)]
        found["seconds"] = look(turns, [original, file], feeds[0], asked)
    return found


# Through standard input: what is to be done, and the files.


def serve(stream: Any, pipe: int, token: str) -> None:
    """The other side of `link.py`: take in the files, do the job, answer, and leave nothing behind that was not asked.

    Each message is a line: this token, a word, and a JSON value. What others print is not mistaken for one.
    """
    lock, folders = threading.Lock(), []

    def tell(word: str, value: Any) -> None:
        with lock:
            line = f"\n{TELL}{token} {word} {json.dumps(value)}\n".encode()
            while line:
                line = line[os.write(pipe, line) :]

    try:
        tell("place", place())
        job = json.loads(read(stream, int(stream.readline())).decode())
        folders.append(tempfile.mkdtemp(prefix="remat_check_"))
        paths = received(stream, job, folders[0], tell)
        threading.Thread(target=leave_when_alone, args=(stream, folders), daemon=True).start()
        job = {
            **job,
            **{key: paths[job[key]] for key in ("original", "file")},
            "feeds": [paths[f] for f in job["feeds"]],
        }
        work = tempfile.mkdtemp(prefix="work_", dir=folders[0])
        tell("answer", checked(job, work, lambda done, total: tell("done", [done, total])))
    except CannotGoOn as error:
        tell("refused", str(error))
    except OSError as error:
        tell("refused", f"{error.strerror or error} ({error.filename or 'while files were written'})")
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def received(stream: Any, job: dict[str, Any], folder: str, tell: Any) -> dict[str, str]:
    """The files of a job in a folder, by name; those that are kept here from before need not be sent."""
    kept = os.path.join(tempfile.gettempdir(), f"remat_kept_{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    if job["keeps"]:
        os.makedirs(kept, mode=0o700, exist_ok=True)
    there = [each["sha256"] for each in job["files"] if is_whole(os.path.join(kept, each["sha256"]), each)]
    need = sum(each["bytes"] for each in job["files"] if each["sha256"] not in there) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if need > free:
        raise CannotGoOn(f"{folder} has {free >> 20} MiB free there, and {-(-need >> 20)} are needed: set TMPDIR there")
    tell("have", there)
    paths = {}
    for each in job["files"]:
        path = os.path.join(folder, *each["name"].split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        paths[each["name"]] = path
        stored = os.path.join(kept, each["sha256"])
        if each["sha256"] not in there:
            take(stream, each, path)
            if job["keeps"]:
                shutil.copyfile(path, f"{stored}.new")
                os.replace(f"{stored}.new", stored)
        else:
            try:
                os.link(stored, path)
            except OSError:
                shutil.copyfile(stored, path)
    return paths


def is_whole(path: str, told: dict[str, Any]) -> bool:
    """Whether a kept file is there, and what it should be."""
    if not os.path.isfile(path) or os.path.getsize(path) != told["bytes"]:
        return False
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(PIECE_BYTES), b""):
            found.update(piece)
    return bool(found.hexdigest() == told["sha256"])


def take(stream: Any, told: dict[str, Any], path: str) -> None:
    """Write the next file of the stream."""
    left, found = told["bytes"], hashlib.sha256()
    with open(path, "wb") as file:
        while left:
            piece = read(stream, min(left, PIECE_BYTES))
            found.update(piece)
            file.write(piece)
            left -= len(piece)
    if found.hexdigest() != told["sha256"]:
        raise CannotGoOn(f"{told['name']} did not arrive as it was sent: try again")


def read(stream: Any, count: int) -> bytes:
    """So many bytes of a stream."""
    data = stream.read(count)
    if len(data) < count:
        raise CannotGoOn("the connection ended before all files were there")
    return bytes(data)


def leave_when_alone(stream: Any, folders: list[str]) -> None:
    """End, and leave nothing behind, when the other side is gone: then standard input closes."""
    while stream.read(1):
        pass
    for child in _children:
        with contextlib.suppress(OSError):
            os.kill(child, 9)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


# From a shell.


def main() -> None:
    """Check two files that lie here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", metavar="COMPILED.onnx")
    parser.add_argument("--original", required=True, metavar="MODEL.onnx", help="the model that it was made from")
    parser.add_argument("--inputs", metavar="FILE.npz", help="what both are fed; random numbers when left out")
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE", help="a size that the models leave open"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    try:
        found: dict[str, Any] = {"place": place()}
        with tempfile.TemporaryDirectory(prefix="remat_check_") as folder:
            dims = dict(each.split("=", 1) for each in asked.dim)
            feeds = [asked.inputs] if asked.inputs else apart(made_feeds, asked.file, dims, asked.seed, folder)
            if isinstance(feeds, dict):
                raise CannotGoOn(feeds["message"])
            job = {
                "original": os.path.abspath(asked.original),
                "file": os.path.abspath(asked.file),
                "feeds": feeds,
                "exact": EXACT,
                "session": apart(session_of, asked.file),
                "watches": True,
            }
            found.update(checked(job, folder, lambda done, total: None))
    except CannotGoOn as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps(summary(found), indent=2) + "\n")
    sys.exit(0 if summary(found)["outputs_identical"] else 5)


EXACT = {"is_optimised": False, "is_priority_based": True, "reuses_dead_buffers": False, "has_memory_pattern": False}
"""Options under which a session runs exactly its file."""


def session_of(path: str) -> dict[str, Any]:
    """Options that a compiled file says that sessions must have; none where it cannot be opened."""
    try:
        said = opened(path).get_modelmeta().custom_metadata_map
    except Exception:  # which is told when it is looked at
        return {}
    pairs = (each.split("=", 1) for each in said.get("remat.runs_on.session", "").split("; ") if "=" in each)
    read = {"on": True, "off": False}
    found: dict[str, Any] = {name: read.get(value, value) for name, value in pairs}
    most = int(said.get("remat.runs_on.most_threads", "0"))
    borne = most if 0 < most < (os.cpu_count() or 1) else 0
    threads = int(found.get("threads", 0)) or int(said.get("remat.runs_on.threads", "0")) or borne
    return dict(found, threads=threads)


def made_feeds(path: str, dims: dict[str, str], seed: int, folder: str) -> Any:
    """Files of random inputs: floats are normal, whole numbers 0 or 1."""
    import numpy as np

    try:
        inputs, files = opened(path).get_inputs(), []
        for number in range(2):
            generator = np.random.default_rng(seed + number)
            made: dict[str, Any] = {}
            for each in inputs:
                left = [str(size) for size in each.shape if not isinstance(size, int) and str(size) not in dims]
                if left or each.type not in NUMBERS:
                    what = f"--dim {left[0]}=SIZE" if left else "--inputs FILE.npz"
                    raise ValueError(f"input '{each.name}' needs {what}")
                shape = [size if isinstance(size, int) else int(dims[str(size)]) for size in each.shape]
                dtype = np.dtype(NUMBERS[each.type])
                random = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
                made[each.name] = np.asarray(random).astype(dtype)
            files.append(os.path.join(folder, f"feeds_{number}.npz"))
            np.savez(files[-1], **made)
    except Exception as error:
        return {"stage": "load", "message": str(error)[:4000]}
    return files


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """What people want to know first; without profiles."""
    file, original, exact = found["file"], found["original"], found.get("exact", {})
    both = file["stage"] == original["stage"] == "done"
    ran = [event["name"][: -len("_kernel_time")] for event in exact.get("events", []) if event["cat"] == "Node"]
    resident_pair, seconds = found.get("resident") or [None, None], found.get("seconds")
    return {
        "place": found["place"],
        "loads": file["stage"] != "load",
        "runs": file["stage"] == "done",
        "original_runs": original["stage"] == "done",
        "message": file.get("message") or original.get("message"),
        "outputs_identical": both and file["prints"] == original["prints"],
        "difference": found.get("difference"),
        "executed": ran,
        "resident_original": resident_pair[0],
        "resident_file": resident_pair[1],
        "seconds_original": seconds and seconds[0],
        "seconds_file": seconds and seconds[1],
    }


if __name__ == "__main__":
    main()
