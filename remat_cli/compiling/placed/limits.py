"""The largest tensor of a device: ops are cut into tiles before they are placed; what stays larger runs elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import PlanSubject
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.profile import profile_on_cpu
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.search.tiles import Tiles, inside_above
from remat_cli.compiling.ways import Way
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Graph, TensorType, size_bytes
from remat_cli.core.schedule.splits import Splitting, large_tensor_lines
from remat_cli.core.values.budget import WHOLE
from remat_cli.core.values.profile import HOST_MEMORY, Unsupported
from remat_cli.devices.provider_table import PROVIDERS, named_spec


def limits_of(request: CompileRequest) -> Mapping[str, int]:
    """Bytes of the largest tensor of each device that has such a limit, said by the user or else by its record."""
    specs = request.conditions.devices
    known = {spec.name: PROVIDERS[spec.provider].largest_tensor_bytes for spec in specs}
    said = request.splits.max_tensor_bytes
    return {name: said or most for name, most in known.items() if most is not None}


def cap_of(request: CompileRequest) -> int | None:
    """The most bytes of a tensor that some device can hold, or that the user wants; None: any size."""
    return min(limits_of(request).values(), default=request.splits.max_tensor_bytes)


def cut_to_limits(
    prepared: Prepared, request: CompileRequest, work: Path, progress: Progress
) -> tuple[Prepared, Splitting | None]:
    """The model, its ops in tiles where tensors inside are above the least limit and `--split off` is not said.

    Bits are those of the whole model on the CPU. Where no split is enough, that which leaves least above.
    """
    least = cap_of(request)
    if least is None or request.splits.mode == "off":
        return prepared, None
    left = _above(prepared.graph, least)
    best: tuple[Prepared, Splitting | None] = prepared, None
    if not left:
        return best
    # Tiles of the model on the CPU, in the standard ops that other devices run too.
    host = named_spec(HOST_MEMORY)
    conditions = msgspec.structs.replace(prepared.conditions, devices=(host, *prepared.conditions.devices))
    asked = replace(request, conditions=conditions, asked=WHOLE)
    platform = Platform(prepared.graph, (host,), (profile_on_cpu(prepared, conditions, host, progress),))
    # Only the CPU fills a buffer in place.
    tiles = Tiles(SplitTask.unplanned(prepared, platform, asked, work, progress), may_fill=False)
    for proposal in tiles.capped(least):
        built = tiles.build(proposal, None)
        if built is not None and (above := _above(built.prepared.graph, least)) < left:
            cut = replace(built.prepared, conditions=prepared.conditions)
            left, best = above, (cut, tiles.record(built.proposal))
            if not left:
                break
    return best


def limited_subject(
    way: Way[Any, Any], prepared: Prepared, request: CompileRequest, work: Path, progress: Progress
) -> PlanSubject:
    """What is planned in a way: the model cut up to the limits, and what it costs where each device keeps its own."""
    found, splitting = cut_to_limits(prepared, request, work, progress)
    platform = way.profile(found, request.conditions, progress)
    return PlanSubject(found, within_limits(platform, limits_of(request)), splitting)


def cap_lines(plan: PlanFile) -> tuple[str, ...]:
    """What a cap on tensors did, and which are larger all the same."""
    most = plan.request.max_tensor_bytes
    whole = large_tensor_lines(plan.graph, most)
    if plan.splitting is None or most is None:
        return whole
    tiles = f"ops run in tiles so that no tensor inside is above {format_bytes(most)}, the largest of a device here"
    return (f"{tiles} (--max-tensor)", *whole)


def within_limits(platform: Platform, limits: Mapping[str, int]) -> Platform:
    """The platform, on which no device runs an op with a tensor above its limit."""
    graph, profiles = platform.graph, list(platform.profiles)
    for number, profile in enumerate(profiles):
        most_bytes = limits.get(profile.device)
        if most_bytes is None:
            continue
        reasons = {}
        for op in graph.ops:
            tensors = (graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs))
            sizes = {tensor.name: size_bytes(TensorType(tensor.dtype, tensor.shape)) for tensor in tensors}
            sizes |= {graph.weights[weight].name: graph.weights[weight].size_bytes for weight in op.weights}
            name, size = max(sizes.items(), key=itemgetter(1), default=("", 0))
            if size > most_bytes:
                told = f"of {format_bytes(size)} is above its largest of {format_bytes(most_bytes)}"
                reasons[op.name] = f"tensor '{name}' {told}"
        known = {op.name for op in profile.unsupported}
        more = tuple(Unsupported(name, reason) for name, reason in reasons.items() if name not in known)
        costs = tuple(cost for cost in profile.ops if cost.name not in reasons)
        profiles[number] = msgspec.structs.replace(profile, ops=costs, unsupported=(*profile.unsupported, *more))
    return replace(platform, profiles=tuple(profiles))


def _above(graph: Graph, most_bytes: int) -> int:
    """Bytes of all tensors inside that are above a limit."""
    return sum(each.size_bytes for each in inside_above(graph, most_bytes))
