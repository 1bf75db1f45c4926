"""Resident memory of loading and running, beside what is known of two small models, and of models made for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.run_count import counting
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.observe import resident
from remat_cli.runtime.observe.resident import (
    ResidentBytes,
    ResidentFigures,
    ResidentJob,
    can_measure_resident,
    measure_resident,
)
from remat_cli.runtime.sessions._ort import Advance, PackedArray, pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings
from tests.helpers import random_feeds
from tests.quick_processes import MEASURE_THEIR_PROCESS
from tests.runtime.models import MIB, save_model, value, weight

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
ONE_THREAD = SessionSettings(exact=False, intra_op_threads=1)
WIDE_BYTES = 16 * MIB
ONE = pack_all({"x": np.ones((1, 1), np.float32)})

needs_figures = pytest.mark.skipif(not can_measure_resident(), reason="this system does not tell resident memory apart")


def sample(name: str) -> tuple[str, tuple[PackedArray, ...]]:
    """A sample model and what to feed it."""
    path = SAMPLES / f"{name}.onnx"
    ports = [(port.name, port.type.tensor_type) for port in onnx.load(path).graph.input]
    specs = [InputSpec(port, "float", tuple(d.dim_value for d in kind.shape.dim)) for port, kind in ports]
    return str(path), pack_all(random_feeds(tuple(specs)))


def wide_model(path: Path) -> str:
    """An output of 16 MiB from an input of one number: all that it needs is its outputs."""
    width = WIDE_BYTES // 4
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    ports = [value("x", TensorProto.FLOAT, [1, 1])], [value("y", TensorProto.FLOAT, [1, width])]
    return str(save_model(path, [node], *ports, [weight("shape", np.array([1, width]))]))


def heavy_model(path: Path, *, beside: bool) -> str:
    """The mean of a weight of 32 MiB times one number, the weight in the file or in one beside it."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("ReduceMean", ["m"], ["y"])]
    ports = [value("x", TensorProto.FLOAT, [1, 1])], [value("y", TensorProto.FLOAT, [1, 1])]
    save_model(path, nodes, *ports, [weight("w", np.ones((1, 8 * MIB), np.float32))])
    if beside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    return str(path)


def measured(model: str, feeds: tuple[PackedArray, ...], **how: int) -> ResidentFigures:
    return run_fresh(measure_resident, ResidentJob(model, feeds, ONE_THREAD, **how))


def about(mebibytes: float, within: float) -> object:
    return pytest.approx(mebibytes * MIB, abs=within * MIB)


@needs_figures
@pytest.mark.parametrize(("name", "first", "later"), [("unet", 26, 52), ("resnet", 8, 17)])
def test_later_runs_hold_twice_what_the_first_one_holds(name, first, later):
    figures = measured(*sample(name))
    loaded = figures.loaded_bytes.anonymous_bytes
    rises = [peak.anonymous_bytes - loaded for peak in figures.run_peak_bytes]
    assert rises == [about(first, 2), about(later, 3), about(later, 3)]
    assert rises[1] - rises[0] > 0.8 * first * MIB
    assert figures.after_bytes.anonymous_bytes - loaded == about(later, 3)  # nothing is given back
    assert about(1, 1) != loaded
    assert 0 < loaded <= figures.load_peak_bytes.anonymous_bytes < 8 * MIB
    assert len(figures.run_seconds) == 3


@needs_figures
def test_two_measurements_agree():
    first, second = (measured(*sample("resnet"), runs=2) for _ in range(2))
    for one, other in zip(first.run_peak_bytes, second.run_peak_bytes, strict=True):
        assert one.total_bytes == pytest.approx(other.total_bytes, abs=MIB)


@needs_figures
@pytest.mark.parametrize(("held", "generations"), [(0, [1, 1, 1]), (1, [1, 2, 2]), (2, [1, 2, 3])])
def test_outputs_that_the_caller_holds_are_there_during_later_runs(tmp_path, held, generations):
    figures = measured(wide_model(tmp_path / "m.onnx"), ONE, held=held)
    loaded = figures.loaded_bytes.anonymous_bytes
    rises = [peak.anonymous_bytes - loaded for peak in figures.run_peak_bytes]
    assert rises == [about(16 * count, 3) for count in generations]


