from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings, data_file, needs_data_file, optimize, run_profiled
from tests.runtime.models import save_model, untyped, value, weight

IMAGE = InputSpec("x", "float", (1, 3, 16, 16))


@pytest.fixture
def model(tmp_path):
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    weights = [weight("w", generator.standard_normal((16, 3, 3, 3)).astype(np.float32))]
    return save_model(tmp_path / "m.onnx", nodes, [value("x", TensorProto.FLOAT, IMAGE.shape)], untyped("y"), weights)


def op_types(path):
    return [(node.domain, node.op_type) for node in onnx.load(path, load_external_data=False).graph.node]


@pytest.mark.parametrize("level", ["all", "extended"])
def test_optimised_file_gives_the_bits_of_a_default_session(model, tmp_path, level, capfd):
    optimize(model, tmp_path / "o.onnx", level, 1)
    assert ("", "Relu") not in op_types(tmp_path / "o.onnx")
    assert capfd.readouterr().err == ""
    feeds = make_feeds([IMAGE], 0)
    ours = run_profiled(tmp_path / "o.onnx", feeds, SessionSettings(exact=True, intra_op_threads=1))
    theirs = run_profiled(model, feeds, SessionSettings(exact=False, intra_op_threads=1))
    if level == "all":
        assert ours.outputs["y"].tobytes() == theirs.outputs["y"].tobytes()
    else:
        assert np.allclose(ours.outputs["y"], theirs.outputs["y"], atol=1e-5)
    assert not data_file(tmp_path / "o.onnx").exists()


def test_extended_has_no_layout_of_one_cpu(model, tmp_path):
    optimize(model, tmp_path / "o.onnx", "extended", 0)
    assert all(domain != "com.microsoft.nchwc" for domain, _ in op_types(tmp_path / "o.onnx"))


def test_weights_outside_the_model_stay_outside(model, tmp_path):
    source = tmp_path / "external" / "m.onnx"
    source.parent.mkdir()
    onnx.save(onnx.load(model), source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    target = tmp_path / "elsewhere" / "o.onnx"
    target.parent.mkdir()
    assert needs_data_file(source, target)
    assert not needs_data_file(source, source.with_name("o.onnx"))  # those that stay as they are remain where they are
    assert not needs_data_file(model, target)
    optimize(source, target, "all", 0)
    assert data_file(target).stat().st_size >= 16 * 3 * 3 * 3 * 4
    feeds = make_feeds([IMAGE], 0)
    inside = tmp_path / "inside.onnx"
    optimize(model, inside, "all", 0)
    both = [run_profiled(path, feeds, SessionSettings()).outputs["y"].tobytes() for path in (target, inside)]
    assert both[0] == both[1]


def test_failures_are_one_line(model, tmp_path, capfd):
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    for source, target in (
        (tmp_path / "bad.onnx", tmp_path / "o.onnx"),
        (tmp_path / "none.onnx", tmp_path / "o.onnx"),
        (model, tmp_path / "no" / "such" / "folder" / "o.onnx"),
    ):
        with pytest.raises(RuntimeFailure) as caught:
            optimize(source, target, "all", 0)
        assert "\n" not in str(caught.value)
        assert source.name in str(caught.value)
    assert capfd.readouterr().err == ""
