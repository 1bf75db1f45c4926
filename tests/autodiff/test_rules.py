"""Every rule of the table against finite differences: each finds its case in the test files beside this one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from remat_cli.autodiff.reverse import Recorder, rule_name
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import Call, Tape
from remat_cli.onnx_io.read.op_facts import facts_of
from tests.autodiff.rule_case import Case, check


def written_cases() -> Iterator[Case]:
    """All cases in the `CASES` of the files `test_rules_*.py`."""
    for path in sorted(Path(__file__).parent.glob("test_rules_*.py")):
        found = importlib.import_module(f"tests.autodiff.{path.stem}").CASES
        yield from found.values() if isinstance(found, dict) else found


CASES: dict[str, Case] = {}
for written in written_cases():
    CASES.setdefault(rule_name(written.domain, written.op_type), written)


@pytest.mark.parametrize("op", RULES)
def test_every_rule_keeps_its_word(op: str) -> None:
    assert op in CASES, f"the gradient rule of {op} has no case: add one to the CASES of a test_rules_*.py"
    if RULES[op].needs == frozenset():
        check_stops(CASES[op])
    else:
        check(CASES[op])


def check_stops(case: Case) -> None:
    """No gradient flows through the op, and what it draws may be drawn again."""
    tape = Tape()
    values = [
        ir.Value(name=f"x{place}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        for place, array in case.arrays.items()
    ]
    recorder = Recorder(tape, RULES, active=set(values))
    attributes = {a.name: a for a in ir.convenience.convert_attributes(dict(case.attributes))}
    result = recorder.run(Call("op", case.op_type, tuple(values), attributes), ["y"])[0]
    assert result not in recorder.active
    assert not facts_of(tape.nodes[-1]).why_not_repeatable
