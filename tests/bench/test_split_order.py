from __future__ import annotations

import numpy as np
import onnx
import pytest

from bench.split_order import outputs_of, prepared, residual, split_after, split_before, unfused
from remat_cli.settings.settings import load_settings

TILES = (2, 5)


@pytest.fixture
def config(tmp_path):
    return load_settings({"intra_op_threads": 1, "cache_dir": str(tmp_path / "cache")})


@pytest.fixture
def whole(tmp_path, config):
    return prepared(residual(), tmp_path / "whole", config)


@pytest.mark.parametrize("tiles", TILES)
def test_both_ways_compute_the_block(tiles, whole, config, tmp_path):
    expected = outputs_of(whole)["y"]
    before = prepared(split_before(residual(), tiles), tmp_path / "before", config)
    np.testing.assert_allclose(outputs_of(before)["y"], expected, rtol=1e-3, atol=1e-4)
    after = prepared(split_after(whole, tiles, config, tmp_path / "whole"), tmp_path / "after", config)
    assert outputs_of(after)["y"].tobytes() == expected.tobytes()
    assert sum(op.op_type == "Concat" for op in after.graph.ops) == 1


def test_unfused_block_is_the_same_block_with_one_more_output():
    one, other = residual(), unfused()
    onnx.checker.check_model(other, full_check=True)
    assert [node.op_type for node in one.graph.node] == [node.op_type for node in other.graph.node]
    assert [output.name for output in other.graph.output[:-1]] == [output.name for output in one.graph.output]
