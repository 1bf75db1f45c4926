"""Why a model of few bits holds as much as one of many: what is alive at its peak beside what its weights are."""

from collections.abc import Sequence

from remat_cli.base.units import format_bytes
from remat_cli.core.values.few_bits import FewBitKind, FewBits
from remat_cli.report.explain import LiveTensor

WIDE, SUMS = "float", "int32"  # single precision; what products of bytes are added up in
LEAST_SHARE = 0.5  # of what is held, for it to be worth a word
WHY: dict[FewBitKind, str] = {
    "int8": "activations are float32 between the quantised ops",
    "int4": "only weights are of few bits, activations are float32",
    "float16": "the CPU computes in float32, with casts around, where it has no float16 kernel",
}
HELPS: dict[FewBitKind, str] = {
    "int8": "a budget cuts them (`remat compile --budget`); so does quantising activations too (static QDQ)",
    "int4": "a budget cuts them (`remat compile --budget`); fewer bits for weights do not",
    "float16": "a budget cuts them (`remat compile --budget`); float16 does not",
}


def few_bits_at_peak(kind: FewBitKind | None, alive: Sequence[LiveTensor], workspace_bytes: int) -> FewBits | None:
    """What a model of some kind holds in many bits; None where that is little, or it is as most models are."""
    if kind is None:
        return None
    found = FewBits(
        kind=kind,
        float_bytes=_bytes_of(alive, WIDE),
        alive_bytes=sum(tensor.bytes for tensor in alive),
        sum_bytes=_bytes_of(alive, SUMS) if kind == "int8" else 0,
        workspace_bytes=workspace_bytes,
    )
    wide_bytes = found.float_bytes + found.sum_bytes + found.workspace_bytes
    return found if wide_bytes and wide_bytes >= LEAST_SHARE * found.held_bytes else None


def few_bits_lines(found: FewBits | None) -> list[str]:
    """Why few bits did not help, by what most of them would have had to, and what would."""
    if found is None:
        return []
    held, most_bytes = format_bytes(found.held_bytes), max(found.float_bytes, found.sum_bytes, found.workspace_bytes)
    if most_bytes == found.workspace_bytes:
        return [
            f"  most is workspace inside the op, in which fewer bits save little: {format_bytes(most_bytes)} of {held}",
            "  a budget cuts it where the op can run in parts (`remat compile --budget`)",
        ]
    if most_bytes == found.sum_bytes:
        return [
            f"  sums of the quantised ops are int32 until they are scaled: {format_bytes(most_bytes)} of {held}",
            "  a budget cuts them (`remat compile --budget`); so do ops that scale sums themselves (static QOperator)",
        ]
    return [f"  {WHY[found.kind]}: {format_bytes(most_bytes)} of {held}", f"  {HELPS[found.kind]}"]


def _bytes_of(alive: Sequence[LiveTensor], dtype: str) -> int:
    return sum(tensor.bytes for tensor in alive if tensor.dtype == dtype)
