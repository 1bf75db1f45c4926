from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from bench import callers
from bench.callers import BENCH, DROPPED, FILES, PROMISED, WAYS, is_kept, main, model_rows, table
from bench.callers_measure import CallingWay
from bench.compiling import ROOT
from remat_cli.runtime.observe.resident import CLEAR_REFS

MIB = 2**20
SAMPLES = ROOT / "sample_models"
NAMES = {way.name: way for way in WAYS}
needs_marks = pytest.mark.skipif(not CLEAR_REFS.exists(), reason="this system does not reset a high-water mark")


def row(way="held", file="compiled", runs=(9, 10, 10), model="net", **changed):
    """A row of a model that was promised 10 MiB, with outputs of 2 MiB."""
    sizes = {"promised_bytes": 10 * MIB, "output_bytes": 2 * MIB, "load_bytes": 3 * MIB}
    known = {"model": model, "file": file, "way": way, "ratio": max(runs) / 10, "outputs_identical": True}
    return {**known, **sizes, "run_bytes": [int(run * MIB) for run in runs], **changed}


def both(way="held", runs=(9, 10, 10), **changed):
    return [row(way, file, [run * (1 + (file == "original")) for run in runs], **changed) for file in FILES]


def sentence(rows, way):
    (found,) = (line for line in table(rows) if line.startswith(f"- **{NAMES[way].title}**"))
    return found


def test_room_for_noise():
    assert is_kept(row(runs=(1, 12.3)))
    assert not is_kept(row(runs=(12.31, 1)))


def test_what_is_beyond_the_promise_is_bold():
    rows = [*both(), *both(model="other"), *both("held_3", (9, 13)), *both("held_3", (9, 12), model="other")]
    lines = table(rows)
    assert "| original → compiled | net | other |" in lines
    assert f"| {PROMISED.title} | 20.0 → 10.0 | 20.0 → 10.0 |" in lines
    assert f"| {NAMES['held_3'].title} | 26.0 → **13.0** | 24.0 → 12.0 |" in lines
    assert f"| {NAMES['sessions'].title} |  |  |" in lines
    assert "| *promised* | 10.0 | 10.0 |" in lines
    assert "| *while loading, compiled* | 3.0 | 3.0 |" in lines
    assert "Beyond the promise in net. The original takes 2.0 x as much." in sentence(rows, "held_3")
    assert "Within the promise in every model" in sentence(rows, "held")


def test_sentences_say_how_much_more():
    rows = [*both(), *both("dropped", (8, 8)), *both("held_3", (9, 14)), *both("held_all", (9, 26))]
    rows += [*both("buffers", (8, 10)), *both("sessions", (18, 19.5))]
    assert "1.00 x what was promised" in sentence(rows, "held")
    assert "0.80 x what it takes the promised way, 2.0 MiB less" in sentence(rows, "dropped")
    assert "each further generation adds 1.0 x the size" in sentence(rows, "held_3")
    assert "each further generation adds 2.0 x the size" in sentence(rows, "held_all")
    assert "1.25 x what it takes where they are dropped, 2.0 MiB more" in sentence(rows, "buffers")
    assert "1.95 x what it takes the promised way, 9.5 MiB more" in sentence(rows, "sessions")
    rows += [*both(model="other"), *both("sessions", (12, 12), model="other")]
    assert "1.20 to 1.95 x what it takes" in sentence(rows, "sessions")


def test_what_only_many_runs_show_and_wrong_bits_are_told():
    rows = [*both(runs=[9] * 6 + [10.5]), *both("dropped", outputs_identical=False)]
    text = "\n".join(table(rows))
    assert "4 rows, the same bits as a plain run of the original in 2." in text
    assert f"1 MiB more after run 6 than until then: {PROMISED.title}: net." in text
    assert "than until then: none." in "\n".join(table(both()))
    other = row("dropped", load_bytes=4 * MIB), row("sessions", load_bytes=7 * MIB)
    assert "took up to 1.0 MiB more in one process" in "\n".join(table([*both(), *other]))


def test_a_way_without_all_its_rows_has_no_sentence():
    text = "\n".join(table([*both(), row("dropped", "original"), *both("buffers")]))
    assert DROPPED.title not in text.partition("| original")[0]
    assert NAMES["buffers"].title not in text.partition("| original")[0]


def test_further_generations():
    assert {name: way.further for name, way in NAMES.items() if way.further} == {
        "dropped": -1,
        "held_3": 2,
        "held_all": 4,
        "buffers": -1,
    }


def test_the_table_is_written_and_rows_that_are_there_are_not_measured_again(tmp_path, monkeypatch):
    bench = dataclasses.replace(callers.BENCH, folder=tmp_path)
    monkeypatch.setattr(callers, "BENCH", bench)
    rows = [each for way in NAMES for each in both(way, model="unet")]
    bench.rows_path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    done = CliRunner().invoke(main, ["--only", "unet"])
    assert (done.exit_code, done.output) == (0, "")
    assert CliRunner().invoke(main, ["--write"]).exit_code == 0
    assert bench.page_path.read_text(encoding="utf-8") == "\n".join(table(rows)) + "\n"


@pytest.mark.skipif(not BENCH.page_path.exists(), reason="the bench has not been run")
def test_the_page_is_what_the_rows_say():
    assert BENCH.page_path.read_text(encoding="utf-8") == BENCH.table(BENCH.rows())


@pytest.mark.slow  # `make bench-callers` measures it; what is told of it is seen above
@needs_marks
def test_two_threads_hold_more_than_buffers_of_the_caller():
    ways = [CallingWay(name, name, "", runs=3, **how) for name, how in HOW.items()]
    rows = list(model_rows("chain", SAMPLES / "chain.onnx", [(file, way) for way in ways for file in FILES]))
    assert [(each["way"], each["file"]) for each in rows] == [(way, file) for way in HOW for file in FILES]
    assert all(each["outputs_identical"] for each in rows)
    assert all(len(each["run_bytes"]) == 3 for each in rows)
    old_buffers, new_buffers, old_threads, new_threads = (max(each["run_bytes"]) for each in rows)
    assert new_buffers < old_buffers
    assert new_buffers < new_threads < old_threads
    assert rows[1]["buffer_bytes"] == rows[1]["output_bytes"] > 0
    assert rows[3]["buffer_bytes"] == 0


HOW = {"buffers": {"held": 0, "binding": "buffers"}, "threads": {"threads": 2}}
