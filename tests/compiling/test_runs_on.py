"""Plans and their sessions on another kind of processor than the one they were made on."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from remat_cli.cli import main
from remat_cli.onnx_io.write.processor_guard import guard_in
from tests.small_cnn import small_cnn

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, cache: None) -> Path:
    """A plan for two devices, whose sessions remat opens itself."""
    folder = tmp_path_factory.mktemp("plan")
    onnx.save(small_cnn(), folder / "small.onnx")
    command = ["compile", str(folder / "small.onnx"), "--budget", "100%", "--time-limit", "2s", "--no-verify"]
    devices = ["--device", "cpu", "--device", "cpu:1threads"]
    assert main([*command, *devices, "-o", str(folder / "two.onnx"), "--plan", str(folder / "two.json")]) == 0
    if json.loads((folder / "two.json").read_text())["runs_on"]["layout_block"] is None:
        pytest.skip("the runtime has no blocked layout on this processor")
    return folder / "two.json"


def test_a_plan_for_several_devices_is_run_where_it_was_made(plan, capsys):
    assert main(["run", str(plan)]) == 0
    told = json.loads(plan.read_text())["runs_on"]
    assert told["is_guarded"]
    assert guard_in(ir.load(plan.with_suffix(".onnx"))).block == told["layout_block"]


def test_its_sessions_are_not_opened_where_blocks_are_of_another_size(plan, capsys):
    changed = json.loads(plan.read_text())
    block = changed["runs_on"]["layout_block"]
    changed["runs_on"] |= {"layout_block": 24 - block, "processor": "x86-64 of another kind"}
    other = plan.with_name("other.json")
    other.write_text(json.dumps(changed))
    capsys.readouterr()
    assert main(["run", str(other)]) == 2
    refusal = capsys.readouterr().err
    assert "the plan was made for x86-64 of another kind" in refusal
    assert f"this processor has blocks of {block}: compile again here" in refusal


def test_a_plan_of_an_older_version_says_nothing_and_is_run(plan):
    changed = json.loads(plan.read_text())
    del changed["runs_on"]
    older = plan.with_name("older.json")
    older.write_text(json.dumps(changed))
    assert main(["run", str(older)]) == 0
