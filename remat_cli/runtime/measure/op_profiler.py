"""Time single ops on a device, each in a session of its own, and check that they compute what the CPU computes.

A crash of the provider costs one op, never the profile: ops run in a worker process, which is started again behind
the op that it crashed in. The workspace of an op is not observable there, as the runtime's counters see its own arena
only, and providers allocate by themselves.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import DeviceLost, MissingDependency, RuntimeFailure
from remat_cli.base.run_count import ran
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.measure.findings import Losing, OpFinding
from remat_cli.runtime.sessions._ort import (
    Advance,
    Array,
    ignore_progress,
    run_fresh,
    run_session,
    runtime_errors,
    started,
)
from remat_cli.runtime.sessions.assignment import ask_for_assignment, assigned, can_report
from remat_cli.runtime.sessions.feeds import read_value
from remat_cli.runtime.sessions.providers import place_of, placed_value
from remat_cli.runtime.sessions.session import (
    SessionSettings,
    in_turn_options,
    open_session,
    profiled_session,
    session_device,
    session_options,
    wait_without_spinning,
)
from remat_cli.runtime.verify.likeness import likeness

LOOSER = {"float16": 1e-2, "bfloat16": 5e-2}
"""Largest relative difference of outputs in types of few digits; other floats must be close as in verification."""
CALL_RUNS = 2000
HANDOVERS, HANDOVER_RUNS = 8, 100
HANDOVER_ELEMENTS = 2**18  # enough for an op to use every thread, which have to be woken for each session
REFUSED = "ONNX Runtime refuses"
NOT_TAKEN_SIGN = "assigned to the default CPU EP"
NOT_TAKEN = "the provider does not take it by itself"


class OpJob(msgspec.Struct, frozen=True):
    """One op to measure: `model` is the file of its one-op model, `values` the files of its inputs where there are."""

    name: str
    model: str
    inputs: tuple[InputSpec, ...]
    values: dict[str, str]


class OpRequest(msgspec.Struct, frozen=True):
    """How to measure.

    Runs go on until there were `runs` of them and they took `least_seconds`, but no longer than `most_seconds` once
    there were `fewest`.
    """

    settings: SessionSettings
    runs: int = 10
    warmups: int = 2
    fewest: int = 3
    least_seconds: float = 0.03
    most_seconds: float = 1.0
    seed: int = 0


class OpsJob(msgspec.Struct, frozen=True):
    """What the measuring process needs to know; it writes a line to `findings` for each op that is done."""

    ops: tuple[OpJob, ...]
    request: OpRequest
    call_model: str
    findings: str


class CallJob(msgspec.Struct, frozen=True):
    """Time the call of a session with the least model there is."""

    model: str
    settings: SessionSettings


def measure_ops(
    ops: Sequence[OpJob],
    request: OpRequest,
    call_model: Path,
    keep: Callable[[OpFinding], None],
    advance: Advance = ignore_progress,
) -> None:
    """Measure ops one by one; each finding is handed to `keep` as soon as it is there, so that none is ever lost.

    Raises:
        MissingDependency: the device cannot be used.
        RuntimeFailure: not even the least model runs on it.
    """
    left, total = tuple(ops), len(ops)
    losing = Losing(keep)
    while left:
        findings = call_model.with_name(f"findings_{total - len(left)}")
        done, crash = _measure_until_crash(OpsJob(left, request, str(call_model), str(findings)), keep, advance, total)
        losing.is_back(done)
        if crash is not None and done < len(left):
            found = OpFinding(left[done].name, reason=f"it crashed the provider: {crash}")
            done += losing.blames(found, crash, session_device(request.settings).name)
        left = left[done:]
        advance(total - len(left), total)
    losing.is_back(1)


def _measure_until_crash(
    job: OpsJob, keep: Callable[[OpFinding], None], advance: Advance, total: int
) -> tuple[int, RuntimeFailure | None]:
    """How many ops were done, and the crash that ended it."""
    lines = _Lines(Path(job.findings), keep)
    before = total - len(job.ops)

    def tell(done: int, _: int) -> None:
        lines.read()
        advance(before + done, total)

    try:
        with started(measure_ops_here, job) as pending:
            pending.answer(tell)
        crash = None
    except RuntimeFailure as error:
        if not lines.path.exists():
            raise
        crash = error
    finally:
        lines.read()
    return lines.count, crash


class _Lines:
    """Reads findings as they are written; `count` are those read so far."""

    def __init__(self, path: Path, keep: Callable[[OpFinding], None]) -> None:
        self.path, self.count = path, 0
        self._keep, self._offset = keep, 0

    def read(self) -> None:
        """Hand on the whole lines that were added since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self.count += 1
                self._keep(msgspec.json.decode(line, type=OpFinding))


