"""The table of gradient rules: one row per op."""

from __future__ import annotations

from collections.abc import Mapping

from remat_cli.autodiff import (
    rules_activation,
    rules_conv,
    rules_einsum,
    rules_gather,
    rules_layer_norm,
    rules_lrn,
    rules_norm,
    rules_pointwise,
    rules_pool,
    rules_product,
    rules_random,
    rules_reduce,
    rules_resize,
    rules_shape,
    rules_softmax,
)
from remat_cli.autodiff.call import Rule
from remat_cli.autodiff.no_gradient import ZERO_GRADIENT

__all__ = ["RULES", "ZERO_GRADIENT"]

RULES: Mapping[str, Rule] = {
    **rules_activation.RULES,
    **rules_conv.RULES,
    **rules_pointwise.RULES,
    **rules_pool.RULES,
    **rules_reduce.RULES,
    **rules_gather.RULES,
    **rules_random.RULES,
    **rules_resize.RULES,
    **rules_shape.RULES,
    **rules_einsum.RULES,
    **rules_layer_norm.RULES,
    **rules_lrn.RULES,
    **rules_norm.RULES,
    **rules_product.RULES,
    **rules_softmax.RULES,
}
