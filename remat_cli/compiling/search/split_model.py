"""From a whole model and its tiles to a split model that can be planned: optimise, compare bits, measure."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.progress import Progress
from remat_cli.compiling.blame import blamed_on
from remat_cli.compiling.facts import ModelFacts, facts_scope, known_facts, known_facts_of, remember_facts
from remat_cli.compiling.learn.corrections import known_corrections, with_corrections
from remat_cli.compiling.optimise import digest_of, optimise
from remat_cli.compiling.planned import Answered
from remat_cli.compiling.prepare import (
    Prepared,
    as_planned,
    compared_settings,
    default_settings,
    exact_settings,
    observe,
    settings_elsewhere,
)
from remat_cli.compiling.profile import Beside, is_known_beside, profile_beside
from remat_cli.compiling.write import save_in_order
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.profile import Profile
from remat_cli.onnx_io.read.interface import interface_of
from remat_cli.onnx_io.read.layout_scene import SPLIT_OF, carry_whole_names, declared_shapes, differing_ops, run_once
from remat_cli.onnx_io.read.load import prepare_optimized, save_work
from remat_cli.onnx_io.read.to_graph import op_signatures, to_graph
from remat_cli.onnx_io.write.assemble import without_shapes
from remat_cli.onnx_io.write.opset import lowered, opset_of, raise_opset
from remat_cli.ort_rules.versions import LATE_KERNELS, numbers_of
from remat_cli.runtime.measure.profile_cache import ProfileCache
from remat_cli.runtime.measure.profilers import LONG_RUN_NS
from remat_cli.runtime.measure.turns import time_in_turn
from remat_cli.runtime.sessions.error_text import lacks_memory
from remat_cli.runtime.sessions.packing import lean_form
from remat_cli.runtime.sessions.session import SessionSettings, open_session, outputs_of
from remat_cli.runtime.verify.likeness import are_close, are_same_bits, have_same_bits, likeness
from remat_cli.splitting.loops.loops import SEQUENCES_SINCE
from remat_cli.splitting.rules.record import Why
from remat_cli.splitting.rules.table import rule_of
from remat_cli.splitting.tiles.build import (
    FILL_OP,
    FILL_SINCE,
    reordered,
    tile_order,
)
from remat_cli.splitting.tiles.differences import compared_pieces, first_difference, with_outputs
from remat_cli.splitting.tiles.steps import TiledRegion
from remat_cli.splitting.tiles.view import ModelView


@dataclass(frozen=True)
class ExposedTiles:
    """A split model whose outputs differ, and the view and regions it was made from.

    `before` is the model that was split, if that is not the whole one.
    """

    view: ModelView
    model: Any
    regions: tuple[TiledRegion, ...]
    may_reassociate: bool
    before: Any = None


def prepare_split(
    whole: Prepared, model: Any, conditions: Conditions, work: Path, may_reassociate: bool
) -> Prepared | None:
    """A split model, optimised like the whole one; None where its outputs differ by more than is allowed.

    Raises:
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    ways = tuple(replace(whole, optimised_as=each) for each in whole.optimised_as.for_tiles)
    # Told all shapes, the runtime may fuse ops that it left alone in the whole model, whose shapes it could not infer.
    told = ((way, each) for each in (model, without_shapes(model)) for way in ways)
    found = (_prepare_split(way, each, conditions, work, may_reassociate) for way, each in told)
    return next((prepared for prepared in found if prepared is not None), None)


def _prepare_split(
    whole: Prepared, model: Any, conditions: Conditions, work: Path, may_reassociate: bool
) -> Prepared | None:
    """The same, optimised in one way."""
    with blamed_on(whole.source.path, "ONNX Runtime cannot optimise the tiles of"):
        found = optimise(model, conditions, work, whole.optimised_as)
    reference = as_planned(found.path, model, interface_of(whole.reference), whole.optimised_as)
    reference = carry_whole_names(model, reference)
    digest = digest_of(found, conditions, whole.optimised_as)
    facts = None if conditions.is_left else known_facts_of(digest, conditions)
    if facts is None or not (facts.has_same_bits or may_reassociate):
        with blamed_on(whole.source.path, "ONNX Runtime fails to run the tiles of"):
            facts = _compared(found.path, whole, conditions, may_reassociate)
    if facts is None:
        return None
    graph = to_graph(reference, facts.types)
    graph = reordered(graph, tile_order(model, graph))
    if whole.layout is not None:
        graph = run_once(graph, reference, whole.layout)
    return in_place_of(
        replace(whole, reference=reference, reference_path=found.path, reference_sha256=digest), graph, facts
    )


def differing_in_layout(whole: Prepared, model: Any) -> frozenset[str]:
    """Whole ops of which sessions would make something else in a split model, on some kind of processor."""
    if whole.layout is None:
        return frozenset()
    return differing_ops(whole.layout, model, declared_shapes(model))


