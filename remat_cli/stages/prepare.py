"""From a model file to what planning needs: load, optimise, look at one run, measure."""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.files import sha256
from remat_cli.base.processes import memory_limited
from remat_cli.base.progress import Progress
from remat_cli.core.conditions import CPU, Conditions
from remat_cli.core.graph import Graph, TensorType
from remat_cli.core.learning import Correction
from remat_cli.core.profile import DeviceSpec
from remat_cli.core.program import InputSpec
from remat_cli.core.verification import Verification
from remat_cli.onnx_io.interface import Interface, fed_inputs
from remat_cli.onnx_io.layout import uses_blocks
from remat_cli.onnx_io.load import DimBindings, SourceModel, inputs_of, load, prepare_optimized, save, state_file
from remat_cli.onnx_io.phases import carry_phases
from remat_cli.onnx_io.seeds import give_seeds
from remat_cli.onnx_io.to_graph import INPUTS, op_signatures, to_graph
from remat_cli.onnx_io.told_inputs import told_inputs
from remat_cli.runtime.feeds import feeds_of
from remat_cli.runtime.profile_cache import CacheScope, ProfileCache, provenance
from remat_cli.runtime.profilers import LONG_SECONDS, Measured, ProfileRequest
from remat_cli.runtime.session import Observation, SessionSettings, first_sight, optimize, run_profiled
from remat_cli.runtime.sight import Sight, look
from remat_cli.splitting.propose import SplitForm
from remat_cli.stages.blame import files_named_after, in_steps, refusals_of
from remat_cli.stages.corrections import known_corrections, with_corrections
from remat_cli.stages.processor import block_here

RUNS, WARMUPS = 4, 1
RANDOM_INPUTS = "; the inputs were made up: give ones that it takes with --inputs FILE.npz"
MOST_PASSES = 6


class KnownSplit(msgspec.Struct, frozen=True):
    """A plan with splits of one `form`, found under `options` by a search for `target_bytes` of activations.

    It keeps a budget of `budget_bytes`, and takes `relative_time` times as long as the model in its own order.
    """

    options: str
    target_bytes: int
    budget_bytes: int
    relative_time: float
    form: SplitForm = "regions"


