"""A training step parted where gradients meet updates."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

import remat_cli as api
from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.pipelines.write.step_pieces import is_step, split_step, update_model

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits.onnx"


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step.onnx"
    api.train(DIGITS, loss="cross-entropy", optimizer="adam", batch=4, output=path)
    return path


def pieces(path):
    return split_step(load(path, DimBindings()))


def test_gradients_are_outputs_and_updates_are_gone(step):
    found = pieces(step)
    onnx.checker.check_model(found.gradients)
    outputs = [value.name for value in found.gradients.graph.output]
    gradients = {name for group in found.links.groups for name in group.gradients}
    assert outputs[0] == "loss"
    assert set(outputs) == {"loss", *gradients}
    phases = {entry.value for node in found.gradients.graph.node for entry in node.metadata_props}
    assert phases == {"forward", "backward"}


def test_states_are_grouped_with_what_the_optimizer_remembers(step):
    found = pieces(step)
    groups = {frozenset(group.states) for group in found.links.groups}
    assert frozenset({"conv1.weight", "conv1.weight.mean", "conv1.weight.square"}) in groups
    assert found.links.shared == ("step_count",)
    assert found.settings == ("learning_rate",)
    assert not found.links.forward_states


def test_a_slice_updates_what_it_is_asked_for_and_nothing_else(step):
    found = pieces(step)
    model = update_model(found, ("conv1.weight", "step_count"))
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.output] == ["conv1.weight.next", "step_count.next"]
    read = {value.name for value in model.graph.input}
    assert {"conv1.weight", "conv1.weight.mean", "learning_rate", "step_count"} <= read
    assert not any(name.startswith("conv2") for name in read)


def test_a_forward_model_is_no_step(step):
    assert is_step(load(step, DimBindings()).ir)
    assert not is_step(load(DIGITS, DimBindings(batch=1)).ir)


def test_an_update_that_feeds_the_forward_pass_is_refused(tmp_path):
    """What an update makes is read by an op without a phase."""
    mark = onnx.StringStringEntryProto(key="remat.phase", value="update")
    moved = helper.make_node("Neg", ["w"], ["w.next"], "moved")
    moved.metadata_props.append(mark)
    used = helper.make_node("Abs", ["w.next"], ["y"], "used")
    ports = {name: helper.make_tensor_value_info(name, 1, (2,)) for name in ("w", "w.next", "y")}
    graph = helper.make_graph([moved, used], "odd", [ports["w"]], [ports["w.next"], ports["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    helper.set_model_props(model, {"remat.state": '{"w.next": "w"}'})
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="op used reads 'w\\.next', which an update makes"):
        pieces(tmp_path / "odd.onnx")
