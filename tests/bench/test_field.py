"""The field bench: packages get their own models back, feeds are kept as fed, and pages say what rows give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.compiling import ROOT
from bench.field import measure, places
from bench.field.feeds import files, largest, packed
from bench.field.places import Place
from bench.field.programs import PROGRAMS, Program
from bench.field.report import AS_IT_IS, BENCH, HALF, NAMES, SUMMARY, is_broken, table, way, with_table

MIB = 2**20
FIELD = ROOT / "bench" / "field"
DEFAULT = {"arena": True, "mode": "sequential", "given": "path", "intra_op_threads": 0}
A, B = NAMES[0], NAMES[1]


def seen(peak, answer="yes", **changed):
    """What was seen of a process that held 100 MiB before its first session."""
    sizes = {"before_bytes": 100 * MIB, "peak_bytes": peak * MIB, "model_seconds": 1.5}
    return {"answer": answer, **sizes, **changed}


def plain(program=A, peak=300, **options):
    kept = {"one": seen(peak), "options": DEFAULT | options, "takes_bytes": 250 * MIB, "machine": "here"}
    return {"program": program, "ask": AS_IT_IS, **kept}


def compiled(program=A, peak=200, before=300, ask=HALF, answer="yes", **changed):
    kept = {
        "use": "one",
        "exit_code": 0,
        "machine": "here",
        "verdict": "fits",
        "split_obstacle": None,
        "promises": [{"kept": True}],
    }
    kept |= {"before": seen(before), "seen": seen(peak, answer), "solution": {"overhead_percent": 2.0}}
    return {"program": program, "ask": ask, **kept, **changed}


def test_feeds_are_kept_as_fed(tmp_path):
    """A folder a run, as both programs write them; an input's name may have any characters."""
    for run, count in enumerate((3, 5)):
        (tmp_path / "runs" / str(run)).mkdir(parents=True)
        np.save(tmp_path / "runs" / str(run) / "in%2Fto%3A0.npy", np.arange(count))
        np.save(tmp_path / "runs" / str(run) / "rate.npy", np.int64(16000))
    kept = packed(tmp_path / "runs", tmp_path / "feeds")
    assert [path.name for path in kept] == ["0.npz", "1.npz"] == [path.name for path in files(tmp_path / "feeds")]
    assert largest(kept)["in/to:0"].tolist() == [0, 1, 2, 3, 4]
    assert largest(kept)["rate"] == 16000


