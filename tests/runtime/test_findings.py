"""Whose fault it is that a device is lost while ops are measured, without one."""

from __future__ import annotations

import pytest

from remat_cli.base.errors import DeviceLost, RuntimeFailure
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.runtime.measure.findings import Losing, OpFinding
from remat_cli.runtime.sessions._ort import runtime_errors
from remat_cli.runtime.sessions.error_text import one_line

LOST, CRASHED = DeviceLost("gone"), RuntimeFailure("killed by signal 11")
A, B = OpFinding("a", reason="it crashed"), OpFinding("b", reason="it crashed")


def test_a_crash_is_the_op_that_ran():
    kept = []
    assert Losing(kept.append).blames(A, CRASHED, "webgpu:0")
    assert kept == [A]


def test_an_op_with_which_the_device_is_lost_once_is_tried_again():
    kept = []
    losing = Losing(kept.append)
    assert not losing.blames(A, LOST, "webgpu:0")
    losing.is_back(3)
    assert not losing.blames(B, LOST, "webgpu:0")
    assert kept == []


def test_an_op_with_which_the_device_is_lost_twice_is_given_up_once_another_runs():
    kept = []
    losing = Losing(kept.append)
    assert [losing.blames(A, LOST, "webgpu:0") for _ in range(2)] == [False, True]
    assert kept == []
    losing.is_back(1)
    losing.is_back(1)
    assert kept == [A]


def test_a_device_that_does_not_come_back_is_no_fault_of_ops():
    kept = []
    losing = Losing(kept.append)
    assert [losing.blames(A, LOST, "webgpu:0") for _ in range(2)] == [False, True]
    with pytest.raises(DeviceLost, match=r"^device 'webgpu:0' fails at every op: gone$"):
        losing.blames(B, LOST, "webgpu:0")
    assert kept == []


@pytest.mark.parametrize("fault", PROVIDERS["webgpu"].faults)
def test_faults_of_a_device_are_told_in_plain_words(fault):
    error = RuntimeError(f"/onnxruntime_src/x.cc:641 status was false. {fault.sign}.\nmore")
    assert one_line(error) == fault.words
    with pytest.raises(RuntimeFailure) as raised, runtime_errors("fetching 'y' failed"):
        raise error
    assert str(raised.value) == f"fetching 'y' failed: {fault.words}"
    assert isinstance(raised.value, DeviceLost) == fault.is_lost
