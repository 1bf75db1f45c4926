"""What `remat examples` copies is what pages name and what a wheel brings."""

from __future__ import annotations

import tomllib

import pytest

import remat_cli
from remat_cli.base.errors import ConfigError
from remat_cli.cli import main
from remat_cli.commands.examples import SHARED, copy_examples, shared_files, shared_root
from tests.docs_text import ROOT, page


def test_a_checkout_shares_what_a_wheel_brings():
    wheel = tomllib.loads(page("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(wheel["include"]) == sorted(["/remat_cli", *(f"/{pattern}" for pattern in SHARED)])
    assert all(place == f"remat_cli/share/{folder}" for folder, place in wheel["sources"].items())
    assert all(any(pattern.startswith(folder) for folder in wheel["sources"]) for pattern in SHARED)
    assert shared_root() == ROOT


def test_they_are_copied_once_and_kept_where_they_are_the_same(tmp_path, capsys):
    report = copy_examples(tmp_path)
    assert report.written == len(report.files) == len(list(shared_files(ROOT))) > 40
    for name in ("sample_models/unet.onnx", "configs/devices/cpu.yaml", "bench/instances/gpt_3_layers_train.json"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert main(["examples", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"0 files written into {tmp_path}, {report.written} were there already" in said
    assert f"begin with: remat compile {tmp_path}/sample_models/unet.onnx --budget 80%" in said


def test_another_file_is_overwritten_by_force_only(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "digits.onnx").write_text("mine")
    with pytest.raises(ConfigError, match=r"digits\.onnx exists and is another file: add --force"):
        copy_examples(tmp_path)
    assert not (tmp_path / "sample_models").exists()
    assert remat_cli.examples(tmp_path, force=True).written > 40
    assert (tmp_path / "examples" / "digits.onnx").read_bytes() == (ROOT / "examples" / "digits.onnx").read_bytes()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["examples", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_somebody_made_in_a_checkout_stays_there(tmp_path):
    (tmp_path / "sample_models").mkdir()
    for name in ("unet.onnx", "unet.remat.onnx"):
        (tmp_path / "sample_models" / name).write_text("")
    assert [path.name for path in shared_files(tmp_path)] == ["unet.onnx"]
