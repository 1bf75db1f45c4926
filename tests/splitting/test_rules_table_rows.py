"""Slicing rules of scalers, norms and trees on rows of features."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remat_cli.onnx_io.read.op_facts import ML
from remat_cli.splitting.rules.table_rows import LEAST_ROWS
from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.op_cases import case_of, classifier, real, regressor
from tests.splitting.sliced_op import OneOp, check_slices

ROWS = 1000
SLABS = [Slab(0, start, start + LEAST_ROWS + more) for start, more in ((0, 0), (1, 0), (77, 66), (500, 256), (900, 5))]


@pytest.mark.parametrize("op_type", ["Scaler", "Normalizer", "Binarizer", "Imputer"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_rows_stand_alone_and_features_do_not(op_type: str, threads: int) -> None:
    case = case_of(ML, op_type)
    op = OneOp(op_type, (real(ROWS, 6),), case.attributes, (), ML, 1)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_refused


@pytest.mark.parametrize("norm", ["L1", "L2", "MAX"])
def test_every_norm_is_of_a_row(norm: str) -> None:
    assert check_slices(OneOp("Normalizer", (real(ROWS, 6),), {"norm": norm}, (), ML, 1), 0, threads=2).all_exact


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 12, 100, 300])
def test_long_parts_of_rows_get_the_same_sums_of_trees(count: int, threads: int) -> None:
    for op in (regressor(count, ROWS), classifier(count, 3, ROWS), classifier(count, 2, ROWS)):
        assert check_slices(op, 0, SLABS, threads).all_exact


@pytest.mark.parametrize("op_type", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_short_parts_and_short_wholes_are_refused(op_type: str) -> None:
    """There trees may be added up in other groups."""
    made = {"TreeEnsembleRegressor": regressor(12, ROWS), "TreeEnsembleClassifier": classifier(12, 3, ROWS)}[op_type]
    assert check_slices(made, 0, [Slab(0, 0, LEAST_ROWS - 1)]).all_refused
    short = OneOp(op_type, (real(LEAST_ROWS - 1, 6),), made.attributes, (), ML, 1, made.outputs)
    assert check_slices(short, 0, [Slab(0, 0, LEAST_ROWS - 2), Slab(0, 9, 40)]).all_refused
    assert check_slices(short, 0, [Slab(0, 0, LEAST_ROWS - 1)]).all_exact  # all of it is no part


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skip", [0, 2])
def test_words_are_counted_in_each_line_alone(mode: str, skip: int) -> None:
    case = case_of("", "TfIdfVectorizer")
    op = replace(case, attributes=case.attributes | {"mode": mode, "max_skip_count": skip})
    assert check_slices(op, 0, threads=2).all_exact
    assert check_slices(op, 1, threads=2).all_refused
    assert check_slices(replace(op, inputs=(op.inputs[0][0],)), 0).all_refused  # one line: its words
