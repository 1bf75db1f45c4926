"""A compiled file beside the model that it was made from, without its plan: what it keeps of its promises here."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ModelError
from remat_cli.base.progress import Progress
from remat_cli.compiling.one_model.verify import SEEDS_NOTE
from remat_cli.compiling.original import user_file
from remat_cli.compiling.prepare import asked_settings
from remat_cli.compiling.process.resident import RUNS, THOROUGH_RUNS, worst_of
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.file_check import FileVerification, OrderSeen, ProcessPair, order_seen
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.session import AskedSession
from remat_cli.core.values.verification import Checks
from remat_cli.onnx_io.read.compiled import CompiledFile, check_same_interface, read_compiled, runs_on_at
from remat_cli.onnx_io.read.interface import inputs_of, weight_uses
from remat_cli.onnx_io.read.load import DimBindings, SourceModel, load, state_beside
from remat_cli.onnx_io.read.seeds import give_seeds, seeded_copy
from remat_cli.onnx_io.read.told_inputs import told_inputs
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.onnx_io.write.save import data_path
from remat_cli.ort_rules.primers import PREFIX as PRIMERS
from remat_cli.ort_rules.primers import SMALL_COPIES_BYTES
from remat_cli.ort_rules.records import Rules
from remat_cli.ort_rules.runtime import family_of
from remat_cli.runtime.measure.turns import time_in_turn
from remat_cli.runtime.observe.resident import ResidentJob, can_measure_resident, measure_resident
from remat_cli.runtime.sessions._ort import installed_rules, pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import feeds_of
from remat_cli.runtime.verify.file_runs import FileJob, FileRuns, SessionSeen, run_file

OTHER_SOURCE = "{} is not byte for byte the model that the file was made from; it may have been saved again since"
NO_SOURCE = "the file does not say which model it was made from"
NO_COUNTERS = "memory of tensors was not counted: this version of ONNX Runtime has no counters of it"
NO_PROMISE = "the file does not say what its peak is: what was measured is compared with nothing"
MISSING = (
    "{} of the file's ops did not run by themselves in an ordinary session, such as '{}': this version of ONNX Runtime "
    "optimises it further; those that did run are in order"
)
PORTABLE = (
    "portable: an ordinary session optimises the file again, so order and memory are those under the exact options"
)
LEFT = (
    "for any processor: an ordinary session brings the file into its own layout, with these bits and within the "
    "budget, in an order of its own"
)
ELSEWHERE = "for processors of the kind '{}': bits hold on all, memory of an ordinary session is promised on those only"
OTHER_PROCESSOR = (
    "the file was made on another family of processors, whose kernels may keep weights in other sizes: live tensors "
    "are held to the file's budget, not to its prediction"
)
SAME = "the outputs do not depend on the inputs: comparing them proves little"


@dataclass(frozen=True)
class FilePair:
    """A compiled file and the original, as read; `feeds` and others that outputs are compared on; has seeds: see there.

    Those that are run are `run_file` and `run_original`: the same, or copies in which random ops have equal seeds.
    `runs_on` is where, and in which sessions, the file says that it runs.
    """

    file: CompiledFile
    original: SourceModel
    feeds: tuple[Mapping[str, Any], ...]
    run_file: Path
    run_original: Path
    runs_on: RunsOn | None

    @property
    def session(self) -> AskedSession:
        """How the file says that it must be opened."""
        return AskedSession() if self.runs_on is None else self.runs_on.asked_session

    @property
    def has_seeds(self) -> bool:
        """Whether copies are run."""
        return self.run_original != self.original.path


def read_pair(file: Path, original: Path, conditions: Conditions, work: Path) -> FilePair:
    """Read both, and make what they are fed.

    Raises:
        ModelError: one of them cannot be used, they do not belong together, or sizes are left open.
    """
    has_custom_ops = bool(conditions.custom_ops)
    dims = DimBindings(conditions.dims, conditions.input_shapes, summed=conditions.summed)
    ours = read_compiled(file, dims, has_custom_ops=has_custom_ops)
    specs = inputs_of(ours.source.ir)
    check_same_interface(file, specs, original)
    shapes = DimBindings({}, {spec.name: spec.shape for spec in specs if spec.shape})
    theirs = load(original, shapes, has_custom_ops=has_custom_ops)
    if theirs.sha256 == ours.source.sha256:
        raise ModelError(f"--original {original} is the compiled file itself: give the model that it was made from")
    told, state = told_inputs(theirs.ir), state_beside(theirs.ir, original)
    seeds = (conditions.seed,) if conditions.inputs else (conditions.seed, conditions.seed + 1)
    feeds = tuple(feeds_of(specs, state, conditions.inputs, seed, told) for seed in seeds)
    pair = FilePair(ours, theirs, feeds, file, original, runs_on_at(file))
    if not give_seeds(theirs.ir):
        return pair
    copies = (
        seeded_copy(path, work / f"seeded_{name}.onnx") for name, path in (("file", file), ("original", original))
    )
    run_ours, run_theirs = copies
    return replace(pair, run_file=run_ours, run_original=run_theirs)


def verify_file(pair: FilePair, conditions: Conditions, checks: Checks, progress: Progress) -> FileVerification:
    """Run both in fresh processes, in ordinary sessions; broken promises are in the report.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run one of them.
    """
    progress.stage(stages.VERIFYING)
    threads = conditions.intra_op_threads or pair.session.threads
    conditions = msgspec.structs.replace(conditions, session=pair.session, intra_op_threads=threads)
    settings = asked_settings(conditions)
    paths = (pair.run_original.resolve(), pair.run_file.resolve())
    feeds = tuple(pack_all(group) for group in (pair.feeds[:1] if checks.mode == "fast" else pair.feeds))
    job = FileJob(str(paths[1]), str(paths[0]), feeds, settings)
    seen = run_fresh(run_file, job, progress.advance, settings.run_seconds)
    overhead, process = None, None
    if checks.mode != "fast":
        first_ns, second_ns = time_in_turn(paths, pair.feeds[0], settings, progress.advance)
        overhead = 100.0 * (second_ns / first_ns - 1.0)
        # What processes hold that load and run each, where the system tells.
        if can_measure_resident():
            progress.stage(stages.WATCHING)
            runs = THOROUGH_RUNS if checks.mode == "thorough" else RUNS
            found = []
            for path, is_mapped in (
                (pair.original.path, bool(pair.original.data_files)),
                (pair.file.source.path, data_path(pair.file.source.path).exists()),
            ):
                at_once = conditions.session.concurrency
                watched = ResidentJob(str(path.resolve()), pack_all(pair.feeds[0]), settings, runs, at_once=at_once)
                figures = run_fresh(measure_resident, watched, progress.advance, settings.run_seconds)
                found.append(worst_of([figures], is_mapped=is_mapped))
            process = ProcessPair(*found)
    return file_verification(pair, seen, overhead, process, installed_rules(), platform.machine())


def file_verification(
    pair: FilePair,
    seen: FileRuns,
    overhead_percent: float | None,
    process: ProcessPair | None,
    rules: Rules,
    machine: str,
) -> FileVerification:
    """What sessions and processes showed, by the rules of the runtime that they ran on, beside what the file says.

    `machine` is what the system there calls its processor.
    """
    file, asked = pair.file, pair.session
    session = "default session" if asked.is_default else f"session with {', '.join(asked.words)}"
    order = order_seen(file.order, file.copies, seen.exact.executed)
    if file.is_left:
        order = OrderSeen(None)
    elif not file.is_portable and order.is_kept is not False:  # it promises its order in an ordinary session too
        order = order_seen(file.order, file.copies, seen.file.executed)
    return FileVerification(
        outputs_identical=_same_outputs(file, seen),
        order_honoured=order.is_kept,
        first_op_out_of_order=order.first_out_of_order,
        predicted_peak_bytes=file.predicted_peak_bytes,
        budget_bytes=file.budget_bytes,
        process_promise=file.process,
        measured_peak_bytes=_peak(file.source, pair.feeds[0], seen.exact, rules),
        measured_peak_default_session_bytes=_peak(file.source, pair.feeds[0], seen.file, rules),
        original_default_session_peak_bytes=_peak(pair.original, pair.feeds[0], seen.original, rules),
        is_portable=file.is_portable,
        is_left=file.is_left and not file.target,
        is_other_model=_is_other_model(pair),
        is_other_processor=_is_other_processor(file, machine),
        reference=f"{user_file(pair.original.path, has_seeds=pair.has_seeds)}, {session}",
        process=process,
        input_bytes=_input_bytes(pair.feeds[0]),
        measured_overhead_percent=overhead_percent,
        runtime_version=seen.runtime_version,
        inferences=seen.runs,
        notes=(*_notes(pair, seen, order), *([OTHER_PROCESSOR] if _is_other_processor(file, machine) else [])),
    )


def _is_other_processor(file: CompiledFile, machine: str) -> bool:
    """Whether the file was made on another family of processors, as far as it says."""
    return file.processor is not None and file.processor.partition(" ")[0] != family_of(machine)


def _is_other_model(pair: FilePair) -> bool:
    """Whether the original is not byte for byte the model that the file says that it was made from."""
    return bool(pair.file.source_sha256) and pair.file.source_sha256 != pair.original.sha256


def _same_outputs(file: CompiledFile, seen: FileRuns) -> bool:
    """Whether all bits are equal, in every session; of a file that is left to sessions, in those that optimise it."""
    if file.is_left:
        return seen.original.prints == seen.file.prints
    return seen.original.prints == seen.file.prints and seen.original.prints[:1] == seen.exact.prints


def _peak(model: SourceModel, feeds: Mapping[str, Any], seen: SessionSeen, rules: Rules) -> int | None:
    """The most that weights as kept, packed copies in the file, inputs and tensors take together."""
    if seen.baseline_bytes is None or seen.live_bytes is None:
        return None
    kept_bytes = rules.packing.kept_weight_bytes(weight_uses(model.ir), seen.baseline_bytes)
    packed_bytes = packed_weights(model.path).without(PRIMERS).total_bytes  # their weights count as nothing
    primers_bytes = SMALL_COPIES_BYTES if model.is_primed else 0
    return kept_bytes + packed_bytes + _input_bytes(feeds) + seen.live_bytes - primers_bytes


def _input_bytes(feeds: Mapping[str, Any]) -> int:
    return sum(int(array.nbytes) for array in feeds.values())


def _notes(pair: FilePair, seen: FileRuns, order: OrderSeen) -> tuple[str, ...]:
    """What the user should know, and what could not be checked and why."""
    file, prints = pair.file, seen.original.prints
    told = {
        OTHER_SOURCE.format(pair.original.path): _is_other_model(pair) and _same_outputs(file, seen),
        NO_SOURCE: not file.source_sha256,
        NO_PROMISE: file.predicted_peak_bytes is None,
        NO_COUNTERS: seen.exact.live_bytes is None,
        MISSING.format(len(order.missing), next(iter(order.missing), "")): order.is_kept is None and not file.is_left,
        PORTABLE: file.is_portable and not file.is_left,
        LEFT: file.is_left and not file.target,
        ELSEWHERE.format(file.target): file.is_left and bool(file.target),
        SAME: len(prints) > 1 and all(each == prints[0] for each in prints[1:]),
        SEEDS_NOTE: pair.has_seeds,
    }
    constant = [each.name for each in prints[0] if each.is_constant]
    more = (f"output '{name}' has the same value everywhere: comparing it proves little" for name in constant)
    return (*(note for note, holds in told.items() if holds), *more)
