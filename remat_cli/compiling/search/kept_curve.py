"""The trade-off curve of a model in the cache: what was found for one question is known to every later one."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from remat_cli import __version__
from remat_cli.base.files import sha256
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.facts import facts_scope
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.forecast import needed_bytes
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.plan import Compute, Schedule
from remat_cli.core.schedule.splits import Region, RegionFacts, Splitting
from remat_cli.core.values.curve import CurvePoint, Searched, TradeOff
from remat_cli.onnx_io.write.apart import packed_apart
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache

MOST_POINTS = 64


class KeptTiles(msgspec.Struct, frozen=True):
    """A split model before the runtime optimises it, without the whole one's weights, and what a plan says of it."""

    model: bytes
    regions: tuple[Region, ...]
    facts: tuple[RegionFacts, ...]
    most_threads: int


class KeptPlan(msgspec.Struct, frozen=True):
    """A point of the curve with all that it takes to build it again.

    `ops` are its steps, of the optimised model that has the hash `reference_sha256`: the whole one, or one whose tiles
    are kept under that hash. No plan within `bound_bytes` takes less than `bound_time` times as long as the baseline
    (None: that was not proved), in `space`; whole ops need `whole_floor_bytes`.
    """

    point: CurvePoint
    reference_sha256: str
    ops: tuple[int, ...]
    whole_floor_bytes: int
    bound_time: float | None = None
    bound_bytes: int = 0
    space: str = "free"

    @property
    def schedule(self) -> Schedule:
        """Its steps."""
        return Schedule(tuple(Compute(op, 0) for op in self.ops))


K = TypeVar("K")


def _read(stored: bytes, kind: type[K]) -> K | None:
    """What is stored; None where another version wrote it in another form."""
    try:
        return msgspec.msgpack.decode(stored, type=kind)
    except msgspec.MsgspecError:
        return None


@dataclass(frozen=True)
class KeptCurve:
    """The curve of one model under all that plans depend on beside budgets, in a folder's cache."""

    folder: Path
    scope: CacheScope

    def plans(self) -> dict[str, KeptPlan]:
        """All plans that are kept, by the key of their point; what another version wrote is left out."""
        with ProfileCache(self.folder) as cache:
            read = {key: _read(stored, KeptPlan) for key, stored in cache.models(self._part("plans")).items()}
        return {key: plan for key, plan in read.items() if plan is not None}

    def curve(self) -> TradeOff:
        """The curve as it is now."""
        with ProfileCache(self.folder) as cache:
            stored = cache.models(self._part("searches")).values()
        read = (_read(each, Searched) for each in stored)
        curve = TradeOff(searched=tuple(each for each in read if each is not None))
        for kept in self.plans().values():
            curve = curve.with_point(kept.point)
        return curve

    def keep(self, plan: KeptPlan) -> None:
        """Put a plan on the curve, in place of what was known of it; plans that it dominates are forgotten."""
        before = self.plans()
        curve = TradeOff(tuple(kept.point for kept in before.values())).with_point(plan.point)
        keys = {point.key for point in curve.points}
        with ProfileCache(self.folder) as cache:
            cache.forget_models(self._part("plans"), before.keys() - keys)
            if plan.point.key in keys and len(keys) <= MOST_POINTS:
                cache.store_model(self._part("plans"), plan.point.key, msgspec.msgpack.encode(plan))

    def keep_tiles(self, reference_sha256: str, tiles: KeptTiles) -> None:
        """Keep a split model for plans of it."""
        with ProfileCache(self.folder) as cache:
            cache.store_model(self._part("tiles"), reference_sha256, msgspec.msgpack.encode(tiles))

    def tiles(self, reference_sha256: str) -> KeptTiles | None:
        """A split model that was kept; None too where another version wrote it."""
        with ProfileCache(self.folder) as cache:
            stored = cache.model(self._part("tiles"), reference_sha256)
        return None if stored is None else _read(stored, KeptTiles)

    def forget(self, key: str) -> None:
        """Forget a plan that cannot be built again, or did not keep what it promised."""
        with ProfileCache(self.folder) as cache:
            cache.forget_models(self._part("plans"), [key])

    def note(self, searched: Searched) -> None:
        """Keep that a question was searched for."""
        encoded = msgspec.msgpack.encode(searched)
        with ProfileCache(self.folder) as cache:
            cache.store_model(self._part("searches"), hashlib.sha256(encoded).hexdigest(), encoded)

    def _part(self, name: str) -> CacheScope:
        return replace(self.scope, device=f"{self.scope.device} {name}")


class CurveTerms(msgspec.Struct, frozen=True):
    """All that decides what a plan of a model may be, beside conditions and budgets: splits, solver, files."""

    split: tuple[str, int, str, bool, int | None]
    solver: str
    options: dict[str, Any]
    order: str
    external_data: bool | None
    packed_weights: bool
    count_mapped: bool


