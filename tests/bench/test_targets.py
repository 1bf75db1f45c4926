"""Files in other places: what became of them in a word, and the page made of it; in Node and WebAssembly for real."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.targets import BENCH, outcome
from bench.targets_node import PACKAGES, compared, package_row
from bench.targets_page import page

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
ROW = {"model": "net", "processor": "haswell", "budget": "60%", "outcome": "bits", "runtime": "1.32.0"}
SEEN = {"loads": True, "runs": False, "original_runs": True, "message": "an error", "verification": None}


def test_the_committed_page_is_what_the_committed_rows_say_and_nothing_is_wrong():
    assert BENCH.page_path.read_text() == "\n".join(page(BENCH.rows())) + "\n"
    assert "of which 0 are wrong" in BENCH.page_path.read_text()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"verification": {"outputs_identical": True}}, "bits"),
        ({"verification": {"outputs_identical": False}}, "DIFFERENT"),
        ({"original_runs": False}, "the original does not run"),
        ({"loads": False}, "refused at load"),
        ({"message": "Name:'made_for_x86_64_avx512__compile_again'"}, "refused in the first step"),
        ({}, "FAILED LATE"),
    ],
)
def test_what_became_of_a_file_in_a_word(change, word):
    assert outcome({**SEEN, **change}) == word


def test_a_cell_says_what_was_looked_at_and_what_is_not_as_promised():
    looked = {"order": True, "peak_bytes": 5 * MIB, "promised_bytes": 5 * MIB}
    for change, cell, wrong in (
        ({}, "bits", 0),
        (looked, "bits, order, peak", 0),
        ({**looked, "peak_bytes": 6 * MIB}, "bits, **6.0 MiB live for 5.0**", 1),
        ({**looked, "order": False}, "bits, **another order**", 1),
        ({"outcome": "DIFFERENT", "difference": 0.5}, "**different by 5.0e-01**", 1),
        ({"outcome": "DIFFERENT", "difference": 1e-6, "runtime": "1.24.3"}, "different by 1.0e-06", 0),
        ({"outcome": "FAILED LATE"}, "**failed late**", 1),
    ):
        lines = page([{**ROW, **change}])
        assert f"| net | 60% | {cell} |" in lines
        assert any(f"1 cells, of which {wrong} are wrong" in line for line in lines)


def test_a_cell_of_node_has_memory_before_and_after():
    before, after = (
        {"collected_bytes": 50 * MIB, "late_bytes": 60 * MIB},
        {"collected_bytes": 20 * MIB, "late_bytes": 25 * MIB},
    )
    row = {**ROW, "processor": "node", "memory": {"original": before, "file": after}, "held_bytes": 21 * MIB}
    assert "| net | 60% | bits; 50.0 → 20.0 (60.0 → 25.0), 21.0 promised |" in page([row])
    wasm = {"original": {**before, "late_bytes": None}, "file": {**after, "late_bytes": None}}
    assert "| net | 60% | bits; 50.0 → 20.0 |" in page([{**row, "memory": wasm}])
    refused = {**row, "outcome": "refused at load", "memory": {**wasm, "file": None}}
    assert "| net | 60% | refused at load |" in page([refused])


def test_outputs_of_both_are_compared_bit_by_bit(tmp_path):
    def ran(name, values):
        np.array(values, np.float32).tofile(tmp_path / name)
        return {"stage": "done", "outputs": [{"type": "float32", "dims": [2], "file": str(tmp_path / name)}]}

    one, other = ran("a", [1.0, 2.0]), ran("b", [1.0, 2.5])
    assert compared(one, one) == (True, 0.0)
    assert compared(one, other) == (False, 0.25)
    assert compared(one, {"stage": "load"}) == (False, None)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.name)
def test_a_file_without_blocks_has_the_originals_bits_and_takes_less(package, samples):
    if package.missing is not None:
        pytest.skip(f"{package.missing} is not here: make setup-node")
    found = package_row(
        package, ROOT / "sample_models" / "transformer.onnx", samples.compiled("transformer", "60%").output, {}
    )
    assert found["outcome"] == "bits", found
    assert found["difference"] == 0
    before, after = found["memory"]["original"], found["memory"]["file"]
    assert after["collected_bytes"] < before["collected_bytes"] - 3 * MIB


@pytest.mark.parametrize(
    "package", [each for each in PACKAGES if "onnxruntime-web" in each.folder.name], ids=lambda each: each.name
)
def test_a_file_in_blocks_is_refused_in_webassembly_when_it_is_loaded(package, samples):
    if package.missing is not None:
        pytest.skip(f"{package.missing} is not here: make setup-node")
    found = package_row(package, ROOT / "sample_models" / "chain.onnx", samples.compiled("chain", "60%").output, {})
    assert found["outcome"] == "refused at load"
    assert "nchwc" in json.dumps(found["message"])
    assert found["memory"]["file"] is None
