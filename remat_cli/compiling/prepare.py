"""From a model file to what planning needs: load, optimise, look at one run, measure."""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ModelError
from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.processes import available_cores, has_glibc, memory_limited, spare_memory_bytes
from remat_cli.base.progress import Progress
from remat_cli.compiling.blame import files_named_after, next_step, refusals_of
from remat_cli.compiling.facts import WARMUPS, ModelFacts, known_facts_of, remember_facts
from remat_cli.compiling.kinds import are_run_apart
from remat_cli.compiling.learn.corrections import known_corrections, with_corrections
from remat_cli.compiling.optimise import AS_BOUND, MOST_PASSES, OptimisedAs, digest_of, optimise
from remat_cli.compiling.original import Original, as_read, original_of
from remat_cli.compiling.processor import runtime_here
from remat_cli.core.schedule.graph import Graph, Tensor, TensorType, size_bytes
from remat_cli.core.schedule.program import InputSpec
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.learning import Correction
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.onnx_io.read.body_wiring import body_wiring
from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.interface import Interface, fed_inputs
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.read.layout_scene import layout_scene, run_once
from remat_cli.onnx_io.read.load import DimBindings, SourceModel, inputs_of, load, prepare_optimized, state_file
from remat_cli.onnx_io.read.phases import carry_phases
from remat_cli.onnx_io.read.seeds import give_seeds
from remat_cli.onnx_io.read.to_graph import INPUTS, op_signatures, to_graph
from remat_cli.onnx_io.read.told_inputs import told_inputs
from remat_cli.onnx_io.sizes.open_sizes import with_sizes_at_ports
from remat_cli.onnx_io.sizes.value_lengths import value_lengths
from remat_cli.onnx_io.write.save import save_work
from remat_cli.ort_rules.layout import WholeLayout, whole_layout
from remat_cli.ort_rules.records import Rules, rules_for
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.ort_rules.versions import ends_of
from remat_cli.runtime.measure.profilers import LONG_SECONDS, ProfileRequest
from remat_cli.runtime.measure.turns import digest_of_outputs
from remat_cli.runtime.observe.resident import can_measure_resident
from remat_cli.runtime.observe.sight import Sight, look
from remat_cli.runtime.sessions.array_file import shapes_of
from remat_cli.runtime.sessions.feeds import feeds_of
from remat_cli.runtime.sessions.session import Observation, SessionSettings, first_sight, outputs_of, run_profiled
from remat_cli.runtime.verify.likeness import have_same_bits

NOT_RUN = "ONNX Runtime does not run {} as it is: outputs are compared with those of the model as it was read"
OPEN = "the runtime is not told the sizes when it optimises this model: with them, last bits differ from those of {}"
SIZES_HIDDEN = "{}; it runs that file at these sizes as long as it is not told them, so they are kept from it"
OTHER_BITS = "no form of this model was found whose outputs have the bits of {}"
BY_VALUES = (
    "lengths of some tensors depend on values, which no size bounds: {}; what reads or makes such a tensor is left "
    "whole, and what is promised of memory holds as long as they are no longer than in these runs"
)
NO_GLIBC = (
    "nothing is promised of a process without an arena on this system, whose allocator is not glibc's: only that one's "
    "rules are known"
)
MOST_ALIKE = 16
MOST_LENGTHS = 3  # that are told
MACHINE_SHARE = 0.5  # of what a process may take: each region of the arena is as large as all before it
MOST_LARGEST = 4  # times what the largest op makes: what most models hold at most