def kept_curve(whole: Prepared, request: CompileRequest) -> KeptCurve:
    """The curve of a model under what is asked for."""
    splits, search, files = request.splits, request.search, request.files
    return _curve_of(
        whole,
        CurveTerms(
            split=(
                splits.mode,
                splits.max_tiles,
                splits.axis.text,
                splits.allow_reassociation,
                splits.max_tensor_bytes,
            ),
            solver=search.solver.name,
            options=msgspec.to_builtins(search.solver),
            order=search.limits.order,
            external_data=files.external,
            packed_weights=files.packed,
            count_mapped=request.count_mapped,
        ),
    )


def curve_of_plan(plan: PlanFile, whole: Prepared) -> TradeOff:
    """What is known of the model that a plan was made of, under what that was asked for."""
    asked, solved = plan.request, plan.solved
    terms = CurveTerms(
        split=(asked.split, asked.max_tiles, asked.split_axis, asked.allow_reassociation, asked.max_tensor_bytes),
        solver=solved.solver,
        options=solved.options,
        order=asked.order,
        external_data=asked.external_data,
        packed_weights=asked.packed_weights,
        count_mapped=asked.count_mapped,
    )
    return _curve_of(whole, terms).curve()


def _curve_of(whole: Prepared, terms: CurveTerms) -> KeptCurve:
    conditions = whole.conditions
    here = msgspec.structs.replace(  # what says nothing of a plan, or is said by contents below
        conditions, cache_dir=Path(), forgets_costs=False, run_seconds=0.0, inputs=None, more_inputs=(), seed=0
    )
    asked = (
        __version__,
        whole.reference_sha256,
        whole.source.sha256,
        [sha256(path) for path in conditions.all_inputs],
        repr(here),
        terms,
    )
    digest = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
    scope = facts_scope(conditions)
    return KeptCurve(conditions.cache_dir, replace(scope, device=f"curve {digest}"))


def point_of(planned: OneModel, request: CompileRequest) -> CurvePoint:
    """What a plan promises, as a point."""
    written, baseline = planned.written, planned.answer.question.baseline
    return CurvePoint(
        key=plan_key(planned),
        live_bytes=written.promised_bytes,
        budget_bytes=written.least_budget_bytes,
        process_bytes=needed_bytes(planned, request),
        relative_time=planned.plan.time_ns / max(1, baseline.time_ns),
        on_top_bytes=written.on_top_bytes if planned.answer.question.is_share else 0,
        is_split=planned.splitting is not None,
    )


def plan_key(planned: OneModel) -> str:
    """A name of a plan: its model's hash and its steps."""
    ops = tuple(planned.plan.schedule.op_ids())
    return hashlib.sha256(f"{planned.prepared.reference_sha256} {ops}".encode()).hexdigest()


def keep_plan(planned: OneModel, request: CompileRequest) -> CurvePoint:
    """Put a plan on the curve of its model; a split model must have been kept before."""
    point, run, question = point_of(planned, request), planned.answer.run, planned.answer.question
    splitting, baseline_ns = planned.splitting, question.baseline.time_ns
    kept = KeptPlan(
        point=point,
        reference_sha256=planned.prepared.reference_sha256,
        ops=tuple(planned.plan.schedule.op_ids()),
        whole_floor_bytes=run.floor.bytes if splitting is None else splitting.whole_floor_bytes,
        bound_time=None if run.bound_ns is None else run.bound_ns / max(1, baseline_ns),
        bound_bytes=question.budget_bytes,
        space=run.space,
    )
    kept_curve(planned.whole, request).keep(kept)
    return point


def keep_seen(planned: OneModel, request: CompileRequest, *, passed: bool) -> None:
    """Put right what is known of a plan that was verified; what did not keep its promises is forgotten.

    Only plans whose model can be had again are kept: with the tiles that a search has put beside the curve.
    """
    kept = kept_curve(planned.whole, request)
    if planned.splitting is not None and kept.tiles(planned.prepared.reference_sha256) is None:
        return
    if passed:
        keep_plan(planned, request)
    else:
        kept.forget(plan_key(planned))


def keep_tiles(planned: OneModel, tiled: Any, splitting: Splitting, request: CompileRequest) -> bool:
    """Keep the split model of a plan; False where too much of it is its own."""
    packed = packed_apart(tiled, planned.whole.reference)
    if packed is None:
        return False
    tiles = KeptTiles(packed, splitting.regions, splitting.facts, splitting.most_threads)
    kept_curve(planned.whole, request).keep_tiles(planned.prepared.reference_sha256, tiles)
    return True
