"""Which weights of a model are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.reverse import rule_name
from remat_cli.autodiff.tape import Rules
from remat_cli.base.errors import ModelError
from remat_cli.base.present import present
from remat_cli.onnx_io.read.op_facts import has_body

STATISTICS = frozenset({3, 4})  # inputs of BatchNormalization: running mean and variance
QUANTISED = frozenset({"DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"})
MASK_ELEMENTS = 2**20  # larger tables are not looked into


@dataclass(frozen=True)
class Weights:
    """Names of initialisers: `trained` get gradients, `statistics` are kept up to date, `frozen` stay as they are."""

    trained: frozenset[str]
    statistics: frozenset[str]
    frozen: frozenset[str]

    def without_statistics(self) -> Weights:
        """The same weights, where running statistics stay as they are."""
        return replace(self, statistics=frozenset(), frozen=self.frozen | self.statistics)


@dataclass(frozen=True)
class ParameterChoice:
    """Patterns of weights to train (none: all that look like it) and to leave; names of what were `Constant` nodes."""

    trainable: Sequence[str]
    frozen: Sequence[str]
    constants: frozenset[str] = frozenset()


def choose_weights(graph: ir.Graph, rules: Rules, choice: ParameterChoice) -> Weights:
    """Real initialisers of more than one element that a gradient can reach, unless patterns say otherwise.

    Raises:
        ModelError: a pattern matches no weight, or nothing is left to train.
    """
    reached, statistics = _readers(graph, rules)
    held = ((name, value, value.const_value) for name, value in graph.initializers.items())
    real = {name: value for name, value, data in held if data is not None and data.dtype.is_floating_point()}
    for pattern in (*choice.trainable, *choice.frozen):
        if not any(fnmatchcase(name, pattern) for name in real):
            some = ", ".join(list(real)[:5])
            raise ModelError(f"no weight matches '{pattern}'; there are {len(real)}, such as: {some}")
    wanted = {name for name in real if _matches(name, choice.trainable)} or _likely(real, reached, choice.constants)
    chosen = {name for name in wanted & reached if not _matches(name, choice.frozen)}
    if not chosen:
        why = f"of {len(real)} weights of real numbers none is left; name some with --trainable PATTERN"
        if bodies := sorted({node.op_type for node in graph if has_body(node)}):
            kinds = ", ".join(bodies)
            why = f"the weights are read in the bodies of {kinds}, and gradients through those cannot be written"
        elif any(node.op_type in QUANTISED for node in graph):
            why = "the model is quantised, and integers cannot be trained: train it first, quantise it then"
        raise ModelError(f"nothing to train: {why}")
    kept = frozenset(name for name in statistics if name in real) - chosen
    lone = frozenset(name for name in choice.constants if name in real and _size(real[name]) < 2)
    return Weights(frozenset(chosen), kept, frozenset(real) - chosen - kept - lone)


def _likely(real: Mapping[str, ir.Value], reached: set[str], constants: frozenset[str]) -> set[str]:
    """Weights that look trained, no lone numbers or masks; no `Constant` nodes, unless they are most of the numbers."""
    found = set()
    for name in real.keys() & reached:
        tensor = present(real[name].const_value, f"weight '{name}'")
        is_small = 2 < tensor.size <= MASK_ELEMENTS
        is_mask = is_small and len(np.unique(tensor.numpy())) == 2  # which holds two different values only
        if tensor.size > 1 and not is_mask:
            found.add(name)
    apart = found - constants
    sizes = {name: _size(real[name]) for name in found}
    return apart if 2 * sum(sizes[name] for name in apart) >= sum(sizes.values()) else found


def _readers(graph: ir.Graph, rules: Rules) -> tuple[set[str], set[str]]:
    """Names of values that a gradient reaches directly, and of running statistics."""
    reached: set[str] = set()
    statistics: set[str] = set()
    for node in graph:
        rule = rules.get(rule_name(node.domain, node.op_type))
        for place, value in enumerate(node.inputs):
            if value is None or value.name is None:
                continue
            if node.op_type == "BatchNormalization" and place in STATISTICS:
                statistics.add(value.name)
            elif rule is None or rule.needs is None or place in rule.needs:
                reached.add(value.name)
    return reached, statistics


def _size(value: ir.Value) -> int:
    return 0 if value.const_value is None else int(value.const_value.size)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