@dataclass(frozen=True)
class Prepared:
    """A model ready to be planned. `reference` is the optimised model that a Graph and all plans index.

    `more_feeds` are other inputs, on which outputs are compared too; `conditions` are those that it was prepared under,
    `runtime` is the one that is installed.
    `corrections` are what runs taught of ops, by signature; `first_outputs` are those of a run, if there was one.
    `original` is what outputs are compared with: the user's file in a session of its own, if the runtime runs it.
    `original_path` is that file as the user has it; `optimised_as` is how the runtime optimised it, and is to optimise
    what is made of it, so that bits stay those of `original`; `notes` say what of that a user should know.
    `was_long`: its first run, just now, was so long that its costs are believed.
    `has_seeds` says that ops of it draw random numbers without a seed, and have one as long as models are compared.
    `runnable` is the same model at sizes at which this machine runs it whole (None: it does at its own). `layout` is
    what sessions make of the whole model on all kinds of processors, where it is left to them.
    """

    conditions: Conditions
    runtime: Runtime
    source: SourceModel
    reference: Any
    reference_path: Path
    reference_sha256: str
    graph: Graph
    signatures: tuple[str, ...]
    feeds: Mapping[str, Any]
    more_feeds: tuple[Mapping[str, Any], ...]
    facts: ModelFacts
    corrections: Mapping[str, Correction]
    original_path: Path
    original: Original
    optimised_as: OptimisedAs = AS_BOUND
    notes: tuple[str, ...] = ()
    first_outputs: Mapping[str, Any] | None = None
    has_seeds: bool = False
    was_long: bool = False
    runnable: "Runnable | None" = None
    layout: WholeLayout | None = None

    def without_form(self) -> "Prepared":
        """The prepared model, not to be written in the steady form."""
        return replace(self, conditions=msgspec.structs.replace(self.conditions, plain=True))

    @property
    def may_stay_as_here(self) -> bool:
        """Whether a file for other processors may be made as for this one: all that it is for run ops as this does."""
        if not self.conditions.is_left:
            return False
        return self.layout is None or self.conditions.leaves_alone(self.runtime.layout_block)

    @cached_property
    def has_value_lengths(self) -> bool:
        """Whether lengths of some tensors depend on what is fed."""
        return bool(value_lengths(self.reference, self.graph.shapes))

    @property
    def rules(self) -> Rules:
        """What the runtime that is installed does on this processor."""
        return rules_for(self.runtime)

    @cached_property
    def layout_block(self) -> int:
        """How many channels the optimised model keeps together; 1 where no op of it works in the blocked layout."""
        return self.runtime.layout_block if uses_blocks(self.reference) else 1

    @cached_property
    def outputs(self) -> Mapping[str, Any]:
        """What the user's file gives for `feeds`; of many sizes what the optimised model gives, by its first run."""
        if self.conditions.family is None:
            return self.original.outputs[0]
        if self.first_outputs is not None and not self.conditions.is_left:
            return self.first_outputs
        if self.conditions.is_left:
            return outputs_of(self.reference_path, (self.feeds,), compared_settings(self.conditions))[0]
        return first_look(self.reference_path, self.reference, self.feeds, self.conditions).outputs

    def gives(self, found: Mapping[str, Any]) -> bool:
        """Whether outputs for `feeds` are `outputs`, bit for bit; from what is kept of these, where that is known."""
        known = None if self.conditions.family is not None else self.facts.given.get(self.original.key)
        return have_same_bits(self.outputs, found) if known is None else digest_of_outputs(found) == known


@dataclass(frozen=True)
class Runnable:
    """A model at the largest sizes that were found at which this machine runs it whole, and at smaller ones.

    `smaller` is None where there are none. `failed` are the least sizes that were tried at which it did not run, and
    `memory_bytes` is what a process may take here.
    """

    at: Prepared
    smaller: Prepared | None
    failed: Mapping[str, int]
    memory_bytes: int

    @property
    def most_bytes(self) -> int:
        """How much a plan may hold so that this machine can run it."""
        return int(MACHINE_SHARE * self.memory_bytes)


