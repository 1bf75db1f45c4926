"""Models of few bits are told what of their peak is float32 all the same, and others nothing."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bench.decoder_models import Decoder, decoder
from bench.quantised_models import half, unet
from remat_cli.onnx_io.read.interface import few_bit_kind
from remat_cli.report.explain import LiveTensor
from remat_cli.report.few_bits import few_bits_at_peak, few_bits_lines
from tests.splitting.quantised_models import dynamic_int8, encoder, recogniser

MIB = 1 << 20
SMALL = Decoder(length=8, total=8, mask=8, width=64, heads=4, shared=2, inner=64, layers=1, words=64)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("int8", lambda: dynamic_int8(recogniser(16, 16, 4))),
        ("int4", lambda: decoder(SMALL)),
        ("float16", lambda: half(unet(16, 4, levels=1))),
        (None, lambda: encoder(16)),
    ],
)
def test_kinds_of_few_bits_are_known(kind, make):
    assert few_bit_kind(ir.from_proto(make().model)) == kind


def alive(**mib: int) -> list[LiveTensor]:
    """Tensors by element type."""
    return [
        LiveTensor(name=dtype, dtype=dtype, shape=(count,), bytes=count * MIB, producer=None)
        for dtype, count in mib.items()
    ]


def test_what_is_float_at_the_peak_is_said_with_what_would_help():
    first, second = few_bits_lines(few_bits_at_peak("int8", alive(float=664, uint8=1), 0))
    assert first == "  activations are float32 between the quantised ops: 664.00 MiB of 665.00 MiB"
    assert "remat compile --budget" in second


def test_where_little_is_float_nothing_is_said():
    assert few_bits_at_peak("int8", alive(float=1, uint8=9), 0) is None
    assert few_bits_at_peak(None, alive(float=9), 9 * MIB) is None
    assert few_bits_lines(None) == []


def test_a_cause_that_is_no_tensor_of_floats_is_named():
    """An int8 LSTM whose kernel takes four times what it reads and makes; a convolution whose sums are int32."""
    first, second = few_bits_lines(few_bits_at_peak("int8", alive(float=8, uint8=1), 31 * MIB))
    assert "workspace inside the op" in first
    assert "31.00 MiB of 40.00 MiB" in first
    assert "static" not in second
    first, _ = few_bits_lines(few_bits_at_peak("int8", alive(float=3, int32=6), 2 * MIB))
    assert first == "  sums of the quantised ops are int32 until they are scaled: 6.00 MiB of 11.00 MiB"