def test_sizes_are_typed_as_the_compiler_proposes(tmp_path):
    """One file of feeds binds the sizes itself; for several the compiler says which ranges to give."""
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, "a b"]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "net", infos[:1], infos[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net.onnx")
    feeds = []
    for size in (96, 32):
        feeds.append(tmp_path / f"{size}.npz")
        np.savez(feeds[-1], x=np.zeros((1, size), np.float32))
    assert measure.sizes(tmp_path / "net.onnx", feeds[:1], tmp_path / "out.onnx") == ["--inputs", str(feeds[0])]
    assert measure.sizes(tmp_path / "net.onnx", feeds, tmp_path / "out.onnx") == ["--dim", "a b=32..96:32"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder of modules, and a place for what is built."""
    for name in ("MODULES", "ORIGINALS", "SCRATCH"):
        monkeypatch.setattr(places, name, tmp_path / name)
    (tmp_path / "MODULES" / "pack").mkdir(parents=True)
    return tmp_path / "MODULES" / "pack"


def test_a_package_has_another_model_only_meanwhile(package, tmp_path):
    own, made = package / "net.onnx", tmp_path / "made.onnx"
    own.write_bytes(b"own")
    made.write_bytes(b"made")
    made.with_name("made.onnx.data").write_bytes(b"weights")
    place = Place.of(Program("net", "pack", "MIT", "pack/net.onnx", "", is_node=True))
    with place.holding(made):
        assert own.read_bytes() == b"made"
        assert own.with_name("net.onnx.data").read_bytes() == b"weights"
    assert own.read_bytes() == b"own"
    assert not own.with_name("net.onnx.data").exists()
    own.write_bytes(b"left behind by a run that was killed")
    with place.holding(None):
        assert own.read_bytes() == b"own"
    assert place.original.read_bytes() == b"own"


def test_a_model_in_pieces_is_joined_and_laid_as_one(package, tmp_path):
    listed = package / "resources.json"
    listed.write_text(json.dumps({"/net": {"size": 6, "mime": "x", "chunks": [{"hash": "b"}, {"hash": "a"}]}}))
    (package / "a").write_bytes(b"del")
    (package / "b").write_bytes(b"mo-")
    before = listed.read_text()
    place = Place.of(Program("net", "pack", "MIT", "pack/resources.json", "", is_node=True, entry="/net"))
    assert place.original.read_bytes() == b"mo-del"
    made = tmp_path / "made.onnx"
    made.write_bytes(b"made")
    with place.holding(made):
        entry = json.loads(listed.read_text())["/net"]
        assert entry["size"] == 4
        assert [(package / piece["hash"]).read_bytes() for piece in entry["chunks"]] == [b"made"]
    assert listed.read_text() == before


def test_axes_that_a_program_opens_are_open_in_what_is_compiled(package):
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [10, 3])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [10, 3])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "net", [info], [other])
    onnx.save(onnx.helper.make_model(graph), package / "net.onnx")
    program = Program("net", "pack", "MIT", "pack/net.onnx", "", is_node=True, opened={"x": ("N", 3)})
    place = Place.of(program)
    (read,) = onnx.load(place.compiled).graph.input
    assert [axis.dim_param or axis.dim_value for axis in read.type.tensor_type.shape.dim] == ["N", 3]
    (kept,) = onnx.load(place.original).graph.input
    assert kept.type.tensor_type.shape.dim[0].dim_value == 10


def test_a_package_that_is_not_there_has_no_place(package):
    assert Place.of(Program("net", "pack", "MIT", "pack/other.onnx", "", is_node=True)) is None


def test_the_page_says_what_rows_give():
    rows = [plain(), plain(B, 150, arena=False), compiled(), compiled(B, 140, 150, answer="no")]
    rows += [compiled(B, ask="min", exit_code=4, verdict="no plan", split_obstacle="a reason", seen={})]
    text = "\n".join(table(rows))
    assert "2 models; the processes of 1 take more than 100 MiB for them" in text
    assert "compiled at 50 %: 2 of 2" in text
    assert "in a program whose process takes at least 30% less: 1 of 2" in text
    assert "the same answer of the program: 1 of 2 rows" in text
    assert "promises that were broken, exit 5 among them: none" in text
    assert "- default: 50% less in 1 rows" in text
    assert "- arena off: 20% less in 1 rows" in text
    assert f"| {A} | 50% | one | 200 | 100 | 50% | 300 | 200 | 1.5 | 1.5 | 2.00 | same |" in text
    assert f"| {B} | 50% | one | 50 | 40 | 20% | 150 | 140 | 1.5 | 1.5 | 2.00 | **OTHER** |" in text
    assert f"- {B}, min: no plan found: no plan; a reason" in text


def test_what_reports_advise_for_sessions_without_an_arena_is_told():
    rows = [plain(arena=False), compiled(peak=250, advised=seen(150))]
    text = "\n".join(table(rows))
    assert "- arena off: 25% less in 1 rows" in text
    assert "as the compiler's report says: 75% less in 1 rows" in text


def test_a_program_that_fails_with_the_new_file_is_told():
    rows = [plain(), compiled(seen={"failed": "Traceback\nValueError: it cannot be read"})]
    assert f"- {A}, 50%: the program fails: ValueError: it cannot be read" in table(rows)


def test_broken_promises_are_seen():
    assert not is_broken(compiled())
    assert is_broken(compiled(exit_code=5, promises=None))
    assert is_broken(compiled(promises=[{"kept": True}, {"kept": False}]))


def test_ways_to_call_are_told():
    assert way(DEFAULT) == "default"
    other = {"arena": False, "mode": "parallel", "given": "bytes", "intra_op_threads": 1}
    assert way(other) == "arena off, parallel, model given as bytes, 1 thread"


def test_the_summary_has_the_best_row_of_each_large_process():
    rows = [plain(), plain(B, 150), compiled(), compiled(peak=180, ask="min"), compiled(B, 120, 150)]
    text = with_table(SUMMARY.read_text(), rows)
    assert with_table(text, rows) == text
    assert f"| {A} | {PROGRAMS[0].does} | 200 MiB | 80 MiB | +2 % | default |" in text
    assert f"| {B} |" not in text


def test_page_and_summary_are_those_of_the_rows():
    if BENCH.page_path.exists():
        assert BENCH.table(BENCH.rows()) == BENCH.page_path.read_text()
        assert with_table(SUMMARY.read_text(), BENCH.rows()) == SUMMARY.read_text()


def test_each_program_can_be_driven():
    drives = {False: (FIELD / "drive.py").read_text(), True: (FIELD / "drive.mjs").read_text()}
    missing = [
        each.name for each in PROGRAMS if not re.search(rf"^ +['\"]{each.name}['\"]: ", drives[each.is_node], re.M)
    ]
    assert not missing
    listed = (FIELD / "packages.txt").read_text()
    packages = {each.package for each in PROGRAMS if not each.is_node}
    assert packages == set(re.findall(r"^([a-z0-9-]+)==", listed, re.M))
    node = json.loads(Path(FIELD / "package.json").read_text())["dependencies"]
    assert {each.package for each in PROGRAMS if each.is_node} <= set(node)


def test_made_inputs_are_the_same_each_time():
    inputs = pytest.importorskip("bench.field.inputs")
    assert np.array_equal(inputs.sound(0.5), inputs.sound(0.5))
    assert np.abs(inputs.sound(0.5)).max() <= 0.5
    assert np.array_equal(inputs.page(200, 100), inputs.page(200, 100))
    assert inputs.page(200, 100).min() < 128
    assert inputs.line(300).shape == (48, 300, 3)
    assert inputs.files(5) == inputs.files(5)