@contextlib.contextmanager
def work_folder(model: Path, kept: Path | None, memory_bytes: int | None = None) -> Iterator[Path]:
    """A folder for what is made of a model: the user's, which stays, or a temporary one; errors name the model.

    While it is there, this process and those that it starts may have so much memory each (None: all that there is).
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(files_named_after(model))
        stack.enter_context(memory_limited(memory_bytes))
        if kept is None:
            yield Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=WORK_FOLDER)))
        else:
            kept.mkdir(parents=True, exist_ok=True)
            yield kept


FORGOTTEN: Final = (
    "no cache directory can be written: costs are measured and kernels compiled anew in every run; "
    "set REMAT_CACHE_DIR to a directory that can be"
)


@dataclass(frozen=True)
class ReadModel:
    """A model as it was read, with seeds for ops that draw numbers without one, and what it is fed."""

    source: SourceModel
    has_seeds: bool
    feeds: Mapping[str, Any]
    more_feeds: tuple[Mapping[str, Any], ...]


def read_model(path: Path, conditions: Conditions) -> ReadModel:
    """Load a model and make what it is fed.

    Raises:
        ModelError: the model or the inputs file cannot be used.
    """
    fed = {str(file): shapes_of(file) for file in conditions.all_inputs}
    bindings = DimBindings(conditions.dims, conditions.input_shapes, fed=fed, summed=conditions.summed)
    source = load(path, bindings, has_custom_ops=bool(conditions.custom_ops))
    has_seeds = give_seeds(source.ir)
    told, first = told_inputs(source.ir), (inputs_of(source.ir), state_file(source))
    feeds = feeds_of(*first, conditions.inputs, conditions.seed, told)
    made = (None,) if conditions.family is None else ()  # of many sizes outputs are compared at others of them
    others = conditions.more_inputs if conditions.inputs else made
    more_feeds = tuple(feeds_of(*first, other, conditions.seed + 1, told) for other in others)
    return ReadModel(source, has_seeds, feeds, more_feeds)


def prepare(
    path: Path,
    conditions: Conditions,
    work: Path,
    progress: Progress,
    known: Original | None = None,
    *,
    watches: bool = False,
) -> Prepared:
    """Load a model, let ONNX Runtime optimise it, and see which tensors exist in one run.

    Outputs of the original that are `known` from elsewhere are not computed again. Where it `watches`, a process of it
    is, which verification asks for.

    Raises:
        ModelError: the model or the inputs file cannot be used, or ONNX Runtime refuses them.
        RuntimeFailure: the machine has too little memory, time or disk for them.
    """
    progress.stage(stages.READING)
    if conditions.forgets_costs:
        progress.note(FORGOTTEN)
    read = read_model(path, conditions)
    source = read.source
    if source.converted is not None:
        progress.note(source.converted)
    progress.stage(stages.OPTIMISING)
    original = original_of(source, (read.feeds, *read.more_feeds), conditions, work, has_seeds=read.has_seeds)
    original = replace(original, is_watched=watches and _may_be_watched(read, original, conditions))
    original = known if known is not None and known.key == original.key else original
    found, original, notes = _Search(source, original, read.feeds, conditions, work).found()
    graph = to_graph(found.reference, found.facts.types)
    notes = (*notes, *_notes_on_lengths(found.reference, graph))
    if not conditions.session.arena and not has_glibc():
        notes = (*notes, NO_GLIBC)
    for note in notes:
        progress.note(note)
    layout: WholeLayout | None = None
    if conditions.is_left:
        # What sessions make of it, whose convolutions they meet in the order of the user's file.
        places = {node.name or "": place for place, node in enumerate(source.ir.graph)}
        shapes = graph.shapes
        whole = whole_layout(layout_scene(found.reference, shapes, places))
        layout = None if whole.is_plain else whole
    if layout is not None:
        graph = run_once(graph, found.reference, layout)
    signatures = op_signatures(found.reference, graph, original.key)
    corrections = known_corrections(signatures, conditions)
    return Prepared(
        conditions=conditions,
        runtime=runtime_here(work, conditions.session, ends_of(conditions.runtimes)),
        source=source.typed_as(found.reference),
        reference=found.reference,
        reference_path=found.path,
        reference_sha256=found.digest,
        graph=with_corrections(graph, signatures, corrections),
        signatures=signatures,
        feeds=read.feeds,
        more_feeds=read.more_feeds,
        facts=found.facts,
        corrections=corrections,
        original_path=source.path if read.has_seeds else original.path,
        original=original,
        optimised_as=found.optimised_as,
        notes=notes,
        has_seeds=read.has_seeds,
        first_outputs=None if found.seen is None else found.seen.outputs,
        was_long=found.seen is not None and found.facts.measured is not None,
        layout=layout,
    )


def _may_be_watched(read: ReadModel, original: Original, conditions: Conditions) -> bool:
    """Whether runs of a user's file for its outputs are those in which verification watches a process of it."""
    is_plain = not read.has_seeds and conditions.family is None and conditions.inputs is None
    is_once = conditions.session.concurrency == 1 and conditions.session.arena
    is_alike = original.settings == asked_settings(conditions)
    return is_plain and is_once and is_alike and can_measure_resident()


