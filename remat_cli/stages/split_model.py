"""From a whole model and its tiles to a split model that can be planned: optimise, compare bits, measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.core.profile import Profile
from remat_cli.onnx_io.layout import block_of_probe, layout_probe, uses_blocks
from remat_cli.onnx_io.load import prepare_optimized, save
from remat_cli.onnx_io.opset import raise_opset
from remat_cli.onnx_io.phases import carry_phases
from remat_cli.onnx_io.to_graph import op_signatures, to_graph
from remat_cli.runtime.likeness import are_close, are_same_bits, have_same_bits, likeness
from remat_cli.runtime.optimize import optimize
from remat_cli.runtime.profile_cache import ProfileCache
from remat_cli.runtime.session import SessionSettings
from remat_cli.runtime.turns import time_in_turn
from remat_cli.settings.config import Config
from remat_cli.splitting.build import FILL_SINCE, TiledRegion
from remat_cli.splitting.differences import compared_pieces, first_difference, with_outputs
from remat_cli.splitting.ordering import reordered, tile_order
from remat_cli.splitting.view import ModelView
from remat_cli.stages.prepare import (
    Prepared,
    Sight,
    cache_scope,
    known_sight,
    known_sight_of,
    observe,
    optimise,
    profile_prepared,
    sha256,
    sight_of,
)


def prepare_split(whole: Prepared, model: Any, config: Config, work: Path) -> Prepared | None:
    """A split model, optimised like the whole one; None where its outputs differ by more than is allowed.

    Raises:
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    work.mkdir(exist_ok=True)
    path = optimise(model, config, work)
    reference = carry_phases(model, prepare_optimized(path))
    digest = sha256(path)
    sight = known_sight_of(digest, config)
    if sight is None or not (sight.has_same_bits or config.allow_reassociation):
        sight = _compared(path, whole, config)
    if sight is None:
        return None
    graph = to_graph(reference, sight.types)
    graph = reordered(graph, tile_order(model, graph))
    return replace(
        whole,
        reference=reference,
        reference_path=path,
        reference_sha256=digest,
        graph=graph,
        signatures=op_signatures(reference, graph),
        sight=sight,
    )


def raised_model(whole: Prepared, config: Config, work: Path) -> Any | None:
    """The whole model under the opset that filling tiles in place needs; None where that changes form or bits."""
    raised = raise_opset(whole.reference, FILL_SINCE, whole.graph)
    if raised is None:
        return None
    scope = cache_scope(config.device, config)
    with ProfileCache(config.cache_dir) as cache:
        known = known_sight(cache, scope, whole.reference_sha256)
    can_be_raised = None if known is None else known.can_be_raised
    if can_be_raised is None:
        save(raised, work / "raised.onnx")
        found = observe(work / "raised.onnx", whole.feeds, config).outputs
        can_be_raised = have_same_bits(found, observe(whole.reference_path, whole.feeds, config).outputs)
        if known is not None:
            fresh = msgspec.structs.replace(known, can_be_raised=can_be_raised)
            with ProfileCache(config.cache_dir) as cache:
                cache.store_model(scope, whole.reference_sha256, msgspec.json.encode(fresh))
    return raised if can_be_raised else None


def find_culprit(
    view: ModelView, model: Any, regions: Sequence[TiledRegion], whole: Prepared, config: Config, work: Path
) -> int | None:
    """The first op whose tiles have other bits than the whole op; None where no single op is to blame.

    Where bits may differ, an op whose tiles are not even close is to blame before all others.
    """
    pieces = compared_pieces(regions)
    whole_names = {piece.tensor: piece.tensor for _, piece in pieces}
    split_names = {piece.name: piece.tensor for _, piece in pieces}
    save(with_outputs(whole.reference, view, whole_names), work / "whole_exposed.onnx")
    save(with_outputs(model, view, split_names), work / "split_exposed.onnx")
    ours = observe(work / "whole_exposed.onnx", whole.feeds, config).outputs
    theirs = observe(work / "split_exposed.onnx", whole.feeds, config).outputs
    tests = (are_close, are_same_bits) if config.allow_reassociation else (are_same_bits,)
    culprits = (first_difference(view, pieces, ours, theirs, is_same) for is_same in tests)
    return next((culprit for culprit in culprits if culprit is not None), None)


def channel_block(prepared: Prepared, config: Config, work: Path) -> int:
    """How many channels the CPU's blocked layout keeps together; 1 where the model has no such layout."""
    if not uses_blocks(prepared.reference):
        return 1
    probe, optimised = work / "probe.onnx", work / "probe.optimised.onnx"
    save(layout_probe(), probe)
    optimize(probe, optimised, "all", config.intra_op_threads)
    return block_of_probe(prepare_optimized(optimised))


def profile_split(split: Prepared, whole: Prepared, whole_ns: int, config: Config, progress: Progress) -> Profile:
    """The cost of every op of a split model, on the scale of the whole model's.

    Ops measured alone, and in another minute, say little about how two models compare. So both are run in turn, once;
    the op times of the split model are scaled until their sum is to `whole_ns`, the sum of the whole model's op times,
    as the one run is to the other.

    Raises:
        RuntimeFailure: a model fails to run.
        MissingDependency: the device cannot be used.
    """
    profile = profile_prepared(split, config, config.device, progress)
    sum_ns = sum(cost.time_ns for cost in profile.ops)
    factor = _relative_time(split, whole, config, progress) * whole_ns / max(1, sum_ns)
    ops = tuple(msgspec.structs.replace(cost, time_ns=round(cost.time_ns * factor)) for cost in profile.ops)
    return msgspec.structs.replace(profile, ops=ops)


def _relative_time(split: Prepared, whole: Prepared, config: Config, progress: Progress) -> float:
    """How long a run of the split model takes, as a multiple of the whole model's; kept in the cache."""
    scope = cache_scope(config.device, config)
    with ProfileCache(config.cache_dir) as cache:
        known = known_sight(cache, scope, split.reference_sha256)
    if known is not None and known.relative_time is not None and config.inputs is None:
        return known.relative_time
    settings = SessionSettings(exact=False, intra_op_threads=config.intra_op_threads, device=config.device)
    models = (whole.reference_path, split.reference_path)
    whole_ns, split_ns = time_in_turn(models, whole.feeds, settings, progress.advance)
    relative = split_ns / max(1, whole_ns)
    if known is not None:
        with ProfileCache(config.cache_dir) as cache:
            fresh = msgspec.structs.replace(known, relative_time=relative)
            cache.store_model(scope, split.reference_sha256, msgspec.json.encode(fresh))
    return relative


def _compared(split: Path, whole: Prepared, config: Config) -> Sight | None:
    """What a run of a split model shows; None where its outputs are not the whole one's, or not close as allowed."""
    wanted = observe(whole.reference_path, whole.feeds, config).outputs
    seen = observe(split, whole.feeds, config)
    if have_same_bits(wanted, seen.outputs):
        return sight_of(seen)
    if config.allow_reassociation and likeness(wanted, seen.outputs).are_close:
        return msgspec.structs.replace(sight_of(seen), has_same_bits=False)
    return None
