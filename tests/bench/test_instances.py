from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.gpt import gpt
from bench.instances import main
from bench.layered import Shape, layered
from bench.networks import NETWORKS
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.simulate import baseline

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "instances"
DRAFTS = {
    "layered": lambda: layered("layered", Shape(300), 3),
    "layered_local": lambda: layered("layered_local", Shape(1200, 30), 3),
    "gpt": lambda: gpt("gpt", 4),
    **NETWORKS,
}


@pytest.fixture(params=DRAFTS)
def draft(request):
    return DRAFTS[request.param]


def check(path: Path) -> dict[str, object]:
    """What every reader of the format takes for granted."""
    values = json.loads(path.read_text())
    assert values["name"] == path.stem
    assert (len(values["nodes"]), len(values["edges"])) == (values["n"], values["m"])
    assert all(one < other for one, other in values["edges"])
    assert len({tuple(edge) for edge in values["edges"]}) == values["m"]
    assert all(node["memory"] > 0 and node["cost"] >= 0 for node in values["nodes"])
    problem = instance_problem(load_instance(path))
    assert baseline(problem).peak == values["peak_no_remat"] >= values["working_set_lower_bound"]
    assert problem.baseline_time_ns == values["cost_no_remat"] > 0
    assert all(share * values["peak_no_remat"] >= values["working_set_lower_bound"] for share in values["budgets"])
    return values


def test_drafts_are_legal_and_the_same_every_time(draft, tmp_path):
    path = draft().write(tmp_path)
    check(path)
    first = path.read_bytes()
    assert draft().write(tmp_path).read_bytes() == first


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_instances_are_legal(path):
    values = check(path)
    assert values["working_set_lower_bound"] < values["peak_no_remat"]


@pytest.mark.parametrize("kind", ["small", "networks"])
def test_committed_instances_are_what_the_command_makes(kind, tmp_path):
    assert CliRunner().invoke(main, [kind, "--out", str(tmp_path)]).exit_code == 0
    made = sorted(tmp_path.iterdir())
    assert made
    for path in made:
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


def test_layered_graphs_look_like_the_published_ones():
    draft = layered("g", Shape(1000), 1)
    assert len(draft.edges) == 5900
    inputs = [op for _, op in draft.edges]
    readers = [op for op, _ in draft.edges]
    assert set(range(1000)) - set(inputs) == {0}  # one source
    assert set(range(1000)) - set(readers) == {999}  # one target
    assert draft.nodes[0].cost == draft.nodes[999].cost == 0
    assert layered("g", Shape(1000), 2).edges != draft.edges


def test_gpt_gradients_read_forward_values():
    draft = gpt("g", 2)
    assert len(draft.nodes) == 2 * 33 + 10
    names = [node.name for node in draft.nodes]
    reads = {name: {names[one] for one, other in draft.edges if names[other] == name} for name in names}
    assert reads["h1.gelu.grad"] == {"h1.fc1", "h1.fc2.grad"}
    assert reads["h1.softmax.grad"] == {"h1.softmax", "h1.attended.grad"}
    assert reads["h0.add2.grad"] == {"h1.add1.grad", "h0.norm2.grad"}
    assert reads["h0.norm1.grad_weight"] == {"embed", "h0.qkv.grad"}
    first_backward = names.index("loss.grad")
    assert [node.backward for node in draft.nodes] == [op >= first_backward for op in range(len(names))]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_leave_something_to_plan(name):
    draft = NETWORKS[name]()
    problem = instance_problem(draft.instance())
    assert 99 <= len(problem.ops) <= 127
    largest = max(node.memory for node in draft.nodes)
    assert baseline(problem).peak > 2 * largest


def test_extracted_models(tmp_path, monkeypatch):
    from bench.extract import extract

    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    draft = extract("small", FOLDER.parents[1] / "sample_models" / "unet.onnx")
    check(draft.write(tmp_path))
    kept = draft.nodes[-1]
    assert (kept.name, kept.cost, kept.memory) == ("outputs_are_kept", 0, 1)
    assert (
        json.loads((FOLDER / "sample_unet.json").read_text())["peak_no_remat"]
        == baseline(instance_problem(draft.instance())).peak
    )
