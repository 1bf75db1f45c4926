"""Every rule of the table cuts something, and what it cuts has the bits of the whole, or is close where it may be."""

from __future__ import annotations

import pytest

from remat_cli.splitting.rules.table import RULES
from tests.splitting.op_cases import case_of
from tests.splitting.sliced_op import check_close, check_slices, run


@pytest.mark.parametrize(("domain", "op_type"), RULES)
def test_every_rule_keeps_its_word(domain: str, op_type: str) -> None:
    op = case_of(domain, op_type)
    axes = range(next(output.ndim for output in run(op) if output is not None))
    outcomes = [check_slices(op, axis) for axis in axes]
    refused = [check_close(op, axis) for axis in axes]
    is_close = any(len(left) < len(o.exact + o.refused) for left, o in zip(refused, outcomes, strict=True))
    assert any(outcome.exact for outcome in outcomes) or is_close