@needs_figures
def test_weights_in_a_file_beside_the_model_are_mapped_and_others_are_not(tmp_path):
    inside = measured(heavy_model(tmp_path / "m.onnx", beside=False), ONE, runs=1)
    assert inside.loaded_bytes.anonymous_bytes >= 31 * MIB
    assert inside.run_peak_bytes[0].mapped_bytes < 4 * MIB
    beside = measured(heavy_model(tmp_path / "m.onnx", beside=True), ONE, runs=1)
    assert beside.loaded_bytes.anonymous_bytes < 4 * MIB
    assert beside.run_peak_bytes[0].mapped_bytes == about(32, 4)
    assert beside.run_peak_bytes[0].anonymous_bytes < inside.run_peak_bytes[0].anonymous_bytes - 20 * MIB


def measure_where_marks_stay(job: ResidentJob, advance: Advance) -> ResidentFigures:
    """As on a system that takes the order to reset the high-water mark, and does nothing."""
    resident.CLEAR_REFS = Path(os.devnull)
    return measure_resident(job, advance)


def measure_where_marks_are_out_of_reach(job: ResidentJob, advance: Advance) -> ResidentFigures:
    """As on a system that refuses it."""
    resident.CLEAR_REFS = Path(os.sep)
    return measure_resident(job, advance)


@needs_figures
@pytest.mark.parametrize("measure", [measure_where_marks_stay, measure_where_marks_are_out_of_reach])
def test_where_no_high_water_mark_can_be_reset_samples_are_taken(measure):
    model, feeds = sample("resnet")
    sampled = run_fresh(measure, ResidentJob(model, feeds, ONE_THREAD, runs=2))
    assert sampled.peak_by == "samples"
    usual = measured(model, feeds, runs=2)
    for one, other in zip(sampled.run_peak_bytes, usual.run_peak_bytes, strict=True):
        assert one.total_bytes == pytest.approx(other.total_bytes, abs=2 * MIB)


@needs_figures
def test_a_refused_model_is_an_error(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(RuntimeFailure, match=r"refuses m\.onnx"):
        measured(str(tmp_path / "m.onnx"), ONE)
    with pytest.raises(RuntimeFailure, match=r"fails to run resnet\.onnx"):
        measured(sample("resnet")[0], ONE)


def test_without_figures_of_the_system_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(resident, "STATUS", tmp_path / "status")
    assert not can_measure_resident()
    (tmp_path / "status").write_text("Name:\tx\nVmRSS:\t 8 kB\nRssAnon:\t 5 kB\nRssFile:\t 2 kB\nRssShmem:\t 1 kB\n")
    assert can_measure_resident()
    assert resident.resident_bytes() == ResidentBytes(5 * 1024, 3 * 1024)
    assert resident.resident_bytes().above(ResidentBytes(6 * 1024, 0)) == ResidentBytes(-1024, 3 * 1024)


@needs_figures
def test_runs_of_the_tiny_model_do_not_count(tmp_path):
    job = ResidentJob(wide_model(tmp_path / "wide.onnx"), ONE, ONE_THREAD, runs=2)
    with counting() as count:
        run_fresh(measure_resident, job)
    assert count.runs == job.runs


def test_what_measures_a_process_gets_a_new_one():
    """A fork of a test's process has its memory: figures of one were 2 MB off, in whole runs of the tests only."""
    measuring = {name for name in vars(resident) if name.startswith("measure_")}
    assert measuring == {"measure_resident", "measure_and_keep"}
    assert measuring <= MEASURE_THEIR_PROCESS


@needs_figures
def test_outputs_of_watched_runs_are_kept_and_what_is_held_is_the_same(tmp_path):
    two = pack_all({"x": np.full((1, 1), 2, np.float32)})
    job = ResidentJob(wide_model(tmp_path / "wide.onnx"), ONE, ONE_THREAD, runs=2, others=(two,))
    figures, outputs = run_fresh(resident.measure_and_keep, job)
    assert [outputs[number]["y"][0, 0] for number in range(2)] == [1, 2]
    kept = (figures, *(run_fresh(resident.measure_and_keep, job)[0] for _ in range(2)))
    plain = [run_fresh(measure_resident, job) for _ in range(3)]
    for number in range(2):  # of three processes each the one that holds least
        one, other = (min(each.run_peak_bytes[number].total_bytes for each in seen) for seen in (kept, plain))
        assert abs(one - other) < MIB, (kept, plain)
    assert figures.run_peak_bytes[1].total_bytes > figures.run_peak_bytes[0].total_bytes + WIDE_BYTES / 2
