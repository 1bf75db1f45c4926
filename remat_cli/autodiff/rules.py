"""The table of gradient rules: one row per op."""

from __future__ import annotations

from collections.abc import Mapping

from remat_cli.autodiff import rules_pointwise
from remat_cli.autodiff.call import Rule

RULES: Mapping[str, Rule] = {
    **rules_pointwise.RULES,
}
