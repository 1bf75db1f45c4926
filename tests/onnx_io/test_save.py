"""Writing models: with their data or without, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import sha256
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.write.save import DATA_FILE_BYTES, data_path, save, wants_data_file
from tests.helpers import run_profiled
from tests.onnx_io.graphs import model_of

ROWS = 40
OLD_STYLE = "out.onnx.0123abcd.data"


def weights_of(seed: int, count: int = 2) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    large = {f"w{i}": generator.standard_normal((ROWS, ROWS)).astype(np.float32) for i in range(count)}
    return {**large, "b": generator.standard_normal(ROWS).astype(np.float32)}


def model(seed: int = 0) -> ir.Model:
    """Two weights of 6400 bytes, one of 160."""
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b"], ["a"], "A"),
        helper.make_node("MatMul", ["a", "w1"], ["y"], "B"),
    ]
    return ir.from_proto(model_of(nodes, {"x": (2, ROWS)}, ["y"], weights_of(seed)))


def branching(seed: int = 0) -> ir.Model:
    """A weight outside, and one in a branch that reads both."""
    weights = weights_of(seed)
    inner = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w0"], ["i"], "I"), helper.make_node("Gemm", ["i", "w1"], ["t"], "T")],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, (2, ROWS))],
        [numpy_helper.from_array(weights["w1"], "w1")],
    )
    other = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w0"], ["e"], "E")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, (2, ROWS))],
    )
    nodes = [
        helper.make_node("Size", ["x"], ["n"], "N"),
        helper.make_node("Greater", ["n", "least"], ["c"], "C"),
        helper.make_node("If", ["c"], ["y"], "F", then_branch=inner, else_branch=other),
    ]
    outer = {"w0": weights["w0"], "least": np.array(-1)}
    proto = model_of(nodes, {"x": (2, ROWS)}, ["y"], outer)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, ROWS)))
    return ir.from_proto(proto)


def loaded(path: Path) -> ir.Model:
    return load(path, DimBindings()).ir


def assert_holds(path: Path, seed: int) -> None:
    """The file at `path` has the weights of that seed."""
    found = {w.name: numpy_helper.to_array(w) for w in onnx.load(path).graph.initializer}
    assert all(np.array_equal(found[name], weight) for name, weight in weights_of(seed).items())


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.onnx"


def test_weights_are_inside_unless_asked(target):
    save(model(), target)
    assert contents(target.parent).keys() == {"out.onnx"}
    assert_holds(target, 0)


def test_weights_go_to_a_file_beside(target):
    save(model(), target, external=True)
    assert contents(target.parent).keys() == {"out.onnx", "out.onnx.data"}
    assert data_path(target).name == "out.onnx.data"
    assert_holds(target, 0)
    proto = onnx.load(target, load_external_data=False)
    tensors = {w.name: {e.key: e.value for e in w.external_data} for w in proto.graph.initializer}
    assert tensors["b"] == {}
    assert [int(tensors[name]["offset"]) for name in ("w0", "w1")] == [0, 8192]
    digest = hashlib.sha1(data_path(target).read_bytes()).hexdigest()
    assert tensors["w0"] == {"location": "out.onnx.data", "offset": "0", "length": "6400", "checksum": digest}


def test_work_files_say_no_checksum_unless_protobuf_could_not_hold_them(target, monkeypatch):
    """Hashing takes as long as writing; where weights cannot be hashed with the model its file has to tell them."""
    save(model(0), target, external=True, outlasts=False)
    assert b"checksum" not in target.read_bytes()
    assert_holds(target, 0)
    monkeypatch.setattr("remat_cli.onnx_io.write.save.INLINE_LIMIT_BYTES", 12_799)
    save(model(0), target, external=True, outlasts=False)
    first = sha256(target)
    save(model(1), target, external=True, outlasts=False)
    assert first != sha256(target)


def test_the_runtime_takes_both(target):
    feeds = {"x": np.ones((2, ROWS), np.float32)}
    save(model(), target)
    expected = run_profiled(target, feeds, exact=False)[1][0]
    save(model(), target, external=True)
    assert np.array_equal(run_profiled(target, feeds, exact=False)[1][0], expected)


def test_models_of_other_weights_are_other_files(target):
    """Plans and caches know a model by the hash of its file."""
    save(model(0), target, external=True)
    first = sha256(target)
    save(model(1), target, external=True)
    second = sha256(target)
    save(model(0), target, external=True)
    assert first != second
    assert sha256(target) == first


def test_weights_that_protobuf_cannot_hold_go_outside_anyway(target, monkeypatch):
    monkeypatch.setattr("remat_cli.onnx_io.write.save.INLINE_LIMIT_BYTES", 12_799)
    save(model(), target)
    assert data_path(target).is_file()
    monkeypatch.setattr("remat_cli.onnx_io.write.save.INLINE_LIMIT_BYTES", 12_800)
    save(model(), target)
    assert not data_path(target).exists()


def test_a_model_without_large_weights_has_no_data_file(target):
    small = model_of([helper.make_node("Add", ["x", "b"], ["y"], "A")], {"x": (2, ROWS)}, ["y"], weights_of(0, 0))
    save(ir.from_proto(small), target, external=True)
    assert contents(target.parent).keys() == {"out.onnx"}


def test_a_data_file_is_wanted_where_it_saves_a_copy():
    def of_bytes(size: int) -> ir.Model:
        proto = model_of([helper.make_node("Add", ["x", "w"], ["y"], "A")], {"x": (1,)}, ["y"], {"w": np.zeros(1)})
        large = ir.from_proto(proto)
        large.graph.initializers["w"].const_value = ir.tensor(np.zeros(size, np.int8), name="w")
        return large

    assert wants_data_file(of_bytes(DATA_FILE_BYTES))
    assert not wants_data_file(of_bytes(DATA_FILE_BYTES - 1))


def test_equal_data_is_left_alone(target):
    save(model(), target, external=True)
    before = os.stat(data_path(target))
    first = target.read_bytes()
    save(loaded(target), target, external=True)
    after = os.stat(data_path(target))
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert target.read_bytes() == first


def test_small_external_weights_go_along_when_the_model_is_saved_elsewhere(tmp_path):
    proto = ir.to_proto(model())
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    for external in (False, True):
        folder = tmp_path / f"elsewhere{external}"
        folder.mkdir()
        save(loaded(tmp_path / "model.onnx"), folder / "copy.onnx", external=external)
        assert_holds(folder / "copy.onnx", 0)


def test_weights_in_branches(target):
    feeds = {"x": np.ones((2, ROWS), np.float32)}
    expected = (feeds["x"] @ weights_of(0)["w0"]) @ weights_of(0)["w1"]
    save(branching(), target, external=True)
    assert target.stat().st_size < 6400
    assert target.read_bytes().count(b"checksum") == 2
    assert np.allclose(run_profiled(target, feeds, exact=False)[1][0], expected)
    elsewhere = target.with_name("copy.onnx")
    for external in (True, False):
        save(loaded(target), elsewhere, external=external)
        assert data_path(elsewhere).exists() is external
        assert np.allclose(run_profiled(elsewhere, feeds, exact=False)[1][0], expected)


@pytest.mark.parametrize("external", [True, False])
def test_a_model_is_replaced_by_what_was_read_from_it(target, external):
    """Its weights lie in the file that is replaced or removed, in another order; they can still be read afterwards."""
    save(model(), target, external=True)
    source = loaded(target)
    first = next(iter(source.graph.initializers))
    source.graph.initializers[first] = source.graph.initializers.pop(first)
    save(source, target, external=external)
    assert_holds(target, 0)
    save(source, target.with_name("copy.onnx"), external=True)
    assert_holds(target.with_name("copy.onnx"), 0)


def test_weights_are_streamed(tmp_path):
    """From one file to another, one weight at a time in memory, and none of the file stays mapped."""
    size, count = 2**20, 12
    proto = ir.to_proto(model())
    proto.graph.initializer.extend(numpy_helper.from_array(np.full(size, i, np.int8), f"v{i}") for i in range(count))
    nodes = [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"s{i}"], f"S{i}") for i in range(count)]
    proto.graph.node.extend(nodes)
    onnx.save(proto, tmp_path / "in.onnx", save_as_external_data=True, location="in.bin")
    source = loaded(tmp_path / "in.onnx")
    tracemalloc.start()
    save(source, tmp_path / "out.onnx", external=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * size
    weights = [value.const_value for value in source.graph.initializers.values()]
    assert [w.raw for w in weights if isinstance(w, ir.ExternalTensor)] == [None] * (2 + count)
    assert data_path(tmp_path / "out.onnx").stat().st_size > count * size


def put_pair(path: Path) -> None:
    save(model(0), path, external=True)


def put_alone(path: Path) -> None:
    save(model(0), path)


def put_old_style(path: Path) -> None:
    """As earlier versions did."""
    onnx.save(ir.to_proto(model(0)), path, save_as_external_data=True, location=OLD_STYLE, size_threshold=1024)


def put_pair_without_data(path: Path) -> None:
    save(model(0), path, external=True)
    data_path(path).unlink()


@contextmanager
def every_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, bytes]]]:
    """What is in a folder before and after each step that changes names in it, or waits for the disk."""
    states: list[dict[str, bytes]] = []

    def watched(step):
        def do(*arguments, **keywords):
            states.append(contents(folder))
            result = step(*arguments, **keywords)
            states.append(contents(folder))
            return result

        return do

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", watched(os.replace))
        patch.setattr(os, "fsync", watched(os.fsync))
        patch.setattr(Path, "unlink", watched(Path.unlink))
        yield states


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize("put", [put_pair, put_alone, put_old_style, put_pair_without_data])
def test_a_kill_at_any_moment_leaves_the_old_pair_or_no_model_or_the_new_pair(target, monkeypatch, put, external):
    put(target)
    old = contents(target.parent)
    with every_state(target.parent, monkeypatch) as states:
        save(model(1), target, external=external)
    new = contents(target.parent)
    assert new.keys() == ({"out.onnx", "out.onnx.data"} if external else {"out.onnx"})
    assert_holds(target, 1)
    assert len(states) >= 4
    for state in states:
        is_old = state.keys() == old.keys() and old.items() <= state.items()
        is_new = new.items() <= state.items()
        assert "out.onnx" not in state or is_old or is_new


def test_data_that_the_old_model_did_not_read_is_not_removed(target):
    save(model(), target)
    data_path(target).write_bytes(b"of somebody else")
    save(model(1), target)
    put_old_style(target)
    save(model(1), target)
    target.write_bytes(b"not a model")
    save(model(1), target)
    assert data_path(target).read_bytes() == b"of somebody else"


def test_old_style_data_of_other_models_stays(target):
    for name in ("out.onnx.bak.0123abcd.data", "out.onnx.0123abc.data", "other.onnx.0123abcd.data"):
        target.with_name(name).write_bytes(b"")
    before = contents(target.parent)
    save(model(), target)
    assert contents(target.parent).keys() == before.keys() | {"out.onnx"}


def full_disk(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write number `at` that waits for the disk fails."""
    calls = iter(range(at + 1))
    true_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if next(calls, None) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        true_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("put", [put_pair, put_alone, put_old_style])