def measure_ops_here(job: OpsJob, advance: Advance) -> int:
    """Measure in this process; the file of findings appears once the device has run the least model."""
    session = open_session(Path(job.call_model), job.request.settings)
    with runtime_errors("ONNX Runtime fails to run the least model"):
        run_session(session, read_inputs(call_inputs(), {}, 0))
    with Path(job.findings).open("ab", buffering=0) as stream:
        for number, op in enumerate(job.ops):
            finding = measure_op(op, job.request)
            stream.write(msgspec.json.encode(finding) + b"\n")
            advance(number + 1, len(job.ops))
    return len(job.ops)


def measure_op(op: OpJob, request: OpRequest) -> OpFinding:
    """What an op costs on the device, or why it cannot be used there."""
    feeds = read_inputs(op.inputs, op.values, request.seed)
    path = Path(op.model)
    try:
        session, is_taken = _open_asking(path, request.settings)
        if not is_taken:
            return OpFinding(op.name, reason=NOT_TAKEN)
        with runtime_errors("it fails to run"):
            outputs = run_session(session, feeds)
    except DeviceLost:
        raise
    except (RuntimeFailure, MissingDependency) as error:
        if NOT_TAKEN_SIGN in str(error):  # a runtime that has no report of where ops are
            return OpFinding(op.name, reason=NOT_TAKEN)
        # The user does not know the name of the file.
        reason = str(error).removeprefix(f"{REFUSED} {path.name}: ").replace(str(path), "its one-op model")
        return OpFinding(op.name, reason=reason)
    try:
        if difference := difference_from_cpu(path, feeds, outputs):
            return OpFinding(op.name, reason=difference)
        with runtime_errors("it fails to run on bound tensors"):
            times = _run_times_ns(session, feeds, request)
    except DeviceLost:
        raise
    except RuntimeFailure as error:
        return OpFinding(op.name, reason=str(error))
    least, second = sorted(times)[:2]
    return OpFinding(op.name, least, round(100.0 * (second / least - 1.0), 2))


def _open_asking(path: Path, settings: SessionSettings) -> tuple[Any, bool]:
    """A session as in `_open`, and whether the device's provider took every op, as the runtime reports.

    Where it has no such report, an op that is not taken is an error instead.
    """
    options = in_turn_options(settings)
    if not can_report():
        return open_session(path, settings, options), True
    ask_for_assignment(options)
    session = open_session(path, msgspec.structs.replace(settings, is_alone=False), options)
    taken_by = set(assigned(session).values())
    return session, taken_by <= {session_device(settings).provider.runtime_name}


def _open(path: Path, settings: SessionSettings) -> Any:
    """A session whose threads do not spin beside other sessions once it has run, as in plans."""
    return open_session(path, settings, in_turn_options(settings))


def read_inputs(inputs: Sequence[InputSpec], values: Mapping[str, str], seed: int) -> dict[str, Array]:
    """What to feed to an op: values seen in a run where there are, else seeded random ones."""
    return {spec.name: read_value(spec, values.get(spec.name), seed) for spec in inputs}


def call_inputs() -> tuple[InputSpec, ...]:
    """What the least model is fed."""
    return (InputSpec("x", "float", (1,)),)