class ModelFacts(msgspec.Struct, frozen=True):
    """What runs of the optimised model showed; with `measured` it is kept in the profile cache.

    `packed_bytes` is None where the runtime does not count them. `smallest_cap_bytes` is the least arena under which a
    default session runs it, once a verification has found it. Of a split model: `has_same_bits` is false where its
    outputs are only close to those of the whole one, and `relative_time` is how long a run takes, as a multiple of the
    whole model's. Of a whole model: `can_be_raised` says whether it has the same bits under the newer opset that
    filling tiles in place needs (None: not tried), and `splits` are plans with splits that were found.
    """

    types: dict[str, tuple[TensorType, ...]]
    packed_bytes: int | None
    measured: Measured | None = None
    smallest_cap_bytes: int | None = None
    has_same_bits: bool = True
    relative_time: float | None = None
    can_be_raised: bool | None = None
    splits: tuple[KnownSplit, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A model ready to be planned. `reference` is the optimised model that a Graph and all plans index.

    `more_feeds` are other inputs, on which outputs are compared too; `conditions` are those that it was prepared under.
    `corrections` are what runs taught of ops, by signature; `first_outputs` are those of a run, if there was one.
    `original_path` is the model that its outputs are compared with: the user's file, if the runtime runs it.
    `was_long`: its first run, just now, was so long that its costs are believed.
    `has_seeds` says that ops of it draw random numbers without a seed, and have one as long as models are compared.
    """

    conditions: Conditions
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
    first_outputs: Mapping[str, Any] | None = None
    has_seeds: bool = False
    was_long: bool = False

    def without_form(self) -> "Prepared":
        """The same model, not to be written in the steady form."""
        return replace(self, conditions=msgspec.structs.replace(self.conditions, plain=True))

    @cached_property
    def block_here(self) -> int:
        """How many channels the runtime's blocked layout keeps together on this processor; 1 where it has none."""
        return block_here(self.reference_path.parent)

    @cached_property
    def layout_block(self) -> int:
        """The same of the optimised model; 1 where no op of it works in that layout."""
        return self.block_here if uses_blocks(self.reference) else 1

    @cached_property
    def outputs(self) -> Mapping[str, Any]:
        """What the model gives for `feeds`: of the first run, else of one made now."""
        if self.first_outputs is not None:
            return self.first_outputs
        return observe(self.reference_path, self.feeds, self.conditions).outputs


@contextlib.contextmanager
def work_folder(model: Path, kept: Path | None, memory_bytes: int | None = None) -> Iterator[Path]:
    """A folder for what is made of a model: the user's, which stays, or a temporary one; errors name the model.

    While it is there, this process and those that it starts may have so much memory each (None: all that there is).
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(files_named_after(model))
        stack.enter_context(memory_limited(memory_bytes))
        if kept is None:
            yield Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remat_")))
        else:
            kept.mkdir(parents=True, exist_ok=True)
            yield kept


def prepare(path: Path, conditions: Conditions, work: Path, progress: Progress) -> Prepared:
    """Load a model, let ONNX Runtime optimise it, and see which tensors exist in one run.

    Raises:
        ModelError: the model or the inputs file cannot be used, or ONNX Runtime refuses them.
        RuntimeFailure: the machine has too little memory, time or disk for them.
    """
    progress.stage(stages.READING)
    bindings = DimBindings(conditions.dims, conditions.input_shapes)
    source = load(path, bindings, has_custom_ops=bool(conditions.custom_ops))
    has_seeds = give_seeds(source.ir)
    fed = (inputs_of(source.ir), state_file(source), conditions.inputs)
    told = told_inputs(source.ir)
    feeds = feeds_of(*fed, conditions.seed, told)
    more_feeds = () if conditions.inputs else (feeds_of(*fed, conditions.seed + 1, told),)
    progress.stage(stages.OPTIMISING)
    with refusals_of(path, "ONNX Runtime cannot optimise"):
        reference_path = optimise(with_free_sizes(source, conditions), conditions, work)
    reference = carry_phases(source.ir, prepare_optimized(reference_path))
    digest = digest_of(reference_path, conditions)
    facts, seen = known_facts_of(digest, conditions), None
    if facts is None or was_measured_by_a_look(facts, conditions):
        next_step = f"{'' if conditions.inputs else RANDOM_INPUTS}{in_steps(conditions.family)}"
        with refusals_of(path, "ONNX Runtime fails to run", next_step):
            seen = first_look(reference_path, feeds, conditions)
        fresh = facts_of(seen, reference, types_of(inputs_of(source.ir)))
        facts = fresh if facts is None else msgspec.structs.replace(facts, measured=fresh.measured)
    graph = to_graph(reference, facts.types)
    signatures = op_signatures(reference, graph)
    corrections = known_corrections(signatures, conditions)
    return Prepared(
        conditions=conditions,
        source=source,
        reference=reference,
        reference_path=reference_path,
        reference_sha256=digest,
        graph=with_corrections(graph, signatures, corrections),
        signatures=signatures,
        feeds=feeds,
        more_feeds=more_feeds,
        facts=facts,
        corrections=corrections,
        original_path=_original(source, feeds, work, (conditions, progress)),
        has_seeds=has_seeds,
        first_outputs=None if seen is None else seen.outputs,
        was_long=seen is not None and facts.measured is not None,
    )


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
    model = source.ir.clone()
    ports = written_interface(source, conditions)
    for value, port in zip(
        (*fed_inputs(model.graph), *model.graph.outputs), (*ports.inputs, *ports.outputs), strict=True
    ):
        value.shape = port.shape
    return model


def digest_of(path: Path, conditions: Conditions) -> str:
    """The hash of an optimised model; what is known of one for many sizes holds for the largest only."""
    digest = sha256(path)
    if conditions.family is None:
        return digest
    return hashlib.sha256(f"{digest} {sorted(conditions.dims.items())}".encode()).hexdigest()


def types_of(inputs: Sequence[InputSpec]) -> tuple[TensorType, ...]:
    """The types of what is fed."""
    return tuple(TensorType(spec.dtype, spec.shape) for spec in inputs)


def _original(source: SourceModel, feeds: Mapping[str, Any], work: Path, request: tuple[Conditions, Progress]) -> Path:
    """What outputs are compared with: the user's file, or what was made of it where the runtime does not run it."""
    conditions, progress = request
    if source.converted is None:
        return source.path
    progress.note(source.converted)
    try:
        first_sight(source.path, feeds, exact_settings(conditions))
    except RuntimeFailure:
        progress.note(f"ONNX Runtime does not run {source.path} as it is: outputs are those of the converted model")
        save(source.ir, work / "converted.onnx")
        return work / "converted.onnx"
    return source.path


def remember_cap(prepared: Prepared, verification: Verification, conditions: Conditions) -> None:
    """Keep the original's smallest cap, which takes long to find and depends on nothing that a plan changes."""
    found = verification.original_smallest_cap_bytes
    if found is not None and verification.cap_options == "default" and prepared.facts.smallest_cap_bytes is None:
        remember_facts(prepared.reference_sha256, conditions, smallest_cap_bytes=found)


def cache_scope(spec: DeviceSpec, conditions: Conditions) -> CacheScope:
    """What, besides the model, costs depend on that are measured inside it."""
    threads = conditions.threads_of(spec)
    device = CPU if spec.provider == CPU else spec.session_device
    return CacheScope(device, provenance(device, threads, conditions.optimization, RUNS, WARMUPS))


def optimise(model: Any, conditions: Conditions, work: Path) -> Path:
    """The reference model on disk, in canonical form: optimised until the runtime finds nothing more to change.

    One pass may leave something for the next, and a default session would do that to the rewritten model, plan or not.
    """
    current, raw, reference = work / "normalised.onnx", work / "optimised.onnx", work / "reference.onnx"
    save(model, current)
    known = sha256(current)
    for _ in range(MOST_PASSES):
        optimize(
            current,
            raw,
            conditions.optimization,
            conditions.intra_op_threads,
            conditions.custom_ops,
            conditions.run_seconds,
        )
        save(prepare_optimized(raw, model), reference)
        current, before, known = reference, known, sha256(reference)
        if known == before or known_facts_of(known, conditions) is not None:  # kept of a model that was settled
            break
    return reference


def known_facts_of(digest: str, conditions: Conditions) -> ModelFacts | None:
    """What the cache knows of the optimised model.

    The user's own inputs always get a run: shapes may depend on them.
    """
    if conditions.inputs is not None:
        return None
    with ProfileCache(conditions.cache_dir) as cache:
        return known_facts(cache, facts_scope(conditions), digest)


def facts_scope(conditions: Conditions) -> CacheScope:
    """Where the model was profiled as a whole, if it was: the first device with the CPU provider, else the first."""
    on_cpu = (spec for spec in conditions.devices if spec.provider == CPU)
    return cache_scope(next(on_cpu, conditions.device), conditions)


def known_facts(cache: ProfileCache, scope: CacheScope, digest: str) -> ModelFacts | None:
    """What the cache holds about a model; None also for what another version of remat wrote in another form."""
    stored = cache.model(scope, digest)
    try:
        return None if stored is None else msgspec.json.decode(stored, type=ModelFacts)
    except msgspec.MsgspecError:
        return None


def remember_facts(digest: str, conditions: Conditions, **found: Any) -> None:
    """Add to what the cache holds about a model; nothing where it holds nothing yet."""
    scope = facts_scope(conditions)
    with ProfileCache(conditions.cache_dir) as cache:
        known = known_facts(cache, scope, digest)
        if known is not None:
            fresh = msgspec.structs.replace(known, **found)
            cache.store_model(scope, digest, msgspec.json.encode(fresh))


def profile_request(conditions: Conditions, spec: DeviceSpec, runs: int) -> ProfileRequest:
    """How ops are measured inside a model, with so many runs of it."""
    return ProfileRequest(
        device=CPU if spec.provider == CPU else spec.session_device,
        runs=runs,
        warmups=WARMUPS,
        intra_op_threads=conditions.threads_of(spec),
        optimization=conditions.optimization,
        custom_ops=conditions.custom_ops,
        run_seconds=conditions.run_seconds,
    )


def first_look(path: Path, feeds: Mapping[str, Any], conditions: Conditions) -> Sight:
    """What one run of a model shows; of one for many sizes also its costs, where the largest take long.

    Such plans are chosen by the number of tiles and by bytes, so that times as one run shows them are good enough.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    if conditions.family is not None and conditions.device.provider == CPU:
        return look(path, feeds, profile_request(conditions, conditions.device, 1))
    seen = first_sight(path, feeds, exact_settings(conditions))
    return Sight(seen.types, seen.baseline_bytes, seen.outputs, None)


def was_measured_by_a_look(facts: ModelFacts, conditions: Conditions) -> bool:
    """Whether a run is so long that another look, which gives outputs too, is shorter than asking whether costs hold.

    That takes two runs beside the one for outputs.
    """
    is_looked_at = conditions.family is not None and conditions.device.provider == CPU
    return is_looked_at and facts.measured is not None and facts.measured.run_ns > 1e9 * LONG_SECONDS


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


def default_settings(conditions: Conditions) -> SessionSettings:
    """How users open a session on the first device."""
    device = CPU if conditions.device.provider == CPU else conditions.device.session_device
    return msgspec.structs.replace(exact_settings(conditions), exact=False, device=device)
