"""What a model of few bits holds in many bits all the same."""

from typing import Literal

import msgspec

FewBitKind = Literal["int4", "int8", "float16"]


class FewBits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model of few bits holds at its peak in many bits.

    `float_bytes` of `alive_bytes` are tensors of single precision, `sum_bytes` sums of quantised products;
    `workspace_bytes` come on top, inside the op that runs then.
    """

    kind: FewBitKind
    float_bytes: int
    alive_bytes: int
    sum_bytes: int = 0
    workspace_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """All that is there at the peak."""
        return self.alive_bytes + self.workspace_bytes