def difference_from_cpu(path: Path, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> str:
    """By how much outputs differ from the CPU's, in one line; empty where they are alike.

    An op that is random on the CPU, as two runs show, has no one answer: shapes and types must agree then.

    Raises:
        RuntimeFailure: the CPU cannot run the op.
    """
    options = session_options(SessionSettings())
    wait_without_spinning(options)
    session = open_session(path, SessionSettings(), options)
    with runtime_errors("it cannot be compared with the CPU, which fails to run it"):
        expected, again = run_session(session, feeds), run_session(session, feeds)
    for name, array in expected.items():
        if (array.shape, array.dtype) != (outputs[name].shape, outputs[name].dtype):
            made = f"{outputs[name].dtype}{list(outputs[name].shape)}"
            return f"differs from the CPU: output {made} instead of {array.dtype}{list(array.shape)}"
    if not likeness(expected, again).are_close:
        return ""
    for name, array in expected.items():
        found = likeness({"": array}, {"": outputs[name]})
        error = found.relative_error
        if not found.are_close and (error is None or error > LOOSER.get(array.dtype.name, 0.0)):
            how = " in its values" if error is None else f" by {error:.1e} of the largest value"
            return f"differs from the CPU{how}"
    return ""


def _run_times_ns(session: Any, feeds: Mapping[str, Array], request: OpRequest) -> list[int]:
    """Wall times of runs on tensors in the device's memory, without warm-ups."""
    run = bound_run(session, feeds, request.settings)
    waits = session_device(request.settings).provider.is_asynchronous
    warm = list(itertools.islice(_times_ns(run, waits), request.warmups))
    times: list[int] = []
    if sum(warm) > 1e9 * request.most_seconds:
        times += warm[1:]
    for elapsed in _times_ns(run, waits):
        times.append(elapsed)
        seconds = sum(times) / 1e9
        is_over = len(times) >= request.fewest and seconds > request.most_seconds
        if is_over or (len(times) >= request.runs and seconds >= request.least_seconds):
            break
    return times


FETCHES = 3  # of an output that is there already, after each run


def _times_ns(run: Callable[[], Any], waits: bool = False) -> Iterator[int]:
    """Wall times of runs without end; what a run returns is freed outside of its time.

    With `waits` a run ends when its smallest output can be fetched, and the least time that fetching it took is not
    counted: a slow fetch that counted against its own run would make that run look short.
    """
    fetch_ns: list[int] = []
    while True:
        start = time.perf_counter_ns()
        made = run()
        if waits:
            least = min(made, key=lambda value: value.tensor_size_in_bytes())
            least.numpy()
        elapsed = time.perf_counter_ns() - start
        if waits:
            for _ in range(FETCHES):
                start = time.perf_counter_ns()
                least.numpy()
                fetch_ns.append(time.perf_counter_ns() - start)
            fetch_ns = [min(fetch_ns)]
            elapsed = max(1, elapsed - fetch_ns[0])
            del least
        del made
        yield elapsed


def bound_run(session: Any, feeds: Mapping[str, Array], settings: SessionSettings) -> Callable[[], Any]:
    """A call that runs a session as plans are run: inputs and outputs bound anew, in the memory of its device."""
    place = place_of(session_device(settings))
    values = {name: placed_value(array, place) for name, array in feeds.items()}
    outputs = [output.name for output in session.get_outputs()]
    binding = session.io_binding()

    def run() -> object:
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, *place)
        ran()
        session.run_with_iobinding(binding)
        made: object = binding.get_outputs()
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        return made

    return run


def measure_call(model: Path, settings: SessionSettings) -> int:
    """What one more session costs on a device besides its ops, in nanoseconds; measured in a fresh process.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    return run_fresh(measure_call_here, CallJob(str(model.resolve()), settings))


def measure_call_here(job: CallJob, advance: Advance) -> int:
    """The least time of a bound run of the least model, less what the runtime's profile says of its op."""
    feeds = read_inputs(call_inputs(), {}, 0)
    path = Path(job.model)
    with runtime_errors("ONNX Runtime fails to run the least model"):
        run = bound_run(_open(path, job.settings), feeds, job.settings)
        whole = min(itertools.islice(_times_ns(run), CALL_RUNS))
    advance(1, 2)
    with profiled_session(path, job.settings) as (session, runs), runtime_errors("ONNX Runtime fails to profile"):
        for _ in itertools.islice(_times_ns(bound_run(session, feeds, job.settings)), CALL_RUNS // 10):
            pass
    kernel = min((1000 * event.duration_us for each in runs for event in each.events), default=0)
    return max(0, whole - kernel)


class HandoverJob(msgspec.Struct, frozen=True):
    """A model of one op, and one of `HANDOVERS` such ops in a row."""

    one: str
    row: str
    settings: SessionSettings


def measure_handover(one: Path, row: Path, settings: SessionSettings) -> int:
    """What it costs in nanoseconds to run an op in one more session instead of the same; measured in a fresh process.

    More than the call of a session: its threads have to wake up, and results go to buffers of their own.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run a model.
    """
    return run_fresh(measure_handover_here, HandoverJob(str(one.resolve()), str(row.resolve()), settings))


def measure_handover_here(job: HandoverJob, advance: Advance) -> int:
    """The least time of a row of sessions of one op, less that of one session of the row, for each session more."""
    feeds = read_inputs((InputSpec("x", "float", (HANDOVER_ELEMENTS,)),), {}, 0)
    with runtime_errors("ONNX Runtime fails to run the least model"):
        row = bound_run(_open(Path(job.row), job.settings), feeds, job.settings)
        parts = [bound_run(_open(Path(job.one), job.settings), feeds, job.settings) for _ in range(HANDOVERS)]
        together = _times_ns(lambda: [run() for run in parts])
        alone = _times_ns(row)
        pairs = [(next(together), next(alone)) for _ in range(HANDOVER_RUNS)]
    advance(1, 1)
    apart_ns, whole_ns = min(apart for apart, _ in pairs), min(whole for _, whole in pairs)
    return max(0, (apart_ns - whole_ns) // (HANDOVERS - 1))
