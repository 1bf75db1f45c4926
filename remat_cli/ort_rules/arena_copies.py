"""Copies of weights that kernels pack in a session's arena, while a file is loaded: runs then find it not empty.

Measured on onnxruntime 1.24.4, 1.31.1 and 1.32.0, on x86-64 with AVX2 and with AVX-512 (tests/runtime/test_arena.py
repeats it): a quantised convolution whose weight is signed, with zeros at zero, packs it for a kernel of its own where
there is one for its channels. That copy is a request to the arena like any tensor's. Nothing shares it: each op that
reads the weight has one of its own, so that recomputed ops and tiles have as many. All other packed copies, also those
of other quantised convolutions, lie outside the arena's regions. A processor without AVX2 has no such kernel.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

import msgspec

OUTPUT_CHANNELS: Final = 16
"""The kernel works on so many output channels at a time; copies are filled up to that."""
LEAST_OUTPUT_STEP: Final = 8
INPUT_STEP: Final = 4


class ArenaCopy(msgspec.Struct, frozen=True):
    """A copy that an op makes of a weight, known by its name."""

    weight: str
    bytes: int


def arena_copy_bytes(groups: int, shape: Sequence[int]) -> int:
    """What a quantised convolution's copy of a signed weight takes of the arena; 0 where it is packed elsewhere.

    `shape` is that of the weight: output channels, input channels of a group, and the kernel's sizes.
    """
    outputs, inputs, *sizes = shape
    positions = prod(sizes)
    if groups == 1:
        has_kernel = inputs % INPUT_STEP == 0 and outputs % LEAST_OUTPUT_STEP == 0 and outputs >= OUTPUT_CHANNELS
        return -(-outputs // OUTPUT_CHANNELS) * OUTPUT_CHANNELS * inputs * positions if has_kernel else 0
    is_depthwise = inputs == 1 and outputs == groups
    return outputs * positions if is_depthwise and groups % OUTPUT_CHANNELS == 0 else 0
