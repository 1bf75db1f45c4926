"""Gradients of Einsum against finite differences and torch."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.autodiff.rules import RULES
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import Case, build, check, check_with_torch

EQUATIONS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij, jk", [(2, 3), (3, 4)]),
    ("ba,cb", [(2, 3), (4, 2)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
    ("ij,kl->ki", [(2, 3), (4, 5)]),
    ("i,i->", [(4,), (4,)]),
    (",i->i", [(), (4,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("ij->ji", [(2, 3)]),
    ("ij->ij", [(2, 3)]),
    ("ijk->j", [(2, 3, 4)]),
    ("ij->", [(2, 3)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,jk->...ik", [(2, 2, 3, 4), (4, 5)]),
    ("...i->i...", [(2, 3, 4)]),
    ("i...", [(2, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ij,ij->ij", [(2, 3), (1, 3)]),
]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


CASES = [Case("Einsum", [draw(*shape) for shape in shapes], {"equation": text}) for text, shapes in EQUATIONS]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[equation for equation, _ in EQUATIONS])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    torch = pytest.importorskip("torch")
    case = Case("Einsum", [draw(*shape) for shape in shapes], {"equation": equation})
    check(case)
    check_with_torch(case, lambda *operands: torch.einsum(equation, *operands))


def test_a_label_that_an_operand_has_twice_is_refused() -> None:
    with pytest.raises(ModelError, match="twice"):
        build(Case("Einsum", [draw(3, 3)], {"equation": "ii->i"}), np.float32, RULES, gradients=True)
