"""Every rule of the table cuts something, and what it cuts has the bits of the whole, or is close where it may be."""

from __future__ import annotations

import pytest

from remat_cli.splitting.rules.table import RULES
from tests.splitting.op_cases import case_of
from tests.splitting.sliced_op import check_all_axes


@pytest.mark.parametrize(("domain", "op_type"), RULES)
def test_every_rule_keeps_its_word(domain: str, op_type: str) -> None:
    found = check_all_axes(case_of(domain, op_type))
    is_close = any(len(refused) < len(outcome.exact + outcome.refused) for outcome, refused in found)
    assert any(outcome.exact for outcome, _ in found) or is_close