def in_place_of(whole: Prepared, graph: Graph, facts: ModelFacts, *, was_long: bool = False) -> Prepared:
    """A model with another reference, once its graph and what a run of it, just now, showed are known."""
    signatures = op_signatures(whole.reference, graph, whole.original.key)
    corrections = known_corrections(signatures, whole.conditions)
    return replace(
        whole,
        graph=with_corrections(graph, signatures, corrections),
        signatures=signatures,
        facts=facts,
        corrections=corrections,
        first_outputs=None,
        was_long=was_long,
    )


def in_least_opset(model: Any, whole: Prepared) -> Any:
    """A split model under the operator set of the whole one, unless a tile of it is filled in place.

    So every runtime that takes the whole model takes its tiles, by the same versions of kernels.
    """
    return lowered(model, opset_of(whole.reference))


def raised_model(whole: Prepared, conditions: Conditions, work: Path, run_ns: int) -> Any | None:
    """The whole model under the opset that filling tiles in place needs; None where it does not run alike.

    Where a run takes long, that the runtime takes it has to do: the bits of each split model are compared anyway. None
    too where it is for a version of the runtime that has no kernel for that.
    """
    asked, first = conditions.runtimes, LATE_KERNELS[FILL_OP, FILL_SINCE]
    if asked is not None and numbers_of(asked.oldest) < numbers_of(first):
        return None
    raised = raise_opset(whole.reference, FILL_SINCE, whole.graph)
    if raised is None:
        return None
    with ProfileCache(conditions.cache_dir) as cache:
        known = known_facts(cache, facts_scope(conditions), whole.reference_sha256)
    can_be_raised = None if known is None else known.can_be_raised
    if can_be_raised is None:
        save_work(raised, work / "raised.onnx")
        is_alike = _is_taken if run_ns > LONG_RUN_NS else _runs_alike
        can_be_raised = is_alike(work / "raised.onnx", whole, conditions)
        remember_facts(whole.reference_sha256, conditions, can_be_raised=can_be_raised)
    return raised if can_be_raised else None


def with_sequences(whole: Prepared, conditions: Conditions, work: Path) -> Any | None:
    """The whole model under an opset in which a Loop passes sequences on; None where it does not run alike.

    None too where this machine cannot run it, so that nothing tells.
    """
    if opset_of(whole.reference) >= SEQUENCES_SINCE:
        return whole.reference
    raised = raise_opset(whole.reference, SEQUENCES_SINCE, whole.graph) if whole.runnable is None else None
    if raised is None:
        return None
    save_work(raised, work / "with_sequences.onnx")
    return raised if _runs_alike(work / "with_sequences.onnx", whole, conditions) else None


def _runs_alike(raised: Path, whole: Prepared, conditions: Conditions) -> bool:
    """Whether the runtime takes a model under a newer opset, with the same outputs: it lacks kernels for some ops."""
    try:
        elsewhere = settings_elsewhere(conditions)
        if elsewhere is not None:
            return have_same_bits(*_outputs_of_both((whole.reference_path, raised), whole, elsewhere))
        seen = outputs_of(raised, (whole.feeds,), compared_settings(conditions))[0]
        return whole.gives(seen)
    except RuntimeFailure:
        return False


def _outputs_of_both(paths: tuple[Path, Path], whole: Prepared, settings: SessionSettings) -> tuple[Any, Any]:
    """What two models give for the feeds of the whole one, in sessions of one kind."""
    ours, theirs = (outputs_of(path, (whole.feeds,), settings)[0] for path in paths)
    return ours, theirs


def _is_taken(raised: Path, whole: Prepared, conditions: Conditions) -> bool:
    """Whether the runtime opens a model under a newer opset: it lacks kernels for some ops."""
    try:
        open_session(raised, settings_elsewhere(conditions) or compared_settings(conditions))
    except RuntimeFailure:
        return False
    return True


def find_culprit(tiles: ExposedTiles, whole: Prepared, conditions: Conditions, work: Path) -> int | None:
    """The first op whose tiles have other bits than the whole op; None where no single op is to blame.

    On the device that is to run them: one takes other kernels for smaller tensors than another. Where bits may differ,
    an op whose tiles are not even close is to blame before all others.
    """
    before = tiles.before or whole.reference
    known = {value.name for node in before.graph for value in node.outputs}
    view = tiles.view
    pieces = [(step, piece) for step, piece in compared_pieces(tiles.regions) if piece.tensor in known]
    whole_names = {piece.tensor: piece.tensor for _, piece in pieces}
    split_names = {piece.name: piece.tensor for _, piece in pieces}
    save_work(with_outputs(before, view, whole_names), work / "whole_exposed.onnx")
    save_work(with_outputs(tiles.model, view, split_names), work / "split_exposed.onnx")
    settings = settings_elsewhere(conditions) or exact_settings(conditions)
    ours, theirs = _outputs_of_both((work / "whole_exposed.onnx", work / "split_exposed.onnx"), whole, settings)
    tests = (are_close, are_same_bits) if tiles.may_reassociate else (are_same_bits,)
    culprits = (first_difference(view, pieces, ours, theirs, is_same) for is_same in tests)
    return next((culprit for culprit in culprits if culprit is not None), None)


