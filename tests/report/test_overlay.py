"""Node data for model-explorer: a value for each node of a file, by the names that it gives nodes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from remat_cli.cli import main
from remat_cli.report.pictures.overlay import model_rows, overlay_files, plan_rows
from tests.report import samples

CHAIN = Path(__file__).resolve().parents[2] / "sample_models" / "chain.onnx"


def values(data: bytes, graph: str) -> dict[str, float]:
    """What a file says by node, in the one form that model-explorer reads."""
    found = json.loads(data)
    assert list(found) == [graph]
    assert found[graph].keys() == {"results", "name", "gradient"}
    assert [each["stop"] for each in found[graph]["gradient"]] == [0.0, 1.0]
    assert all(one.keys() == {"value"} for one in found[graph]["results"].values())
    return {node: one["value"] for node, one in found[graph]["results"].items()}


def test_nodes_of_a_plan_have_what_is_held_while_they_run():
    plan = samples.plan_file()
    files = overlay_files("g", plan_rows(plan, "body/"))
    live = values(files["live"], "g")
    assert list(live) == list(plan.promise.order)
    assert max(live.values()) == round(max(plan.promise.memory_bytes) / 2**20, 4)
    assert list(values(files["repeats"], "g").values()) == [1]  # one op runs again, once
    assert sum(values(files["time"], "g").values()) == pytest.approx(plan.solved.time_ns / 1e6)


def test_nodes_that_became_one_op_have_its_figures():
    rows = model_rows(samples.problem(), samples.graph(), {"grow": ("conv", "relu")})
    assert [row.node for row in rows] == ["conv", "relu"]
    assert rows[0].live_bytes == rows[1].live_bytes > 0


def test_inspect_writes_a_file_for_each_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    model = onnx.load(CHAIN)
    words = ["inspect", str(CHAIN), "--overlay", str(tmp_path / "chain.json"), "-q"]
    assert main(words) == 0
    live = values((tmp_path / "chain.live.json").read_bytes(), model.graph.name)
    assert live.keys() <= {node.name for node in model.graph.node}
    assert len(live) > 0.9 * len(model.graph.node)
    assert {path.name for path in tmp_path.glob("chain.*.json")} == {
        f"chain.{what}.json" for what in ("live", "time", "repeats")
    }
    capsys.readouterr()
    assert main(words) == 2  # without --force
    assert "--force" in capsys.readouterr().err


def test_model_explorer_takes_them():
    explorer = pytest.importorskip("model_explorer")
    files = overlay_files("g", plan_rows(samples.plan_file(), ""))
    for what, data in files.items():
        read = json.loads(data)["g"]
        built = explorer.node_data_builder.GraphNodeData(
            results={node: explorer.node_data_builder.NodeDataResult(**one) for node, one in read["results"].items()},
            name=read["name"],
            gradient=[explorer.node_data_builder.GradientItem(**each) for each in read["gradient"]],
        )
        again = json.loads(explorer.node_data_builder.ModelNodeData({"g": built}).to_json_string())["g"]
        assert {key: again[key] for key in read} == read, what


def test_the_adapter_for_onnx_calls_nodes_as_the_overlay_does(tmp_path, monkeypatch):
    adapters = pytest.importorskip("model_explorer_onnx.main")
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["inspect", str(CHAIN), "--overlay", str(tmp_path / "seen.json"), "--quiet"]) == 0
    (graph,) = json.loads((tmp_path / "seen.live.json").read_text()).values()
    drawn = {node.id for part in adapters.ONNXAdapter().convert(str(CHAIN), {})["graphs"] for node in part.nodes}
    assert graph["results"]
    assert graph["results"].keys() <= drawn
