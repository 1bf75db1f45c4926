"""Why a model of few bits holds as much as one of many: what is alive at its peak beside what its weights are."""

from collections.abc import Sequence

from remat_cli.base.units import format_bytes
from remat_cli.core.values.few_bits import FewBitKind, FewBits
from remat_cli.report.explain import LiveTensor

WIDE = "float"  # single precision
LEAST_SHARE = 0.5  # of what is alive, for it to be worth a word
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


def few_bits_at_peak(kind: FewBitKind | None, alive: Sequence[LiveTensor]) -> FewBits | None:
    """What a model of some kind holds in single precision; None where that is little, or it is as most models are."""
    float_bytes, alive_bytes = (
        sum(tensor.bytes for tensor in tensors) for tensors in ((each for each in alive if each.dtype == WIDE), alive)
    )
    if kind is None or not float_bytes or float_bytes < LEAST_SHARE * alive_bytes:
        return None
    return FewBits(kind=kind, float_bytes=float_bytes, alive_bytes=alive_bytes)


def few_bits_lines(found: FewBits | None) -> list[str]:
    """Why few bits did not help, and what would."""
    if found is None:
        return []
    part = f"{format_bytes(found.float_bytes)} of {format_bytes(found.alive_bytes)}"
    return [f"  {WHY[found.kind]}: {part}", f"  {HELPS[found.kind]}"]
