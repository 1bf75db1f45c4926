"""What outputs are compared with: the user's untouched file in a session as users open one, never what was made of it.

Exports with an open batch say shapes by ops. With the batch bound the runtime folds them, learns a rank, and fuses a
product with its bias, whose last bits are then others than the user's file gives.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.base.progress import Note, silent
from remat_cli.compiling import prepare as prepare_stage
from remat_cli.compiling.optimise import AS_BOUND
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.settings.settings import load_settings
from tests.end_to_end.exports import FORMS, SIDE, export

pytestmark = pytest.mark.usefixtures("cache")

CHANGED_BY_BINDING = ("tf2onnx_flatten", "keras_reshape", "paddle_flatten", "paddle_pooled", "sklearn_network")


def fed(batch: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(7).standard_normal((batch, 3, SIDE, SIDE)).astype(np.float32)}


def bits_of(path: str | Path, feeds: dict[str, np.ndarray], *, is_exact: bool = False) -> list[bytes]:
    """What a session gives: a default one, or one that runs exactly the file."""
    options = ort.SessionOptions()
    if is_exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_reuse = options.enable_mem_pattern = False
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [found.tobytes() for found in session.run(None, feeds)]


def bound(path: Path, batch: int) -> Path:
    """The same file with its batch bound, as it was once compared with."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, path.with_name("bound.onnx"))
    return path.with_name("bound.onnx")


def compiled(path: Path, budget: str, batch: int, **words: object) -> remat_cli.CompileReport:
    return remat_cli.compile(
        path,
        budget=budget,
        dim={"N": batch},
        output=path.with_name("out.onnx"),
        plan=path.with_name("plan.json"),
        force=True,
        time_limit="2s",
        **{"verify": "fast", **words},
    )


def conditions(tmp_path: Path, batch: int = 1):
    return load_settings({"cache_dir": str(tmp_path / "cache"), "dims": {"N": batch}}).conditions


@pytest.mark.parametrize("form", CHANGED_BY_BINDING)
def test_binding_the_batch_changes_bits_of_these_exports(tmp_path, form):
    """Else the tests below prove nothing."""
    path = export(FORMS[form], tmp_path / "model.onnx")
    assert bits_of(path, fed(1)) != bits_of(bound(path, 1), fed(1))


@pytest.mark.parametrize(
    ("form", "budget"),
    [("tf2onnx_flatten", "60%"), ("sklearn_network", "100%")],
)
def test_a_compiled_export_has_the_bits_of_the_users_file(tmp_path, form, budget):
    path = export(FORMS[form], tmp_path / "model.onnx")
    found = compiled(path, budget, 1)
    assert found.exit_code == 0
    assert bool(found.regions) == (budget == "60%")
    for is_exact in (False, True):
        assert bits_of(found.output, fed(1), is_exact=is_exact) == bits_of(path, fed(1))
    assert found.verification.outputs_identical
    assert found.verification.reference == "the user's file model.onnx, default session, N=1"


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("budget", ["60%", "100%", "min"])
@pytest.mark.parametrize("form", FORMS)
def test_every_export_keeps_the_bits_of_the_users_file(tmp_path, form, budget, batch):
    path = export(FORMS[form], tmp_path / "model.onnx")
    found = compiled(path, budget, batch)
    if found.output is None:
        assert (budget, found.exit_code in (3, 4)) == ("60%", True)
        return
    for is_exact in (False, True):
        assert bits_of(found.output, fed(batch), is_exact=is_exact) == bits_of(path, fed(batch))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tf2onnx_flatten", "sklearn_network"])
@pytest.mark.parametrize("words", [{"plain": True}, {"portable": True}, {"allow_reassociation": True}], ids=str)
def test_other_ways_to_write_a_file_keep_the_bits_too(tmp_path, form, words):
    path = export(FORMS[form], tmp_path / "model.onnx")
    found = compiled(path, "100%", 1, **words)
    assert found.exit_code == 0
    assert bits_of(found.output, fed(1)) == bits_of(path, fed(1))


def test_a_batch_without_a_name_is_kept_open_too(tmp_path):
    path = export(FORMS["tf2onnx_flatten"], tmp_path / "model.onnx", dim=None)
    found = remat_cli.compile(
        path, budget="100%", input_shape={"x": (2, 3, SIDE, SIDE)}, output=tmp_path / "out.onnx", verify="fast"
    )
    assert bits_of(found.output, fed(2)) == bits_of(path, fed(2))
    assert found.verification.reference == f"the user's file model.onnx, default session, x:2,3,{SIDE},{SIDE}"


