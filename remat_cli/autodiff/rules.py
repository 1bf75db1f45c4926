"""The table of gradient rules, one row per op, and as changed by what the user chose and brought along."""

import importlib
import sys
from pathlib import Path
from typing import Any

from remat_cli.autodiff import (
    rules_activation,
    rules_conv,
    rules_layer_norm,
    rules_norm,
    rules_pointwise,
    rules_pool,
    rules_product,
    rules_random,
    rules_reduce,
    rules_resize,
    rules_shape,
)
from remat_cli.autodiff.rules_norm import BATCH_NORM_FROZEN
from remat_cli.autodiff.tape import FIRST, Rule, Rules, WrittenForm
from remat_cli.base.errors import ConfigError
from remat_cli.core.values.training import TrainOptions

RULES: Rules = {
    **rules_activation.RULES,
    **rules_conv.RULES,
    **rules_pointwise.RULES,
    **rules_pool.RULES,
    **rules_reduce.RULES,
    **rules_random.RULES,
    **rules_resize.RULES,
    **rules_shape.RULES,
    **rules_layer_norm.RULES,
    **rules_norm.RULES,
    **rules_product.RULES,
}


# What they make is a constant for the gradient, even if it depends on something trained. A rule given for one of them
# (straight through Round, say) counts instead.
ZERO_GRADIENT = frozenset(
    {
        *("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN"),
        *("And", "Not", "Or", "Xor", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
        *("Ceil", "Floor", "Round", "Sign", "Hardmax"),
        *("Constant", "ConstantOfShape", "EyeLike", "OneHot", "Range"),
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)


def chosen_rules(rules: Rules, options: TrainOptions) -> dict[str, Rule]:
    """The table with the user's own rules and choices worked in.

    Raises:
        ConfigError: a rule that the user named cannot be loaded.
    """
    chosen = dict(rules)
    if options.batch_norm == "frozen":
        chosen["BatchNormalization"] = BATCH_NORM_FROZEN
    if not options.dropout:
        chosen["Dropout"] = PASS
    for op_type, where in options.gradient_rules.items():
        module, _, name = where.partition(":")
        if not module or not name:
            raise ConfigError(f"gradient rule '{where}' of {op_type} is not understood: write module:function")
        here = str(Path.cwd())
        sys.path.insert(0, here)  # modules beside the user are found too
        try:
            found: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"gradient rule '{where}' of {op_type} cannot be loaded: {error}") from None
        finally:
            sys.path.remove(here)
        if not isinstance(found, Rule) and not callable(found):
            raise ConfigError(f"gradient rule '{where}' of {op_type} is no function, but {found!r}")
        chosen[op_type] = found if isinstance(found, Rule) else Rule(found)
    return chosen


PASS = Rule(RULES["Identity"].gradient, lambda tape, call: WrittenForm((tape.op("Identity", call.input(0)),)), FIRST)
