from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from sample_models.make_models import MODELS, write_models

FOLDER = Path(__file__).parents[2] / "sample_models"
SIZE_LIMIT = 1_000_000

Array = np.ndarray[Any, np.dtype[np.float32]]
Run = Callable[[Array], list[Array]]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rebuilt")
    write_models(folder)
    return folder


@pytest.fixture(params=MODELS)
def path(request: pytest.FixtureRequest) -> Path:
    return FOLDER / f"{request.param}.onnx"


def random_input(model: onnx.ModelProto, seed: int) -> Array:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def runner(model: onnx.ModelProto) -> Run:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda values: session.run(None, {name: values})


def test_every_file_has_its_recipe() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(MODELS)


def test_rebuilding_gives_the_same_bytes(path: Path, rebuilt: Path) -> None:
    assert (rebuilt / path.name).read_bytes() == path.read_bytes()


def test_file_is_small(path: Path) -> None:
    assert path.stat().st_size < SIZE_LIMIT


def test_model_is_valid_with_static_shapes(path: Path) -> None:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    assert all(dim.dim_value > 0 for dim in dims)
    made = {name for node in model.graph.node for name in node.output}
    assert made <= {value.name for value in values}


def test_names_are_unique_and_every_weight_is_used(path: Path) -> None:
    graph = onnx.load(path).graph
    names = [node.name for node in graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read


def test_outputs_vary_and_react_to_the_input(path: Path) -> None:
    model = onnx.load(path)
    run = runner(model)
    first, again, other = (run(random_input(model, seed)) for seed in (0, 0, 1))
    for output, same, different in zip(first, again, other, strict=True):
        assert np.isfinite(output).all()
        assert output.std() > 1e-3
        assert np.abs(output - different).max() > 1e-3
        np.testing.assert_array_equal(output, same)


def test_detector_reads_one_of_its_outputs_again() -> None:
    graph = onnx.load(FOLDER / "detector.onnx").graph
    read = {name for node in graph.node for name in node.input}
    assert [value.name for value in graph.output if value.name in read] == ["features"]
