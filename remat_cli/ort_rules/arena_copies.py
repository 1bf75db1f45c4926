"""Copies of weights that kernels pack in a session's arena, while a file is loaded: runs then find it not empty.

Measured on x86-64 with AVX2 and with AVX-512 (tests/runtime/test_arena_copies.py repeats it): a quantised convolution
whose weight is signed, with zeros at zero, packs it for a kernel of its own where there is one for its channels. That
copy is a request to the arena like any tensor's. Nothing shares it: each op that reads the weight has one of its own,
so that recomputed ops and tiles have as many. All other packed copies, also those of other quantised convolutions, lie
outside the arena's regions. A processor without AVX2 has no such kernel.
"""

from collections.abc import Sequence
from math import prod

import msgspec


class ArenaCopyRules(msgspec.Struct, frozen=True, kw_only=True):
    """For which channels of a quantised convolution there is a kernel of its own.

    It works on `output_channels` at a time, and copies are filled up to that; there are to be so many at least, in
    steps of `output_step`, and inputs in steps of `input_step`.
    """

    output_channels: int
    output_step: int
    input_step: int


class ArenaCopy(msgspec.Struct, frozen=True):
    """A copy that an op makes of a weight, known by its name."""

    weight: str
    bytes: int


def arena_copy_bytes(groups: int, shape: Sequence[int], rules: ArenaCopyRules) -> int:
    """What a quantised convolution's copy of a signed weight takes of the arena; 0 where it is packed elsewhere.

    `shape` is that of the weight: output channels, input channels of a group, and the kernel's sizes.
    """
    outputs, inputs, *sizes = shape
    positions = prod(sizes)
    if groups == 1:
        is_whole = inputs % rules.input_step == 0 and outputs % rules.output_step == 0
        has_kernel = is_whole and outputs >= rules.output_channels
        return -(-outputs // rules.output_channels) * rules.output_channels * inputs * positions if has_kernel else 0
    is_depthwise = inputs == 1 and outputs == groups
    return outputs * positions if is_depthwise and groups % rules.output_channels == 0 else 0
