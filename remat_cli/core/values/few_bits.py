"""What a model of few bits holds in many bits all the same."""

from typing import Literal

import msgspec

FewBitKind = Literal["int4", "int8", "float16"]


class FewBits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model of few bits holds at its peak: `float_bytes` of `alive_bytes` are tensors of single precision."""

    kind: FewBitKind
    float_bytes: int
    alive_bytes: int