def test_the_file_still_declares_its_size(tmp_path):
    path = export(FORMS["tf2onnx_flatten"], tmp_path / "model.onnx")
    (declared,) = onnx.load(compiled(path, "100%", 1).output).graph.input
    assert [dim.dim_value for dim in declared.type.tensor_type.shape.dim] == [1, 3, SIDE, SIDE]


def test_a_model_whose_bits_binding_leaves_is_optimised_as_bound(tmp_path):
    path = export(FORMS["torch_view"], tmp_path / "model.onnx")
    found = prepare(path, conditions(tmp_path), tmp_path, silent())
    assert found.optimised_as == AS_BOUND
    assert found.notes == ()


def test_the_user_is_told_that_sizes_stay_open(tmp_path):
    path, told = export(FORMS["tf2onnx_flatten"], tmp_path / "model.onnx"), []
    found = compiled(path, "100%", 1, on_progress=told.append)
    notes = [event.text for event in told if isinstance(event, Note)]
    (note,) = [note for note in notes if "sizes" in note]
    assert note in found.verification.notes


def test_a_second_compile_does_not_take_the_bits_on_trust(tmp_path, monkeypatch):
    """The cache says for which files, sizes and inputs bits were seen to be equal; for others they are compared."""
    path, asked = export(FORMS["torch_view"], tmp_path / "model.onnx"), conditions(tmp_path)
    real, runs = prepare_stage.outputs_of, []
    monkeypatch.setattr(prepare_stage, "outputs_of", lambda *words: (runs.append(words[0].name), real(*words))[1])
    first = prepare(path, asked, tmp_path, silent())
    profile_model(first, asked, silent())
    assert len(runs) == 1
    again = prepare(path, asked, tmp_path, silent())
    assert (len(runs), again.facts.alike) == (1, first.facts.alike)
    other = msgspec.structs.replace(asked, seed=5)
    assert prepare(path, other, tmp_path, silent()).facts.alike != first.facts.alike
    assert len(runs) == 2


def test_sizes_of_a_file_that_leaves_them_open_have_facts_of_their_own(tmp_path):
    path = export(FORMS["tf2onnx_flatten"], tmp_path / "model.onnx")
    digests = []
    for batch in (1, 2, 1):
        asked = conditions(tmp_path, batch)
        found = prepare(path, asked, tmp_path, silent())
        profile_model(found, asked, silent())
        assert found.graph.tensors[0].shape[0] == batch
        digests.append(found.reference_sha256)
    assert digests[0] == digests[2] != digests[1]


def test_a_model_none_of_whose_forms_has_its_bits_is_not_called_identical(tmp_path, monkeypatch):
    path = export(FORMS["tf2onnx_flatten"], tmp_path / "model.onnx")
    monkeypatch.setattr(prepare_stage._Search, "_tried", lambda *_: None)
    found = compiled(path, "100%", 1)
    assert found.exit_code == 5
    assert not found.verification.outputs_identical
    assert found.output is None
    assert any("no form of this model was found" in warning for warning in found.warnings)
    unseen = compiled(path, "100%", 1, verify="off")
    assert any("no form of this model was found" in warning for warning in unseen.warnings)


def test_verify_names_the_file_and_the_session(tmp_path):
    path = export(FORMS["keras_pooled"], tmp_path / "model.onnx")
    found = compiled(path, "100%", 1)
    seen = remat_cli.verify(found.plan, verify="fast").verification
    assert seen.reference == "the user's file model.onnx, default session, N=1"


def test_random_ops_are_compared_with_the_users_file_with_seeds(tmp_path):
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("RandomNormalLike", ["a"], ["r"], name="draw"),
        helper.make_node("Mul", ["a", "r"], ["y"], name="mul"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "random", ports[:1], ports[1:])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = compiled(path, "100%", 4)
    assert found.exit_code == 0
    assert found.verification.reference.startswith("the user's file model.onnx, with seeds for its random ops, ")


def test_ops_of_the_users_file_may_share_names(tmp_path):
    """They are told apart in what remat makes of it; the file itself is run as it is."""
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="op"),
        helper.make_node("Exp", ["a"], ["b"], name="op"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "names", ports[:1], ports[1:], [weight])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert compiled(path, "100%", 4, verify=True).exit_code == 0
