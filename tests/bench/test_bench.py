from __future__ import annotations

import dataclasses
import json

import click
import pytest

from bench.any_size import BENCH as ANY_SIZE
from bench.bench import Bench, Case, Shard, of_lines, read_rows
from bench.callers import BENCH as CALLERS
from bench.devices import BENCH as DEVICES
from bench.gpu import BENCH as CUDA
from bench.loading import BENCH as LOADING
from bench.max_tensor import BENCH as MAX_TENSOR
from bench.models import BENCH as MODELS
from bench.opsets import BENCH as OPSETS
from bench.paging_process import BENCH as PAGING_PROCESS
from bench.paging_simulated import BENCH as PAGING_SIMULATED
from bench.pipelines import BENCH as PIPELINES
from bench.process import BENCH as PROCESS
from bench.real.report import BENCH as REAL
from bench.sessions import BENCH as SESSIONS
from bench.training import BENCH as TRAINING
from bench.training_curves import BENCH as TRAINING_CURVES
from bench.training_losses import BENCH as TRAINING_LOSSES
from bench.webgpu import BENCH as WEBGPU
from bench.weight_paging import BENCH as WEIGHT_PAGING

PAGES = (
    *(ANY_SIZE, CALLERS, CUDA, DEVICES, LOADING, MAX_TENSOR, MODELS, OPSETS, PAGING_PROCESS, PAGING_SIMULATED),
    *(PIPELINES, PROCESS, REAL, SESSIONS, TRAINING, TRAINING_CURVES, TRAINING_LOSSES, WEBGPU, WEIGHT_PAGING),
)
REWRITTEN = (DEVICES, MAX_TENSOR, MODELS, OPSETS, PAGING_PROCESS, TRAINING, TRAINING_CURVES, WEBGPU, WEIGHT_PAGING)


@pytest.fixture
def bench(tmp_path):
    """Rows of squares, told apart by a letter and a number."""
    lines = of_lines(lambda rows: [f"{row['letter']}{row['number']} {row['square']}" for row in rows])
    return Bench("squares", ("letter", "number"), lines, lambda row: f"told {row['square']}", folder=tmp_path / "rows")


CASES = [Case(letter, [(letter, number) for number in (1, 2)]) for letter in "ab"]


def squares(letter, keys):
    """A row of each key."""
    return ({"square": number**2, "number": number, "letter": letter} for _, number in keys)


def with_digits(letter, keys):
    """Rows that say who measured them."""
    return ({**row, "by": "digits"} for row in squares(letter, keys))


def test_rows_that_are_there_are_not_measured_again(bench, capsys):
    assert bench.rows() == []
    assert len(bench.run(CASES[:1], squares)) == 2
    asked = []

    def measure(letter, keys):
        asked.append((letter, list(keys)))
        return squares(letter, keys)

    wanted = [Case("a", [("a", number) for number in (1, 2, 3)]), CASES[1]]
    fresh = bench.run(wanted, measure)
    assert asked == [("a", [("a", 3)]), ("b", [("b", 1), ("b", 2)])]
    assert [bench.key_of(row) for row in fresh] == [("a", 3), ("b", 1), ("b", 2)]
    assert [bench.key_of(row) for row in bench.rows()] == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    assert bench.rows_path.read_text().splitlines()[0] == '{"letter": "a", "number": 1, "square": 1}'
    assert capsys.readouterr().err.splitlines() == [f"told {square}" for square in (1, 4, 9, 1, 4)]


def test_a_row_is_on_the_disk_before_the_next_is_measured(bench):
    def measure(letter, keys):
        for row in squares(letter, keys):
            if row["number"] == 2:
                raise KeyboardInterrupt
            yield row

    with pytest.raises(KeyboardInterrupt):
        bench.run(CASES, measure)
    assert [bench.key_of(row) for row in bench.rows()] == [("a", 1)]
    assert len(bench.run(CASES, squares)) == 3


def test_rows_that_are_measured_again_stand_in_place_of_the_old_ones(bench):
    bench.run(CASES, squares)
    bench.run(CASES[:1], with_digits, again=True)
    assert [(*bench.key_of(row), row.get("by")) for row in bench.rows()] == [
        *(("a", 1, "digits"), ("a", 2, "digits")),
        *(("b", 1, None), ("b", 2, None)),
    ]


def test_rows_that_have_a_place_are_kept_in_order(bench):
    placed = dataclasses.replace(bench, place=lambda row: (-row["number"], row["letter"]))
    placed.run(reversed(CASES), squares)
    assert [placed.key_of(row) for row in placed.rows()] == [("a", 2), ("b", 2), ("a", 1), ("b", 1)]


def test_a_part_that_is_printed_leaves_the_files_alone(bench, capsys):
    bench.run(CASES, squares)
    bench.write()
    before = bench.rows_path.read_text(), bench.page_path.read_text()
    bench.renew(CASES[1:], with_digits, keeps=False)
    assert capsys.readouterr().out == "b1 1\nb2 4\n\n"
    assert (bench.rows_path.read_text(), bench.page_path.read_text()) == before
    bench.renew(CASES[1:], with_digits, keeps=True)
    assert bench.page_path.read_text() == "a1 1\na2 4\nb1 1\nb2 4\n"
    assert bench.rows()[-1]["by"] == "digits"


def test_shards_share_all_cases_whatever_is_there_already(bench):
    many = [Case(letter, [(letter, 1)]) for letter in "abcdefg"]
    parts = [bench.run(many, squares, shard=Shard.parsed(f"{number}/3")) for number in (1, 2, 3)]
    assert [[row["letter"] for row in part] for part in parts] == [list("adg"), list("be"), list("cf")]


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b", ""])
def test_a_shard_is_a_number_of_a_count(text):
    with pytest.raises(click.BadParameter, match="such as 2/8"):
        Shard.parsed(text)


def test_pages_are_what_committed_rows_say():
    found = {bench.name: bench.page_path.read_text() == bench.table(bench.rows()) for bench in PAGES}
    assert found == dict.fromkeys(found, True)


def test_rows_that_are_written_again_stay_as_they_are(tmp_path):
    for bench in REWRITTEN:
        copy = dataclasses.replace(bench, folder=tmp_path)
        copy.replace(bench.merged(bench.rows(), ()))
        assert copy.rows_path.read_text() == bench.rows_path.read_text(), bench.name


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none.jsonl") == []
    (tmp_path / "one.jsonl").write_text(json.dumps({"a": 1}) + "\n")
    assert read_rows(tmp_path / "one.jsonl") == [{"a": 1}]
