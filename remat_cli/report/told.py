"""A report for people says names that they know, those of their file; values and JSON keep the optimised model's."""

from typing import TypeVar

import msgspec

from remat_cli.core.values.told_names import ToldNames
from remat_cli.report.explain import LiveTensor, MemoryReport, Recompute
from remat_cli.report.regions import RegionReport

T = TypeVar("T")
OPS = ("peak_op", "blocking_op")
PARTS = ("alive", "blockers", "recomputes", "regions", "memories")


def in_users_names(report: T) -> T:
    """The same report with the names of its user's file, as far as it knows them."""
    names = getattr(report, "names", None)
    if not isinstance(names, ToldNames) or not isinstance(report, msgspec.Struct):
        return report
    fields = report.__struct_fields__
    ops = {name: None if (op := getattr(report, name)) is None else names.op(op) for name in OPS if name in fields}
    parts = {name: tuple(_part(each, names) for each in getattr(report, name)) for name in PARTS if name in fields}
    return msgspec.structs.replace(report, **ops, **parts)


def _part(part: object, names: ToldNames) -> object:
    """A part of a report with names that its user knows."""
    if isinstance(part, LiveTensor):
        producer = None if part.producer is None else names.op(part.producer)
        shares = None if part.shares_with is None else names.tensor(part.shares_with)
        return msgspec.structs.replace(part, name=names.tensor(part.name), producer=producer, shares_with=shares)
    if isinstance(part, Recompute):
        return msgspec.structs.replace(part, op=names.op(part.op), tensor=names.tensor(part.tensor))
    if isinstance(part, RegionReport):
        exits, kept = (tuple(map(names.tensor, each)) for each in (part.exits, part.kept))
        return msgspec.structs.replace(part, ops=tuple(map(names.op, part.ops)), exits=exits, kept=kept)
    if isinstance(part, MemoryReport):
        op = None if part.peak_op is None else names.op(part.peak_op)
        alive = tuple(msgspec.convert(_part(each, names), LiveTensor, from_attributes=True) for each in part.alive)
        return msgspec.structs.replace(part, peak_op=op, alive=alive)
    return part
