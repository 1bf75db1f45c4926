"""The largest tensor of a device: from its record or as the user says, and what then runs elsewhere."""

from __future__ import annotations

import pytest

from remat_cli.base.progress import silent
from remat_cli.base.units import format_bytes
from remat_cli.commands.asked import request_of
from remat_cli.compiling.placed.limits import cap_of, limits_of, within_limits
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.ways import way_asked
from remat_cli.core.schedule.graph import TensorType, size_bytes
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.settings.settings import load_settings
from tests.compiling.placed_plans import prepared_model
from tests.helpers import NOWHERE
from tests.webgpu.nets import write_skips

KIB = 2**10
BOTH = ["cpu", "webgpu:0"]


def asked(tmp_path, devices, **more):
    words = {"cache_dir": str(tmp_path / "cache"), "devices": devices, "quiet": True, "budget": "100%", **more}
    settings = load_settings(words)
    return request_of(settings, settings.compile_scope)


def test_the_record_says_the_largest_tensor_unless_the_user_does(tmp_path):
    assert limits_of(asked(tmp_path, BOTH)) == {"webgpu:0": 128 * 2**20}
    assert limits_of(asked(tmp_path, BOTH, max_tensor="1GiB")) == {"webgpu:0": 2**30}
    assert PROVIDERS["webgpu"].largest_tensor_bytes == 128 * 2**20


@pytest.mark.parametrize("devices", [["cpu"], ["cuda:0"], ["cpu", "cuda:0"]])
def test_devices_without_a_limit_have_none(tmp_path, devices):
    assert limits_of(asked(tmp_path, devices)) == {}
    assert cap_of(asked(tmp_path, devices)) is None


def test_a_cap_alone_is_one_of_plans_that_say_where_ops_run_too(tmp_path):
    assert cap_of(asked(tmp_path, ["cpu:1threads", "cpu:2threads"], max_tensor="16KiB")) == 16 * KIB


@pytest.fixture
def prepared(tmp_path):
    (tmp_path / "work").mkdir()
    return prepared_model(write_skips(tmp_path / "m.onnx"), tmp_path / "work")


def test_ops_with_larger_tensors_run_on_other_devices(prepared):
    graph = prepared.graph
    sizes = [size_bytes(TensorType(tensor.dtype, tensor.shape)) for tensor in graph.tensors]
    largest = max(sizes)
    costs = tuple(OpCost(op.name, 1000) for op in graph.ops)
    profile = Profile("webgpu:0", "", NOWHERE, costs, graph.weight_bytes, graph.input_bytes, memory="webgpu:0")
    platform = Platform(graph, (), (profile,))
    assert within_limits(platform, {"webgpu:0": largest}).profile == profile
    assert within_limits(platform, {"another": KIB}).profile == profile
    limited = within_limits(platform, {"webgpu:0": largest - 1}).profile
    touching = [op.name for op in graph.ops if largest in {sizes[t] for t in (*op.inputs, *op.outputs)}]
    assert [op.name for op in limited.unsupported] == touching
    assert [op.name for op in limited.ops] == [op.name for op in graph.ops if op.name not in touching]
    assert f"of {format_bytes(largest)} is above its largest of " in limited.unsupported[0].reason


def test_one_cpu_is_left_to_its_own_splitter(prepared, tmp_path):
    request = asked(tmp_path, ["cpu"], max_tensor="1KiB")
    subject = way_asked(request.conditions).subject(prepared, request, tmp_path, silent())
    assert subject.prepared is prepared
    assert subject.splitting is None
