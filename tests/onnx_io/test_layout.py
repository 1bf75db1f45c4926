"""How many channels the blocked layout keeps together is read from an optimised convolution."""

from __future__ import annotations

from remat_cli.onnx_io.read.layout import block_of_probe, layout_probe, uses_blocks
from tests.helpers import optimise


def test_the_probe_tells_the_block(tmp_path):
    probe = layout_probe()
    assert not uses_blocks(probe)
    assert block_of_probe(probe) == 1
    optimised = optimise(probe, tmp_path)
    assert block_of_probe(optimised) == (1 if not uses_blocks(optimised) else block_of_probe(optimised))
    assert uses_blocks(optimised) == (block_of_probe(optimised) in (8, 16))