def test_a_full_disk_leaves_the_old_pair(target, monkeypatch, put, at):
    """Model and data are both on disk before anything else changes."""
    put(target)
    old = contents(target.parent)
    full_disk(at, monkeypatch)
    with pytest.raises(RematError, match="No space left"):
        save(model(1), target, external=True)
    assert contents(target.parent) == old
    assert not list(target.parent.glob(".*"))


def test_a_full_disk_leaves_nothing(target, monkeypatch):
    full_disk(1, monkeypatch)
    with pytest.raises(RematError, match=r"out\.onnx\.data cannot be written: No space left"):
        save(model(1), target, external=True)
    assert list(target.parent.iterdir()) == []


def test_the_new_model_has_the_mode_of_the_old_one(target):
    save(model(0), target, external=True)
    target.chmod(0o640)
    data_path(target).chmod(0o640)
    save(model(1), target, external=True)
    assert target.stat().st_mode & 0o777 == 0o640
    assert data_path(target).stat().st_mode & 0o777 == 0o640


def test_where_nothing_can_be_written(tmp_path):
    for external in (False, True):
        with pytest.raises(ConfigError, match="nowhere"):
            save(model(), tmp_path / "nowhere" / "out.onnx", external=external)


def test_a_folder_in_the_place_of_the_data(target):
    put_alone(target)
    old = target.read_bytes()
    data_path(target).mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        save(model(1), target, external=True)
    assert target.read_bytes() == old
