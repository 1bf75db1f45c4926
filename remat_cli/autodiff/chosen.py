"""The rules of one training step: the table, as changed by what the user chose and brought along."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Form, Grads, Rule
from remat_cli.autodiff.rules_norm import BATCH_NORM_FROZEN
from remat_cli.autodiff.tape import Tape
from remat_cli.base.errors import ConfigError
from remat_cli.core.training import TrainOptions


def chosen_rules(rules: Mapping[str, Rule], options: TrainOptions) -> dict[str, Rule]:
    """The table with the user's own rules and choices worked in.

    Raises:
        ConfigError: a rule that the user named cannot be loaded.
    """
    chosen = dict(rules)
    if options.batch_norm == "frozen":
        chosen["BatchNormalization"] = BATCH_NORM_FROZEN
    if not options.dropout:
        chosen["Dropout"] = PASS
    return chosen | {op_type: _load(op_type, where) for op_type, where in options.gradient_rules.items()}


def _load(op_type: str, where: str) -> Rule:
    """A rule or a gradient function from `module:name`; modules beside the user are found too."""
    module, _, name = where.partition(":")
    if not module or not name:
        raise ConfigError(f"gradient rule '{where}' of {op_type} is not understood: write module:function")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"gradient rule '{where}' of {op_type} cannot be loaded: {error}") from None
    finally:
        sys.path.remove(here)
    if not isinstance(found, Rule) and not callable(found):
        raise ConfigError(f"gradient rule '{where}' of {op_type} is no function, but {found!r}")
    return found if isinstance(found, Rule) else Rule(found)


def _pass_form(tape: Tape, call: Call) -> Form:
    return Form((tape.op("Identity", call.input(0)),))


def _pass(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    del tape, call
    return {0: grads[0]} if grads[0] is not None else {}


PASS = Rule(_pass, _pass_form, frozenset({0}))
