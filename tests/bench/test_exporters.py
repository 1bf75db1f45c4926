"""The bench of exporters: sizes under the names of files, models that fail leave none, pages say what rows give."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.compiling import ROOT
from bench.drawn.compiled import run_both
from bench.drawn.drawn import Feed, Range
from bench.exporters import recipe as recipes
from bench.exporters.measure import measured
from bench.exporters.recipe import Exported, Recipe
from bench.exporters.report import ASKS, FIRST, ONE, RANGES, is_kept, line, table


def written(path, dims=(None, "None", "h"), op="Relu"):
    """A file with an op on an input of these dimensions."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def recipe(**changed):
    """A model with three open sizes."""
    sizes = {"batch": Range(1, 4), "rows": Range(8, 64, 8), "height": Range(2, 8)}
    words = {"name": "m", "exporter": "numpy", "shows": "an op", "write": written, "ranges": sizes}
    return Recipe(**(words | {"feeds": {"given": Feed(("batch", "rows", "height"))}} | changed))


@pytest.fixture
def exports(tmp_path, monkeypatch):
    def run(*made, words=()):
        monkeypatch.setattr(sys, "argv", ["program", str(tmp_path), *words])
        recipes.export(made)
        return tmp_path

    return run


def test_sizes_have_the_names_that_the_file_gives_them(exports):
    model = Exported.read(exports(recipe()) / "m.onnx")
    assert model.exporter == f"numpy {np.__version__}"
    assert model.dims({"batch": 2, "rows": Range(8, 64, 8), "height": 3}) == ["x_dim_0=2", "x_dim_1=8..64:8", "h=3"]
    assert model.drawn.feeds_at({"batch": 1, "rows": 8, "height": 2}, 0)["x"].shape == (1, 8, 2)


def test_what_fails_is_told_and_leaves_no_file(exports, capsys):
    fails = recipe(name="fails", write=lambda path: path.write_bytes(b"") and 1 / 0)
    fixed = recipe(name="fixed", write=lambda path: written(path, dims=(1, None, None)))
    folder = exports(fails, fixed, recipe())
    assert sorted(each.name for each in folder.iterdir()) == ["m.json", "m.onnx"]
    assert "fixed its axis 0, 'batch' of the recipe" in capsys.readouterr().out


def test_only_what_is_named_is_written(exports):
    folder = exports(recipe(), recipe(name="other"), words=["other"])
    assert sorted(each.name for each in folder.iterdir()) == ["other.json", "other.onnx"]


def test_text_is_drawn_for_inputs_of_text():
    drawn = Feed(("rows", 2), "text", np.str_).drawn({"rows": 3}, np.random.default_rng(0))
    assert drawn.shape == (3, 2)
    assert drawn.dtype == object
    assert all(isinstance(each, str) for each in drawn.ravel())


def test_bits_and_peaks_are_compared_at_sizes_in_turn(exports):
    model = Exported.read(
        exports(recipe(), recipe(name="other", write=lambda path: written(path, op="Neg"))) / "m.onnx"
    )
    turns = [{"batch": 2, "rows": 8, "height": 3}, {"batch": 1, "rows": 8, "height": 2}]
    assert run_both(model.path, model.path, model.drawn, turns, 10**6) == {"wrong_bits": [], "above_promise": []}
    turns = [{"batch": 2, "rows": 800, "height": 3}, *turns]
    found = run_both(model.path, model.path.with_name("other.onnx"), model.drawn, turns, 1)
    assert found["wrong_bits"][0] == "batch=2, rows=800, height=3"
    assert len(found["wrong_bits"]) == 3
    (above,) = found["above_promise"]
    assert above.startswith("batch=2, rows=800, height=3 (")
    assert above.endswith(" of 1 bytes)")


def test_a_model_that_cannot_do_with_less_has_a_row_that_says_so(exports):
    (row,) = measured(exports(recipe()) / "m.onnx", [("m", ONE)], "2s")
    assert row["exit_code"] in {3, 4}
    assert row["opset"] == 13
    assert row["flags"][:2] == ["--budget", "60%"]
    assert "h=8" in row["flags"]
    assert not is_kept(row)


def row(**changed):
    """A model that compiled and kept all."""
    kept = {"model": "m", "ask": RANGES, "exporter": "tf2onnx 1.17", "shows": "attention", "opset": 14, "exit_code": 0}
    kept |= {"wrong_bits": [], "above_promise": [], "broken": [], "promised_bytes": 50, "original_bytes": 100}
    return kept | {"overhead_percent": 3.0, "reason": "", "seconds": 9.0} | changed


def test_the_page_counts_what_kept_all_and_tells_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(type(FIRST), "rows", lambda _self: [row(exit_code=4, promised_bytes=None)])
    rows = [row(), row(model="n", exit_code=4, promised_bytes=None, reason="too large", opset=None)]
    rows += [row(model="o", ask=ONE, exporter="keras 3", broken=["later_runs"])]
    text = "\n".join(table(rows))
    assert "- 3 models of 2 exporters: keras, tf2onnx" in text
    assert "- ranges at 60%: 1 of 2 compiled and kept all; at first 0 of 1; 1 no plan found" in text
    assert "- broken: 1 rows" in text
    assert "| tf2onnx 1.17 | m | attention | 14 |  | 50 %, +3 % time |  | ranges: no plan found |" in text
    assert "| keras 3 | o | attention | 14 | 50 %, +3 % time, BROKEN |  |  |  |" in text
    assert "- n, ranges: no plan found; too large" in text
    assert "- o, one size: compiled; later_runs not kept" in text
    assert line(row()) == "m, ranges: compiled; 50 %, 9.0 s"


def test_every_environment_is_set_up_by_make_and_exports():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folder = ROOT / "bench" / "exporters"
    environments = sorted(each.stem for each in (folder / "environments").glob("*.txt"))
    (named,) = (each for each in makefile.splitlines() if each.strip().startswith("for name in tensorflow"))
    assert sorted(named.split(" in ")[1].split(";")[0].split()) == environments
    for made_by in (folder / "made_by").glob("from_*.py"):
        assert f"/{made_by.stem.removeprefix('from_')}" in makefile
    assert list(ASKS.values()) == ["60%", "60%", "min"]