def find_fused(model: Any, optimised: Path) -> str | None:
    """The first whole op of whose tiles the runtime makes other ops, as it did not of the whole one.

    An Add of what is broadcast is one of two alike in tiles, which may become part of what follows. Changes of shape,
    which compute nothing, may go.
    """
    kept = {value.name for node in prepare_optimized(optimised, model).graph for value in node.outputs}
    for node in model.graph:
        whole, rule = node.metadata_props.get(SPLIT_OF), rule_of(node.domain, node.op_type)
        if whole and rule.why is not Why.MOVED and kept.isdisjoint(value.name for value in node.outputs):
            return str(whole)
    return None


def profile_split(
    split: Prepared, whole: Answered, progress: Progress, most_seconds: float, estimate: float | None = None
) -> Profile:
    """The cost of every op of a split model, on the scale of the whole model's.

    Ops measured alone, and in another minute, say little about how two models compare. So both are run in turn, the
    split one with its tiles in order, without which it finds less in the processor's caches; the op times of the split
    model are scaled until their sum is to the sum of the whole model's op times as the one run is to the other. Of a
    model for many sizes whose runs are long the first run of each is taken. Where this machine cannot run the whole one
    at these sizes, that is done at smaller ones. After `most_seconds`, which are left to the search, few runs are
    enough. The `estimate` is of the multiple, where there is one: it counts as far as runs in turn do not agree.

    Raises:
        RuntimeFailure: a model fails to run.
        MissingDependency: a device cannot be used.
    """
    conditions, path = split.conditions, split.reference_path.with_name("in_order.onnx")
    beside = whole.prepared.reference_path
    turns = None if split.runnable is not None else beside
    is_run = not split.was_long and (turns is None or not is_known_beside(split, conditions, conditions.device))
    tiles = split
    if is_run:
        most_bytes = whole.answer.question.calm_bytes
        tiles = replace(split, reference_path=save_in_order(split, whole.profile, path, most_bytes))
    in_turn = Beside(turns, most_seconds, estimate)
    profile, relative = profile_beside(tiles, in_turn, conditions, conditions.device, progress)
    if relative is None:
        relative = _relative_time(tiles, beside, progress)
    whole_ns, sum_ns = (sum(cost.time_ns for cost in known.ops) for known in (whole.profile, profile))
    factor = relative * whole_ns / max(1, sum_ns)
    ops = tuple(msgspec.structs.replace(cost, time_ns=round(cost.time_ns * factor)) for cost in profile.ops)
    return msgspec.structs.replace(profile, ops=ops)


def _relative_time(split: Prepared, beside: Path, progress: Progress) -> float:
    """How long a run of the split model takes, as a multiple of the whole model's; kept in the cache.

    Where this machine cannot run the whole one at these sizes, that is so at smaller ones: the largest at which there
    is enough memory for both.
    """
    conditions = split.conditions
    settings = default_settings(conditions)
    models = (lean_form(beside, settings), lean_form(split.reference_path, settings))
    runnable = split.runnable
    smaller = None if runnable is None else runnable.smaller
    try:
        feeds = split.feeds if runnable is None else runnable.at.feeds
        whole_ns, split_ns = time_in_turn(models, feeds, settings, progress.advance)
    except RuntimeFailure as failure:
        if smaller is None or not lacks_memory(failure):
            raise
        whole_ns, split_ns = time_in_turn(models, smaller.feeds, settings, progress.advance)
    relative = split_ns / max(1, whole_ns)
    remember_facts(split.reference_sha256, conditions, relative_time=relative)
    return relative


def _compared(split: Path, whole: Prepared, conditions: Conditions, may_reassociate: bool) -> ModelFacts | None:
    """What a run of a split model shows; None where its outputs are not the whole one's, or not close as allowed."""
    seen = observe(split, whole.feeds, conditions)
    facts, found = ModelFacts(seen.types, seen.baseline_bytes), seen.outputs
    if conditions.is_left:  # as sessions open it, which work in blocks, and without those as other processors do
        plain = outputs_of(whole.reference_path, (whole.feeds,), exact_settings(conditions))[0]
        if not (may_reassociate or have_same_bits(plain, seen.outputs)):
            return None
        found = outputs_of(split, (whole.feeds,), compared_settings(conditions))[0]
    elsewhere = settings_elsewhere(conditions)
    wanted = None  # of the whole model; on the CPU what is kept of it may do
    if elsewhere is not None:
        wanted, found = _outputs_of_both((whole.reference_path, split), whole, elsewhere)
    if whole.gives(found) if wanted is None else have_same_bits(wanted, found):
        return facts
    if may_reassociate and likeness(whole.outputs if wanted is None else wanted, found).are_close:
        return msgspec.structs.replace(facts, has_same_bits=False)
    return None
