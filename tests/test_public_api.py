"""The names that scripts may rely on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import remat_cli


@pytest.mark.parametrize("name", remat_cli.__all__)
def test_every_public_name_is_there(name):
    assert getattr(remat_cli, name) is not None


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = remat_cli.nonsense


def test_importing_the_package_loads_nothing_heavy():
    script = "import remat_cli, sys; assert not {'numpy', 'onnx', 'msgspec', 'onnxruntime'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