def _notes_on_lengths(reference: Any, graph: Graph) -> tuple[str, ...]:
    """That some lengths depend on values, if any do, and up to which lengths promises then hold."""
    origins = value_lengths(reference, graph.shapes)
    first: dict[str, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.name in origins:
            first.setdefault(origins[tensor.name].name or "", tensor)
    if not first:
        return ()
    told = [f"'{tensor.name}' {list(tensor.shape)} by op '{op}'" for op, tensor in first.items()]
    rest = f" and {len(told) - MOST_LENGTHS} more" if len(told) > MOST_LENGTHS else ""
    return (BY_VALUES.format(", ".join(told[:MOST_LENGTHS]) + rest),)


@dataclass(frozen=True)
class _Found:
    """An optimised form of the model, what is known of it, and its first run if that was made just now."""

    optimised_as: OptimisedAs
    path: Path
    reference: Any
    digest: str
    facts: ModelFacts
    seen: Sight | None


@dataclass(frozen=True)
class _Search:
    """For a form of the model whose outputs have the bits of the user's file, the usual form first."""

    source: SourceModel
    original: Original
    feeds: Mapping[str, Any]
    conditions: Conditions
    work: Path

    def found(self) -> tuple[_Found, Original, tuple[str, ...]]:
        """The first such form, else the usual one; what it was compared with, and what a user should know of that."""
        try:
            usual = self._seen(AS_BOUND, self.work)
        except ModelError as refusal:
            as_given = self._as_given(self.original, hides_sizes=True) if self._runs_original() else None
            if as_given is None:
                step = next_step(self.conditions) if self._is_taken_without_sizes else ""
                raise ModelError(f"{str(refusal).removesuffix(step)}{step}") from refusal
            return as_given, self.original, (SIZES_HIDDEN.format(refusal),)
        original = self.original
        if original.key not in usual.facts.alike and not self._runs_original():
            save_work(with_free_sizes(self.source, self.conditions), self.work / "converted.onnx")
            original = as_read(self.original, self.source, self.conditions, self.work / "converted.onnx")
        notes = () if original is self.original else (NOT_RUN.format(self.source.path),)
        if self._has_bits(usual, original):
            return self._noted(usual, original), original, notes
        as_given = self._as_given(original)
        if as_given is not None:
            return as_given, original, (*notes, OPEN.format(original.name))
        return usual, original, (*notes, OTHER_BITS.format(original.name))

    def _as_given(self, original: Original, *, hides_sizes: bool = False) -> _Found | None:
        """A form of which the runtime is told no sizes but those in the file, first in several passes, then in one.

        In one is what a session makes of it, as it optimises no file twice. None where neither has the bits.
        """
        forms = (OptimisedAs(self.source.interface, passes, hides_sizes) for passes in (MOST_PASSES, 1))
        for number, optimised_as in enumerate(forms, 1):
            other = self._tried(optimised_as, number)
            if other is not None and self._has_bits(other, original):
                return self._noted(other, original)
        return None

    @property
    def _is_taken_without_sizes(self) -> bool:
        """Whether the runtime takes the model as long as it is told no sizes, whatever it is fed then."""
        try:
            with refusals_of(self.source.path, "ONNX Runtime cannot optimise"):
                optimise(self.source.ir, self.conditions, self.work, OptimisedAs(self.source.interface))
        except ModelError:
            return False
        return True

    def _tried(self, optimised_as: OptimisedAs, number: int) -> _Found | None:
        """Another form; None where the runtime refuses it."""
        folder = self.work / f"as_given_{number}"
        folder.mkdir(exist_ok=True)
        try:
            return self._seen(optimised_as, folder)
        except ModelError:
            return None

    def _seen(self, optimised_as: OptimisedAs, folder: Path) -> _Found:
        """A form, known from the cache or looked at in a run."""
        source, conditions = self.source, self.conditions
        with refusals_of(source.path, "ONNX Runtime cannot optimise"):
            found = optimise(with_free_sizes(source, conditions), conditions, folder, optimised_as)
        reference = as_planned(found.path, source.ir, written_interface(source, conditions), optimised_as)
        digest = digest_of(found, conditions, optimised_as)
        facts, seen = known_facts_of(digest, conditions), None
        if facts is None or was_measured_by_a_look(facts, conditions) or may_lack_memory(facts, conditions):
            with refusals_of(source.path, "ONNX Runtime fails to run", next_step(self.conditions)):
                seen = first_look(found.path, reference, self.feeds, conditions)
            fresh = facts_of(seen, reference, types_of(inputs_of(source.ir)))
            facts = fresh if facts is None else msgspec.structs.replace(facts, measured=fresh.measured)
        return _Found(optimised_as, found.path, reference, digest, facts, seen)

    def _runs_original(self) -> bool:
        """Whether the runtime runs the user's file as it is."""
        try:
            with refusals_of(self.source.path, "ONNX Runtime fails to run"):
                return bool(self.original.outputs)
        except ModelError:
            return False

    def _has_bits(self, found: _Found, original: Original) -> bool:
        """Whether a form gives what the original gives, for all that it is fed."""
        if original.key in found.facts.alike:
            return True
        is_left, family = self.conditions.is_left, self.conditions.family
        known = () if found.seen is None or is_left or family is not None else (found.seen.outputs,)
        settings = compared_settings(self.conditions)
        ways = dict.fromkeys((len(known), 0))  # ops that draw numbers draw others in a session's later runs
        with refusals_of(self.source.path, "ONNX Runtime fails to run"):
            runs = ((*known[:n], *outputs_of(found.path, original.feeds[n:], settings)) for n in ways)
            return any(all(map(have_same_bits, original.outputs, outputs)) for outputs in runs)

    def _noted(self, found: _Found, original: Original) -> _Found:
        """The form, with a note in the cache that it has these bits; the user's own inputs are compared every time."""
        if self.conditions.inputs is not None or original.key in found.facts.alike:
            return found
        alike = (*found.facts.alike, original.key)[-MOST_ALIKE:]
        kept = {key: digest for key, digest in found.facts.given.items() if key in alike}
        given = {**kept, original.key: digest_of_outputs(original.outputs[0])}
        noted: dict[str, Any] = {"alike": alike, "given": given}
        if original.process is not None:
            key = process_key(original, self.source, self.conditions)
            noted["processes"] = {**found.facts.processes, key: original.process}
        remember_facts(found.digest, self.conditions, **noted)
        return replace(found, facts=msgspec.structs.replace(found.facts, **noted))


def as_planned(path: Path, before: Any, ports: Interface, optimised_as: OptimisedAs) -> Any:
    """An optimised model as it is planned: marked as `before`, with the sizes of `ports` where its file has none."""
    reference = carry_phases(before, prepare_optimized(path))
    return reference if optimised_as.ports is None else with_sizes_at_ports(reference, ports)


def free_names(conditions: Conditions) -> frozenset[str]:
    """Dimensions that a model is compiled for all sizes of."""
    return frozenset() if conditions.family is None else frozenset(each.name for each in conditions.family.ranges)


def written_interface(source: SourceModel, conditions: Conditions) -> Interface:
    """What a compiled file declares: sizes, but names where any size of a range will do."""
    return source.interface_with(free_names(conditions))


def with_free_sizes(source: SourceModel, conditions: Conditions) -> Any:
    """The model as the runtime is to optimise it: with names for dimensions of which any size of a range will do."""
    if conditions.family is None:
        return source.ir
    model = copy_of(source.ir)
    ports = written_interface(source, conditions)
    for value, port in zip(
        (*fed_inputs(model.graph), *model.graph.outputs), (*ports.inputs, *ports.outputs), strict=True
    ):
        value.shape = port.shape
    return model


def types_of(inputs: Sequence[InputSpec]) -> tuple[TensorType, ...]:
    """The types of what is fed."""
    return tuple(TensorType(spec.dtype, spec.shape) for spec in inputs)


def process_key(original: Original, source: SourceModel, conditions: Conditions) -> str:
    """The user's file, and how sessions of it are opened."""
    return f"{original.key} {source.sha256} {asked_settings(conditions)} {conditions.session.concurrency}"


def profile_request(
    conditions: Conditions, spec: DeviceSpec, runs: int, model: Any = None, most_seconds: float = math.inf
) -> ProfileRequest:
    """How ops are measured inside a model, with so many runs of it; those of the model's bodies one by one."""
    return ProfileRequest(
        device=CPU if spec.provider == CPU else spec.session_device,
        runs=runs,
        warmups=WARMUPS,
        intra_op_threads=conditions.threads_of(spec),
        optimization=conditions.optimization,
        custom_ops=conditions.custom_ops,
        run_seconds=conditions.run_seconds,
        wiring={} if model is None else body_wiring(model),
        most_seconds=most_seconds,
    )


def first_look(path: Path, reference: Any, feeds: Mapping[str, Any], conditions: Conditions) -> Sight:
    """What one run of a model shows; of one for many sizes also its costs, where the largest take long.

    Such plans are chosen by the number of tiles and by bytes, so that times as one run shows them are good enough. The
    run may take what the machine can spare: the largest sizes may need more, and a run that fails does no harm.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    if conditions.family is not None and conditions.device.provider == CPU:
        with memory_limited(spare_memory_bytes()):
            return look(path, feeds, profile_request(conditions, conditions.device, 1, reference))
    seen = first_sight(path, feeds, exact_settings(conditions))
    return Sight(seen.types, seen.baseline_bytes, seen.outputs, None)


def was_measured_by_a_look(facts: ModelFacts, conditions: Conditions) -> bool:
    """Whether a run is so long that another look, which gives outputs too, is shorter than asking whether costs hold.

    That takes two runs beside the one for outputs.
    """
    is_looked_at = conditions.family is not None and conditions.device.provider == CPU
    return is_looked_at and facts.measured is not None and facts.measured.run_ns > 1e9 * LONG_SECONDS


def may_lack_memory(facts: ModelFacts, conditions: Conditions) -> bool:
    """Whether a run at the largest of many sizes may need more than the machine can spare now: a look tells."""
    if conditions.family is None or conditions.device.provider != CPU:
        return False
    largest_bytes = max(sum(map(size_bytes, kinds)) for kinds in facts.types.values())
    return MOST_LARGEST * largest_bytes > spare_memory_bytes()


def facts_of(seen: Sight, reference: Any, inputs: tuple[TensorType, ...]) -> ModelFacts:
    """What a first look at a model showed, its costs in the order of the graph; none where an op is missing."""
    facts, measured = ModelFacts(seen.types | {INPUTS: inputs}, seen.baseline_bytes), seen.measured
    if measured is None:
        return facts
    costs, ops = {cost.name: cost for cost in measured.ops}, to_graph(reference, facts.types).ops
    if any(op.name not in costs for op in ops):
        return facts
    ordered = msgspec.structs.replace(measured, ops=tuple(costs[op.name] for op in ops))
    return msgspec.structs.replace(facts, measured=ordered)


def observe(model: Path, feeds: Mapping[str, Any], conditions: Conditions) -> Observation:
    """What one run of a model shows, under exact options."""
    return run_profiled(model, feeds, exact_settings(conditions))


def exact_settings(conditions: Conditions) -> SessionSettings:
    """How a session is opened that runs exactly the file."""
    return SessionSettings(
        intra_op_threads=conditions.intra_op_threads,
        custom_ops=conditions.custom_ops,
        run_seconds=conditions.run_seconds,
    )


def op_threads(conditions: Conditions) -> int:
    """Threads that ops run with on the CPU: as many as there are, which is the runtime's own default, or as asked."""
    return conditions.intra_op_threads or available_cores()


def compared_settings(conditions: Conditions) -> SessionSettings:
    """How a session is opened whose outputs are compared: exactly, but where a file is left to sessions to optimise."""
    return default_settings(conditions) if conditions.is_left else exact_settings(conditions)


def settings_elsewhere(conditions: Conditions) -> SessionSettings | None:
    """How a session is opened that runs exactly the file on the plan's one device; None where that is the CPU.

    None too for plans that are cut into sessions: their outputs are compared with the CPU's.
    """
    if conditions.device.provider == CPU or are_run_apart(conditions.devices):
        return None
    return msgspec.structs.replace(default_settings(conditions), exact=True)


def default_settings(conditions: Conditions) -> SessionSettings:
    """How users open a session on the first device: with the runtime's own options, on a GPU without fused ops."""
    device = CPU if conditions.device.provider == CPU else conditions.device.session_device
    return msgspec.structs.replace(exact_settings(conditions), exact=False, device=device, level=conditions.opens_as)


def asked_settings(conditions: Conditions) -> SessionSettings:
    """How callers open the session that a file is made for."""
    asked = conditions.session
    return msgspec.structs.replace(
        default_settings(conditions),
        level=conditions.opens_as if asked.optimisation == "all" else asked.optimisation,
        has_arena=asked.arena,
        has_pattern=asked.pattern,
        is_parallel=asked.mode == "parallel",
    )
